"""The gated recurrence step by step, emulated on the CPU, against the loop in double precision."""

from collections.abc import Iterator

import pytest
import torch
from emulator import COMPILER, emulated
from gru_check import check
from teams import fill_new_memory, force_steps, force_team
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


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("candidate", ["modrelu", "tanh"])
@pytest.mark.parametrize("sizes", [None, PACKED, torch.tensor([1, 1])], ids=str)
def test_the_loop(
    sizes: Tensor | None, candidate: str, reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_steps(monkeypatch)
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
