"""Teams of blocks, tiles, and steps one by one, for recurrences that one block could compute."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from cayley.kernels.cuda import elman, gru
from cayley.kernels.cuda.lstm import kernels as lstm_kernels
from cayley.kernels.cuda.runtime import team_kernels, tiles
from cayley.kernels.cuda.runtime.chip import Chip
from cayley.kernels.cuda.runtime.clusters import Plan
from cayley.kernels.cuda.runtime.teams import Kind, Team
from cayley.kernels.cuda.runtime.tiles import TileKind

__all__ = [
    "choose_steps",
    "fill_new_memory",
    "force_elman_tiles",
    "force_plan",
    "force_steps",
    "force_team",
    "force_tiles",
]


def force_team(monkeypatch: pytest.MonkeyPatch, team: tuple[int, int, int, int]) -> None:
    """Let one team of so many blocks, rows, threads and outputs compute all rows, in turn."""

    def best(H: int, B: int, kind: Kind, chip: Chip) -> Team:
        return Team(H, kind, *team, kind.spare)

    monkeypatch.setattr(team_kernels, "best_team", best)
    monkeypatch.setattr(team_kernels, "chip", lambda _: Chip(team[0], 0, 1))
    force_plan(monkeypatch, None)
    force_steps(monkeypatch, stepwise=False)


def force_plan(monkeypatch: pytest.MonkeyPatch, plan: Plan | None) -> None:
    """Let a plan compute Elman recurrences, or teams if it is None."""
    monkeypatch.setattr(elman, "best_plan", lambda *_: plan)
    monkeypatch.setattr(elman, "_best_tiles", lambda *_: None)


def force_steps(monkeypatch: pytest.MonkeyPatch, stepwise: bool = True) -> None:
    """Let products of a library and a small kernel compute every step of a gated recurrence.

    Arguments:
        monkeypatch: That of the test.
        stepwise: False for a team of blocks, whatever the number of rows and units.
    """
    choose_steps(monkeypatch, stepwise)
    for module in (gru, lstm_kernels):
        monkeypatch.setattr(module, "best_block_layout", lambda *_: None)
    monkeypatch.setattr(lstm_kernels, "_kernels", lstm_kernels._kernels.__wrapped__)


def choose_steps(monkeypatch: pytest.MonkeyPatch, stepwise: bool) -> None:
    """The same for sizes that one block cannot compute, without a change for others."""
    for module in (gru, lstm_kernels):
        monkeypatch.setattr(module, "runs_stepwise", lambda *_: stepwise)
    monkeypatch.setattr(gru, "runs_by_tiles", lambda *_: False)


def force_tiles(monkeypatch: pytest.MonkeyPatch, processors: int | None = None) -> None:
    """Let tiles compute a gated recurrence, on so many multiprocessors, or on all."""
    force_steps(monkeypatch, stepwise=False)
    monkeypatch.setattr(gru, "runs_by_tiles", lambda *_: True)
    if processors is not None:
        monkeypatch.setattr(tiles, "chip", lambda _: Chip(processors, 232448, 16))


def force_elman_tiles(
    monkeypatch: pytest.MonkeyPatch, kind: TileKind, processors: int | None = None
) -> None:
    """Let tiles of a kind compute an Elman recurrence, on so many multiprocessors, or on all."""
    monkeypatch.setattr(elman, "best_plan", lambda *_: None)
    monkeypatch.setattr(elman, "_best_tiles", lambda *_: kind)
    if processors is not None:
        monkeypatch.setattr(tiles, "chip", lambda _: Chip(processors, 232448, 16))


def fill_new_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill new memory with NaN, as deterministic algorithms do, which exclude some plans."""

    def filled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def fill(*arguments: Any, **options: Any) -> Tensor:
            new = function(*arguments, **options)
            return new.fill_(torch.nan) if new.is_floating_point() else new

        return fill

    monkeypatch.setattr(Tensor, "new_empty", filled(Tensor.new_empty))
    monkeypatch.setattr(torch, "empty_like", filled(torch.empty_like))
