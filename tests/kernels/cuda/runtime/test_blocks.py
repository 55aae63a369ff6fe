"""Layouts fit the chip, and leave registers where they can."""

import pytest

from cayley.kernels.cuda.runtime.blocks import BlockLayout, best_block_layout
from cayley.kernels.cuda.runtime.chip import RESERVED

MEMORY = 232448  # of an H200

# of the four kernels the lanes of a unit, and the products with inputs and outputs for each unit
KERNELS = {
    "gru forward": (4, lambda H: ((H, 2), (H, 1))),
    "gru backward": (4, lambda H: ((H, 1), (2 * H, 1))),
    "lstm forward": (2, lambda H: ((H, 4),)),
    "lstm backward": (2, lambda H: ((4 * H, 1),)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_128_units_fit(name: str) -> None:
    roles, factors = KERNELS[name]
    for H in range(1, 129):
        layout = best_block_layout(H, factors(H), 7, 512, 88, MEMORY, roles)
        assert layout is not None, f"no layout for {H} units"
        assert layout.memory <= MEMORY - RESERVED
        assert roles * H <= layout.threads <= 1024


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("H", [1, 38, 100, 128])
def test_every_weight_has_a_place(name: str, H: int) -> None:
    """The lanes of a group hold all weights of its units, and zeros for less than 32 inputs."""
    roles, factors = KERNELS[name]
    layout = best_block_layout(H, factors(H), 7, 512, 64, MEMORY, roles)
    assert layout is not None
    assert layout.threads * layout.units >= layout.lanes * H
    for (inputs, outputs), split in zip(factors(H), layout.splits, strict=True):
        assert 0 <= split.shared <= split.chunks
        held = layout.lanes * split.chunks * split.weights / (outputs * layout.units)
        assert inputs <= held < inputs + 32


def test_what_registers_do_not_hold_is_in_shared_memory() -> None:
    layouts = [BlockLayout(100, ((100, 4),), 2, 0, spare, 2) for spare in (48, 96, 255)]
    shared = [layout.splits[0].shared * layout.splits[0].weights for layout in layouts]
    assert 0 < shared[0] < shared[1] < shared[2]
    assert layouts[2].splits[0].shared == layouts[2].splits[0].chunks
    assert layouts[0].memory < layouts[1].memory < layouts[2].memory


def test_single_states_are_read_where_more_leave_weights_in_shared_memory() -> None:
    """13 chunks of 8 inputs fit where 4 of 32 and 7 of 16 would leave some out."""
    assert BlockLayout(100, ((100, 4),), 2, 0, 40, 2).splits == [(1, 13, 16, 0)]
    assert BlockLayout(60, ((60, 4),), 2, 0, 40, 2).splits == [(4, 2, 64, 0)]


def test_weights_that_fit_nowhere_have_no_layout() -> None:
    assert best_block_layout(257, ((257, 2), (257, 1)), 2, 0, 48, 2**30) is None
    assert best_block_layout(200, ((200, 4),), 2, 0, 48, MEMORY, 2) is None


def test_sizes_are_the_constants_of_the_kernel() -> None:
    sizes = BlockLayout(38, ((38, 2), (38, 1)), 2, 0, 40).sizes((("bool WINDOWED", "true"),))
    assert "constexpr int H = 38;\n" in sizes
    assert "constexpr int ROLES = 4;\n" in sizes
    assert "constexpr int THREADS = 160;\n" in sizes
    assert "constexpr int SHARED[] = {0, 0};\n" in sizes
    assert "constexpr bool WINDOWED = true;\n" in sizes
    assert "constexpr int SEVERAL = 0;\n" in sizes
