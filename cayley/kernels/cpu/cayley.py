"""The scaled Cayley transform and its gradient in C; see :mod:`cayley.parametrizations.cayley`."""

import ctypes

from torch import Tensor

from cayley.kernels.cpu import native
from cayley.kernels.cpu.native import run
from cayley.kernels.memory import readable, readable_gradient

__all__ = ["LARGEST", "cayley", "cayley_backward", "check_entries", "entries", "refusal"]

# Formed and differentiated on one thread, C beside torch, ms in float32 (AVX-512): 0.11 : 0.22 at
# n = 8, 0.17 : 0.37 at 60, 0.48 : 0.74 at 128, 0.75 : 1.16 at 170, 1.0 : 1.6 at 200, 2.4 : 2.7 at
# 256. Beyond, torch is as fast, and with several threads faster, and "auto" leaves it to torch.
LARGEST = 200


class _Cayley(ctypes.Structure):
    """``Cayley`` of arguments.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "D", "W", "X")),
        *((name, ctypes.c_int64) for name in ("n", "bandwidth")),
        ("grad_W", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("row_stride", "column_stride")),
        ("grad_x", ctypes.c_void_p),
    )


def refusal(x: Tensor, D: Tensor) -> str | None:
    """Why C cannot form the matrix of the free entries x and the signs D; None if it can."""
    if x.device != D.device:
        return f"its tensors are on two devices, {x.device} and {D.device}"
    return native.refusal(x, D)


def entries(n: int, bandwidth: int) -> int:
    """How many entries an (n, n) matrix has on the first diagonals above the main one.

    Example:
        >>> entries(4, 2)
        5
    """
    return bandwidth * (2 * n - bandwidth - 1) // 2


def check_entries(x: Tensor, n: int, bandwidth: int, *networks: int) -> None:
    """Raise unless x fills the given diagonals of an (n, n) matrix, or of one for each network.

    Arguments:
        x: The entries.
        n: The size of the matrix.
        bandwidth: How many diagonals.
        *networks: How many networks, or nothing.
    """
    count = entries(n, bandwidth)
    if x.shape != (*networks, count):
        raise ValueError(
            f"expected {count} entries above the diagonal for n = {n} and {bandwidth} diagonals, "
            f"got x of shape {tuple(x.shape)}"
        )


def cayley(x: Tensor, D: Tensor, bandwidth: int) -> tuple[Tensor, Tensor]:
    r"""The matrix :math:`W = (2X - I) D` and the inverse :math:`X = (I + A)^{-1}`.

    X is computed in double precision even if x is in single precision.

    Arguments:
        x: The entries of A above its diagonal, as in
            :func:`~cayley.parametrizations.skew_symmetric`.
        D: The diagonal of the scaling matrix, (n).
        bandwidth: How many diagonals x fills.

    Returns:
        W and X, (n, n).

    Example:
        >>> import torch
        >>> W, X = cayley(torch.tensor([1.0]), torch.ones(2), 1)
        >>> W
        tensor([[ 0., -1.],
                [ 1.,  0.]])
    """
    (n,) = D.shape
    check_entries(x, n, bandwidth)
    x, D, W, X = readable(x), readable(D), x.new_empty(n, n), x.new_empty(n, n)
    addresses = (x.data_ptr(), D.data_ptr(), W.data_ptr(), X.data_ptr())
    run("cayley_form", ctypes.byref(_Cayley(*addresses, n, bandwidth)), dtype=x.dtype)
    return W, X


def cayley_backward(G: Tensor, X: Tensor, D: Tensor, bandwidth: int) -> Tensor:
    r"""Gradient :math:`2 (Q^\top - Q)` above the diagonal, with :math:`Q = X^\top G D X^\top`.

    Arguments:
        G: The gradient with respect to W, (n, n), with any strides.
        X: The inverse that :func:`cayley` returned, (n, n).
        D: The diagonal of the scaling matrix, (n).
        bandwidth: How many diagonals x fills.

    Returns:
        The gradient with respect to x.
    """
    (n,), G = D.shape, readable_gradient(G)
    grad_x = X.new_empty(entries(n, bandwidth))
    arguments = _Cayley(
        *(None, D.data_ptr(), None, X.data_ptr(), n, bandwidth),
        *(G.data_ptr(), *G.stride(), grad_x.data_ptr()),
    )
    run("cayley_form_back", ctypes.byref(arguments), dtype=X.dtype)
    return grad_x
