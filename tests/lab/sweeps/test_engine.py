from pathlib import Path
from typing import Any

import pytest
from lab.sweeps.made_up import begin, finish, space

from cayley.lab.errors import RecipeError
from cayley.lab.sweeps.engine import make_pruner, make_sampler
from cayley.lab.sweeps.space import PrunerSettings, SamplerSettings

pytest.importorskip("optuna", reason="sweeps need the extra sweep")


@pytest.mark.parametrize("name", ["tpe", "gp", "qmc", "random"])
def test_samplers_choose(name: str, tmp_path: Path) -> None:
    sweep = begin(tmp_path, space(**{'"random", seed = 3': f'"{name}", seed = 1'}))
    assert [finish(sweep, float(k)) for k in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (make_pruner, PrunerSettings("median", {"n_warmup": 1}), "did you mean n_warmup_steps?"),
        (make_pruner, PrunerSettings("percentile"), "percentile refuses these options"),
        (make_sampler, SamplerSettings("random", {"sed": 1}), "did you mean seed?"),
        (make_sampler, SamplerSettings("gp", {"independent_sampler": 1}), "unknown option"),
    ],
)
def test_options_of_optuna_are_checked(make: Any, settings: Any, words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        make(settings)
    assert words in str(caught.value)
