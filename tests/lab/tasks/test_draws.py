import pytest
import torch

from cayley.lab.tasks import Draws


@pytest.mark.parametrize("shape", [(), (7,), (7, 3), (7, 3, 2)])
def test_an_example_has_the_same_numbers_in_every_batch(shape: tuple[int, ...]) -> None:
    many = Draws(("mine",), torch.arange(10), torch.float32)
    few = Draws(("mine",), torch.tensor([9, 2]), torch.float32)
    for draw in ("uniform", "normal"):
        x, y = getattr(many, draw)(*shape), getattr(few, draw)(*shape)
        assert x.dtype == torch.float32
        axis = 1 if shape else 0
        assert x.shape == (*shape[:1], 10, *shape[1:])
        assert torch.equal(x.index_select(axis, torch.tensor([9, 2])), y)
    assert torch.equal(
        many.integers(5, *shape).index_select(1 if shape else 0, torch.tensor([9, 2])),
        few.integers(5, *shape),
    )


def test_each_call_each_place_and_each_stream_has_numbers_of_its_own() -> None:
    draws = Draws(("mine", 1), torch.arange(50))
    numbers = torch.cat([draws.uniform(20).flatten(), draws.uniform(20).flatten()])
    other = Draws(("mine", 2), torch.arange(50)).uniform(20).flatten()
    assert len(torch.cat([numbers, other]).unique()) > 2990
