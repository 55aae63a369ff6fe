"""What is remembered, and what is read from it; test_tracker has the steps."""

import math

import pytest
import torch

from cayley.parametrizations.eigenvalue.stage import LITTLE, MUCH, Status, columns_of, memory_size


@pytest.mark.parametrize("k", [8, 32])
def test_size(k: int) -> None:
    assert columns_of(torch.zeros(memory_size(k))) == k


def test_more_terms_where_the_residual_falls_slowly() -> None:
    slow = Status(*(1.0, 0.0, 1e-4, 1e-4, 1e-3, 1.0, 1.0, 9.0, 1.0, 8.0, 24.0))
    assert slow.next_work == MUCH
    assert slow._replace(r_u=1e-7, r_v=1e-7, start=1e-4).next_work == LITTLE
    assert slow._replace(terms=0.0).next_work == MUCH


def test_quality() -> None:
    status = Status(*(2.0, 0.0, 1e-4, 1e-4, 1e-3, 1.0, 1.0, 9.0, 1.0, 8.0, 4.0))
    assert status.good
    assert status.calm
    assert not status._replace(r_u=6e-4, r_v=6e-4).calm
    assert status._replace(r_u=6e-4, r_v=6e-4).good
    assert not status._replace(r_u=math.nan).good
    assert not status._replace(r_u=2e-3, r_v=1e-6).good
    # before the latch closes, nobody needs the vectors
    assert status._replace(real=0.9, latched=0.0, r_u=2e-3, r_v=1e-6).good
    assert not status._replace(real=0.9, latched=0.0, r_u=2e-3, r_v=2e-3).good
    assert not status._replace(overlap=1e-3).good
