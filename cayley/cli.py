"""The command ``cayley``: its arguments, its errors and its exit codes."""

import argparse
import errno
import io
import math
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cayley import __version__
from cayley.lab import commands
from cayley.lab.commands.completion import FILES, RECIPES, SETTINGS, SPACES, TABLES, complete
from cayley.lab.errors import LabError, RecipeError, RunError, is_lost_process, is_shortage
from cayley.lab.packages import explain_missing
from cayley.lab.processes import FOLLOWS, Processes, end_with, find_processes, orphaned

__all__ = ["main"]

CODES = """\
exit codes:
  0    done
  1    missing data, or a missing device
  2    wrong arguments, or a recipe that cannot be used
  3    a loss that is not finite; the last good checkpoint is kept
  4    a run folder that cannot be used: in use, no run, not writable, disk full
  130  stopped by Ctrl-C, 143 by SIGTERM, 129 by SIGHUP; there is a checkpoint to resume from
  141  training stopped, since the reader of its output has gone; likewise
"""

# commands that train, and how to go on with those that leave something to go on with
TRAINING = ("train", "resume", "reproduce", "sweep")
CONTINUATIONS = dict.fromkeys(
    ("train", "resume"), "; cayley resume continues a run that has begun from its last checkpoint"
) | dict.fromkeys(("reproduce", "sweep", "study"), "; the same command continues")

Command = Callable[[argparse.Namespace], int]

