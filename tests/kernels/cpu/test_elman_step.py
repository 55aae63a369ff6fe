"""One step in C against the loop."""

import pytest
import torch

from cayley.activations import ACTIVATIONS as KNOWN
from cayley.kernels.cpu import native
from cayley.kernels.cpu.elman import ACTIVATIONS
from cayley.kernels.cpu.elman_step import elman_step, step_refusal
from cayley.recurrences import elman_loop

pytestmark = pytest.mark.skipif(native._library() is None, reason="no C code")


@pytest.mark.parametrize(
    ("B", "I", "H"), [(1, 1, 2), (3, 9, 70), (2, 300, 64), (1, 3, 170), (2, 5, 6)]
)
@pytest.mark.parametrize("nonlinearity", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_it_is_the_loop(
    dtype: torch.dtype,
    nonlinearity: str,
    B: int,
    I: int,  # noqa: E741
    H: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    activation = KNOWN[nonlinearity]
    shapes = ((B, I), (B, H), (H, I), (H, H), (activation.thresholds(H) or H,))
    x, h, U, W, b = (torch.randn(*shape) for shape in shapes)
    c, threshold = (None, b) if activation.threshold else (b, None)
    expected = elman_loop(x[None], h, W, threshold, U=U, c=c, nonlinearity=nonlinearity)[0]
    accuracy = 1e-4 if dtype == torch.float32 else 1e-12
    for instructions in range(native.instruction_set() + 1):
        with monkeypatch.context() as context:
            context.setattr(native, "instruction_set", lambda chosen=instructions: chosen)
            for state in (h, h[None]):
                inputs = (v.to(dtype) for v in (x, state, U, W.mT.contiguous(), b))
                output, after = elman_step(nonlinearity, *inputs)
                torch.testing.assert_close(output.double(), expected, rtol=0, atol=accuracy)
                assert torch.equal(output.view_as(after), after)
                assert after.shape == state.shape
                assert (after is output) == (state.dim() == 2)


def test_weights_that_it_cannot_read() -> None:
    U, W, b = torch.zeros(3, 2), torch.zeros(3, 3), torch.zeros(3)
    assert step_refusal("tanh", U, W, b) is None
    assert "contiguous" in str(step_refusal("tanh", torch.zeros(2, 3).mT, W, b))
    assert "no softplus" in str(step_refusal("softplus", U, W, b))
    assert "float16" in str(step_refusal("tanh", U.half(), W.half(), b.half()))
