"""How often D is to be chosen again, and whether anybody does."""

import copy

import pytest
import torch

from cayley.parametrizations.rebase_option import RebaseOption


@pytest.mark.parametrize(("rebase", "steps"), [(None, None), ("auto", 100), (7, 7)])
def test_steps(rebase: str | int | None, steps: int | None) -> None:
    option = RebaseOption(rebase)  # pyrefly: ignore[bad-argument-type]
    assert option.steps == steps
    assert option.is_unmet == (rebase is not None)


def test_is_met_while_the_hook_is_there() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    option = RebaseOption("auto")
    option.handle.value = optimizer.register_step_post_hook(lambda *_: None)
    assert not option.is_unmet
    assert copy.deepcopy(option).is_unmet
    option.handle.value.remove()
    assert option.is_unmet
    option.handle.value = optimizer.register_step_post_hook(lambda *_: None)
    del optimizer
    assert option.is_unmet
