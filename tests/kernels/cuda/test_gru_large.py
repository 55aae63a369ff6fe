"""Large gated recurrences, step by step and by tiles: emulated, against the loop in float64."""

from collections.abc import Callable, Iterator

import pytest
import torch
from emulator import COMPILER, emulated
from gru_check import check
from teams import fill_new_memory, force_steps, force_team, force_tiles
from torch import Tensor

from cayley.kernels.cuda import gru
from cayley.kernels.cuda.runtime import step_kernels

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


@pytest.mark.parametrize("force", [force_steps, force_tiles])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("candidate", ["modrelu", "tanh"])
@pytest.mark.parametrize("sizes", [None, PACKED, torch.tensor([1, 1])], ids=str)
def test_the_loop(
    sizes: Tensor | None,
    candidate: str,
    reverse: bool,
    force: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    force(monkeypatch)
    T, B = (6, 5) if sizes is None else (len(sizes), int(sizes[0]))
    check(T, B, 21, candidate, reverse, sizes)


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (4, 1)], ids=str)
def test_a_single_step_or_row(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    force_steps(monkeypatch)
    check(*size, 21, "modrelu")


def test_units_that_threads_share_unevenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_kernels, "MOST_THREADS", 32)
    monkeypatch.setattr(step_kernels, "UNITS", 30)
    monkeypatch.setattr(step_kernels, "PARTS", 2)
    force_steps(monkeypatch)
    check(3, 2, 75, "modrelu")


@pytest.mark.parametrize("first", [True, False])
def test_one_plan_reads_what_the_other_has_written(
    first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_team(monkeypatch, (2, 2, 128, 4))
    # the recurrence asks once, and its gradient once
    answers = iter((first, not first))
    monkeypatch.setattr(gru, "runs_stepwise", lambda *_: next(answers))
    check(6, 5, 21, "modrelu", sizes=PACKED)
    assert next(answers, None) is None


@pytest.mark.parametrize("size", [(1, 1, 1), (1, 5, 16), (4, 1, 33), (3, 64, 17)], ids=str)
def test_sizes_of_tiles(size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    force_tiles(monkeypatch)
    check(*size, "modrelu")


@pytest.mark.parametrize("packed", [False, True])
def test_rows_in_turn_by_tiles(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One team takes 64 and then 6 of the rows; the last block has few units."""
    force_tiles(monkeypatch, processors=3)
    sizes = torch.tensor([70, 66, 64, 9]) if packed else None
    check(4, 70, 37, "tanh", reverse=packed, sizes=sizes)


def test_warps_of_tiles_with_several_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """More stages than there is room for, and a last warp with fewer inputs."""
    force_tiles(monkeypatch)
    check(2, 3, 170, "modrelu")