# the disk, the share of it that the user has, or the longest file
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# after a failure, torchrun terminates the other processes sooner than this
END_SECONDS = 3.0
LOST = (
    "another process of this run has ended: torchrun restarts all of them if --max-restarts "
    "allows it, and cayley resume continues from the last checkpoint"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Arguments:
        arguments: The command line after ``cayley``; None for that of the process.

    Returns:
        The exit code.
    """
    # not for the processes that this one starts
    if os.environ.pop(FOLLOWS, ""):
        end_with(orphaned)
    processes = find_processes()
    if not processes.several:
        return _run(arguments, processes)
    # before torch is imported, of which every process would print irrelevant warnings
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        code = _run(arguments, processes)
    except Exception:
        if processes.claim_report():
            raise
        return _wait_for_end()
    if code != 1:
        # with 1, an exchange may be unfinished: another process has died, or memory has run out
        from cayley.lab.runs.connecting import disconnect

        disconnect()
    return code


def _run(arguments: Sequence[str] | None, processes: Processes) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # as sys.stderr does: a sign that the terminal or the file cannot hold is no reason to stop
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            with _plain_warnings():
                return _run_command(arguments, processes)
        finally:
            # Python itself does it at the end, too late for a sentence
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        # the reader of the output, such as head, has seen enough; but training is not done
        sys.stdout = None  # pyrefly: ignore[bad-assignment]
        return 128 + signal.SIGPIPE if _command(arguments) in TRAINING else 0
    except OSError as error:
        if error.errno not in FULL:
            raise
        # what it still holds cannot be written
        sys.stdout = None  # pyrefly: ignore[bad-assignment]
        what = error.filename or "the output"
        return _report(
            RunError.code,
            f"could not write {what}: {error.strerror}: make room, or write elsewhere",
            processes,
        )


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print this package's warnings as sentences, without the line of code that gave them."""
    package, before = Path(__file__).parent, warnings.formatwarning

    def format(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if package in Path(filename).parents:
            return f"cayley: {message}\n"
        return before(message, category, filename, lineno, line)

    warnings.formatwarning = format
    try:
        yield
    finally:
        warnings.formatwarning = before


def _run_command(arguments: Sequence[str] | None, processes: Processes) -> int:
    try:
        with processes.alone_aloud():
            options = make_parser().parse_args(arguments)
            options.command_line = sys.argv[1:] if arguments is None else [*arguments]
            if processes.several and options.run not in (commands.train, commands.resume):
                raise RecipeError(
                    f"expected train or resume in {processes.count} processes of torchrun, got "
                    f"{options.command_line[0]}: run it without torchrun"
                )
            return options.run(options)
    except LabError as error:
        code, message = error.code, str(error)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "cayley":
            raise
        code, message = 1, explain_missing(error)
    except (MemoryError, RuntimeError) as error:
        if processes.several and is_lost_process(error):
            if processes.attended:
                return _wait_for_end()
            code, message = 1, LOST
        elif not is_shortage(error):
            raise
        else:
            code = 1
            reason = " ".join(str(error).split("\n")[0].split())
            message = (
                "expected enough memory, got too little: make training.batch, evaluation.batch, "
                f"model.hidden or the sequences smaller. {reason}"
            )
    except KeyboardInterrupt:
        code, message = (
            130,
            "stopped at once" + CONTINUATIONS.get(_command(arguments), ""),
        )
    return _report(code, message, processes)


def _command(arguments: Sequence[str] | None) -> str:
    return next(iter(sys.argv[1:] if arguments is None else arguments), "")


def _report(code: int, message: str, processes: Processes) -> int:
    """Print an error, unless another process has; the exit code."""
    if not processes.claim_report():
        # a signal ends all processes, in any order
        return code if code > 128 else _wait_for_end()
    try:
        print(f"cayley: {message}", file=sys.stderr, flush=True)
    except OSError:
        # then the exit code alone says it; writing the rest at the end would change that
        sys.stderr = None  # pyrefly: ignore[bad-assignment]
    return code


def _wait_for_end() -> int:
    """Wait, so that the process whose failure caused this one's is seen to end first."""
    time.sleep(END_SECONDS)
    return 1


def make_parser() -> argparse.ArgumentParser:
    """The arguments of all commands."""
    parser = argparse.ArgumentParser(
        prog="cayley",
        description="Train recurrent networks on the experiments of the papers, and on your own.",
        epilog=CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cayley {__version__}")
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, run: Command, example: str) -> argparse.ArgumentParser:
        words = (run.__doc__ or "").replace("\n    ", "\n")
        sub = group.add_parser(
            name,
            help=words.partition("\n")[0].rstrip("."),
            description=words,
            epilog=f"example:\n  {example}\n\n{CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(run=run)
        return sub

    sub = add("list", commands.list_recipes, "cayley list nc-gru ptb")
    sub.add_argument("words", nargs="*", metavar="WORD", help="words that recipes must contain")
    for what in ("paper", "model", "task"):
        sub.add_argument(f"--{what}", default="", help=f"only those whose {what} contains this")
    other = sub.add_mutually_exclusive_group()
    data = other.add_argument("--data", type=Path, help="only those whose data are in this folder")
    complete(data, FILES)
    instead: dict[str, tuple[Command, str]] = {
        "--views": (
            commands.list_views,
            "the figures and tables of the documents instead, as cayley reproduce takes them",
        ),
        "--claims": (
            commands.list_claims,
            "the statements of the papers instead, with the recipes and tests that cover each",
        ),
        "--missing": (
            commands.list_missing,
            "the published numbers and statements that no recipe serves instead, and why",
        ),
    }
    for option, (command, words) in instead.items():
        other.add_argument(option, action="store_const", dest="run", const=command, help=words)
    _add_json(sub)

    sub = add("show", commands.show, "cayley show quickstart")
    _add_recipe(sub)
    _add_json(sub)

    sub = add("train", commands.train, "cayley train quickstart --set model.hidden=64 --seeds 3")
    _add_recipe(sub)
    sub.add_argument("--seed", type=int, help="the seed of the (first) run; default: the recipe's")
    _add_seeds(sub)
    _add_jobs(sub)
    sub.add_argument(
        "--together",
        action="store_true",
        help="train all runs in one process; --set optim.lr=1e-3,3e-4 makes a run for each rate",
    )
    _add_extend(sub)
    _add_devices(sub)
    _add_work(sub)

    sub = add("reproduce", commands.reproduce, "cayley reproduce helfrich2020-figure-2.12")
    table = sub.add_argument(
        "table", nargs="*", help="figures or tables, as cayley list --views names them"
    )
    complete(table, TABLES)
    sub.add_argument(
        "--all", action="store_true", help="all figures and tables, the most wanted first"
    )
    sub.add_argument(
        "--budget",
        type=_duration,
        metavar="TIME",
        help="stop after a time such as 25m; continue with the same command",
    )
    _add_jobs(sub)
    _add_cluster(sub)
    _add_changes(sub)
    sub.add_argument(
        "--dry-run",
        action="store_true",
        help="only print what there is to do, which data are missing, and how long it will take",
    )
    _add_seeds(sub)
    _add_work(sub)

    sub = add("resume", commands.resume, "cayley resume runs/quickstart/paper-seed5544")
    _add_run(sub)
    _add_extend(sub)
    sub.add_argument(
        "--continue-with",
        action="store_true",
        help="use what was edited after the start: recipe.toml, or a task or model of your own",
    )
    _add_devices(sub)
    _add_output_style(sub)
    _add_checkpoints(sub)

    sub = add("evaluate", commands.evaluate, "cayley evaluate runs/quickstart/paper-seed5544")
    _add_run(sub)
    sub.add_argument("--split", choices=("train", "valid", "test"), default="test")
    _add_weights(sub)
    sub.add_argument("--audio", action="store_true", help="speech: SegSNR, STOI and PESQ instead")
    _add_json(sub)

    sub = add("diagnose", commands.diagnose, "cayley diagnose runs/quickstart/paper-seed5544")
    _add_run(sub)
    _add_weights(sub)
    sub.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="these: orthogonality, spectrum, angles, normalisation, gradient_norms, states, "
        "heatmap, nonfinite; default: all that are possible for the network",
    )
    output = sub.add_argument(
        "-o", "--output", type=Path, help="folder of the figures; default: diagnosis in the run"
    )
    complete(output, FILES)
    _add_json(sub)

    sub = add("report", commands.report, "cayley report runs -o report.html")
    folders = sub.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="folders with runs, and studies"
    )
    page = sub.add_argument(
        "-o", "--output", type=Path, default=Path("report.html"), help="the page (%(default)s)"
    )
    markdown = sub.add_argument("--markdown", type=Path, help="a file for the tables as Markdown")
    figures = sub.add_argument("--figures", type=Path, help="a folder for the figures as PNG")
    csv = sub.add_argument("--csv", type=Path, help="a folder for the tables as CSV, all digits")
    latex = sub.add_argument("--latex", type=Path, help="a folder for the tables as LaTeX")
    for action in (folders, page, markdown, figures, csv, latex):
        complete(action, FILES)
    _add_json(sub)

    sub = add("study", commands.study, "cayley study gradient-stability --seeds 3")
    sub.add_argument("study", nargs="?", metavar="NAME", help="a name from --list")
    sub.add_argument("--list", action="store_true", help="list the studies and their claims")
    output = sub.add_argument(
        "-o", "--output", type=Path, default=Path("studies"), help="where it goes (%(default)s)"
    )
    complete(output, FILES)
    sub.add_argument("--seeds", type=_at_least(1), metavar="N", help="how many consecutive seeds")
    _add_jobs(sub, "compute N seeds")
    sub.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="change settings, such as n=128; verdicts are then tentative",
    )
    sub.add_argument("--tiny", action="store_true", help="with tiny settings, to try it out")
    _add_ray(sub, sub)
    _add_threads(sub)
    _add_place(sub, "auto")
    _add_json(sub)

    sub = add("sweep", commands.sweep, "cayley sweep scornn-mnist --data DIR --jobs 4")
    space = sub.add_argument(
        "space",
        nargs="?",
        metavar="SPACE",
        help="a name from --list, or your own TOML file; or best, or status",
    )
    complete(space, SPACES)
    sub.add_argument("name", nargs="?", metavar="STUDY", help="the study, after best or status")
    sub.add_argument("--list", action="store_true", help="list the spaces of the package")
    sub.add_argument(
        "--trials",
        type=_at_least(1),
        metavar="N",
        help="the total number of trials; default: the space's",
    )
    sub.add_argument(
        "--storage",
        metavar="URL",
        help="where the study is: journal:///path, sqlite:///path, postgresql+psycopg://… or "
        "mysql…; default: a journal beside the runs",
    )
    sub.add_argument(
        "--study", metavar="NAME", help="the name of the study; default: that of the space"
    )
    settings = sub.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="change settings in all trials, such as training.epochs=2",
    )
    complete(settings, SETTINGS)
    _add_jobs(sub)
    _add_ray(sub, sub)
    _add_work(sub)

    sub = add("verdicts", commands.verdicts, "cayley verdicts runs --outcome holds")
    folders = sub.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="folders with runs and studies below them",
    )
    sub.add_argument("--paper", default="", help="only claims of papers whose name contains this")
    sub.add_argument(
        "--outcome",
        choices=("holds", "does not hold", "undecided", "cannot be run"),
        default="",
        help="only claims with this verdict",
    )
    markdown = sub.add_argument("--markdown", type=Path, help="a file for all of it as Markdown")
    for action in (folders, markdown):
        complete(action, FILES)
    _add_json(sub)

    sub = add("archive", commands.archive, "cayley archive runs -o results/runs")
    folder = sub.add_argument("folder", type=Path, metavar="FOLDER", help="a folder with runs")
    output = sub.add_argument(
        "-o", "--output", type=Path, required=True, help="folder of the copies"
    )
    for action in (folder, output):
        complete(action, FILES)
    sub.add_argument(
        "--points",
        type=_at_least(2),
        default=300,
        help="how many points to keep of each curve (%(default)s)",
    )
    sub.add_argument(
        "--losses",
        type=_at_least(2),
        help="how many training losses to keep (as many as --points)",
    )
    sub.add_argument(
        "--weights", action="store_true", help="also keep the weights behind the numbers"
    )

    sub = add("status", commands.status, "cayley status runs")
    folder = sub.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path("runs"),
        help="contains runs (%(default)s)",
    )
    complete(folder, FILES)
    _add_json(sub)

    sub = add("new", commands.new, "cayley new task parity")
    sub.add_argument("kind", choices=("task", "model", "recipe"))
    sub.add_argument("name", help="of the file and of the class or recipe in it")

    sub = add("completion", commands.completion, 'eval "$(cayley completion bash)"')
    sub.set_defaults(parser=parser)
    sub.add_argument("shell", choices=("bash", "zsh"))
    return parser


