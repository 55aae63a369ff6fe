"""One step as a kernel, emulated on the CPU, against the loop in double precision."""

import pytest
import torch
from emulator import COMPILER, emulated

from cayley.activations import ACTIVATIONS as KNOWN
from cayley.kernels.cuda.elman import ACTIVATIONS
from cayley.kernels.cuda.elman_step import elman_step, step_refusal
from cayley.recurrences import elman_loop


@pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux")
@pytest.mark.slow
@pytest.mark.parametrize(("B", "I", "H"), [(1, 1, 2), (3, 9, 70), (2, 300, 64)])
@pytest.mark.parametrize("nonlinearity", ACTIVATIONS)
def test_it_is_the_loop(nonlinearity: str, B: int, I: int, H: int) -> None:  # noqa: E741
    activation = KNOWN[nonlinearity]
    x, h, U, W = (torch.randn(*shape) for shape in ((B, I), (B, H), (H, I), (H, H)))
    b = torch.randn(activation.thresholds(H) or H)
    c, threshold = (None, b) if activation.threshold else (b, None)
    expected = elman_loop(x[None], h, W, threshold, U=U, c=c, nonlinearity=nonlinearity)[0]
    with emulated():
        for state in (h, h[None]):
            inputs = (v.float() for v in (x, state, U, W.mT.contiguous(), b))
            output, after = elman_step(nonlinearity, *inputs)
            torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-4)
            assert torch.equal(output.view_as(after), after)
            assert after.shape == state.shape
            assert (after is output) == (state.dim() == 2)


def test_weights_that_it_cannot_read() -> None:
    U, W, b = torch.zeros(3, 2), torch.zeros(3, 3), torch.zeros(3)
    assert "on a GPU" in str(step_refusal("tanh", U, W, b))
    assert "no softplus" in str(step_refusal("softplus", U, W, b))
