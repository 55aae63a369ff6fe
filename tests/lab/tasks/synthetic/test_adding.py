import pytest
import torch

from cayley.lab.tasks.synthetic import Adding
from cayley.lab.tasks.synthetic.adding import Markers, adding


@pytest.mark.parametrize("T", [4, 5, 20, 75])
@pytest.mark.parametrize("markers", ["halves", "code"])
def test_one_marker_in_each_half_and_the_sum_of_the_marked(T: int, markers: Markers) -> None:
    B = 3000
    x, y = adding(torch.arange(B), T, markers=markers)
    u, m = x.unbind(-1)
    half = T // 2 if markers == "halves" else (T - 1) // 2
    assert torch.equal(m[:half].sum(0), torch.ones(B))
    assert torch.equal(m[half:].sum(0), torch.ones(B))
    assert set(m.unique().tolist()) == {0.0, 1.0}
    assert ((u >= 0) & (u < 1)).all()
    for b in range(20):
        first, second = m[:, b].nonzero().flatten().tolist()
        assert y[b, 0] == u[first, b] + u[second, b]
    # every place of both halves is drawn
    assert (m.sum(1) > 0).all()


def test_places_are_uniform_and_independent() -> None:
    T, B = 8, 40_000
    m = adding(torch.arange(B), T)[0][..., 1]
    pairs = m[:4] @ m[4:].t()
    # 16 pairs of places, B/16 each
    assert (pairs - B / 16).abs().max() < 4 * (B / 16) ** 0.5


def test_streams_and_lengths_differ() -> None:
    index = torch.arange(10)
    assert not torch.equal(adding(index, 10, stream=(1,))[0], adding(index, 10, stream=(2,))[0])


def test_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match=r"task\.T: expected an integer from 4 to"):
        Adding(T=3)


def test_sizes_of_the_paper() -> None:
    task = Adding()
    assert [task.size(split) for split in ("train", "test")] == [100_000, 10_000]
    assert task.steps("train", 50) == 2000
