"""Where recurrences have tiles, and when they run by them."""

import pytest
import torch

from cayley.kernels.cuda import elman
from cayley.kernels.cuda.gru import BACKWARD, FORWARD, TILES
from cayley.kernels.cuda.runtime import stepwise
from cayley.kernels.cuda.runtime.chip import Chip
from cayley.kernels.cuda.runtime.clusters import best_plan
from cayley.kernels.cuda.runtime.stepwise import runs_by_tiles, runs_stepwise
from cayley.kernels.cuda.runtime.tiles import ROWS, UNITS, TileKind, tile_microseconds, tiles

H200 = Chip(132, 232448, 16)
KINDS = {"forward": FORWARD, "backward": BACKWARD}
PLANS = ("tiles", "teams", "steps")
THREE = TILES["forward"]  # matrices
# Microseconds a step of NC-GRU by each of the plans, with the host's time, on an NVIDIA H200 with
# torch 2.11 on 2026-11-17: medians over 256 steps with B = 128 and n = 1024, over 50 otherwise.
MEASURED = [
    (128, 1024, "forward", (22.8, 59.7, 73.7)),
    (128, 1024, "backward", (25.0, 80.9, 53.5)),
    (512, 1024, "forward", (96.2, 232.1, 122.4)),
    (512, 1024, "backward", (110.8, 313.9, 119.3)),
    (64, 1024, "forward", (27.7, 33.7, 81.9)),
    (64, 1024, "backward", (28.6, 48.6, 73.5)),
    (128, 512, "forward", (17.0, 14.2, 79.0)),
    (128, 512, "backward", (18.5, 16.9, 74.8)),
    (512, 512, "forward", (32.2, 47.8, 81.7)),
    (512, 512, "backward", (38.1, 55.9, 85.2)),
    (256, 1024, "forward", (48.8, 120.4, 74.7)),
    (256, 1024, "backward", (55.9, 161.2, 83.1)),
    (32, 1024, "forward", (24.4, 17.6, 66.2)),
    (32, 1024, "backward", (25.5, 25.0, 60.1)),
    (512, 256, "forward", (10.6, 15.7, 61.8)),
    (512, 256, "backward", (14.9, 18.2, 60.5)),
]
measured = pytest.mark.parametrize(("B", "H", "direction", "times"), MEASURED)
# The same of an Elman recurrence, half of forward and backward, by clusters and by each kind of
# tiles: medians of five runs of 50 steps, on 2026-11-19.
OF_ELMAN = [
    (64, 512, (3.1, 7.2, 6.8, 10.0, 9.4)),
    (128, 512, (4.0, 7.2, 11.3, 10.3, 17.6)),
    (256, 512, (5.8, 8.3, 11.7, 11.4, 18.2)),
    (512, 512, (10.1, 14.7, 11.8, 11.3, 18.4)),
    (1024, 512, (17.8, 28.4, 22.4, 21.1, 18.4)),
    (64, 768, (5.6, 9.9, 8.8, 13.9, 12.9)),
    (128, 768, (8.6, 9.2, 14.7, 14.1, 23.9)),
    (256, 768, (17.7, 17.2, 14.9, 14.5, 24.2)),
    (512, 768, (23.9, 32.5, 28.1, 27.1, 24.5)),
    (1024, 768, (53.6, 66.7, 54.4, 49.5, 46.8)),
    (64, 1024, (6.8, 10.8, 10.8, 16.8, 16.0)),
    (128, 1024, (12.9, 11.2, 17.7, 17.1, 29.8)),
    (256, 1024, (21.4, 21.5, 17.8, 17.9, 29.4)),
    (512, 1024, (52.5, 42.7, 34.0, 34.7, 29.9)),
    (1024, 1024, (77.6, 80.3, 66.1, 67.5, 58.2)),
]


@pytest.fixture
def on_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepwise, "chip", lambda _: H200)


def chosen(B: int, H: int, direction: str) -> str:
    h0, kind = torch.empty(B, H), KINDS[direction]
    if runs_by_tiles(h0, kind, TILES[direction]):
        return "tiles"
    return "steps" if runs_stepwise(h0, kind) else "teams"


@pytest.mark.parametrize("H", [1, 16, 17, 512, 1000, 1024])
def test_blocks_have_all_units_and_room(H: int) -> None:
    layout = tiles(H, THREE, H200)
    assert layout is not None
    assert H <= layout.blocks * UNITS < H + UNITS
    assert layout.inputs >= H
    assert layout.memory <= H200.memory


def test_teams_are_as_many_as_there_are_rows_and_multiprocessors_for() -> None:
    layout = tiles(1024, THREE, H200)
    assert layout is not None
    assert [layout.teams(B, H200) for B in (1, ROWS, ROWS + 1, 512)] == [1, 1, 2, 2]


def test_no_room() -> None:
    assert tiles(1025, THREE, H200) is None
    assert tiles(512, THREE, Chip(132, 100_000, 16)) is None
    assert tiles(512, THREE, Chip(20, 232448, 16)) is None
    assert tiles(512, THREE, Chip(132, 232448, 16, together=False)) is None
    assert tile_microseconds(1025, 1, TILES["forward"], H200) == float("inf")


@measured
def test_the_model_is_near_the_measured_time(
    B: int, H: int, direction: str, times: tuple[float, float, float]
) -> None:
    assert tile_microseconds(H, B, TILES[direction], H200) == pytest.approx(times[0], rel=0.125)


@measured
def test_the_fastest_plan_is_chosen(
    B: int, H: int, direction: str, times: tuple[float, float, float], on_an_h200: None
) -> None:
    assert dict(zip(PLANS, times, strict=True))[chosen(B, H, direction)] <= 1.03 * min(times)


@pytest.mark.parametrize("direction", KINDS)
def test_few_rows_and_too_many_units_do_not_run_by_tiles(direction: str, on_an_h200: None) -> None:
    assert chosen(1, 1024, direction) == "teams"
    assert chosen(20, 170, direction) == "teams"
    assert chosen(512, 1100, direction) == "steps"


def test_deterministic_algorithms_leave_tiles_what_would_be_steps(on_an_h200: None) -> None:
    assert chosen(512, 768, "backward") == "steps"
    torch.use_deterministic_algorithms(True)
    try:
        assert chosen(512, 768, "backward") == "tiles"
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("B", "H", "times"), OF_ELMAN)
def test_elman_runs_by_tiles_where_these_are_about_the_fastest(
    B: int, H: int, times: tuple[float, ...]
) -> None:
    kind = elman._best_tiles(H, B, best_plan(H, B, H200), H200)
    chosen = times[0] if kind is None else times[1 + elman.TILES.index(kind)]
    assert chosen <= 1.05 * min(times)


@pytest.mark.parametrize(("B", "H", "times"), [row for row in OF_ELMAN if row[0] >= 256])
def test_the_model_is_near_the_measured_time_of_elman(
    B: int, H: int, times: tuple[float, ...]
) -> None:
    for kind, time in zip(elman.TILES, times[1:], strict=True):
        assert tile_microseconds(H, B, kind, H200) == pytest.approx(time, rel=0.22)


@pytest.mark.parametrize("kind", elman.TILES, ids=lambda kind: f"{kind.groups}-{kind.sets}")
def test_elman_blocks_have_all_units_and_teams_all_rows(kind: TileKind) -> None:
    for H in (1, 33, 1000):
        layout = tiles(H, kind, H200)
        assert layout is not None
        assert H <= layout.blocks * UNITS * kind.groups < H + UNITS * kind.groups
        assert layout.memory <= H200.memory
        assert layout.teams(kind.sets * ROWS + 1, H200) == 2
