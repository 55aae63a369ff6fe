import pytest
import torch

from cayley.lab.recipes import find_recipe
from cayley.lab.training import RunSettings, fit_hidden

TINY = RunSettings(tiny=True)


@pytest.mark.parametrize("wanted", [1, 20, 500, 3_000])
def test_the_nearest_size_is_found(wanted: int) -> None:
    recipe = find_recipe("quickstart").recipe(overrides=["model.hidden=17"])
    before = torch.get_rng_state()
    hidden, count = fit_hidden(recipe, wanted, TINY)
    assert torch.equal(before, torch.get_rng_state())

    def parameters(n: int) -> int:
        return 2 * n + n * (n - 1) // 2 + n + n + 1

    assert isinstance(hidden, int)
    assert count == parameters(hidden)
    others = [parameters(n) for n in range(1, 200)]
    assert abs(count - wanted) == min(abs(other - wanted) for other in others)


def test_several_sizes_keep_their_ratios() -> None:
    recipe = find_recipe("quickstart").recipe(overrides=["model.name=ENRNN", "model.hidden=[8, 4]"])
    hidden, count = fit_hidden(recipe, 2_000, TINY)
    assert isinstance(hidden, tuple)
    assert hidden[0] == 2 * hidden[1]
    assert count == pytest.approx(2_000, rel=0.1)
