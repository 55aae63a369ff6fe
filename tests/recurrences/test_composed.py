"""The recurrence whose matrix is a composition, against its loop and against the matrix."""

from typing import Any

import pytest
import torch
from gradients import check_gradients, check_second_gradients
from torch import Tensor

import cayley
from cayley.kernels.cpu import native
from cayley.kernels.primes import LARGEST_PRIME
from cayley.parametrizations import UnitaryComposition
from cayley.parametrizations.structured import acting_on_reals
from cayley.recurrences import composed, composed_loop, elman_loop
from cayley.recurrences.composed import prefers_factors

LENGTHS = torch.tensor([3, 3, 2, 1])  # of a packed sequence: the number of sequences at each step
# all radices of the C code, and a prime that it leaves to torch
SIZES = [1, 2, 7, 12, 60, 67]

directions = pytest.mark.parametrize("reverse", [False, True])
needs_c = pytest.mark.skipif(native.refusal(torch.zeros(1)) is not None, reason="no C code")
layouts = pytest.mark.parametrize("batch_sizes", [None, LENGTHS])


def inputs(n: int, batch_sizes: Tensor | None = None) -> tuple[list[Any], Tensor]:
    """x, h0, w, v and b in float64, and a permutation."""
    map = UnitaryComposition(n)
    steps = (4, 3) if batch_sizes is None else (int(batch_sizes.sum()),)
    w, v = map.sample(dtype=torch.float64)
    b = -0.3 * torch.rand(n)
    tensors = [torch.randn(*steps, 2 * n), torch.randn(3, 2 * n), w, v, b]
    return [tensor.double().requires_grad_() for tensor in tensors], map.permutation


@directions
@layouts
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_is_the_recurrence_with_the_matrix(
    backend: str, n: int, batch_sizes: Tensor | None, reverse: bool
) -> None:
    tensors, permutation = inputs(n, batch_sizes)
    x, h0, w, v, b = tensors
    map = UnitaryComposition(n)
    map.odd_permutation.copy_(2 * permutation + 1)
    with cayley.backend(backend):
        h = composed(*tensors, permutation=permutation, batch_sizes=batch_sizes, reverse=reverse)
    expected = elman_loop(
        x,
        h0,
        acting_on_reals(map(w, v)),
        b,
        nonlinearity="modrelu_stacked",
        batch_sizes=batch_sizes,
        reverse=reverse,
    )
    torch.testing.assert_close(h, expected)
    g = torch.randn_like(h)
    found, wanted = (torch.autograd.grad(y, tensors, g) for y in (h, expected))
    torch.testing.assert_close(found, wanted)


def test_operator_is_the_loop() -> None:
    (_, h0, w, v, b), permutation = inputs(5)
    x, U, c = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True)
        for shape in ((4, 3, 2), (10, 2), (10,))
    )
    leaves = (x, h0, w, v, b, U, c)
    results = [run(x, h0, w, v, b, permutation, U=U, c=c) for run in (composed, composed_loop)]
    torch.testing.assert_close(*results)
    g = torch.randn_like(results[0])
    torch.testing.assert_close(*(torch.autograd.grad(h, leaves, g) for h in results))


@directions
@layouts
def test_first_and_second_derivatives(batch_sizes: Tensor | None, reverse: bool) -> None:
    tensors, permutation = inputs(2, batch_sizes)

    def run(*tensors: Any) -> Tensor:
        return composed(*tensors, permutation=permutation, batch_sizes=batch_sizes, reverse=reverse)

    check_gradients(run, tensors)
    check_second_gradients(run, tensors)


def test_some_inputs_need_no_gradient() -> None:
    tensors, permutation = inputs(3)
    g = torch.randn(4, 3, 6, dtype=torch.float64)
    expected = torch.autograd.grad(composed(*tensors, permutation=permutation), tensors, g)
    for wanted, tensor in zip(expected, tensors, strict=True):
        others = [t if t is tensor else t.detach() for t in tensors]
        (grad,) = torch.autograd.grad(composed(*others, permutation=permutation), tensor, g)
        torch.testing.assert_close(grad, wanted)


