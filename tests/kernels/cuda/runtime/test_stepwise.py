"""When recurrences run step by step."""

from collections.abc import Iterator

import pytest
import torch

from cayley.kernels.cuda.gru import BACKWARD, FORWARD
from cayley.kernels.cuda.lstm.kernels import team_kind
from cayley.kernels.cuda.runtime import stepwise
from cayley.kernels.cuda.runtime.chip import Chip
from cayley.kernels.cuda.runtime.stepwise import (
    runs_stepwise,
    step_microseconds,
    team_microseconds,
)
from cayley.kernels.cuda.runtime.teams import Kind

H200 = Chip(132, 232448, 16)
KINDS = [FORWARD, BACKWARD, *(team_kind(64, True, gradient) for gradient in (False, True))]
KINDS += [team_kind(1, False, gradient, 0) for gradient in (False, True)]
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def on_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepwise, "chip", lambda _: H200)


@pytest.fixture
def precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@kinds
def test_many_rows_and_units_run_step_by_step_and_few_by_teams(kind: Kind) -> None:
    assert runs_stepwise(torch.empty(512, 1024), kind)
    assert not runs_stepwise(torch.empty(1, 1024), kind)
    assert not runs_stepwise(torch.empty(20, 170), kind)


@kinds
def test_where_there_is_no_team_the_steps_are_alone(kind: Kind) -> None:
    assert team_microseconds(6000, 1, kind, H200) == float("inf")
    assert step_microseconds(6000, 1, kind) < float("inf")


def test_tf32_is_left_to_the_user_so_that_teams_compute(precision: None) -> None:
    h0 = torch.empty(512, 1024)
    for setting in ("high", "medium"):
        torch.set_float32_matmul_precision(setting)
        assert not runs_stepwise(h0, FORWARD)
        assert torch.get_float32_matmul_precision() == setting
    torch.set_float32_matmul_precision("highest")
    assert runs_stepwise(h0, FORWARD)


def test_deterministic_algorithms_are_those_of_teams() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert not runs_stepwise(torch.empty(512, 1024), FORWARD)
    finally:
        torch.use_deterministic_algorithms(False)
