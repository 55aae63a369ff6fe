"""Layouts of teams fit the chip, and every weight has a place."""

from dataclasses import replace

import pytest

from cayley.kernels.cuda import elman
from cayley.kernels.cuda.gru import BACKWARD, FORWARD
from cayley.kernels.cuda.lstm.kernels import team_kind
from cayley.kernels.cuda.runtime.chip import RESERVED, Chip
from cayley.kernels.cuda.runtime.teams import Kind, Team, best_team

H200 = Chip(132, 232448, 16)
SMALL = Chip(46, 101376, 1)  # without clusters
KINDS = {
    "elman": elman._kind("tanh"),
    "complex elman": elman._kind("modrelu_stacked", is_complex=True),
    "gru forward": FORWARD,
    "gru backward": BACKWARD,
    "lstm forward": team_kind(1, False, False, 0),
    "lstm backward": team_kind(1, False, True, 0),
    "windows forward": team_kind(64, True, False),
    "windows backward": team_kind(64, True, True),
}

kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def found(H: int, B: int, kind: Kind, chip: Chip = H200) -> Team:
    team = best_team(H, B, kind, chip)
    assert team is not None, f"no layout for {H} units"
    return team


@kinds
@pytest.mark.parametrize("H", [1, 33, 161, 257, 512, 1000, 1150, 1500])
@pytest.mark.parametrize("B", [1, 20, 128, 1000])
def test_layouts_fit(kind: Kind, H: int, B: int) -> None:
    team = found(H, B, kind)
    assert team.memory <= H200.memory - RESERVED
    assert team.units <= 32
    assert 32 * team.rows <= team.threads <= 512
    assert (team.blocks - 1) * team.units < H <= team.blocks * team.units
    assert team.teams(B, H200) * team.blocks <= H200.processors


@kinds
@pytest.mark.parametrize("H", [1, 170, 425, 1024])
def test_every_weight_has_a_place(kind: Kind, H: int) -> None:
    """Groups of lanes for all outputs, in parts that together have all inputs."""
    team = found(H, 32, kind)
    for share, product in zip(team.shares, kind.products, strict=True):
        gates = product.gates * team.units
        inputs, outputs = (gates, H) if product.reduced else (H, gates)
        groups = -(-outputs // share.outputs)
        assert share.slices * groups * share.splits <= team.threads
        assert 0 <= share.shared <= share.chunks
        length = -(-inputs // share.slices)
        assert share.chunks == -(-length // (share.splits * share.vector))


@pytest.mark.parametrize("H", [2, 34, 170, 426, 1030])
def test_the_parts_of_a_complex_number_are_in_one_block(H: int) -> None:
    for is_complex in (False, True):
        team = found(H, 20, elman._kind("modrelu_stacked", is_complex))
        assert team.units % 2 == 0
        assert (team.blocks - 1) * team.units < H <= team.blocks * team.units


@kinds
def test_no_more_teams_than_rows_need(kind: Kind) -> None:
    team = found(200, 3, kind)
    assert (team.teams(3, H200) - 1) * team.rows < 3 <= team.teams(3, H200) * team.rows


@kinds
def test_chips_without_clusters_have_teams(kind: Kind) -> None:
    team = found(256, 20, kind, SMALL)
    assert team.memory <= SMALL.memory - RESERVED
    assert team.teams(20, SMALL) > 0


@kinds
def test_windows_take_memory(kind: Kind) -> None:
    """With more of them a team has fewer rows, or more weights stay in registers."""
    larger = kind._replace(extra=kind.extra + 2048)
    assert found(512, 50, larger).memory <= H200.memory - RESERVED
    team = found(512, 50, kind)
    assert replace(team, kind=larger).memory == team.memory + 4 * 2048 * team.rows


@kinds
def test_weights_that_fit_nowhere_have_no_layout(kind: Kind) -> None:
    assert best_team(6000, 1, kind, H200) is None
    assert best_team(200, 1, kind._replace(extra=2**20), H200) is None


@kinds
def test_drivers_that_cannot_start_teams_have_none(kind: Kind) -> None:
    assert best_team(200, 1, kind, replace(H200, together=False)) is None
