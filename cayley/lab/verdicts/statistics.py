"""How certain it is, from a few seeds, that numbers differ or do not: p-values of one-sided tests.

Values of seeds are taken to be independent and roughly normal (Student, Welch 1947). Of the times
at which curves cross a line only the order is used, since some never do (Mann and Whitney 1947). Of
what is seen with some seeds, and not with others, only the numbers count (sign test).

A document that says "better" or "earlier" after one run of each says more than that chance prefers
one side: it says that the next reader will see it too. So a statement is supported by seeds that
could hardly come from equal networks, and contradicted by seeds that could hardly come from
networks of which the first wins in OFTEN of all pairs. Without the second, networks that do not
differ could never be told apart from ones with too few seeds.
"""

import math
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from statistics import NormalDist, mean, variance

__all__ = [
    "ALPHA",
    "OFTEN",
    "SEEDS",
    "p_below",
    "p_earlier",
    "p_few",
    "p_less",
    "p_most",
    "p_rarely_earlier",
    "p_rarely_less",
]

ALPHA = 0.05  # the largest p-value of a significant difference
SEEDS = 3  # the smallest number of seeds for a verdict
OFTEN = 0.75  # of seeds, or of pairs of seeds, for which a statement has to be true


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
    return _student(*_welch(moved, second)[:2])


def p_rarely_less(first: Sequence[float], second: Sequence[float]) -> float:
    r"""The probability of such a difference, or a smaller one, if x were often less than y.

    With :math:`P(x < y) = q` for normal x and y, their expectations differ by
    :math:`\Phi^{-1}(q) \sqrt{\sigma_x^2 + \sigma_y^2}`, and Welch's t is roughly noncentral.

    Arguments:
        first: Values :math:`x`, one per seed; at least two.
        second: Values :math:`y`, one per seed; at least two.

    Example:
        >>> p_rarely_less([1.0, 1.1, 0.9], [0.5, 0.6, 0.4]) < 0.01
        True
        >>> p_rarely_less([1.0, 1.1, 0.9], [2.0, 2.1, 1.9]) > 0.99
        True
    """
    # not scipy.stats, as below
    from scipy.special import nctdtr

    if len(set(first)) == len(set(second)) == 1:
        return float(first[0] < second[0])
    t, degrees, error = _welch(first, second)
    distance = NormalDist().inv_cdf(OFTEN) * math.sqrt(variance(first) + variance(second))
    return float(nctdtr(degrees, distance / error, -t))


def p_earlier(first: Sequence[float], second: Sequence[float]) -> float:
    """The probability of such an order if both came at the same times; infinity is never.

    Arguments:
        first: Times, one per seed.
        second: Times, one per seed.

    Example:
        >>> round(p_earlier([10, 20, 30], [40, 50, math.inf]), 3)
        0.05
    """
    orders = _orders(len(first), len(second), 0.5, _ties(first, second))
    return sum(orders[_wins(first, second) :])


def p_rarely_earlier(first: Sequence[float], second: Sequence[float]) -> float:
    """The probability of such an order, or a worse one, if the first were often earlier.

    Arguments:
        first: Times, one per seed.
        second: Times, one per seed.

    Example:
        >>> p_rarely_earlier([40, 50, math.inf], [10, 20, 30]) < 0.01
        True
    """
    orders = _orders(len(first), len(second), OFTEN, _ties(first, second))
    return sum(orders[: _wins(first, second) + 1])


def p_most(seen: int, n: int) -> float:
    """The probability of so many of n seeds, or more, if each shows it with probability 1/2.

    Arguments:
        seen: With how many seeds it was seen.
        n: The number of seeds.

    Example:
        >>> p_most(2, 3), p_most(7, 8) < 0.05
        (0.5, True)
    """
    return _tail(seen, n, 0.5)


def p_few(seen: int, n: int) -> float:
    """The probability of so few of n seeds, or fewer, if each shows it with probability OFTEN.

    Arguments:
        seen: With how many seeds it was seen.
        n: The number of seeds.

    Example:
        >>> p_few(1, 3) > 0.05 > p_few(3, 8)
        True
    """
    return _tail(n - seen, n, 1 - OFTEN)


def _tail(seen: int, n: int, share: float) -> float:
    """The probability of so many of n, or more, if each comes with the probability ``share``."""
    return sum(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(seen, n + 1))


def _welch(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Welch's t, its degrees of freedom, and the standard error of the difference."""
    (m, v), (n, w) = ((len(some), variance(some) / len(some)) for some in (first, second))
    degrees = (v + w) ** 2 / (v**2 / (m - 1) + w**2 / (n - 1))
    error = math.sqrt(v + w)
    return (mean(first) - mean(second)) / error, degrees, error


def _student(t: float, degrees: float) -> float:
    """The probability that Student's t is at most ``t``."""
    # not scipy.stats, which takes a second to import: a third of the time of a report
    from scipy.special import stdtr

    return float(stdtr(degrees, t))


def _wins(first: Sequence[float], second: Sequence[float]) -> int:
    """Twice the number of pairs of which the first is earlier; equal times count half."""
    return sum(2 * (x < y) + (x == y) for x in first for y in second)


def _ties(first: Sequence[float], second: Sequence[float]) -> tuple[int, ...]:
    """How many times are equal, from the earliest on.

    Example:
        >>> _ties([10, 20], [20, math.inf, math.inf])
        (1, 2, 2)
    """
    return tuple(len([*group]) for _, group in groupby(sorted([*first, *second])))


@cache
def _orders(m: int, n: int, share: float, ties: tuple[int, ...]) -> list[float]:
    """The probabilities that the first wins 0, 1/2, 1, …, m·n pairs of m and n times.

    One of the first is before one of the second with the probability ``share``, by hazards in a
    constant ratio: with 1/2 all orders are equally likely (Mann and Whitney 1947, Lehmann 1953).
    Times are seen on a grid, so that some are equal: so many in each of its places, in their order.

    Example:
        >>> [round(6 * p, 6) for p in _orders(2, 2, 0.5, (1, 1, 1, 1))[::2]]
        [1.0, 1.0, 2.0, 1.0, 1.0]
        >>> _orders(1, 1, 0.75, (1, 1)), _orders(1, 1, 0.75, (2,))
        ([0.25, 0.0, 0.75], [0.0, 1.0, 0.0])
    """
    # by the number of the first among the times so far, and by twice the pairs won
    now = {0: [1.0]}
    before = 0
    for count in ties:
        following: dict[int, list[float]] = {}
        for i, wins in now.items():
            for a, p in _among(m - i, n - (before - i), count, share).items():
                won = (2 * i + a) * (count - a)
                sums = following.setdefault(i + a, [0.0] * (2 * m * n + 1))
                for pairs, q in enumerate(wins):
                    if q:
                        sums[pairs + won] += p * q
        now, before = following, before + count
    return now[m]


@cache
def _among(m: int, n: int, count: int, share: float) -> dict[int, float]:
    """The probabilities of so many of the first among the next times, if m and n are left."""
    now = {0: 1.0}
    for k in range(count):
        following: dict[int, float] = {}
        for a, p in now.items():
            first, second = (m - a) * share, (n - (k - a)) * (1 - share)
            for more, hazard in ((1, first), (0, second)):
                if hazard > 0:
                    found = following.get(a + more, 0.0)
                    following[a + more] = found + p * hazard / (first + second)
        now = following
    return now
