"""The machine that a run is on: chosen at the start, recorded, and chosen again on resuming."""

import logging
import os
import platform
import subprocess
import warnings
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cayley
from cayley.lab.errors import MachineError
from cayley.lab.processes import Processes, find_processes
from cayley.lab.runs.connecting import connect
from cayley.lab.runs.cpu import find_cpu
from cayley.lab.wording import counted

if TYPE_CHECKING:
    import torch
    from lightning_fabric import Fabric
    from lightning_fabric.plugins import DoublePrecision
    from lightning_fabric.strategies import DDPStrategy

__all__ = [
    "GitState",
    "Machine",
    "MachineFacts",
    "Precision",
    "describe_machine",
    "find_git_state",
    "find_versions",
]

Precision = Literal["32-true", "64-true", "bf16-mixed"]
# enough for a run that was started on a larger machine
MOST_THREADS = 256
PACKAGES = ("torch", "lightning-fabric", "numpy", "torch-geometric")


@dataclass(frozen=True)
class Machine:
    """Device, precision and threads of a run.

    Arguments:
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, or ``"cuda:1"``.
        precision: The precision of parameters and computation; ``bf16-mixed`` is torch's autocast.
        threads: The number of torch's threads; 0 leaves it as it is. More than the machine can
            start would kill the process.
        graph: Whether to take training steps as CUDA graphs; None to do so if possible.
    """

    device: str = "auto"
    precision: Precision = "32-true"
    threads: int = 0
    graph: bool | None = False

    def __post_init__(self) -> None:
        cores = os.cpu_count() or 1
        most = max(MOST_THREADS, 2 * cores)
        if not 0 <= self.threads <= most:
            raise MachineError(
                f"expected 0 to {most} threads, as this machine has {counted(cores, 'core')}, got "
                f"{self.threads}: choose another number with --threads; 0 leaves it to torch"
            )

    @property
    def dtype(self) -> "torch.dtype":
        """The type of parameters and input."""
        import torch

        return torch.float64 if self.precision == "64-true" else torch.float32

    def fabric(self, processes: Processes | None = None) -> "Fabric":
        """The engine; sets threads and, on a GPU, selects deterministic algorithms.

        Arguments:
            processes: The processes to connect, if there are several; None for this one alone.
        """
        import torch
        from lightning_fabric import Fabric
        from lightning_fabric.plugins.environments import LightningEnvironment

        # it recommends TF32, which is too inaccurate for orthogonal recurrences
        logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
        if self.threads:
            torch.set_num_threads(self.threads)
        double: list[Any] = [_double()] if self.precision == "64-true" else []
        precision = None if double else self.precision
        accelerator, _, number = self.device.partition(":")
        if accelerator == "cuda" and not torch.cuda.is_available():
            raise MachineError(
                "expected a GPU for the device cuda, got none that torch can use: choose "
                "--device cpu"
            )
        # cuBLAS reads it when it starts
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if processes is not None and processes.several:
            on_gpus = accelerator == "cuda" or (accelerator == "auto" and torch.cuda.is_available())
            _check_devices(self.device, on_gpus, processes)
            connect(processes, on_gpus)
            fabric = Fabric(
                accelerator=accelerator,
                strategy=_strategy(),
                devices=processes.local_count,
                num_nodes=processes.machines,
                precision=precision,
                plugins=double,
            )
            fabric.launch()
        else:
            fabric = Fabric(
                accelerator=accelerator,
                devices=[int(number)] if number else 1,
                precision=precision,
                # torchrun's environment is ignored: one of several processes may work alone
                plugins=[LightningEnvironment(), *double],
            )
        if fabric.device.type == "cuda":
            torch.use_deterministic_algorithms(True, warn_only=True)
            # pyrefly: ignore[missing-attribute]
            torch.utils.deterministic.fill_uninitialized_memory = False
        return fabric


def _double() -> "DoublePrecision":
    """Fabric's float64, but outputs and states stay in it: Fabric rounds them to float32."""
    from lightning_fabric.plugins import DoublePrecision

    class Double(DoublePrecision):
        def convert_output(self, data: Any) -> Any:
            return data

    return Double()


def _check_devices(device: str, on_gpus: bool, processes: Processes) -> None:
    """Raise unless every process can have a device."""
    import torch

    processes.check()
    if ":" in device:
        raise MachineError(
            f"expected a device for each of {processes.count} processes, got {device}: choose "
            f"--device {device.partition(':')[0]}"
        )
    found = torch.cuda.device_count()
    if on_gpus and found < processes.local_count:
        raise MachineError(
            f"expected a GPU for each of {processes.local_count} processes, got "
            f"{counted(found, 'GPU')}: choose fewer --devices, or --device cpu"
        )


def _strategy() -> "DDPStrategy":
    """How gradients are averaged over processes."""
    from lightning_fabric.strategies import DDPStrategy

    # matrices with one column have the same layout either way
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
    return DDPStrategy(
        # all processes compute the same buffers
        forward_sync_buffers=False,
        # this keeps the order of buckets, so that a resumed run adds in the same order
        find_unused_parameters=True,
    )


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """A description of a machine, for ``run.json``.

    ``graph`` is whether training steps are CUDA graphs, and ``no_graph`` why they are not although
    they are allowed.
    """

    accelerator: str
    device: str = ""
    precision: Precision
    threads: int
    graph: bool = False
    no_graph: str = ""
    processes: int = 1
    host: str = ""
    platform: str = ""
    cpu: str = ""
    cores: int | None = None


@dataclass(frozen=True)
class GitState:
    """The revision of the source, and whether files differ from it."""

    revision: str = ""
    modified: bool = False


def describe_machine(
    machine: Machine, device: "torch.device", *, graph: bool = False, no_graph: str = ""
) -> MachineFacts:
    """What a reader may want to know about the machine behind the numbers.

    Arguments:
        machine: The requested machine.
        device: The chosen device.
        graph: Whether training steps are CUDA graphs.
        no_graph: Why they are not, if they are allowed.
    """
    import torch

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return MachineFacts(
        accelerator=str(device),
        device=name,
        precision=machine.precision,
        threads=torch.get_num_threads(),
        graph=graph,
        no_graph=no_graph,
        processes=find_processes().count,
        host=platform.node(),
        platform=platform.platform(),
        cpu=find_cpu(),
        cores=os.cpu_count(),
    )


def find_versions() -> dict[str, str]:
    """The versions of Python and of the packages that numbers depend on."""
    found = {name: _version(name) for name in PACKAGES}
    return {
        "cayley": cayley.__version__,
        "python": platform.python_version(),
        **{name: number for name, number in found.items() if number},
    }


def find_git_state(folder: Path | None = None) -> GitState | None:
    """The state of the repository that a folder is in; None outside a repository.

    Arguments:
        folder: The folder; None for that of this package.
    """
    folder = Path(cayley.__file__).parent if folder is None else folder
    git = partial(subprocess.run, cwd=folder, capture_output=True, text=True, check=True)
    try:
        revision = git(["git", "rev-parse", "HEAD"]).stdout.strip()
        status = git(["git", "--no-optional-locks", "status", "--porcelain", "--", "."]).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return GitState(revision, bool(status))


# cached: finding a version takes milliseconds, and a process may start many runs
@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
