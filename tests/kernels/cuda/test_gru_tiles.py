"""The gated recurrence by tiles, emulated on the CPU, against the loop in double precision."""

from collections.abc import Iterator

import pytest
import torch
from emulator import COMPILER, emulated
from gru_check import check
from teams import fill_new_memory, force_tiles
from torch import Tensor

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux"),
    pytest.mark.slow,
]
PACKED = torch.tensor([5, 4, 4, 2, 1, 1])


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fill_new_memory(monkeypatch)
    with emulated():
        yield


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("candidate", ["modrelu", "tanh"])
@pytest.mark.parametrize("sizes", [None, PACKED, torch.tensor([1, 1])], ids=str)
def test_the_loop(
    sizes: Tensor | None, candidate: str, reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_tiles(monkeypatch)
    T, B = (6, 5) if sizes is None else (len(sizes), int(sizes[0]))
    check(T, B, 21, candidate, reverse, sizes)


@pytest.mark.parametrize("size", [(1, 1, 1), (1, 5, 16), (4, 1, 33), (3, 64, 17)], ids=str)
def test_sizes(size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    force_tiles(monkeypatch)
    check(*size, "modrelu")


@pytest.mark.parametrize("packed", [False, True])
def test_rows_in_turn(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One team takes 64 and then 6 of the rows; the last block has few units."""
    force_tiles(monkeypatch, processors=3)
    sizes = torch.tensor([70, 66, 64, 9]) if packed else None
    check(4, 70, 37, "tanh", reverse=packed, sizes=sizes)


def test_warps_with_several_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """More stages than there is room for, and a last warp with fewer inputs."""
    force_tiles(monkeypatch)
    check(2, 3, 170, "modrelu")
