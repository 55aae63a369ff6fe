"""The scaled Cayley transform in C against plain solves in double precision and autograd."""

import pytest
import torch
from torch import Tensor

import cayley
from cayley.kernels.cpu import cayley as cpu
from cayley.kernels.cpu import native
from cayley.parametrizations import ScaledCayley, scaled_cayley, skew_symmetric

SIZES = [1, 2, 3, 7, 16, 33, 60, 100, 128]
PRECISIONS = [torch.float32, torch.float64]

pytestmark = pytest.mark.skipif(
    native.refusal(torch.zeros(1)) is not None, reason="installed without the C code"
)


def entries(n: int, bandwidth: int | None, scale: float, dtype: torch.dtype) -> Tensor:
    (x,) = ScaledCayley(n, bandwidth=bandwidth).sample()
    return (scale * torch.randn_like(x)).to(dtype)


def signs(n: int, dtype: torch.dtype) -> Tensor:
    return (torch.randint(2, (n,)) * 2 - 1).to(dtype)


def solved(x: Tensor, D: Tensor, bandwidth: int | None) -> Tensor:
    """(I + A)⁻¹ (I − A) D, in double precision."""
    A, eye = skew_symmetric(x.double(), len(D), bandwidth), torch.eye(len(D))
    return torch.linalg.solve(eye + A, eye - A) * D.double()


def last(n: int, bandwidth: int | None) -> int:
    return n - 1 if bandwidth is None else min(bandwidth, n - 1)


def distance(W: Tensor, other: Tensor) -> float:
    return float(torch.linalg.matrix_norm(W.double() - other))


def defect(W: Tensor) -> float:
    return distance(W.double().mT @ W.double(), torch.eye(len(W)))


