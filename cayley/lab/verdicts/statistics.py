"""How certain it is, from a few seeds, that numbers differ: p-values of one-sided tests.

Values of seeds are taken to be independent and roughly normal (Student, Welch 1947). Of the times
at which curves cross a line only the order is used, since some never do (Mann and Whitney 1947). Of
what is seen with some seeds, and not with others, only the numbers count (sign test).
"""

import math
from collections.abc import Sequence
from functools import cache
from statistics import mean, variance

__all__ = ["ALPHA", "SEEDS", "p_below", "p_earlier", "p_less", "p_most"]

ALPHA = 0.05  # the largest p-value of a significant difference
SEEDS = 3  # the smallest number of seeds for a verdict


def p_below(values: Sequence[float], line: float) -> float:
    """The probability of values as low as these if their expectation were at a line.

    Arguments:
        values: One per seed; at least two.
        line: What they are compared with.

    Example:
        >>> p_below([1.0, 1.1, 0.9], 2.0) < 0.01 < p_below([1.0, 3.1, 1.9], 2.0)
        True
    """
    if len(set(values)) == 1:
        return float(values[0] >= line)
    n = len(values)
    return _student((mean(values) - line) / math.sqrt(variance(values) / n), n - 1)


def p_less(first: Sequence[float], second: Sequence[float], by: float = 0.0) -> float:
    r"""The probability of such a difference if :math:`E x + by = E y`.

    Arguments:
        first: Values :math:`x`, one per seed; at least two.
        second: Values :math:`y`, one per seed; at least two.
        by: How much lower the first have to be; negative if they may be higher.

    Example:
        >>> p_less([1.0, 1.1, 0.9], [2.0, 2.1, 1.9]) < 0.01
        True
        >>> p_less([1.0, 1.1, 0.9], [2.0, 2.1, 1.9], by=2.0) > 0.99
        True
    """
    moved = [value + by for value in first]
    if len(set(moved)) == len(set(second)) == 1:
        return float(moved[0] >= second[0])
    (m, v), (n, w) = ((len(some), variance(some) / len(some)) for some in (moved, second))
    degrees = (v + w) ** 2 / (v**2 / (m - 1) + w**2 / (n - 1))
    return _student((mean(moved) - mean(second)) / math.sqrt(v + w), degrees)


def p_earlier(first: Sequence[float], second: Sequence[float]) -> float:
    """The probability of such an order if both came at the same times; infinity is never.

    Arguments:
        first: Times, one per seed.
        second: Times, one per seed.

    Example:
        >>> round(p_earlier([10, 20, 30], [40, 50, math.inf]), 3)
        0.05
    """
    if len({*first, *second}) == 1:
        return 1.0
    m, n = len(first), len(second)
    pairs = [(x < y) + (x == y) / 2 for x in first for y in second]
    counts = _orders(m, n)
    return sum(counts[int(sum(pairs)) :]) / sum(counts)


def p_most(seen: int, n: int) -> float:
    """The probability of so many of n seeds, or more, if each shows it with probability 1/2.

    Arguments:
        seen: With how many seeds it was seen.
        n: The number of seeds.

    Example:
        >>> p_most(2, 3), p_most(7, 8) < 0.05
        (0.5, True)
    """
    return sum(math.comb(n, k) for k in range(seen, n + 1)) / 2**n


def _student(t: float, degrees: float) -> float:
    """The probability that Student's t is at most ``t``."""
    # not scipy.stats, which takes a second to import: a third of the time of a report
    from scipy.special import stdtr

    return float(stdtr(degrees, t))


@cache
def _orders(m: int, n: int) -> list[int]:
    """In how many orders of m and n things so many pairs have the first before the second.

    These are the coefficients of a Gaussian binomial (Mann and Whitney 1947, section 2).

    Example:
        >>> _orders(2, 2)
        [1, 1, 2, 1, 1]
    """
    if m == 0 or n == 0:
        return [1]
    # the last of all is one of the second, after all m of the first, or one of the first
    result = [0] * (m * n + 1)
    for pairs, count in enumerate(_orders(m, n - 1)):
        result[pairs + m] += count
    for pairs, count in enumerate(_orders(m - 1, n)):
        result[pairs] += count
    return result
