"""The operator against the loop that defines it: outputs and every gradient."""

from typing import Any

import pytest
import torch
from backends import ACTIVATIONS_OF
from gradients import check_gradients, check_second_gradients
from torch import Tensor

from cayley.activations import ACTIVATIONS, modrelu_stacked
from cayley.recurrences import elman, elman_loop

LENGTHS = torch.tensor([3, 3, 2, 1])  # of a packed sequence: the number of sequences at each step

# what no kernel has runs as the loop, and says so
NAMES = [
    pytest.param(name, marks=pytest.mark.filterwarnings("ignore:a recurrence runs as a loop"))
    if name not in ACTIVATIONS_OF["cpu"]
    else name
    for name in ACTIVATIONS
]
activations = pytest.mark.parametrize("nonlinearity", NAMES)
directions = pytest.mark.parametrize("reverse", [False, True])


def inputs(
    T: int, B: int, H: int, nonlinearity: str, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """x, h0, W with a norm near 1, and b for the activations that have a threshold."""
    tensors = [torch.randn(T, B, H), torch.randn(B, H), torch.linalg.qr(torch.randn(H, H))[0]]
    activation = ACTIVATIONS[nonlinearity]
    if activation.threshold:
        b = 0.3 * torch.randn(activation.thresholds(H))
        # for b > 0 the gain of a stacked one at 0 is so large that float32 cannot follow float64
        tensors.append(-b.abs() if activation.stacked else b)
    return [tensor.to(dtype).requires_grad_() for tensor in tensors]


def check_against_loop(tensors: list[Tensor], nonlinearity: str, **options: Any) -> None:
    out = elman(*tensors, nonlinearity=nonlinearity, **options)
    reference = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected = elman_loop(*reference, nonlinearity=nonlinearity, **options)
    tolerance: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4} if out.dtype == torch.float32 else {}
    torch.testing.assert_close(out.double(), expected, **tolerance)
    g = torch.randn_like(expected)
    grads = torch.autograd.grad(out, tensors, g.to(out.dtype))
    for grad, wanted in zip(grads, torch.autograd.grad(expected, reference, g), strict=True):
        torch.testing.assert_close(grad.double(), wanted, **tolerance)


def test_loop_is_the_recurrence_written_out() -> None:
    x, h0, W, b = inputs(3, 2, 4, "modrelu_stacked")
    h, states = h0, []
    for x_t in x:
        h = modrelu_stacked(x_t + h @ W.T, b)
        states.append(h)
    out = elman_loop(x, h0, W, b, nonlinearity="modrelu_stacked")
    torch.testing.assert_close(out, torch.stack(states))


@activations
@directions
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("T", "B", "H"), [(1, 1, 2), (1, 3, 6), (7, 1, 4), (5, 3, 14), (13, 2, 38)]
)
def test_dense(
    nonlinearity: str, reverse: bool, dtype: torch.dtype, T: int, B: int, H: int
) -> None:
    check_against_loop(inputs(T, B, H, nonlinearity, dtype), nonlinearity, reverse=reverse)


