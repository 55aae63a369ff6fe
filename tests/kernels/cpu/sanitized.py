"""Run every function of a library that was compiled with sanitizers.

    python sanitized.py FILE [threads]

With ``threads`` only the best instruction set, on many threads. Without, the last of all reads
beyond the end of a tensor.
"""

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import torch
from backends import CASES
from torch import Tensor

import cayley
from cayley.activations import ACTIVATIONS as KNOWN
from cayley.kernels.cpu import native
from cayley.kernels.cpu.elman import ACTIVATIONS
from cayley.kernels.cpu.elman_step import elman_step
from cayley.parametrizations import ScaledCayley, StructuredMatrix

# the last with a chunk of rows, for the gradients of matrices, that is as long as one can be
SHAPES = ((1, (1, 1, 1)), (2, (3, 7, 19)), (3, (2, 2, 33)), (2, (75, 7, 2)))
# the second with three chunks, which share two buffers
MANY_THREADS = ((3, (2, 7, 33)), (8, (33, 32, 9)))
# B, I and H of single steps
STEPS = ((1, 1, 2), (2, 3, 34), (1, 70, 140))
MATRICES = ((1, None), (2, None), (9, 3), (16, None), (33, 1), (71, None))

C = ctypes.CDLL(None)
C.malloc.restype, C.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]


class Guarded:
    """A library whose functions get copies of tensors in memory of their own.

    The address sanitizer knows the bounds of what malloc returns. Some builds of torch, such as
    those for ARM, have an allocator of their own, and there it does not see where a tensor ends.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.data_ptr = Tensor.data_ptr
        # by address and size: the copy, and what was in it at first
        self.copies: dict[tuple[int, int], tuple[int, bytes]] = {}
        # a bound method would not get the tensor
        Tensor.data_ptr = lambda tensor: self.copied(tensor)  # pyrefly: ignore[bad-assignment]

    def copied(self, tensor: Tensor) -> int:
        """The address of a copy, which lasts until the next function returns."""
        reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        address, size = self.data_ptr(tensor), tensor.element_size() * (reach + 1)
        if not tensor.numel():
            return address
        if (address, size) not in self.copies:
            contents, copy = ctypes.string_at(address, size), C.malloc(size)
            ctypes.memmove(copy, contents, size)
            self.copies[address, size] = copy, contents
        return self.copies[address, size][0]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self.library, name)

        def run(*arguments: Any) -> Any:
            result = function(*arguments)
            for (address, size), (copy, before) in self.copies.items():
                # what was only read may overlap with what was written
                if (after := ctypes.string_at(copy, size)) != before:
                    ctypes.memmove(address, after, size)
                C.free(copy)
            self.copies.clear()
            return result

        return run


def look_beyond() -> None:
    """A step that reads more rows of U than there are, which the sanitizer has to find."""
    x, h, Wt, b = torch.zeros(1, 1), torch.zeros(1, 8), torch.zeros(8, 8), torch.zeros(8)
    elman_step("tanh", x, h, torch.zeros(7, 1), Wt, b)


def main(path: str, *, threaded: bool) -> None:
    library: Any = ctypes.CDLL(path)
    if not threaded:
        library = Guarded(library)
    native._library = lambda: library  # pyrefly: ignore[bad-assignment]
    best = native.instruction_set()
    torch.manual_seed(0)
    runs = 0
    for instructions in (best,) if threaded else range(best + 1):
        # pyrefly: ignore[bad-assignment]
        native.instruction_set = lambda: instructions  # noqa: B023 (used within the iteration)
        for threads, (T, B, H) in MANY_THREADS if threaded else SHAPES:
            torch.set_num_threads(threads)
            for case in (case for case in CASES.values() if "cpu" in case.kernels):
                for dtype in (torch.float32, torch.float64):
                    tensors = [
                        tensor.to(dtype).requires_grad_()
                        for tensor in case.inputs(T, B, H).values()
                    ]
                    with cayley.backend("cpu"):
                        loss: Any = sum(output.sum() for output in case.operator(*tensors))
                        loss.backward()
                    runs += 1
        for B, I, H in STEPS:  # noqa: E741
            for name in ACTIVATIONS:
                for dtype in (torch.float32, torch.float64):
                    shapes = ((B, I), (1, B, H), (H, I), (H, H), (KNOWN[name].thresholds(H) or H,))
                    elman_step(name, *(torch.randn(shape, dtype=dtype) for shape in shapes))
                    runs += 1
        for n, bandwidth in MATRICES:
            for dtype in (torch.float32, torch.float64):
                W: Any = StructuredMatrix(ScaledCayley(n, bandwidth=bandwidth), dtype=dtype)
                torch.nn.init.normal_(W.A)
                W().mT.square().sum().backward()
                runs += 1
    print(f"{runs} runs", flush=True)
    if not threaded:
        look_beyond()


if __name__ == "__main__":
    main(sys.argv[1], threaded=sys.argv[2:] == ["threads"])
