"""How sure one can be, from a few seeds, that numbers differ: p-values of one-sided tests.

Values of seeds are taken as independent and roughly normal (Student, Welch 1947), times at which
curves cross a line only as ordered, since some never do (Mann and Whitney 1947).
"""

import math
from collections.abc import Sequence

__all__ = ["ALPHA", "SEEDS", "p_below", "p_earlier", "p_less"]

ALPHA = 0.05  # below it a difference is not taken for chance
SEEDS = 3  # that a verdict needs at least


def p_below(values: Sequence[float], line: float) -> float:
    """The probability of values as low as these if their expectation were at a line.

    Arguments:
        values: One a seed; at least two.
        line: What they are compared with.

    Example:
        >>> p_below([1.0, 1.1, 0.9], 2.0) < 0.01 < p_below([1.0, 3.1, 1.9], 2.0)
        True
    """
    from scipy import stats

    if len(set(values)) == 1:
        return float(values[0] >= line)
    return float(stats.ttest_1samp(values, line, alternative="less").pvalue)


def p_less(first: Sequence[float], second: Sequence[float], by: float = 0.0) -> float:
    r"""The probability of such a difference if :math:`E x + by = E y`.

    Arguments:
        first: Values :math:`x`, one a seed; at least two.
        second: Values :math:`y`, likewise.
        by: How much lower the first have to be; negative where they may be higher.

    Example:
        >>> p_less([1.0, 1.1, 0.9], [2.0, 2.1, 1.9]) < 0.01
        True
        >>> p_less([1.0, 1.1, 0.9], [2.0, 2.1, 1.9], by=2.0) > 0.99
        True
    """
    from scipy import stats

    moved = [value + by for value in first]
    if len(set(moved)) == len(set(second)) == 1:
        return float(moved[0] >= second[0])
    return float(stats.ttest_ind(moved, second, equal_var=False, alternative="less").pvalue)


def p_earlier(first: Sequence[float], second: Sequence[float]) -> float:
    """The probability of such an order if both came at the same times; infinity is never.

    Arguments:
        first: Times, one a seed.
        second: Times, likewise.

    Example:
        >>> round(p_earlier([10, 20, 30], [40, 50, math.inf]), 3)
        0.05
    """
    from scipy import stats

    # only the order counts: infinity becomes a number that is later than all others
    never = 1.0 + max((time for time in (*first, *second) if math.isfinite(time)), default=0.0)
    x, y = ([min(time, never) for time in times] for times in (first, second))
    if len({*x, *y}) == 1:
        return 1.0
    return float(stats.mannwhitneyu(x, y, alternative="less", method="exact").pvalue)
