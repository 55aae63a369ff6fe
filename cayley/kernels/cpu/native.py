"""The library of C code: found, loaded, and its arguments described."""

import ctypes
import functools
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cayley.kernels.memory import memory_refusal, readable
from cayley.kernels.steps import check_batch_sizes

__all__ = [
    "INSTRUCTION_SETS",
    "Input",
    "Steps",
    "contiguous",
    "instruction_set",
    "pointers",
    "refusal",
    "run",
    "run_steps",
]

INSTRUCTION_SETS = ("plain", "avx2", "avx512")

_OUT_OF_MEMORY = 1


class Steps(ctypes.Structure):
    """The steps of a sequence, as C takes them."""

    _fields_ = (
        ("T", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("sizes", ctypes.c_void_p),
        ("B", ctypes.c_int),
        ("reverse", ctypes.c_int),
    )

    @classmethod
    def of(cls, x: Tensor, B: int, batch_sizes: Tensor | None, reverse: bool) -> "Steps":
        """The steps of x, (T, B, ·) or (N, ·) with ``batch_sizes``."""
        if batch_sizes is None:
            return cls(x.shape[0], x.shape[0] * B, None, B, reverse)
        check_batch_sizes(batch_sizes, x.shape[0], B)
        return cls(len(batch_sizes), x.shape[0], batch_sizes.data_ptr(), B, reverse)


class Input(ctypes.Structure):
    """``Input`` of arguments.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "U", "c", "grad_x", "grad_U", "grad_c")),
        ("I", ctypes.c_int64),
    )


def contiguous(*tensors: Tensor | None) -> list[Any]:
    """The tensors as C reads them, contiguous."""
    return [readable(tensor) for tensor in tensors]


def pointers(**tensors: Tensor | None) -> dict[str, int | None]:
    """Addresses, which do not keep tensors alive; NULL for None and for empty tensors."""
    for name, tensor in tensors.items():
        assert tensor is None or tensor.is_contiguous(), f"C reads {name} from front to back"
    return {name: None if x is None else x.data_ptr() or None for name, x in tensors.items()}


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The compiled library, or None if the package was installed without a compiler."""
    # free-threaded versions of Python do not list the last
    for suffix in (*EXTENSION_SUFFIXES, ".abi3.so"):
        path = Path(__file__).with_name(f"_native{suffix}")
        if path.exists():
            return ctypes.CDLL(str(path))
    return None


@functools.cache
def instruction_set() -> int:
    """The index in :data:`INSTRUCTION_SETS` of the best that this processor has."""
    library = _library()
    assert library is not None, "call after refusal() has returned None"
    return library.cayley_best()


def refusal(x: Tensor, *others: Tensor | None) -> str | None:
    """Why C cannot take these tensors; None if it can."""
    if _library() is None:
        return (
            "cayley was installed without its C code; install a C compiler (gcc or clang), then "
            "cayley again"
        )
    if x.dtype not in (torch.float32, torch.float64):
        return f"it takes float32 and float64, not {x.dtype}"
    if any(tensor is not None and tensor.dtype != x.dtype for tensor in others):
        return "it takes tensors of one dtype"
    return memory_refusal(x, *others)


def run_steps(
    function: str, steps: Steps, arguments: ctypes.Structure, *, dtype: torch.dtype
) -> None:
    """Run a recurrence in the precision of ``dtype`` on torch's number of threads."""
    structures = ctypes.byref(steps), ctypes.byref(arguments)
    run(function, *structures, torch.get_num_threads(), dtype=dtype)


def run(function: str, *arguments: Any, dtype: torch.dtype) -> None:
    """Run a function of the library in the precision of ``dtype``."""
    library = _library()
    assert library is not None, "call after refusal() has returned None"
    error = getattr(library, function)(instruction_set(), 8 * dtype.itemsize, *arguments)
    if error == _OUT_OF_MEMORY:
        raise MemoryError(f"{function} could not allocate its buffers")
