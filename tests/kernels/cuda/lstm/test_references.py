"""What means are measured from, against the means themselves."""

import pytest
import torch

from cayley.kernels.cuda.lstm.references import references
from cayley.norms.windows import coarse

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("H", [1, 21, 100, 300])
def test_near_the_means_of_the_first_step(H: int) -> None:
    B = 5
    shapes = {1000: (3, B, 4 * H), 0: (B, H), 10: (B, H), 1: (4 * H, H), 50: (4 * H,)}
    x, h0, c0, W, b = ((k + torch.randn(shape)).float().cuda() for k, shape in shapes.items())
    means = (x[0].mean(1), (h0 @ W.mT / H + b).mean(1), c0.mean(1))
    for found, mean in zip(references(x, h0, c0, W / H, b), means, strict=True):
        assert found.shape == (B, 1)
        # of eight bits
        torch.testing.assert_close(found[:, 0], mean, rtol=2**-8 + 1e-5, atol=0)
        assert torch.equal(coarse(found), found)


def test_zero_of_what_is_missing() -> None:
    h0 = torch.ones(2, 3).float().cuda()
    assert not torch.stack(references(None, h0, None, None, None)).any()