@pytest.mark.parametrize("nonlinearity", ["identity", "modrelu_stacked"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("T", "B", "n"), [(1, 1, 1), (5, 1, 7), (3, 2, 12)])
def test_complex(nonlinearity: str, dtype: torch.dtype, T: int, B: int, n: int) -> None:
    x, h0, _, *b = inputs(T, B, 2 * n, nonlinearity, dtype)
    W = torch.linalg.qr(torch.complex(*torch.randn(2, n, n)))[0]
    real = torch.cat((torch.cat((W.real, -W.imag), 1), torch.cat((W.imag, W.real), 1)))
    tensors = [x, h0, real.to(dtype).requires_grad_(), *b]
    check_against_loop(tensors, nonlinearity, is_complex=True)


@activations
@pytest.mark.parametrize("H", [1, 3, 17])
def test_odd_sizes(nonlinearity: str, H: int) -> None:
    if ACTIVATIONS[nonlinearity].stacked:
        pytest.skip("complex numbers have two parts")
    check_against_loop(inputs(4, 3, H, nonlinearity), nonlinearity)


@activations
@directions
def test_packed(nonlinearity: str, reverse: bool) -> None:
    tensors = inputs(3, 3, 6, nonlinearity)
    tensors[0] = tensors[0].detach().reshape(9, 6).requires_grad_()
    check_against_loop(tensors, nonlinearity, batch_sizes=LENGTHS, reverse=reverse)


@activations
@directions
def test_packed_is_each_sequence_alone(nonlinearity: str, reverse: bool) -> None:
    x, h0, W, *b = (tensor.detach() for tensor in inputs(3, 3, 6, nonlinearity))
    x = x.reshape(9, 6)
    out = elman(
        x, h0, W, *b, nonlinearity=nonlinearity, batch_sizes=LENGTHS, reverse=reverse
    ).split(LENGTHS.tolist())
    steps = x.split(LENGTHS.tolist())
    for row, length in enumerate([4, 3, 2]):
        alone = torch.stack([steps[t][row : row + 1] for t in range(length)])
        expected = elman_loop(
            alone, h0[row : row + 1], W, *b, nonlinearity=nonlinearity, reverse=reverse
        )
        for t in range(length):
            torch.testing.assert_close(out[t][row], expected[t, 0])


@activations
@directions
@pytest.mark.parametrize("batch_sizes", [None, LENGTHS])
def test_first_and_second_derivatives(
    nonlinearity: str, reverse: bool, batch_sizes: Tensor | None
) -> None:
    tensors = inputs(3, 3, 4, nonlinearity)
    if batch_sizes is not None:
        tensors[0] = tensors[0].detach().reshape(9, 4).requires_grad_()

    def run(*tensors: Tensor) -> Tensor:
        return elman(*tensors, nonlinearity=nonlinearity, batch_sizes=batch_sizes, reverse=reverse)

    check_gradients(run, tensors)
    check_second_gradients(run, tensors)


@activations
def test_some_inputs_need_no_gradient(nonlinearity: str) -> None:
    tensors = inputs(4, 2, 6, nonlinearity)
    g = torch.randn(4, 2, 6)
    expected = torch.autograd.grad(elman(*tensors, nonlinearity=nonlinearity), tensors, g)
    for wanted, tensor in enumerate(tensors):
        others = [t if t is tensor else t.detach() for t in tensors]
        (grad,) = torch.autograd.grad(elman(*others, nonlinearity=nonlinearity), tensor, g)
        torch.testing.assert_close(grad, expected[wanted])


@activations
def test_inputs_with_strides(nonlinearity: str) -> None:
    x, h0, W, *b = inputs(4, 2, 6, nonlinearity)
    strided = (
        x.detach().permute(2, 0, 1).contiguous().permute(1, 2, 0),
        h0.detach().T.contiguous().T,
        W.detach().T.contiguous().T,
    )
    assert not strided[0].is_contiguous()
    out = elman(*strided, *b, nonlinearity=nonlinearity)
    torch.testing.assert_close(out, elman(x, h0, W, *b, nonlinearity=nonlinearity))


@activations
@pytest.mark.parametrize("batch_sizes", [None, LENGTHS])
def test_operator_is_registered_soundly(nonlinearity: str, batch_sizes: Tensor | None) -> None:
    x, h0, W, *b = inputs(3, 3, 4, nonlinearity)
    if batch_sizes is not None:
        x = x.detach().reshape(9, 4).requires_grad_()
    else:
        x = x.detach().permute(2, 0, 1).contiguous().permute(1, 2, 0).requires_grad_()
    U, c = torch.randn(4, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    threshold = b[0] if b else None
    # a packed sequence's sizes are data, which no tracer can read
    checks = ["test_schema", "test_autograd_registration"]
    if batch_sizes is None:
        checks += ["test_faketensor", "test_aot_dispatch_dynamic"]
    for projection in ((None, None), (U, None), (U, c)):
        options = batch_sizes, False, nonlinearity, ACTIVATIONS[nonlinearity].stacked, "auto"
        arguments = (x, h0, W, threshold, *projection, *options)
        torch.library.opcheck(torch.ops.cayley.elman.default, arguments, test_utils=checks)


def test_compiles_with_inductor_in_one_graph() -> None:
    tensors = inputs(5, 3, 4, "modrelu")

    def loss(*tensors: Tensor) -> Tensor:
        return elman(*tensors, nonlinearity="modrelu").square().sum()

    compiled = torch.compile(loss, fullgraph=True)(*tensors)
    torch.testing.assert_close(compiled, loss(*tensors))
    torch.testing.assert_close(
        torch.autograd.grad(compiled, tensors), torch.autograd.grad(loss(*tensors), tensors)
    )


def test_float32_drifts_little_in_two_thousand_steps() -> None:
    """An orthogonal recurrence keeps every rounding error; it must not add to them."""
    tensors = [t.detach() for t in inputs(2000, 2, 30, "modrelu", torch.float32)]
    out = elman(*tensors, nonlinearity="modrelu").double()
    exact = elman_loop(*(t.double() for t in tensors), nonlinearity="modrelu")
    assert torch.linalg.norm(out[-1] - exact[-1]) <= 1e-4 * torch.linalg.norm(exact[-1])


def test_arguments_that_do_not_fit_are_refused() -> None:
    x, h0, W = torch.randn(3, 2, 4), torch.randn(2, 4), torch.randn(4, 4)
    with pytest.raises(ValueError, match=r"expected a nonlinearity of .*got 'nonsense'"):
        elman(x, h0, W, nonlinearity="nonsense")
    with pytest.raises(ValueError, match="modrelu expected a threshold b, got none"):
        elman(x, h0, W, nonlinearity="modrelu")
    with pytest.raises(ValueError, match=r"tanh expected no b: add it to x, got \(4,\)"):
        elman(x, h0, W, torch.zeros(4))
    with pytest.raises(ValueError, match=r"W \(H, H\), got .*\(4, 5\)"):
        elman(x, h0, torch.randn(4, 5))
    with pytest.raises(ValueError, match="an even H, got H = 3"):
        elman(x[..., :3], h0[:, :3], W[:3, :3], is_complex=True)
    with pytest.raises(ValueError, match="at least one step"):
        elman(x[:0], h0, W)
    with pytest.raises(ValueError, match="expected h0 of 2 rows"):
        elman(x, torch.randn(3, 4), W)
    with pytest.raises(ValueError, match=r"expected U of shape \(4, 4\) .*got \(4, 3\) and None"):
        elman(x, h0, W, U=torch.randn(4, 3))
    with pytest.raises(ValueError, match=r"c of shape \(4,\) or none, got \(4, 4\) and \(3,\)"):
        elman(x, h0, W, U=W, c=torch.zeros(3))
    with pytest.raises(ValueError, match="expected c with U only"):
        elman(x, h0, W, c=torch.zeros(4))
