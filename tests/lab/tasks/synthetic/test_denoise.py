import math

import pytest
import torch

from cayley.lab.tasks.synthetic import Denoise
from cayley.lab.tasks.synthetic.denoise import Layout, denoise


@pytest.mark.parametrize("T", [10, 11, 40])
def test_layout_of_the_paper(T: int) -> None:
    """P 3.4.1: of the T steps of the input ten are data and T − 10 noise."""
    x, y = denoise(torch.arange(200), T)
    for column, target in zip(x.t().tolist(), y.t().tolist(), strict=True):
        shown = [symbol for symbol in column[:T] if symbol]
        assert len(shown) == 10
        assert column[:T].count(0) == T - 10
        assert column[T:] == [10] + [0] * 9
        # as soon as it receives the marker
        assert target == [0] * T + shown


@pytest.mark.parametrize("T", [1, 6, 40])
def test_layout_of_the_code(T: int) -> None:
    x, y = denoise(torch.arange(200), T, layout="code")
    for column, target in zip(x.t().tolist(), y.t().tolist(), strict=True):
        shown = [symbol for symbol in column[: T + 9] if symbol]
        # no two symbols share a place
        assert len(shown) == 10
        assert all(1 <= symbol <= 9 for symbol in shown)
        assert column[T + 9 :] == [10] + [0] * 10
        assert target == [0] * (T + 10) + shown


def test_places_and_symbols_are_uniform() -> None:
    B, T = 5000, 25
    x, y = denoise(torch.arange(B), T)
    taken = (x[:T] > 0).double().sum(1)
    p = 10 / T
    assert (taken - B * p).abs().max() < 4 * math.sqrt(B * p * (1 - p))
    counts = torch.stack([(y[-10:] == symbol).sum(1) for symbol in range(1, 10)]).double()
    assert (counts - B / 9).abs().max() < 4 * math.sqrt(B / 9)
    # two places are taken together with the chance of draws without replacement
    both = ((x[0] > 0) & (x[1] > 0)).double().mean()
    q = 10 * 9 / (T * (T - 1))
    assert abs(both - q) < 4 * math.sqrt(q / B)


@pytest.mark.parametrize(("T", "printed"), [(100, 0.1831), (200, 0.0999)])
def test_baselines(T: int, printed: float) -> None:
    assert round(Denoise(T=T, layout="code").baseline("test")["cross_entropy"], 4) == printed
    baseline = Denoise(T=T).baseline("test")["cross_entropy"]
    assert baseline == pytest.approx(10 * math.log(9) / (T + 10))


@pytest.mark.parametrize("layout", ["paper", "code"])
def test_too_short_is_refused(layout: Layout) -> None:
    with pytest.raises(ValueError, match=r"task\.T: expected an integer from 10 to"):
        Denoise(T=9, layout=layout)
