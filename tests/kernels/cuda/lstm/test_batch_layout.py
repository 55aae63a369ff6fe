"""Layouts of an LSTM over blocks that have all rows of their units."""

from collections.abc import Iterable

import pytest
from emulator import H200

from cayley.kernels.cuda.lstm import batch_layout
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


# µs a step of the kernel of a share on an H200, forward and backward; "plain" has no workers
MEASURED: dict[tuple[int, int], tuple[dict[Share | str, float], ...]] = {
    (60, 128): (
        {
            "plain": 3.90,
            Share(8, 2, 512): 3.87,
            Share(4, 1, 512): 3.84,
            Share(4, 2, 256): 4.18,
            Share(16, 4, 512): 4.46,
            Share(8, 4, 256): 4.69,
        },
        {
            "plain": 5.82,
            Share(32, 1, 384, 8): 4.66,
            Share(32, 2, 256, 8): 4.83,
            Share(16, 2, 384, 4): 5.04,
            Share(16, 2, 256, 4): 5.05,
            Share(32, 4, 384, 4): 5.42,
        },
    ),
    (60, 50): (
        {"plain": 2.68, Share(8, 2, 256): 3.12, Share(8, 1, 448): 3.16, Share(4, 1, 256): 3.47},
        {
            "plain": 3.60,
            Share(16, 1, 448, 4): 2.86,
            Share(16, 1, 256, 4): 2.93,
            Share(16, 1, 448, 2): 2.98,
            Share(32, 1, 256, 8): 3.08,
        },
    ),
    (60, 20): (
        {"plain": 2.08, Share(8, 1, 256): 2.60},
        {"plain": 3.11, Share(16, 2, 256): 2.35, Share(16, 1, 256, 4): 2.37},
    ),
    (68, 128): (
        {"plain": 5.62, Share(8, 2, 512): 4.02, Share(8, 2, 384): 4.85, Share(8, 4, 256): 5.30},
        {
            "plain": 8.47,
            Share(16, 2, 256, 4): 5.54,
            Share(32, 2, 256, 8): 5.58,
            Share(32, 4, 256, 4): 5.91,
        },
    ),
    (128, 50): (
        {"plain": 3.07, Share(16, 2, 448): 3.99, Share(8, 2, 256): 4.08},
        {
            "plain": 5.78,
            Share(16, 1, 448, 2): 4.29,
            Share(32, 2, 448, 2): 4.35,
            Share(16, 2, 256, 2): 6.14,
            Share(32, 4, 448): 7.60,
        },
    ),
    (60, 256): (
        {"plain": 7.50, Share(8, 4, 256): 5.63, Share(4, 2, 256): 5.78},
        {
            "plain": 12.56,
            Share(32, 2, 256, 8): 6.59,
            Share(32, 4, 256, 8): 7.31,
            Share(32, 4, 256, 4): 7.35,
        },
    ),
    (60, 512): (
        {"plain": 13.48, Share(4, 2, 256): 10.21, Share(8, 4, 256): 10.45},
        {
            "plain": 24.26,
            Share(32, 2, 256, 8): 15.16,
            Share(32, 4, 256, 8): 15.38,
            Share(32, 4, 256, 4): 16.02,
        },
    ),
    (200, 512): (
        {"plain": 32.34, Share(8, 4, 256): 31.90, Share(16, 4, 256): 35.43},
        {
            "plain": 59.42,
            Share(32, 4, 256, 4): 39.19,
            Share(16, 2, 256, 8): 39.67,
            Share(32, 2, 256, 8): 41.00,
        },
    ),
}


@pytest.mark.parametrize(("H", "B"), MEASURED)
def test_of_what_was_measured_about_the_fastest(
    H: int, B: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = MEASURED[H, B]

    def measured(*options: Iterable[int]) -> list[Share]:
        shares = [share for way in times for share in way if isinstance(share, Share)]
        teams, workers, splits, rows = map(set, options)
        sets = (splits, rows, workers, teams)
        return [s for s in shares if all(x in own for x, own in zip(s, sets, strict=True))]

    monkeypatch.setattr(batch_layout, "_shares", measured)
    layout = best_batch_layout.__wrapped__(H, B, 1, H200)
    assert layout is not None
    shares = (layout.forward, layout.backward)
    chosen = sum(
        way[share if share.workers else "plain"] for way, share in zip(times, shares, strict=True)
    )
    assert chosen <= 1.01 * sum(min(way.values()) for way in times)
