"""What the benchmarks share: a fair clock, the memory in use, and a description of the machine."""

import ctypes
import gc
import json
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

import cayley
from cayley.lab.runs.cpu import find_cpu

Run = Callable[[], object]

# Seconds: runs that take less than the one are repeated for the other.
SHORT, WARM = 0.1, 0.05

# B, n and T of the papers' experiments
SHAPES = {"A": (128, 170, 784), "C": (20, 190, 2020), "D": (32, 1030, 50), "E": (50, 60, 200)}
GPU_SHAPES = {
    "A": (128, 170, 784),
    "A50": (50, 170, 784),
    "B": (128, 512, 784),
    "B50": (50, 512, 784),
    "C": (20, 190, 2020),
    "D": (32, 1030, 50),
    "E": (50, 60, 200),
    "F": (28, 425, 300),
    "G": (50, 360, 784),
}


def distance(found: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> float:
    """The largest relative error of a tensor, in the Euclidean norm."""
    pairs = zip(found, exact, strict=True)
    return max(float((p - q).norm() / q.norm()) for p, q in pairs)


def rounds(runs: dict[str, Run], repeat: int, device: str = "cpu") -> dict[str, list[float]]:
    """Seconds of every run, ``repeat`` times after one run that does not count.

    They take turns, so that a busy moment of the machine falls on everybody. A short run is
    repeated, and the last counts: a training loop finds its code and its data in the caches, where
    after somebody else's turn there is nothing of its own.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeat + 1):
        for name, run in runs.items():
            seconds = clocked(run, device)
            if turn:
                for _ in range(1 + int(WARM / seconds) if seconds < SHORT else 0):
                    seconds = clocked(run, device)
                times[name].append(seconds)
    return times


def clocked(run: Run, device: str) -> float:
    """Seconds of a run."""
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: str) -> None:
    """Wait for the device to end its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def summary(seconds: list[float]) -> dict[str, float]:
    """Median and spread, in milliseconds."""
    return {
        "milliseconds": 1e3 * median(seconds),
        "spread": 1e3 * (max(seconds) - min(seconds)),
    }


def peak_memory(run: Run, device: str = "cpu") -> int | None:
    """Bytes that a run has in use at most, over those before it; None where no one tells."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    if platform.system() != "Linux":
        return None
    ctypes.CDLL(None).malloc_trim(0)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
    run()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"expected {field} in /proc/self/status, found none")


def show_row(name: str, row: Mapping[str, object]) -> None:
    """Print the numbers of a row, as soon as it has been measured."""
    numbers = {key: value for key, value in row.items() if isinstance(value, float)}
    print(name, ", ".join(f"{key} {value:.3g}" for key, value in numbers.items()), flush=True)


def machine(device: str = "cpu", **settings: object) -> dict[str, object]:
    """What ran, where and when."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": torch.cuda.get_device_name() if device == "cuda" else processor(),
        "threads": torch.get_num_threads(),
        "cayley": cayley.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        **settings,
    }


def processor() -> str:
    """The name of the CPU and its widest vectors, where the system tells them."""
    information = Path("/proc/cpuinfo")
    words = information.read_text().split() if information.exists() else []
    vectors = {"avx512f": "avx512f", "avx2": "avx2", "asimd": "NEON"}
    wide = next((name for flag, name in vectors.items() if flag in words), "")
    return f"{find_cpu()} {wide}".strip()


def write(path: Path | None, machine: dict[str, object], rows: list[dict]) -> None:
    """Print the machine, and write everything as JSON if a file is given."""
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