def _duration(text: str) -> float:
    """Seconds, from a number with a unit; seconds need no unit.

    Example:
        >>> _duration("25m"), _duration("1.5h"), _duration("90")
        (1500.0, 5400.0, 90.0)
    """
    number, unit = (text[:-1], text[-1]) if text[-1:] in "smh" and text else (text, "s")
    try:
        seconds = float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"expected a time such as 90s, 25m or 2h, got {text!r}")
    return seconds


def _seconds_between(text: str) -> float:
    """A number of seconds, not NaN and not negative."""
    number = _number(text)
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"expected 0 seconds or more, got {text}")
    return number


def _number(text: str) -> float:
    """A number; NaN, which no range contains, for a text that is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _at_least(least: int) -> Callable[[str], int]:
    """What makes an integer of at least some value from text."""

    def convert(text: str) -> int:
        if not (re.fullmatch(r"[+-]?\d+", text) and int(text) >= least):
            raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, got {text}")
        return int(text)

    return convert


def _share(text: str) -> float:
    """A share of a GPU, or a whole number of them.

    Example:
        >>> _share("0.25"), _share("2")
        (0.25, 2.0)
    """
    number = _number(text)
    if not (0 <= number < 1e6 and (number <= 1 or number == int(number))):
        raise argparse.ArgumentTypeError(f"expected 0.25, 1 or 2, or the like, got {text}")
    return number


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"expected auto, cpu, cuda or cuda:1, got {text!r}")
    return text


def _add_recipe(sub: argparse.ArgumentParser) -> None:
    recipe = sub.add_argument("recipe", help="a name from cayley list, or a TOML file of your own")
    complete(recipe, RECIPES)
    sub.add_argument(
        "--task", default="", help="another task instead: a name, or module:Class of your own"
    )
    _add_changes(sub)


def _add_changes(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--variant",
        choices=("paper", "code"),
        default="paper",
        help="what the paper says, or what its published code does (%(default)s)",
    )
    settings = sub.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="change settings, such as model.hidden=64 optim.recurrent_lr=1e-4; "
        "model.parameters=16k finds model.hidden",
    )
    complete(settings, SETTINGS)


def _add_seeds(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--seeds", type=_at_least(1), metavar="N", help="the number of runs, with consecutive seeds"
    )


def _add_jobs(sub: argparse.ArgumentParser, what: str = "train N runs") -> None:
    sub.add_argument(
        "--jobs",
        type=_at_least(1),
        default=1,
        metavar="N",
        help=f"{what} at a time, each in its own process (%(default)s)",
    )


def _add_devices(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--devices",
        type=_at_least(1),
        default=0,
        metavar="N",
        help="share every batch among N GPUs, or N processes on the CPU",
    )


def _add_cluster(sub: argparse.ArgumentParser) -> None:
    other = sub.add_mutually_exclusive_group()
    _add_ray(sub, other)
    script = other.add_argument(
        "--slurm",
        type=Path,
        metavar="FILE",
        help="run nothing, but write the script of a Slurm job array; --jobs N: N jobs at a time",
    )
    complete(script, FILES)


def _add_ray(sub: argparse.ArgumentParser, group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="run on a Ray cluster: HOST:PORT, auto for the one running here, or local for a new "
        "one on this machine",
    )
    sub.add_argument(
        "--gpus-per-run",
        type=_share,
        default=0.0,
        metavar="N",
        help="on a cluster: GPUs per run, or a share of one such as 0.25 (%(default)g)",
    )
    sub.add_argument(
        "--fetch",
        action="store_true",
        help="with --ray: nodes do not share the output folder; copy runs back when they end",
    )


def _add_extend(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--extend",
        type=_at_least(1),
        default=0,
        metavar="N",
        help="train a finished run for N more steps, or epochs if its recipe counts epochs",
    )


def _add_work(sub: argparse.ArgumentParser) -> None:
    output = sub.add_argument(
        "-o", "--output", type=Path, default=Path("runs"), help="where runs go (%(default)s)"
    )
    complete(output, FILES)
    sub.add_argument("--download", action="store_true", help="download missing data")
    sub.add_argument("--unchecked", action="store_true", help="use data files with other checksums")
    sub.add_argument(
        "--tiny", action="store_true", help="train on a few made-up examples, to try a recipe out"
    )
    sub.add_argument(
        "--precision",
        choices=("32-true", "64-true", "bf16-mixed"),
        default="32-true",
        help="the precision of the computation (%(default)s)",
    )
    sub.add_argument(
        "--graph",
        action=argparse.BooleanOptionalAction,
        help="run steps as CUDA graphs, which do not wait for Python (default: if possible)",
    )
    _add_threads(sub)
    _add_place(sub, "auto")
    _add_output_style(sub)
    _add_checkpoints(sub)


def _add_threads(sub: argparse.ArgumentParser) -> None:
    # more threads gain little on steps this small, lose much on a busy machine, and change digits
    sub.add_argument(
        "--threads",
        type=_at_least(0),
        default=1,
        help="threads of torch; 0 for torch's own choice (%(default)s)",
    )


def _add_run(sub: argparse.ArgumentParser) -> None:
    folder = sub.add_argument("run_folder", metavar="RUN", type=Path, help="the folder of a run")
    complete(folder, FILES)
    sub.add_argument(
        "--trust",
        action="store_true",
        help="run code from a module outside cayley that the recipe names",
    )
    _add_place(sub, None)


def _add_weights(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--weights",
        choices=("selected", "valid", "test", "last"),
        default="selected",
        help="those behind the run's numbers, the best by a split, or the last (%(default)s)",
    )


def _add_place(sub: argparse.ArgumentParser, device: str | None) -> None:
    sub.add_argument(
        "--device",
        type=_device,
        default=device,
        help="auto, cpu, cuda or cuda:1" + ("" if device else "; default: the run's"),
    )
    data = sub.add_argument("--data", type=Path, help="a folder (or file) with the data")
    complete(data, FILES)


def _add_output_style(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--tensorboard",
        action="store_true",
        help="write curves, weights and spectra for TensorBoard, into the folder of the run",
    )
    sub.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    _add_json(sub)


def _add_json(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--json", action="store_true", help="print JSON, one object per line")


def _add_checkpoints(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--checkpoint-every",
        type=_seconds_between,
        default=60.0,
        metavar="SECONDS",
        help="time between two checkpoints (%(default)s)",
    )


if __name__ == "__main__":
    sys.exit(main())
