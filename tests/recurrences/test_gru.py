"""The operator against the loop that defines it: outputs and every gradient."""

from typing import Any

import pytest
import torch
from gradients import check_gradients, check_second_gradients
from torch import Tensor

from cayley import modrelu
from cayley.recurrences.gru import gru, gru_loop

LENGTHS = torch.tensor([3, 3, 2, 1])  # of a packed sequence: the number of sequences at each step

activations = pytest.mark.parametrize("threshold", [True, False], ids=["modrelu", "tanh"])
directions = pytest.mark.parametrize("reverse", [False, True])


def inputs(
    T: int, B: int, H: int, threshold: bool, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """x, h0, W of orthogonal blocks, and b for modReLU."""
    W = torch.cat([torch.linalg.qr(torch.randn(H, H))[0] for _ in range(3)])
    tensors = [torch.randn(T, B, 3 * H), torch.randn(B, H), W]
    if threshold:
        tensors.append(0.3 * torch.randn(H))
    return [tensor.to(dtype).requires_grad_() for tensor in tensors]


def check_against_loop(tensors: list[Tensor], **options: Any) -> None:
    out = gru(*tensors, **options)
    reference = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected = gru_loop(*reference, **options)
    tolerance: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4} if out.dtype == torch.float32 else {}
    torch.testing.assert_close(out.double(), expected, **tolerance)
    g = torch.randn_like(expected)
    grads = torch.autograd.grad(out, tensors, g.to(out.dtype))
    for grad, wanted in zip(grads, torch.autograd.grad(expected, reference, g), strict=True):
        torch.testing.assert_close(grad.double(), wanted, **tolerance)


@activations
def test_loop_is_the_recurrence_written_out(threshold: bool) -> None:
    x, h0, W, *b = inputs(3, 2, 4, threshold)
    (x_r, x_u, x_c), (W_r, W_u, W_c) = x.chunk(3, -1), W.chunk(3)
    h, states = h0, []
    for t in range(3):
        r = 1 / (1 + torch.exp(-(x_r[t] + h @ W_r.T)))
        u = 1 / (1 + torch.exp(-(x_u[t] + h @ W_u.T)))
        z = x_c[t] + (r * h) @ W_c.T
        h = (1 - u) * h + u * (modrelu(z, *b) if threshold else z.tanh())
        states.append(h)
    torch.testing.assert_close(gru_loop(x, h0, W, *b), torch.stack(states))


@activations
@directions
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("T", "B", "H"), [(1, 1, 1), (1, 3, 6), (7, 1, 3), (5, 3, 14), (13, 2, 37)]
)
def test_dense(threshold: bool, reverse: bool, dtype: torch.dtype, T: int, B: int, H: int) -> None:
    check_against_loop(inputs(T, B, H, threshold, dtype), reverse=reverse)


@activations
@directions
def test_packed(threshold: bool, reverse: bool) -> None:
    tensors = inputs(3, 3, 5, threshold)
    tensors[0] = tensors[0].detach().reshape(9, 15).requires_grad_()
    check_against_loop(tensors, batch_sizes=LENGTHS, reverse=reverse)


@activations
@directions
def test_packed_is_each_sequence_alone(threshold: bool, reverse: bool) -> None:
    x, h0, W, *b = (tensor.detach() for tensor in inputs(3, 3, 6, threshold))
    x = x.reshape(9, 18)
    out = gru(x, h0, W, *b, batch_sizes=LENGTHS, reverse=reverse).split(LENGTHS.tolist())
    steps = x.split(LENGTHS.tolist())
    for row, length in enumerate([4, 3, 2]):
        alone = torch.stack([steps[t][row : row + 1] for t in range(length)])
        expected = gru_loop(alone, h0[row : row + 1], W, *b, reverse=reverse)
        for t in range(length):
            torch.testing.assert_close(out[t][row], expected[t, 0])


@activations
@directions
@pytest.mark.parametrize("batch_sizes", [None, LENGTHS])
def test_first_and_second_derivatives(
    threshold: bool, reverse: bool, batch_sizes: Tensor | None
) -> None:
    tensors = inputs(3, 3, 3, threshold)
    if batch_sizes is not None:
        tensors[0] = tensors[0].detach().reshape(9, 9).requires_grad_()

    def run(*tensors: Tensor) -> Tensor:
        return gru(*tensors, batch_sizes=batch_sizes, reverse=reverse)

    check_gradients(run, tensors)
    check_second_gradients(run, tensors)


