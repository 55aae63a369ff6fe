"""Linear recurrences over all steps in a few passes."""

import math

import torch
from torch import Tensor

__all__ = ["linear_scan"]


def linear_scan(values: Tensor, factors: Tensor, following: Tensor, longest: int) -> Tensor:
    r"""Linear recurrences :math:`y_p = v_p + a_p \odot y_{f(p)}` along chains of rows.

    All rows advance together, and the length of a step doubles: it takes log₂ of the longest
    chain's length in passes.

    Arguments:
        values: v, (R, F).
        factors: a, (R, F); at most 1 in modulus, so that products do not overflow.
        following: f, the next row in the chain of each, −1 for the last, (R).
        longest: An upper bound of the length of the longest chain.

    Returns:
        y, (R, F).

    Example:
        >>> half = torch.full((3, 1), 0.5)
        >>> linear_scan(torch.ones(3, 1), half, torch.tensor([1, 2, -1]), 2).flatten()
        tensor([1.7500, 1.5000, 1.0000])
    """
    # the row of zeros is what follows the last row of a chain
    values = torch.cat((values, values.new_zeros(1, values.shape[1])))
    factors = torch.cat((factors, factors.new_zeros(1, factors.shape[1])))
    following = torch.cat((following, following.new_tensor([-1])))
    for _ in range(max(1, math.ceil(math.log2(longest + 1)))):
        values = values + factors * values[following]
        factors = factors * factors[following]
        following = following[following]
    return values[:-1]
