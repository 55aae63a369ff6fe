import itertools
import math
import random
from collections.abc import Collection

import pytest

from cayley.lab.verdicts.statistics import (
    p_below,
    p_earlier,
    p_few,
    p_less,
    p_most,
    p_rarely_earlier,
    p_rarely_less,
)


def test_student_of_two_values() -> None:
    # with one degree of freedom t is Cauchy: P(t < x) = 1/2 + arctan(x)/π
    values, line = [1.0, 2.0], 3.0
    t = (1.5 - line) / (math.sqrt(0.5) / math.sqrt(2))
    assert p_below(values, line) == pytest.approx(0.5 + math.atan(t) / math.pi)


def test_welch_of_equal_samples_is_one_half() -> None:
    assert p_less([1.0, 2.0, 3.0], [3.0, 1.0, 2.0]) == pytest.approx(0.5)


def test_values_without_spread() -> None:
    assert p_below([1.0, 1.0], 2.0) == 0.0
    assert p_below([2.0, 2.0], 2.0) == 1.0
    assert p_less([1.0, 1.0], [2.0, 2.0]) == 0.0
    assert p_less([2.0, 2.0], [2.0, 2.0]) == 1.0


def test_order_of_times_by_counting_all_orders() -> None:
    first, second = [1.0, 2.0, 5.0], [3.0, 4.0, math.inf]

    def wins(chosen: tuple[float, ...]) -> int:
        rest = [time for time in (*first, *second) if time not in chosen]
        return sum(a < b for a in chosen for b in rest)

    orders = list(itertools.combinations((*first, *second), 3))
    as_good = sum(wins(order) >= wins(tuple(first)) for order in orders)
    assert p_earlier(first, second) == pytest.approx(as_good / len(orders))


def test_what_never_comes_on_either_side_tells_nothing() -> None:
    assert p_earlier([math.inf, math.inf], [math.inf]) == pytest.approx(1.0)


@pytest.mark.parametrize(("m", "n"), [(2, 2), (3, 3), (3, 5), (10, 4)])
def test_they_are_the_tests_of_scipy(m: int, n: int) -> None:
    from scipy import stats

    draws = random.Random(m * n)
    for _ in range(5):
        x = [draws.gauss(0.0, 1.0) for _ in range(m)]
        y = [draws.gauss(0.5, 2.0) for _ in range(n)]
        one = stats.ttest_1samp(x, 0.3, alternative="less").pvalue
        assert p_below(x, 0.3) == pytest.approx(one, rel=1e-12)
        two = stats.ttest_ind(x, y, equal_var=False, alternative="less").pvalue
        assert p_less(x, y) == pytest.approx(two, rel=1e-12)
        # without equal times, of which the test there takes no notice
        order = stats.mannwhitneyu(x, y, alternative="less", method="exact").pvalue
        assert p_earlier(x, y) == pytest.approx(min(order, 1.0), rel=1e-12)


@pytest.mark.parametrize(("m", "n"), [(3, 3), (3, 5), (5, 5), (6, 3)])
def test_equal_times_by_counting_all_orders(m: int, n: int) -> None:
    """Times are seen on a grid, and many never come."""
    draws, places = random.Random(m * n), range(m + n)
    for _ in range(10):
        pooled = [draws.choice([1, 2, 3, math.inf]) for _ in places]

        def wins(chosen: Collection[int], pooled: list[float] = pooled) -> float:
            rest = [pooled[k] for k in places if k not in chosen]
            return sum((pooled[k] < b) + (pooled[k] == b) / 2 for k in chosen for b in rest)

        counts = [wins(chosen) for chosen in itertools.combinations(places, m)]
        as_good = sum(count >= wins(range(m)) for count in counts)
        assert p_earlier(pooled[:m], pooled[m:]) == pytest.approx(as_good / len(counts))


@pytest.mark.parametrize(("m", "n"), [(3, 3), (4, 5), (8, 3)])
def test_what_is_often_earlier_is_seldom_contradicted_on_a_grid(m: int, n: int) -> None:
    draws = random.Random(m * n)

    def times(rate: float, count: int) -> list[float]:
        return [float(math.ceil(3 * draws.expovariate(rate))) for _ in range(count)]

    # P(x < y) = 3/4 for times with these rates; 20 and five standard deviations of 400 draws
    rejected = sum(p_rarely_earlier(times(3.0, m), times(1.0, n)) <= 0.05 for _ in range(400))
    assert rejected <= 42


@pytest.mark.parametrize(("seen", "n"), [(0, 3), (2, 3), (3, 3), (7, 8), (13, 20)])
def test_counts_of_seeds_are_those_of_a_coin(seen: int, n: int) -> None:
    from scipy import stats

    expected = stats.binomtest(seen, n, alternative="greater").pvalue
    assert p_most(seen, n) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("seen", "n"), [(0, 3), (2, 3), (3, 3), (3, 8), (13, 20)])
def test_few_seeds_are_those_of_a_coin_that_prefers_one_side(seen: int, n: int) -> None:
    from scipy import stats

    expected = stats.binomtest(seen, n, 0.75, alternative="less").pvalue
    assert p_few(seen, n) == pytest.approx(expected, rel=1e-12)


def test_orders_of_times_with_hazards_of_three_to_one() -> None:
    # x with the rate 3, y with 1: both x before y has ∫ e⁻ʸ (1 − e⁻³ʸ)² dy = 1 − 2/4 + 1/7
    assert 1 - p_rarely_earlier([1, 3], [2]) == pytest.approx(1 - 2 / 4 + 1 / 7)
    # y before both: ∫ e⁻ʸ e⁻⁶ʸ dy
    assert p_rarely_earlier([2, 3], [1]) == pytest.approx(1 / 7)
    assert p_rarely_earlier([1, 2], [3]) == pytest.approx(1.0)


def test_what_never_comes_on_either_side_contradicts_nothing() -> None:
    assert p_rarely_earlier([math.inf, math.inf], [math.inf]) == pytest.approx(1.0)


@pytest.mark.parametrize(("m", "n", "sigma"), [(3, 3, 1.0), (8, 8, 2.0), (20, 5, 1.0)])
def test_what_is_often_less_is_contradicted_in_one_of_twenty_draws(
    m: int, n: int, sigma: float
) -> None:
    from scipy import stats

    draws = random.Random(m * n)
    # P(x < y) = 3/4 for x ~ N(0, 1) and y ~ N(δ, σ²)
    distance = float(stats.norm.ppf(0.75)) * math.hypot(1.0, sigma)
    rejected = 0
    for _ in range(1000):
        x = [draws.gauss(0.0, 1.0) for _ in range(m)]
        y = [draws.gauss(distance, sigma) for _ in range(n)]
        rejected += p_rarely_less(x, y) <= 0.05
    # five standard deviations of 1000 draws, 34, and what Welch's degrees of freedom leave out
    assert abs(rejected - 50) < 40


def test_values_without_spread_are_less_or_not() -> None:
    assert p_rarely_less([1.0, 1.0], [2.0, 2.0]) == 1.0
    assert p_rarely_less([2.0, 2.0], [2.0, 2.0]) == 0.0
