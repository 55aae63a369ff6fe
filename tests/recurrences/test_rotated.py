"""The recurrence whose matrix is layers of rotations, against the matrix."""

from typing import Any

import pytest
import torch
from gradients import check_gradients, check_second_gradients
from torch import Tensor

import cayley
from cayley.kernels.cpu import native
from cayley.kernels.rotations import FFT
from cayley.parametrizations import GivensLayers
from cayley.parametrizations.structured import acting_on_reals
from cayley.recurrences import elman_loop, rotated, rotated_loop
from cayley.recurrences.rotated import prefers_rotations

LENGTHS = torch.tensor([3, 3, 2, 1])  # of a packed sequence: the number of sequences at each step
# units, and layers of neighbours or 0 for those of the FFT; wider than any register
SIZES = [(1, 0), (1, 2), (2, 0), (2, 1), (7, 3), (16, 0), (19, 2), (64, 0)]

directions = pytest.mark.parametrize("reverse", [False, True])
layouts = pytest.mark.parametrize("batch_sizes", [None, LENGTHS])


def inputs(n: int, layers: int, batch_sizes: Tensor | None = None) -> list[Any]:
    """x, h0, theta, phi, omega and b in float64."""
    steps = (4, 3) if batch_sizes is None else (int(batch_sizes.sum()),)
    angles = GivensLayers(n, layers=layers or "fft").sample(dtype=torch.float64)
    tensors = [torch.randn(*steps, 2 * n), torch.randn(3, 2 * n), *angles, -0.3 * torch.rand(n)]
    return [tensor.double().requires_grad_() for tensor in tensors]


@directions
@layouts
@pytest.mark.parametrize(("n", "layers"), SIZES)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_is_the_recurrence_with_the_matrix(
    backend: str, n: int, layers: int, batch_sizes: Tensor | None, reverse: bool
) -> None:
    leaves = inputs(n, layers, batch_sizes)
    x, h0, *angles, b = leaves
    with cayley.backend(backend):
        h = rotated(*leaves, layers=layers, batch_sizes=batch_sizes, reverse=reverse)
    expected = elman_loop(
        x,
        h0,
        acting_on_reals(GivensLayers(n, layers=layers or "fft")(*angles)),
        b,
        nonlinearity="modrelu_stacked",
        batch_sizes=batch_sizes,
        reverse=reverse,
    )
    torch.testing.assert_close(h, expected)
    g = torch.randn_like(h)
    found, wanted = (
        torch.autograd.grad(y, leaves, g, allow_unused=True, materialize_grads=True)
        for y in (h, expected)
    )
    torch.testing.assert_close(found, wanted)


@directions
@layouts
@pytest.mark.parametrize("layers", [0, 2])
def test_first_and_second_derivatives(
    layers: int, batch_sizes: Tensor | None, reverse: bool
) -> None:
    def run(*tensors: Any) -> Tensor:
        return rotated(*tensors, layers=layers, batch_sizes=batch_sizes, reverse=reverse)

    tensors = inputs(2, layers, batch_sizes)
    check_gradients(run, tensors)
    check_second_gradients(run, tensors)


@layouts
def test_operator_is_registered_soundly(batch_sizes: Tensor | None) -> None:
    # a packed sequence's sizes are data, which no tracer can read
    checks = ["test_schema", "test_autograd_registration"]
    if batch_sizes is None:
        checks += ["test_faketensor", "test_aot_dispatch_dynamic"]
    arguments = (*inputs(2, 2, batch_sizes), None, None, batch_sizes, 2, False, "auto")
    torch.library.opcheck(torch.ops.cayley.rotated.default, arguments, test_utils=checks)


def test_can_be_traced() -> None:
    arguments = tuple(tensor.detach() for tensor in inputs(4, 0))
    # the number of units is a constant of the trace
    with pytest.warns(torch.jit.TracerWarning):
        traced: Any = torch.jit.trace(rotated, arguments, check_trace=False)
    torch.testing.assert_close(traced(*arguments), rotated(*arguments))


def test_arguments_that_do_not_fit_are_refused() -> None:
    x, h0, theta, phi, omega, b = inputs(4, 2)
    with pytest.raises(ValueError, match=r"theta \(3\), .* of layers=2, got \[\(2,\), \(3,\)"):
        rotated_loop(x, h0, theta[:2], phi, omega, b, layers=2)
    with pytest.raises(ValueError, match=r"theta \(4\), .* of layers=0, got \[\(3,\), \(3,\)"):
        rotated(x, h0, theta, phi, omega, b)
    with pytest.raises(ValueError, match="a power of two, got 3"):
        rotated(x, h0, theta, phi, omega[:3], b[:3])
    with pytest.raises(ValueError, match=r"h0 \(B, 2n\) with n = 4, got .*\(3, 6\)"):
        rotated(x, h0[:, :6], theta, phi, omega, b, layers=2)
    with pytest.raises(ValueError, match="expected h0 of 3 rows"):
        rotated(x, h0[:2], theta, phi, omega, b, layers=2)
    with pytest.raises(ValueError, match=r"expected a number of layers, .* got -1"):
        rotated(x, h0, theta, phi, omega, b, layers=-1)


@pytest.mark.skipif(native.refusal(torch.zeros(1)) is not None, reason="no C code")
def test_is_preferred_where_there_are_many_units_and_few_layers() -> None:
    many = torch.zeros(1024)
    assert prefers_rotations(many, 64)
    assert prefers_rotations(many.double(), FFT)
    others = [(many, 65), (many[:511], 64), (many[:63], 2)]
    others += [(many.bfloat16(), 2), (many.to("meta"), 2)]
    for omega, layers in others:
        assert not prefers_rotations(omega, layers)
    with cayley.backend("reference"):
        assert not prefers_rotations(many, 2)
