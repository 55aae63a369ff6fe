"""Initial values that the papers use and :mod:`torch.nn.init` does not have."""

import math

import torch
from torch import Tensor

__all__ = ["rotation_angles"]


def rotation_angles(
    n: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    r"""Angles of the :math:`\lfloor n/2 \rfloor` plane rotations that a recurrence starts with.

    .. math:: t_j \sim U[0, \pi/2)

    References:
        Recurrent Orthogonal Networks and Long-Memory Tasks, Henaff, Szlam, LeCun, 2016.
        Orthogonal Recurrent Neural Networks with Scaled Cayley Transform, Helfrich, Willmott, Ye,
        2018, section 3.3.

    Example:
        >>> rotation_angles(5).shape
        torch.Size([2])
    """
    return torch.rand(n // 2, device=device, dtype=dtype) * (math.pi / 2)
