"""What the contract of back ends leaves out: long windows, large means, mixed back ends."""

import sys

import pytest
import torch
from backends import LSTMS, Norm, lstm_inputs, lstm_run
from torch import Tensor

import cayley
from cayley.kernels.calls import LstmCall, LstmGradients, LstmStates
from cayley.kernels.operator import Operator
from cayley.recurrences import lstm, lstm_loop

SIZES = torch.tensor([5] * 9 + [3] * 8 + [2] * 3 + [1] * 3)  # 23 steps


def differentiated(outputs: tuple[Tensor, ...], leaves: list[Tensor]) -> list[Tensor]:
    """Outputs, and the gradients of their sum with fixed weights."""
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(y.shape, generator=generator).to(y.dtype) for y in outputs]
    return [*outputs, *torch.autograd.grad(outputs, leaves, weights)]


@pytest.mark.parametrize("window", [1, 2, 7, 11, 22, 23, 24])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("over", ["layer", "batch"])
def test_windows_of_many_blocks(window: int, packed: bool, over: str) -> None:
    norm = Norm(over=over, window=window, past=over == "layer" and window > 1)
    tensors = lstm_inputs(norm, len(SIZES), int(SIZES[0]), 6)
    if packed:
        tensors["x"] = torch.cat([x_t[:B] for x_t, B in zip(tensors["x"], SIZES, strict=True)])
    leaves = [tensor.requires_grad_() for tensor in tensors.values()]
    sizes = SIZES if packed else None
    with cayley.backend("cpu"):
        found = differentiated(lstm_run(lstm, norm, *leaves, batch_sizes=sizes), leaves)
    loop = differentiated(lstm_run(lstm_loop, norm, *leaves, batch_sizes=sizes), leaves)
    for one, other in zip(found, loop, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("over", ["layer", "batch"])
@pytest.mark.parametrize("window", [1, 100, 5000])
def test_a_mean_of_1000_hides_nothing_over_5000_steps(window: int, over: str) -> None:
    """Standard deviations of about 0.1, in single precision."""
    norm = Norm("xh", over=over, window=window)
    tensors = lstm_inputs(norm, 5000, 8, 16)
    tensors["x"] = 1000 + 0.1 * tensors["x"]
    tensors["W"] *= 0.1
    tensors["b"] = 1000 + 0.1 * tensors["b"]
    single = [tensor.float() for tensor in tensors.values()]
    double = [tensor.double() for tensor in single]
    with cayley.backend("cpu"):
        h, exact = (lstm_run(lstm, norm, *values)[0] for values in (single, double))
    # the loop takes long, and what it gives for the first steps does not depend on the others
    first = lstm_run(lstm_loop, norm, double[0][:300], *double[1:])[0]
    torch.testing.assert_close(exact[:300], first, rtol=0, atol=1e-8)
    assert (h - exact).abs().max() < 1e-3


@pytest.mark.parametrize("case", LSTMS)
def test_a_gradient_may_follow_the_forward_pass_of_another_back_end(case: str) -> None:
    module, caught = sys.modules["cayley.recurrences.lstm"], []
    operator: Operator = module._lstm

    def catch(call: LstmCall) -> LstmStates:
        caught.append(call)
        return operator(call)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_lstm", catch)
        lstm_run(lstm, LSTMS[case], *lstm_inputs(LSTMS[case], 5, 4, 3).values())
    (call,) = caught
    outputs = {name: operator.forward(call, name) for name in ("cpu", "reference")}
    torch.testing.assert_close((*outputs["cpu"],), (*outputs["reference"],), rtol=1e-10, atol=1e-12)
    external = [torch.randn_like(s) if s.numel() else None for s in outputs["cpu"].statistics()]
    of_states = LstmGradients(torch.randn_like(outputs["cpu"].h), None, None, *external)
    values = dict(zip(operator.fields.names, operator.fields.flatten(call), strict=True))
    needed = [name for name in operator.differentiable if values[name] is not None]
    gradients = [
        [operator.backward(of_states, states, call, needed, name)[key] for key in needed]
        for name in outputs
        for states in outputs.values()
    ]
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("case", LSTMS)
def test_no_sequence_is_no_error(case: str) -> None:
    if LSTMS[case].over == "batch" and not LSTMS[case].given:
        pytest.skip("there is no mean of no sequence")
    leaves = [tensor.requires_grad_() for tensor in lstm_inputs(LSTMS[case], 3, 0, 4).values()]
    with cayley.backend("cpu"):
        outputs = lstm_run(lstm, LSTMS[case], *leaves)
    assert outputs[0].shape == (3, 0, 4)
    gradients = torch.autograd.grad(outputs, leaves, [torch.zeros_like(y) for y in outputs])
    assert not any(gradient.any() for gradient in gradients)
