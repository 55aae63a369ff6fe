"""Teams of blocks for recurrences that one block could compute."""

import pytest

from cayley.kernels.cuda import elman, gru
from cayley.kernels.cuda.lstm import kernels as lstm_kernels
from cayley.kernels.cuda.runtime import team_kernels
from cayley.kernels.cuda.runtime.chip import Chip
from cayley.kernels.cuda.runtime.teams import Kind, Team

__all__ = ["force_team"]


def force_team(monkeypatch: pytest.MonkeyPatch, team: tuple[int, int, int, int]) -> None:
    """Let one team of so many blocks, rows, threads and outputs compute all rows, in turn."""

    def best(H: int, B: int, kind: Kind, chip: Chip) -> Team:
        return Team(H, kind, *team, kind.spare)

    monkeypatch.setattr(team_kernels, "best_team", best)
    monkeypatch.setattr(team_kernels, "chip", lambda _: Chip(team[0], 0, 1))
    monkeypatch.setattr(elman, "best_plan", lambda *_: None)
    for module in (gru, lstm_kernels):
        monkeypatch.setattr(module, "best_block_layout", lambda *_: None)
    monkeypatch.setattr(lstm_kernels, "_kernels", lstm_kernels._kernels.__wrapped__)