@activations
def test_some_inputs_need_no_gradient(threshold: bool) -> None:
    tensors = inputs(4, 2, 6, threshold)
    g = torch.randn(4, 2, 6)
    expected = torch.autograd.grad(gru(*tensors), tensors, g)
    for wanted, tensor in enumerate(tensors):
        others = [t if t is tensor else t.detach() for t in tensors]
        (grad,) = torch.autograd.grad(gru(*others), tensor, g)
        torch.testing.assert_close(grad, expected[wanted])


@activations
def test_inputs_with_strides(threshold: bool) -> None:
    tensors = inputs(4, 2, 6, threshold)
    x, h0, W, *b = tensors
    strided = [
        x.detach().permute(2, 0, 1).contiguous().permute(1, 2, 0).requires_grad_(),
        h0.detach().T.contiguous().T.requires_grad_(),
        W.detach().T.contiguous().T.requires_grad_(),
        *b,
    ]
    assert not any(tensor.is_contiguous() for tensor in strided[:3])
    g = torch.randn(6, 4, 2).permute(1, 2, 0)
    out, expected = gru(*strided), gru(*tensors)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(
        torch.autograd.grad(out, strided, g), torch.autograd.grad(expected, tensors, g)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_update_gate_copies_or_replaces_exactly(dtype: torch.dtype) -> None:
    """u = 0 keeps the state to the last bit, u = 1 leaves nothing of it."""
    x, h0, W, b = inputs(3, 2, 4, threshold=True, dtype=dtype)
    W = torch.zeros_like(W)
    h0 = h0.detach()
    h0[0, 0] = 0  # which the least of the candidate would change
    closed, opened = x.clone(), x.clone()
    closed[..., 4:8], opened[..., 4:8] = -1e9, 1e9
    assert torch.equal(gru(closed, h0, W, b), h0.expand(3, 2, 4))
    assert torch.equal(gru(opened, h0, W, b), modrelu(x[..., 8:], b))


@activations
@pytest.mark.parametrize("batch_sizes", [None, LENGTHS])
def test_operator_is_registered_soundly(threshold: bool, batch_sizes: Tensor | None) -> None:
    x, h0, W, *b = inputs(3, 3, 4, threshold)
    if batch_sizes is not None:
        x = x.detach().reshape(9, 12).requires_grad_()
    U, c = torch.randn(12, 12, requires_grad=True), torch.randn(12, requires_grad=True)
    # a packed sequence's sizes are data, which no tracer can read
    checks = ["test_schema", "test_autograd_registration"]
    if batch_sizes is None:
        checks += ["test_faketensor", "test_aot_dispatch_dynamic"]
    for projection in ((None, None), (U, None), (U, c)):
        arguments = (x, h0, W, b[0] if b else None, *projection, batch_sizes, False, "auto")
        torch.library.opcheck(torch.ops.cayley.gru.default, arguments, test_utils=checks)


def test_compiles_with_inductor_in_one_graph() -> None:
    tensors = inputs(5, 3, 4, threshold=True)

    def loss(*tensors: Tensor) -> Tensor:
        return gru(*tensors).square().sum()

    compiled = torch.compile(loss, fullgraph=True)(*tensors)
    torch.testing.assert_close(compiled, loss(*tensors))
    torch.testing.assert_close(
        torch.autograd.grad(compiled, tensors), torch.autograd.grad(loss(*tensors), tensors)
    )


def test_float32_drifts_little_in_two_thousand_steps() -> None:
    tensors = [t.detach() for t in inputs(2000, 2, 30, threshold=True, dtype=torch.float32)]
    # a contribution this small leaves the state to the recurrence
    tensors[0] *= 0.1
    out = gru(*tensors).double()
    exact = gru_loop(*(t.double() for t in tensors))
    assert torch.linalg.norm(out[-1] - exact[-1]) <= 1e-4 * torch.linalg.norm(exact[-1])


def test_arguments_that_do_not_fit_are_refused() -> None:
    x, h0, W, b = inputs(3, 2, 4, threshold=True)
    for function in (gru, gru_loop):
        for arguments in ((x[..., :8], h0, W), (x, h0[:, :3], W), (x, h0, W[:8])):
            with pytest.raises(ValueError, match=r"expected x \(\.\.\., 3H\)"):
                function(*arguments)
        with pytest.raises(ValueError, match=r"expected b \(4,\).* got \(1,\)"):
            function(x, h0, W, b[:1])
        for wrong in (x[0], x[:0]):
            with pytest.raises(ValueError, match="at least one step"):
                function(wrong, h0, W)
        with pytest.raises(ValueError, match="expected h0 of 2 rows, one per sequence, got 1"):
            function(x, h0[:1], W)
        with pytest.raises(ValueError, match=r"expected U of shape \(12, 12\) .*got \(4, 12\)"):
            function(x, h0, W, b, U=W.mT)
