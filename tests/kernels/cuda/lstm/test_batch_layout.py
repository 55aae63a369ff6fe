"""Layouts of an LSTM over blocks that have all rows of their units."""

import pytest
from emulator import H200

from cayley.kernels.cuda.lstm.batch_layout import best_batch_layout
from cayley.kernels.cuda.runtime.chip import RESERVED, Chip

SIZES = [(1, 1), (60, 50), (60, 128), (61, 33), (128, 512), (200, 7), (512, 512), (1000, 64)]


@pytest.mark.parametrize(("H", "B"), SIZES)
@pytest.mark.parametrize("K", [1, 45])
def test_all_units_and_rows_have_a_place(H: int, B: int, K: int) -> None:
    layout = best_batch_layout(H, B, K, H200)
    assert layout is not None
    for share in (layout.forward, layout.backward):
        blocks = layout.blocks(share)
        assert (blocks - share.team) * layout.units < H <= blocks * layout.units
        assert blocks <= H200.processors
        assert blocks // share.team <= H200.resident(share.team)
        assert share.team == 1 or share.workers
        assert layout.members <= layout.block(share) <= 1024
        assert share.workers % share.splits == 0
    assert layout.forward.team == 1
    assert 32 * layout.parts * layout.items >= B
    assert layout.memory(K) <= H200.memory - RESERVED
    assert layout.H % layout.of_states.width == 0


def test_only_chips_with_clusters_have_teams() -> None:
    layout = best_batch_layout(60, 128, 1, Chip(108, 166912, 1))
    assert layout is not None
    shares = (layout.forward, layout.backward)
    assert [(share.workers, share.team) for share in shares] == [(0, 1)] * 2


def test_no_room() -> None:
    assert best_batch_layout(60, 5000, 1, H200) is None
    assert best_batch_layout(1100, 20, 1, H200) is None
    assert best_batch_layout(60, 50, 20000, H200) is None
    assert best_batch_layout(60, 50, 1, Chip(132, 232448, 16, together=False)) is None
