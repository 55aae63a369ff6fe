"""What means are measured from, against what defines it."""

import pytest
import torch

from cayley.kernels.cuda.lstm.references import references
from cayley.norms.layouts import padded, step_mask
from cayley.norms.windows import coarse, reference_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
SIZES = torch.tensor([5] * 300 + [4] * 200 + [1])


@pytest.mark.parametrize("H", [1, 21, 100, 300])
@pytest.mark.parametrize("packed", [False, True])
def test_are_those_of_the_definition(H: int, packed: bool) -> None:
    B, sizes = 5, SIZES if packed else None
    x = torch.randn((int(SIZES.sum()),) if packed else (501, B)).float()[..., None]
    x = (1000 + x + torch.zeros(4 * H)).float().cuda()
    x[0], x[1] = torch.nan, -torch.inf
    b = (50 + torch.randn(4 * H)).float().cuda()
    if packed:
        rows = step_mask(SIZES, x.device)
        expected = reference_of(padded(x[:, :1], rows), rows[..., None])
    else:
        expected = reference_of(x[..., :1])
    of_x, of_h, of_c = references(x, b, B, sizes)
    assert torch.equal(of_x, expected)
    # of eight bits
    torch.testing.assert_close(of_h, b.mean().expand(B, 1), rtol=2**-8 + 1e-5, atol=0)
    assert torch.equal(coarse(of_h), of_h)
    assert not of_c.any()


def test_zero_of_what_is_missing_or_not_finite() -> None:
    x = torch.full((3, 2, 4), torch.nan).float().cuda()
    assert not torch.stack(references(x, None, 2, None)).any()
    assert not torch.stack(references(1 + 0 * x, None, 2, None, of_input=False)).any()
