"""Initial values that the papers use and :mod:`torch.nn.init` does not have."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["INITIALIZERS", "Initializer", "rotation_angles", "small_uniform_", "unit_state_"]

Initializer = Callable[[Tensor], object]


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


def small_uniform_(tensor: Tensor) -> Tensor:
    r"""Fill a tensor with numbers :math:`U[-0.01, 0.01]`.

    References:
        Orthogonal Recurrent Neural Networks with Scaled Cayley Transform, Helfrich, Willmott, Ye,
        2018, section 4.

    Example:
        >>> bool(small_uniform_(torch.empty(5)).abs().max() <= 0.01)
        True
    """
    return nn.init.uniform_(tensor, -0.01, 0.01)


def unit_state_(tensor: Tensor) -> Tensor:
    r"""Fill a state of H features so that its mean square norm is 1.

    .. math:: h_j \sim U\left[-\sqrt{3/H}, \sqrt{3/H}\right]

    References:
        Unitary Evolution Recurrent Neural Networks, Arjovsky, Shah, Bengio, 2016, section 4.3.

    Arguments:
        tensor: (H), with H = 2n for n complex units.

    Example:
        >>> bool(unit_state_(torch.empty(12)).abs().max() <= 0.5)
        True
    """
    bound = (3 / len(tensor)) ** 0.5
    return nn.init.uniform_(tensor, -bound, bound)


# functions that fill one tensor, by their names, for use in recipes
INITIALIZERS: dict[str, Initializer] = {
    function.__name__: function
    for function in (
        nn.init.zeros_,
        nn.init.ones_,
        nn.init.uniform_,
        nn.init.normal_,
        nn.init.eye_,
        nn.init.orthogonal_,
        nn.init.xavier_uniform_,
        nn.init.xavier_normal_,
        nn.init.kaiming_uniform_,
        nn.init.kaiming_normal_,
        small_uniform_,
        unit_state_,
    )
}
