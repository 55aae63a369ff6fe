"""Linear recurrences of all steps in a few passes."""

import math

import torch
from torch import Tensor

__all__ = ["linear_scan"]


def linear_scan(values: Tensor, factors: Tensor, following: Tensor, longest: int) -> Tensor:
    r"""Linear recurrences :math:`y_p = v_p + a_p \odot y_{f(p)}` along chains of rows.

    All rows take a step at once, and the length of a step doubles: log₂ of the longest chain
    passes in place of as many steps.

    Arguments:
        values: v, (R, F).
        factors: a, (R, F); at most 1 in modulus, lest products overflow.
        following: f, the row after each in its chain, −1 after the last, (R).
        longest: How many steps the longest chain has, at least.

    Returns:
        y, (R, F).

    Example:
        >>> half = torch.full((3, 1), 0.5)
        >>> linear_scan(torch.ones(3, 1), half, torch.tensor([1, 2, -1]), 2).flatten()
        tensor([1.7500, 1.5000, 1.0000])
    """
    # a row of zeros stands for what there is not
    values = torch.cat((values, values.new_zeros(1, values.shape[1])))
    factors = torch.cat((factors, factors.new_zeros(1, factors.shape[1])))
    following = torch.cat((following, following.new_tensor([-1])))
    for _ in range(max(1, math.ceil(math.log2(longest + 1)))):
        values = values + factors * values[following]
        factors = factors * factors[following]
        following = following[following]
    return values[:-1]
