"""What means are measured from, against the means themselves."""

import pytest
import torch

from cayley.norms.windows import coarse
from cayley.recurrences.cuda.references import references

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("H", [1, 21, 100, 300])
def test_near_the_means_of_the_first_step(H: int) -> None:
    B = 5
    x = 1000 + torch.randn(3, B, 4 * H, device="cuda")
    h0, c0 = torch.randn(B, H, device="cuda"), 10 + torch.randn(B, H, device="cuda")
    W, b = torch.randn(4 * H, H, device="cuda") / H, 50 + torch.randn(4 * H, device="cuda")
    means = (x[0].mean(1), (h0 @ W.mT + b).mean(1), c0.mean(1))
    for found, mean in zip(references(x, h0, c0, W, b), means, strict=True):
        assert found.shape == (B, 1)
        # of eight bits
        torch.testing.assert_close(found[:, 0], mean, rtol=2**-8 + 1e-5, atol=0)
        assert torch.equal(coarse(found), found)


def test_zero_of_what_is_missing() -> None:
    assert not torch.stack(references(None, torch.ones(2, 3).cuda(), None, None, None)).any()