def test_a_reflection_along_zero_drops_out() -> None:
    (x, h0, w, v, b), _ = inputs(3)
    w, v = (torch.zeros_like(tensor).requires_grad_() for tensor in (w, v))
    h = composed(x, h0, w, v, b, torch.arange(3))
    eye = torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(h, elman_loop(x, h0, eye, b, nonlinearity="modrelu_stacked"))
    assert not torch.autograd.grad(h.sum(), v)[0].any()


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_lengths_of_reflection_vectors_do_not_count(size: float) -> None:
    (x, h0, w, v, b), permutation = inputs(3)
    long = (size * v).detach().requires_grad_()
    h, other = (composed(x, h0, w, vectors, b, permutation) for vectors in (v, long))
    torch.testing.assert_close(other, h)
    g = torch.randn_like(h)
    (expected,), (found,) = (
        torch.autograd.grad(h, v, g),
        torch.autograd.grad(other, long, g),
    )
    torch.testing.assert_close(size * found, expected)


@layouts
def test_operator_is_registered_soundly(batch_sizes: Tensor | None) -> None:
    tensors, permutation = inputs(2, batch_sizes)
    # a packed sequence's sizes are data, which no tracer can read
    checks = ["test_schema", "test_autograd_registration"]
    if batch_sizes is None:
        checks += ["test_faketensor", "test_aot_dispatch_dynamic"]
    arguments = (*tensors, permutation, None, None, batch_sizes, False, "auto")
    torch.library.opcheck(torch.ops.cayley.composed.default, arguments, test_utils=checks)


def test_arguments_that_do_not_fit_are_refused() -> None:
    (x, h0, w, v, b), permutation = inputs(3)
    with pytest.raises(ValueError, match=r"v \(2, 2, n\), .*got .*\(2, 2, 2\)"):
        composed(x, h0, w, v[..., :2], b, permutation)
    with pytest.raises(ValueError, match=r"h0 \(B, 2n\) with n = 3, got .*\(3, 4\)"):
        composed(x, h0[:, :4], w, v, b, permutation)
    with pytest.raises(ValueError, match=r"x \(..., 2n\) .*got \(4, 3, 5\)"):
        composed(x[..., :5], h0, w, v, b, permutation)
    with pytest.raises(ValueError, match="expected h0 of 3 rows"):
        composed(x, h0[:2], w, v, b, permutation)


def test_what_torch_transforms_faster_is_left_to_it_without_a_word() -> None:
    tensors, permutation = inputs(LARGEST_PRIME + 6)
    with cayley.backend("cpu"):
        h = composed(*tensors, permutation=permutation)
    torch.testing.assert_close(h, composed_loop(*tensors, permutation=permutation))


@needs_c
@pytest.mark.parametrize("wrong", [[0, 1, 1], [0, 1, 3], [-1, 0, 1]])
def test_what_is_no_permutation_is_refused(wrong: list[int]) -> None:
    tensors, _ = inputs(3)
    with pytest.raises(ValueError, match="expected a permutation of 0, …, n − 1, got"):
        composed(*tensors, permutation=torch.tensor(wrong))


@needs_c
def test_factors_are_preferred_where_there_are_many_units_and_short_transforms() -> None:
    def prefers(n: int, **options: Any) -> bool:
        return prefers_factors(torch.zeros(3, n, **options))

    assert prefers(128)
    assert prefers(512)
    assert prefers(16 * 31)
    assert not prefers(127)
    assert not prefers(8 * 31)
    # by torch operations, which take long to transform few numbers
    assert not prefers(7 * 67)
    assert prefers(12 * 67)
    assert not prefers(512, dtype=torch.bfloat16)
    assert not prefers(2048, device="meta")
    with cayley.backend("cpu"):
        assert prefers(512)
        assert not prefers(12 * 67)
    with cayley.backend("reference"):
        assert not prefers(512)
        assert prefers(1024)
