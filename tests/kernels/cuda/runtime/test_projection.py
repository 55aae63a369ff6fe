"""The kernel against a product in double precision."""

import pytest
import torch

from cayley.kernels.cuda.runtime.projection import FEW_INPUTS, project_by_features, project_on_cuda

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize("inputs", [1, 2, 7, FEW_INPUTS, FEW_INPUTS + 1])
@pytest.mark.parametrize("shape", [(1, 1), (17, 3), (40,)])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_the_product(inputs: int, shape: tuple[int, ...], bias: bool) -> None:
    x, U, c = torch.randn(*shape, inputs), torch.randn(300, inputs), torch.randn(300)
    x, U, c = (v.float().cuda() for v in (x, U, c))
    expected = x.double() @ U.double().mT + (c.double() if bias else 0)
    for project in (project_on_cuda, project_by_features):
        found = project(x, U, c if bias else None)
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_tensors_that_are_not_contiguous() -> None:
    x, U = torch.randn(3, 17).float().cuda(), torch.randn(3, 40).float().cuda()
    torch.testing.assert_close(project_on_cuda(x.mT, U.mT, None), x.mT @ U, rtol=1e-5, atol=1e-5)


def test_nothing_to_compute() -> None:
    x, U = torch.randn(5, 2).float().cuda(), torch.randn(4, 2).float().cuda()
    assert project_on_cuda(x, None, None) is x
    assert project_on_cuda(x[:0], U, None).shape == (0, 4)
