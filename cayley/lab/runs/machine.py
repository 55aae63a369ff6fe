"""The machine that a run is on: chosen at the start, recorded, and chosen again on resuming."""

import os
import platform
import subprocess
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import cayley
from cayley.lab.errors import MachineError
from cayley.lab.processes import Processes, find_processes
from cayley.lab.runs.connecting import connect
from cayley.lab.runs.cpu import find_cpu
from cayley.lab.runs.precision import Precision
from cayley.lab.wording import counted

if TYPE_CHECKING:
    import torch

    from cayley.lab.runs.engine import Engine

__all__ = [
    "GitState",
    "Machine",
    "MachineFacts",
    "describe_machine",
    "find_git_state",
    "find_versions",
]

# enough for a run that was started on a larger machine
MOST_THREADS = 256
PACKAGES = ("torch", "numpy", "torch-geometric")


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

    def engine(self, processes: Processes | None = None) -> "Engine":
        """The engine; sets threads and, on a GPU, selects deterministic algorithms.

        Arguments:
            processes: The processes to connect, if there are several; None for this one alone.
        """
        import torch

        from cayley.lab.runs.engine import Engine, find_device

        # torchrun's environment is ignored: one of several processes may work alone
        processes = processes or Processes()
        if self.threads:
            torch.set_num_threads(self.threads)
        device = find_device(self.device, processes)
        on_gpu = device.type == "cuda"
        if on_gpu:
            # cuBLAS reads it when it starts
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            # torch.use_deterministic_algorithms does the same, but imports torch's compiler for it
            torch.set_deterministic_debug_mode("warn")
            # pyrefly: ignore[missing-attribute]
            torch.utils.deterministic.fill_uninitialized_memory = False
        if processes.several:
            if on_gpu:
                torch.cuda.set_device(device)
            connect(processes, on_gpu)
        return Engine(device, self.precision, processes)


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
