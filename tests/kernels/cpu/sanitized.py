"""Run every function of a library that was compiled with sanitizers.

    python sanitized.py FILE [threads]

With ``threads`` only the best instruction set, on many threads.
"""

import ctypes
import sys
from typing import Any

import torch
from backends import CASES

import cayley
from cayley.activations import ACTIVATIONS as KNOWN
from cayley.kernels.cpu import native
from cayley.kernels.cpu.elman import ACTIVATIONS
from cayley.kernels.cpu.elman_step import elman_step
from cayley.parametrizations import ScaledCayley, StructuredMatrix

SHAPES = ((1, (1, 1, 1)), (2, (3, 7, 19)), (3, (2, 2, 33)), (2, (90, 7, 2)))
# the second with three chunks of rows for the gradients of matrices, which share two buffers
MANY_THREADS = ((3, (2, 7, 33)), (8, (130, 9, 9)))
# B, I and H of single steps
STEPS = ((1, 1, 2), (2, 3, 34), (1, 70, 140))
MATRICES = ((1, None), (2, None), (9, 3), (16, None), (33, 1), (71, None))


def main(path: str, *, threaded: bool) -> None:
    library = ctypes.CDLL(path)
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
    print(f"{runs} runs")


if __name__ == "__main__":
    main(sys.argv[1], threaded=sys.argv[2:] == ["threads"])
