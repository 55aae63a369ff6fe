"""The product with a small input, in one kernel."""

import functools
import math

import torch
from torch import Tensor, nn

from cayley.kernels.cuda.runtime.networks import arrays_of
from cayley.kernels.cuda.runtime.nvrtc import Kernel, constants, on
from cayley.kernels.memory import readable

__all__ = ["project_by_features", "project_on_cuda"]

FEW_INPUTS = 16  # up to which our launch takes less time than the library's choice of a kernel
THREADS, ROWS = 256, 16


def project_on_cuda(x: Tensor, U: Tensor | None, c: Tensor | None) -> Tensor:
    """U x + c of all steps on a GPU, without a gradient; x without U.

    The tensors are those of a call that the kernels of a recurrence do not refuse, of one network
    or, with one more dimension in front, of several.

    Arguments:
        x: The input, (T, B, I) or (N, I).
        U: The input's matrix, (F, I).
        c: A bias, (F).
    """
    if U is None:
        return x
    *networks, F, inputs = U.shape
    if not 0 < inputs <= FEW_INPUTS:
        return _products(x, U, c)
    result = x.new_empty(*x.shape[:-1], F)
    G = math.prod(networks)
    N = x.numel() // (G * inputs)
    if N > 0:
        arrays, shared = arrays_of((x, U, c), bool(networks))
        launch = _kernel("project", x.device.index, inputs)
        launch(-(-N // ROWS), *arrays, result, N, F, shared, networks=G)
    return result


def _products(x: Tensor, U: Tensor, c: Tensor | None) -> Tensor:
    """The same by torch."""
    if U.dim() == 2:
        return nn.functional.linear(x, U, c)
    result = torch.bmm(x.flatten(1, 2), U.mT)
    if c is not None:
        result += c[:, None]
    return result.view(*x.shape[:-1], U.shape[1])


def project_by_features(x: Tensor, U: Tensor | None, c: Tensor | None) -> Tensor:
    """The same, with the rows of a feature side by side in memory; x without U."""
    if U is None:
        return x
    F, inputs = U.shape
    rows = x.flatten(0, -2)
    N = len(rows)
    if not 0 < inputs <= FEW_INPUTS:
        result = U @ rows.mT
        if c is not None:
            result += c[:, None]
    else:
        result = x.new_empty(F, N)
        if N > 0:
            arguments = (readable(x), readable(U), readable(c))
            kernel = _kernel("project_features", x.device.index, inputs)
            kernel(-(-N // THREADS), *arguments, result, N, F)
    return result.mT.view(*x.shape[:-1], F)


@functools.cache
def _kernel(source: str, device: int, inputs: int) -> Kernel:
    sizes = constants(INPUTS=inputs, THREADS=THREADS, ROWS=ROWS, SEVERAL=1)
    with on(device):
        return Kernel(source, sizes, THREADS, 1, 0)
