"""The kernels of the small dense part, against the same in torch; test_tracker has the rest."""

import pytest
import torch
from torch import Tensor

from cayley.kernels.cuda.eigenpair import iterate_on_device, served
from cayley.parametrizations.eigenvalue.tracking import iterate

K = 32
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def problem(real: bool) -> tuple[Tensor, Tensor]:
    """Inner products of columns of which those of A are no multiples, and a start."""
    Y = torch.randn(200, 4 * K)
    lead = torch.randn(2, 2, K)
    if real:
        lead[:, 1] = 0
    return Y.mT @ Y, lead


def test_only_float32_on_a_gpu_is_served() -> None:
    assert not served(torch.zeros(2, 2, dtype=torch.float32))
    if torch.cuda.is_available():
        assert served(torch.zeros(2, 2, dtype=torch.float32, device="cuda"))
        assert not served(torch.zeros(2, 2, device="cuda"))


@gpu
@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("terms", [1, 5])
def test_inverse_iteration(real: bool, terms: int) -> None:
    gram, lead = problem(real)
    expected = iterate(gram, lead, terms)
    found = iterate_on_device(gram.cuda(), lead.cuda(), terms)
    for name, ours, theirs in zip(expected._fields, found, expected, strict=True):
        assert (ours.cpu() - theirs).norm() <= 1e-7 * theirs.norm(), name


@gpu
def test_dependent_columns_are_not_sound() -> None:
    gram, lead = problem(real=False)
    gram[K + 5] = 0
    gram[:, K + 5] = 0
    assert iterate_on_device(gram.cuda(), lead.cuda(), 4).sound.tolist() == [1, 0]
