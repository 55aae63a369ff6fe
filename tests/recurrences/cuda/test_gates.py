"""Layouts fit the chip, and leave registers where they can."""

import pytest

from cayley.recurrences.cuda.gates import Layout, best_layout
from cayley.recurrences.cuda.plans import RESERVED

MEMORY = 232448  # of an H200

# the products of the four kernels, with their inputs and outputs for each unit
FACTORS = {
    "gru forward": lambda H: ((H, 2), (H, 1)),
    "gru backward": lambda H: ((H, 1), (2 * H, 1)),
    "lstm forward": lambda H: ((H, 4),),
    "lstm backward": lambda H: ((4 * H, 1),),
}


@pytest.mark.parametrize("name", FACTORS)
def test_128_units_fit(name: str) -> None:
    for H in range(1, 129):
        layout = best_layout(H, FACTORS[name](H), 5, 512, 88, MEMORY)
        assert layout is not None, f"no layout for {H} units"
        assert layout.memory <= MEMORY - RESERVED
        assert 4 * H <= layout.threads <= 1024


@pytest.mark.parametrize("name", FACTORS)
@pytest.mark.parametrize("H", [1, 38, 100, 128])
def test_every_weight_has_a_place(name: str, H: int) -> None:
    """The lanes of a group hold all weights of its units, and zeros for less than 32 inputs."""
    factors = FACTORS[name](H)
    layout = best_layout(H, factors, 5, 512, 64, MEMORY)
    assert layout is not None
    assert layout.threads * layout.units >= layout.lanes * H
    for (inputs, outputs), chunks, weights in zip(
        factors, layout.chunks, layout.chunk_weights, strict=True
    ):
        held = layout.lanes * chunks * weights / (outputs * layout.units)
        assert inputs <= held < inputs + 32


def test_what_registers_do_not_hold_is_in_shared_memory() -> None:
    factors = FACTORS["lstm forward"](100)
    layouts = [Layout(100, factors, 1, 0, spare) for spare in (40, 80, 255)]
    shared = [layout.shared[0] for layout in layouts]
    assert 0 < shared[0] < shared[1] < shared[2] == layouts[2].chunks[0]
    assert layouts[0].memory < layouts[1].memory < layouts[2].memory


def test_weights_that_fit_nowhere_have_no_layout() -> None:
    assert best_layout(257, FACTORS["gru forward"](257), 2, 0, 48, 2**30) is None
    assert best_layout(200, FACTORS["lstm forward"](200), 1, 0, 48, MEMORY) is None


def test_sizes_are_the_constants_of_the_kernel() -> None:
    sizes = Layout(38, FACTORS["gru forward"](38), 2, 0, 40).sizes((("bool WINDOWED", "true"),))
    assert "constexpr int H = 38;\n" in sizes
    assert "constexpr int THREADS = 160;\n" in sizes
    assert "constexpr int SHARED[] = {0, 0};\n" in sizes
    assert "constexpr bool WINDOWED = true;\n" in sizes
