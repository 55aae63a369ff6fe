"""The gradient of a matrix that was divided by a function of it, on a GPU."""

import functools

from torch import Tensor

from cayley.kernels.cuda.runtime.nvrtc import Kernel, constants, on

__all__ = ["rank_two_on_device"]

BLOCKS, THREADS = 128, 256


def rank_two_on_device(G: Tensor, W: Tensor, answer: Tensor) -> Tensor:
    r"""The matrix :math:`G / d + \langle G, W \rangle (f_1 u_1^\top + f_2 u_2^\top)`.

    Torch would need six launches, and on most hosts they take longer than what they launch.

    Arguments:
        G: The gradient with respect to W, (s, s).
        W: The matrix after the division, (s, s).
        answer: f_1, f_2, u_1, u_2 and d, as a :class:`~.eigenvalue.tracker.Tracker`
            gives them, (4s + 1).
    """
    s, device = len(W), W.device.index
    G, W = G if G.stride(1) == 1 else G.contiguous(), W.contiguous()
    parts, result = W.new_empty(BLOCKS), W.new_empty(s, s)
    _kernel("inner", device)(BLOCKS, G, W, parts, s, G.stride(0))
    _kernel("rank_two", device)(BLOCKS, G, parts, answer, result, s, G.stride(0))
    return result


@functools.cache
def _kernel(source: str, device: int) -> Kernel:
    with on(device):
        return Kernel(source, constants(BLOCKS=BLOCKS, THREADS=THREADS), THREADS, 1, 0)
