"""Where recurrences have tiles, and when they run by them."""

import pytest
import torch

from cayley.kernels.cuda.gru import BACKWARD, FORWARD, MATRICES
from cayley.kernels.cuda.runtime import stepwise
from cayley.kernels.cuda.runtime.chip import Chip
from cayley.kernels.cuda.runtime.stepwise import runs_by_tiles
from cayley.kernels.cuda.runtime.teams import Kind
from cayley.kernels.cuda.runtime.tiles import ROWS, UNITS, tile_microseconds, tiles

H200 = Chip(132, 232448, 16)


@pytest.mark.parametrize("H", [1, 16, 17, 512, 1000, 1024])
def test_blocks_have_all_units_and_room(H: int) -> None:
    layout = tiles(H, MATRICES, H200)
    assert layout is not None
    assert H <= layout.blocks * UNITS < H + UNITS
    assert layout.inputs >= H
    assert layout.memory <= H200.memory


def test_teams_are_as_many_as_there_are_rows_and_multiprocessors_for() -> None:
    layout = tiles(1024, MATRICES, H200)
    assert layout is not None
    assert [layout.teams(B, H200) for B in (1, ROWS, ROWS + 1, 512)] == [1, 1, 2, 2]


def test_no_room() -> None:
    assert tiles(1025, MATRICES, H200) is None
    assert tiles(512, MATRICES, Chip(132, 100_000, 16)) is None
    assert tiles(512, MATRICES, Chip(20, 232448, 16)) is None
    assert tiles(512, MATRICES, Chip(132, 232448, 16, together=False)) is None
    assert tile_microseconds(1025, 1, MATRICES, H200) == float("inf")


@pytest.mark.parametrize("kind", [FORWARD, BACKWARD])
def test_many_rows_and_units_run_by_tiles(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepwise, "chip", lambda _: H200)
    assert runs_by_tiles(torch.empty(128, 1024), kind, MATRICES)
    assert runs_by_tiles(torch.empty(512, 512), kind, MATRICES)
    assert not runs_by_tiles(torch.empty(1, 1024), kind, MATRICES)
    assert not runs_by_tiles(torch.empty(20, 170), kind, MATRICES)
    assert not runs_by_tiles(torch.empty(512, 2000), kind, MATRICES)
