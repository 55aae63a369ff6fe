"""What the options of a command mean for the runs that it makes, here or in other processes."""

from argparse import Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cayley.lab.training import RunSettings

__all__ = ["run_settings", "shared_arguments"]


def run_settings(options: Namespace, overrides: tuple[str, ...] = ()) -> "RunSettings":
    """The settings of a run.

    Arguments:
        options: The options of the command.
        overrides: What was changed in the recipe, for the record.
    """
    from cayley.lab.runs import Machine
    from cayley.lab.training import RunSettings

    return RunSettings(
        Machine(options.device, options.precision, options.threads, options.graph),
        data=options.data,
        download=options.download,
        check=not options.unchecked,
        tiny=options.tiny,
        overrides=overrides,
        checkpoint_seconds=options.checkpoint_every,
    )


def shared_arguments(options: Namespace) -> list[str]:
    """The options of a command that each process which works for it gets too."""
    arguments = ["--quiet", "--output", str(options.output), "--device", options.device]
    arguments += ["--precision", options.precision, "--threads", str(options.threads)]
    arguments += ["--checkpoint-every", str(options.checkpoint_every)]
    if options.data is not None:
        arguments += ["--data", str(options.data)]
    if options.graph is not None:
        arguments.append("--graph" if options.graph else "--no-graph")
    switches = ("download", "unchecked", "tiny", "tensorboard")
    return arguments + [f"--{name}" for name in switches if getattr(options, name)]
