"""The product with a small input, in one kernel."""

import functools

from torch import Tensor, nn

from cayley.kernels.cuda.runtime.nvrtc import Kernel, constants, on
from cayley.kernels.memory import readable

__all__ = ["project_on_cuda"]

FEW_INPUTS = 16  # up to which our launch takes less time than the library's choice of a kernel
THREADS, ROWS = 256, 16


def project_on_cuda(x: Tensor, U: Tensor | None, c: Tensor | None) -> Tensor:
    """U x + c of all steps on a GPU, without a gradient; x without U.

    The tensors are those of a call that the kernels of a recurrence do not refuse.

    Arguments:
        x: The input, (T, B, I) or (N, I).
        U: The input's matrix, (F, I).
        c: A bias, (F).
    """
    if U is None:
        return x
    F, inputs = U.shape
    if not 0 < inputs <= FEW_INPUTS:
        return nn.functional.linear(x, U, c)
    result = x.new_empty(*x.shape[:-1], F)
    N = x.numel() // inputs
    if N > 0:
        arguments = (readable(x), readable(U), readable(c))
        _kernel(x.device.index, inputs)(-(-N // ROWS), *arguments, result, N, F)
    return result


@functools.cache
def _kernel(device: int, inputs: int) -> Kernel:
    sizes = constants(INPUTS=inputs, THREADS=THREADS, ROWS=ROWS)
    with on(device):
        return Kernel("project", sizes, THREADS, 1, 0)
