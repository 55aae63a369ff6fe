"""Layouts of an LSTM over blocks that have all rows of their units."""

import pytest
from emulator import H200

from cayley.kernels.cuda.lstm.batch_layout import Share, best_batch_layout
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
        assert (share.team > 1) == (share.workers > 0)
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


# µs a step of the backward pass on an H200
MEASURED = {
    (60, 128): {
        Share(32, 1, 256, 8): 3.57,
        Share(32, 1, 384, 8): 3.80,
        Share(16, 1, 384, 4): 3.88,
        Share(32, 2, 256, 8): 3.99,
        Share(32, 2, 384, 4): 4.06,
        Share(32, 4): 4.14,
        Share(32, 2, 384, 8): 4.16,
    },
    (60, 50): {
        Share(16, 1, 448, 2): 2.43,
        Share(16, 1, 256, 4): 2.49,
        Share(32, 1, 448, 4): 2.60,
        Share(16, 1, 448, 4): 2.64,
        Share(32, 1, 448, 8): 2.74,
    },
    (68, 128): {
        Share(32, 1, 384, 4): 4.33,
        Share(16, 2, 256, 4): 4.76,
        Share(32, 2, 256, 8): 4.89,
    },
    (60, 256): {
        Share(32, 1, 256, 8): 5.43,
        Share(32, 2, 256, 8): 5.45,
        Share(32, 2, 256, 4): 5.86,
    },
    (200, 512): {Share(16, 4, 256, 4): 28.20, Share(32, 4, 256, 4): 30.25},
}


@pytest.mark.parametrize(("H", "B"), MEASURED)
def test_of_what_was_measured_about_the_fastest(H: int, B: int) -> None:
    layout, times = best_batch_layout(H, B, 1, H200), MEASURED[H, B]
    assert layout is not None
    assert times[layout.backward] <= 1.03 * min(times.values())
