"""Every unit has a thread."""

import pytest
import torch

from cayley.kernels.cuda.runtime.parts import parts
from cayley.kernels.cuda.runtime.step_kernels import row_layout, step_views


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("H", [1, 32, 33, 128, 129, 512, 513, 1024, 1030, 5000])
def test_every_unit_has_a_thread(H: int, joined: bool) -> None:
    parts, each, threads = row_layout(H, joined)
    assert parts * each * threads >= H
    assert threads % 32 == 0
    assert threads <= 512
    assert parts == 1 or not joined
    # no more than a portable cluster has: the blocks of a row are none
    assert parts <= 8


def test_views_are_of_the_same_memory() -> None:
    x = torch.arange(12.0).view(3, 2, 2)
    for step, view in zip(x, step_views(x, None, 2, 2), strict=True):
        assert torch.equal(step, view)
        assert step.data_ptr() == view.data_ptr()
    (part,) = parts(x, 6)
    sizes = torch.tensor([2, 1])
    views = step_views(part, sizes, 2, 2)
    assert [view.shape for view in views] == [(2, 2), (1, 2)]
    assert views[1].data_ptr() == part.data_ptr() + 4 * x.element_size()