@pytest.mark.parametrize("instructions", range(len(native.INSTRUCTION_SETS)))
@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("n", SIZES)
def test_every_instruction_set_equals_the_formula(
    n: int, dtype: torch.dtype, instructions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if instructions > native.instruction_set():
        pytest.skip(f"this processor has no {native.INSTRUCTION_SETS[instructions]}")
    monkeypatch.setattr(native, "instruction_set", lambda: instructions)
    eps, eye = torch.finfo(dtype).eps, torch.eye(n)
    for bandwidth in (None, 1, 5):
        x, D, G = entries(n, bandwidth, 0.5, dtype), signs(n, dtype), torch.randn(n, n)
        W, X = cpu.cayley(x, D, last(n, bandwidth))
        # single precision is off by its last rounding, |w| eps / 2, whatever n
        allowed = (1 if dtype == torch.float32 else 10 * n**0.5) * eps * n**0.5
        assert distance(W, solved(x, D, bandwidth)) <= allowed
        assert distance(2 * X.double() - eye, solved(x, torch.ones(n), bandwidth)) <= 2 * allowed
        leaf = x.double().requires_grad_()
        value = scaled_cayley(skew_symmetric(leaf, n, bandwidth), D.double())
        (expected,) = torch.autograd.grad(value, leaf, G)
        found = cpu.cayley_backward(G.to(dtype), X, D, last(n, bandwidth))
        scale = torch.linalg.matrix_norm(G) if x.numel() else 0
        assert torch.linalg.vector_norm(found - expected) <= 10 * eps * scale


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("scale", [0.01, 0.5, 10.0, 100.0, 1000.0])
@pytest.mark.parametrize("n", SIZES)
def test_is_as_good_as_the_operations_of_torch(n: int, scale: float, dtype: torch.dtype) -> None:
    """In the distance from the orthogonal matrices, and from the matrix in double precision."""
    map, x = ScaledCayley(n).to(dtype), entries(n, None, scale, dtype)
    found, _ = map.with_pullback(x)
    with cayley.backend("reference"):
        torch_found, _ = map.with_pullback(x)
    assert found.dtype == torch_found.dtype == dtype
    rounding = 2 * torch.finfo(dtype).eps * n**0.5
    assert defect(found) <= defect(torch_found) + rounding
    if dtype == torch.float32:
        assert defect(found) <= 1e-6 * n**0.5
        exact = solved(x, map.D, None)
        assert distance(found, exact) <= distance(torch_found, exact) + rounding


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_gradient_is_that_of_finite_differences(scale: float) -> None:
    n, G = 6, torch.randn(6, 6)
    x, D = entries(n, None, scale, torch.float64), signs(n, torch.float64)
    _, X = cpu.cayley(x, D, n - 1)
    found = cpu.cayley_backward(G, X, D, n - 1)
    step = 1e-5 * scale
    for k in range(len(x)):
        ahead, behind = x.clone(), x.clone()
        ahead[k] += step
        behind[k] -= step
        change = solved(ahead, D, None) - solved(behind, D, None)
        expected = float((G * change).sum()) / (2 * step)
        assert float(found[k]) == pytest.approx(expected, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_takes_a_gradient_with_any_strides(dtype: torch.dtype) -> None:
    n = 9
    x, D = entries(n, 4, 1.0, dtype), signs(n, dtype)
    _, X = cpu.cayley(x, D, 4)
    wide = torch.randn(2 * n, 3 * n, dtype=dtype)
    for G in (wide[:n, :n].mT, wide[::2, ::3], torch.ones((), dtype=dtype).expand(n, n)):
        found = cpu.cayley_backward(G, X, D, 4)
        assert torch.equal(found, cpu.cayley_backward(G.contiguous(), X, D, 4))


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("n", [2, 5, 40])
def test_what_is_not_finite_stays_so(n: int, value: float, dtype: torch.dtype) -> None:
    """An infinite A has an inverse, 0, which would pass for a result."""
    D, full = signs(n, dtype), entries(n, None, 1.0, dtype)
    for k in {0, len(full) // 2, len(full) - 1}:
        x = full.clone()
        x[k] = value
        W, X = cpu.cayley(x, D, n - 1)
        assert not W.isfinite().any()
        assert not cpu.cayley_backward(torch.eye(n, dtype=dtype), X, D, n - 1).isfinite().any()


def test_threads_do_not_change_a_bit() -> None:
    n = 100
    x, D, G = entries(n, None, 1.0, torch.float32), signs(n, torch.float32), torch.randn(n, n)
    found = []
    for threads in (1, 2, 16):
        torch.set_num_threads(threads)
        try:
            W, X = cpu.cayley(x, D, n - 1)
            found.append((W, cpu.cayley_backward(G.float(), X, D, n - 1)))
        finally:
            torch.set_num_threads(1)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_bits_do_not_depend_on_whether_a_gradient_is_recorded() -> None:
    map = ScaledCayley(20)
    x = entries(20, None, 1.0, torch.float64).requires_grad_()
    with torch.no_grad():
        assert torch.equal(map(x), map.with_pullback(x)[0])


def test_derivatives_pass_through_where_they_are_asked_for() -> None:
    map, x = ScaledCayley(4), entries(4, None, 1.0, torch.float64)
    tangent = torch.randn_like(x)
    expected = torch.func.jvp(map, (x,), (tangent,))[1]
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        found = torch.autograd.forward_ad.unpack_dual(map(dual)).tangent
    torch.testing.assert_close(found, expected)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    x, D = torch.zeros(3), torch.ones(3)
    assert cpu.refusal(x, D) is None
    assert "not torch.bfloat16" in (cpu.refusal(x.bfloat16(), D.bfloat16()) or "")
    assert "one dtype" in (cpu.refusal(x.float(), D) or "")
    assert "two devices, cpu and meta" in (cpu.refusal(x, D.to("meta")) or "")
    monkeypatch.setattr(native, "_library", lambda: None)
    assert "without its C code" in (cpu.refusal(x, D) or "")


def test_the_back_end_is_that_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = ScaledCayley(3), ScaledCayley(cpu.LARGEST + 1)
    calls, transform = [], cpu.cayley

    def count(*arguments: object) -> tuple[Tensor, Tensor]:
        calls.append(arguments)
        return transform(*arguments)  # pyrefly: ignore

    monkeypatch.setattr(cpu, "cayley", count)
    for map, expected in ((small, 2), (large, 0)):
        (A,) = map.sample()
        W, _ = map.with_pullback(A)
        map(A)
        assert len(calls) == expected
        calls.clear()
        with cayley.backend("reference"):
            torch.testing.assert_close(map.with_pullback(A)[0], W)
            map(A)
        assert not calls
        with cayley.backend("cpu"):
            torch.testing.assert_close(map.with_pullback(A)[0], W)
            map(A)
        assert len(calls) == 2
        calls.clear()
    (A,) = small.sample()
    with cayley.backend("cuda"), pytest.raises(ValueError, match="device of back end 'cuda'"):
        small(A)
    with cayley.backend("cpu"), pytest.raises(TypeError, match="bfloat16"):
        small.bfloat16()(A.bfloat16())


def test_a_wrong_number_of_entries_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected 5 entries .* n = 4 and 2 diagonals.*\(6,\)"):
        cpu.cayley(torch.zeros(6), torch.ones(4), 2)
