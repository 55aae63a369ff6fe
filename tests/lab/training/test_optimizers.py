import math
from typing import Any

import pytest
import torch
from torch import nn

import cayley
from cayley.lab.errors import RecipeError
from cayley.lab.recipes.reading import from_table
from cayley.lab.recipes.schema import OptimSettings, ScheduleSettings
from cayley.lab.training.optimizers import build_bnp, build_optimizer, build_schedule


def optimizer(model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
    return build_optimizer(
        from_table(OptimSettings, {"name": "Adam", "lr": 1e-3} | settings), model
    )


def test_one_optimizer_where_one_is_enough() -> None:
    single = optimizer(cayley.ScuRNN(2, 4), recurrent_lr=1e-4, phase_lr=1e-2, weight_decay=0.1)
    assert isinstance(single, torch.optim.Adam)
    found = {group["name"]: (group["lr"], group["weight_decay"]) for group in single.param_groups}
    assert found == {"rest": (1e-3, 0.1), "recurrent": (1e-4, 0.0), "phases": (1e-2, 0.0)}


def test_an_optimizer_for_each_kind() -> None:
    several = optimizer(
        cayley.ScuRNN(2, 4),
        recurrent="AdagradTF",
        recurrent_lr=1e-4,
        phases="RMSpropTF",
        phase_options={"alpha": 0.8},
        options={"betas": [0.8, 0.9]},
    )
    assert isinstance(several, cayley.optim.Optimizers)
    kinds = [type(each).__name__ for each in several.optimizers]
    assert kinds == ["Adam", "AdagradTF", "RMSpropTF"]
    assert tuple(several.param_groups[0]["betas"]) == (0.8, 0.9)
    assert several.param_groups[2]["alpha"] == 0.8
    assert len({p for group in several.param_groups for p in group["params"]}) == 5


@pytest.mark.parametrize(
    ("network", "settings", "message"),
    [
        (
            cayley.ScoRNN,
            {"phase_lr": 1e-4, "phase_options": {"alpha": 0.5}},
            "optim.phase_lr and optim.phase_options: .* no phases",
        ),
        (
            cayley.LSTM,
            {"recurrent": "RMSpropTF", "recurrent_lr": 1e-4},
            "optim.recurrent and optim.recurrent_lr: .* no structured matrices",
        ),
    ],
)
def test_settings_without_effect_are_named(
    network: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.warns(UserWarning, match=message):
        optimizer(network(2, 4), **settings)


def test_the_same_class_with_other_options_is_another() -> None:
    several = optimizer(
        cayley.ScoRNN(2, 4),
        name="RMSprop",
        options={"alpha": 0.5},
        recurrent_options={"alpha": 0.9},
    )
    assert [group["alpha"] for group in several.param_groups] == [0.5, 0.9]


def test_unitary_matrices_move_along_their_manifold() -> None:
    layer = cayley.FullURNN(1, 5)
    several = optimizer(layer, name="RMSpropTF", recurrent="StiefelRMSprop", recurrent_lr=0.1)
    layer(torch.randn(7, 2, 1))[0].square().sum().backward()
    before = layer.weight_hh_l0.detach().clone()
    several.step()
    W = layer.weight_hh_l0.detach()
    assert not torch.allclose(W, before)
    torch.testing.assert_close(W.mH @ W, torch.eye(5, dtype=W.dtype))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "Adm"}, "did you mean Adam?"),
        ({"recurrent": "RMSPropTF"}, "did you mean RMSpropTF?"),
        ({"options": {"alfa": 1}}, "Adam refuses these settings"),
        ({"options": {"lr": 0.1}}, "expected learning rates as lr, recurrent_lr and phase_lr"),
        ({"recurrent": "SGD", "recurrent_options": {"lr": 0.1}}, "the options of SGD, where it"),
        ({"lr": -1.0}, "lr: expected a number of at least 0, got -1"),
        ({"recurrent_lr": math.nan}, "recurrent_lr: expected a number of at least 0"),
        ({"name": "SGD", "options": {"momentum": -1.0}}, "SGD refuses these settings"),
        ({"options": {"betas": [0.9]}}, "Adam refuses these settings"),
        ({"name": "LBFGS"}, "optim.name: expected one of .*, got 'LBFGS'"),
        ({"name": "SparseAdam"}, "optim.name: expected one of .*, got 'SparseAdam'"),
        ({"name": "Optimizers"}, "optim.name: expected one of .*, got 'Optimizers'"),
        ({"phases": "Adm"}, "optim.phases: expected one of .*, got 'Adm': did you mean Adam?"),
        ({"recurrent": "Adm"}, "optim.recurrent: expected one of .*, got 'Adm'"),
    ],
)
def test_wrong_optimizers(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        optimizer(cayley.ScuRNN(2, 4), **settings)


def test_a_schedule_moves_all_rates() -> None:
    several = optimizer(cayley.ScoRNN(2, 4), recurrent="RMSpropTF", recurrent_lr=0.5)
    settings = from_table(
        ScheduleSettings, {"name": "MultiStepLR", "milestones": [2], "gamma": 0.1}
    )
    schedule = build_schedule(settings, several, 3)
    assert schedule is not None
    rates = []
    for _ in range(3):
        several.step()
        schedule.step()
        rates.append([group["lr"] for group in several.param_groups])
    assert rates == [pytest.approx(pair) for pair in ([1e-3, 0.5], [1e-4, 0.05], [1e-4, 0.05])]
    assert build_schedule(ScheduleSettings(), several, 3) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "StepLr"}, "did you mean StepLR?"),
        ({"name": "LRScheduler"}, "optim.schedule.name: expected one of ConstantLR, Cosine"),
        ({"name": "LambdaLR"}, "optim.schedule.name: expected one of .*, got 'LambdaLR'"),
        ({"name": "StepLR"}, "StepLR refuses these settings"),
        ({"name": "ReduceLROnPlateau"}, "expected a schedule that needs no metric"),
        (
            {"name": "StepLR", "step_size": 0},
            "optim.schedule.step_size: expected an integer from 1 to",
        ),
        (
            {"name": "StepLR", "step_size": 2, "gamma": -1},
            "optim.schedule.gamma: expected a number",
        ),
        (
            {"name": "StepLR", "step_size": 30, "gamma": 1e999},
            "optim.schedule.gamma: expected a numb",
        ),
        ({"name": "MultiStepLR", "milestones": 3}, "MultiStepLR refuses these settings"),
        (
            {"name": "MultiStepLR", "milestones": [1], "gamma": "x"},
            "gamma: expected a number, got .x.",
        ),
        ({"name": "ExponentialLR", "gamma": 1e200}, "rate of inf after 2 of its steps"),
        (
            {"name": "CosineAnnealingLR", "T_max": 0},
            "optim.schedule.T_max: expected an integer from 1 to",
        ),
        (
            {"name": "PolynomialLR", "total_iters": 0},
            "optim.schedule.total_iters: expected an integer fr",
        ),
        ({"name": "OneCycleLR", "max_lr": 1e-3, "total_steps": 9}, "OneCycleLR refuses .* 10 tim"),
        (
            {"name": "CyclicLR", "base_lr": -1e-3, "max_lr": 1e-2, "cycle_momentum": False},
            "optim.schedule: CyclicLR gives a learning rate of -",
        ),
        ({"name": "LinearLR", "start_factor": 0.0}, "LinearLR refuses these settings"),
        ({"gamma": 0.9}, "expected optim.schedule.name with optim.schedule.gamma, got none"),
    ],
)
def test_wrong_schedules(settings: dict[str, Any], message: str) -> None:
    """Also those that would fail in the middle of a run."""
    with pytest.raises(RecipeError, match=message):
        build_schedule(from_table(ScheduleSettings, settings), optimizer(nn.Linear(1, 1)), 100)


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "OneCycleLR", "max_lr": 1e-2, "total_steps": 9},
        {"name": "CosineAnnealingLR", "T_max": 5},
        {"name": "CyclicLR", "base_lr": 1e-4, "max_lr": 1e-2, "step_size_up": 3},
    ],
)
def test_what_was_tried_out_starts_from_the_start(settings: dict[str, Any]) -> None:
    """The rates are those of a schedule that was not tried out, and so are the moments."""
    ours, theirs = (optimizer(nn.Linear(1, 1)) for _ in range(2))
    schedule = build_schedule(from_table(ScheduleSettings, settings), ours, 8)
    options = {key: value for key, value in settings.items() if key != "name"}
    plain = getattr(torch.optim.lr_scheduler, settings["name"])(theirs, **options)
    assert schedule is not None
    for _ in range(8):
        assert ours.state_dict() == theirs.state_dict()
        assert schedule.get_last_lr() == plain.get_last_lr()
        for one, other in ((ours, schedule), (theirs, plain)):
            one.step()
            other.step()


def test_bnp_where_there_are_settings() -> None:
    model = nn.Linear(2, 3)
    assert build_bnp({}, model) is None
    bnp = build_bnp({"eps": 0.1}, model)
    assert bnp is not None
    assert bnp.damping.eps == 0.1
    with pytest.raises(RecipeError, match="bnp: "):
        build_bnp({"epps": 0.1}, model)
