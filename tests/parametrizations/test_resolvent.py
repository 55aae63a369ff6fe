"""(I + A)⁻¹ on the CPU and on a GPU, against double precision."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

import cayley
from cayley.kernels.cuda import resolvent as kernels
from cayley.parametrizations import ScaledCayley, StructuredMatrix
from cayley.parametrizations.resolvent import resolvent, resolvent_under_transforms

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def skew(n: int, scale: float) -> Tensor:
    M = scale * torch.randn(n, n)
    return M.triu(1) - M.triu(1).mT


@pytest.mark.parametrize("is_complex", [False, True])
def test_is_an_inverse(is_complex: bool) -> None:
    A = skew(5, 1.0)
    if is_complex:
        A = torch.complex(A, A.abs())
    torch.testing.assert_close(resolvent(A) @ (torch.eye(5) + A), torch.eye(5).to(A))


@pytest.mark.parametrize("is_complex", [False, True])
def test_under_transforms_has_the_derivatives_of_an_inverse(is_complex: bool) -> None:
    A = torch.stack([skew(3, 1.0), skew(3, 0.3)])
    if is_complex:
        A = torch.complex(A, A.abs())
    G = torch.randn(3, 3).to(A)

    def by_torch(A: Tensor) -> Tensor:
        return torch.linalg.inv(torch.eye(3) + A)

    def first(inverse: Any) -> Any:
        return grad(lambda A: (inverse(A) * G).real.sum().sin())

    def second(inverse: Any) -> Any:
        return grad(lambda A: first(inverse)(A).abs().square().sum())

    ours, expected = resolvent_under_transforms, by_torch(A)
    torch.testing.assert_close(vmap(ours)(A), expected)
    torch.testing.assert_close(vmap(ours, 2)(A.movedim(0, 2)), expected)
    torch.testing.assert_close(vmap(vmap(ours))(A[None]), expected[None])
    for derivative in (first, second):
        torch.testing.assert_close(vmap(derivative(ours))(A), vmap(derivative(by_torch))(A))


@gpu
@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 64, 97, 170, 512, 1030, 1150, 1408, 1409])
@pytest.mark.parametrize("scale", [1e-3, 0.5, 30.0])
def test_is_as_good_on_a_gpu_as_a_factorisation_with_pivots(n: int, scale: float) -> None:
    # numbers of single precision, so that only the result is rounded
    A = skew(n, scale).float().double().cuda()
    exact = torch.linalg.inv(torch.eye(n).cuda() + A)
    X = resolvent(A.float())
    pivoted = torch.linalg.inv(torch.eye(n).cuda().float() + A.float())
    # what rounding to single precision changes, since no singular value of X is above 1
    allowed = 3e-8 * n**0.5
    if scale > 1:
        allowed += 2 * torch.linalg.matrix_norm(pivoted - exact)
    assert torch.linalg.matrix_norm(X - exact) <= allowed
    W: Any = StructuredMatrix(ScaledCayley(n), device="cuda", dtype=torch.float32)
    with torch.no_grad():
        W.A.copy_(W.map.skew.entries(A))
    assert W.map.defect(W()) <= 1e-6 * n**0.5


@gpu
@pytest.mark.parametrize("n", [33, 250, 704, 705])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_of_a_complex_matrix_on_a_gpu(n: int, backend: str) -> None:
    M = 0.5 * torch.complex(*torch.randn(2, n, n).float().double()).cuda()
    A = M - M.mH
    exact = torch.linalg.inv(torch.eye(n).cuda() + A)
    with cayley.backend(backend):
        X = resolvent(A.to(torch.complex64))
    assert X.dtype == torch.complex64
    assert torch.linalg.matrix_norm(X - exact) <= 3e-8 * n**0.5


@gpu
def test_on_a_gpu_where_one_plane_turns_almost_by_half() -> None:
    """‖A‖ = 10⁴: elimination without pivots loses twice as many digits."""
    n = 200
    u, v = torch.linalg.qr(torch.randn(n, 2))[0].T
    A = skew(n, 0.1) + 1e4 * (torch.outer(u, v) - torch.outer(v, u))
    A = A.float().double().cuda()
    exact = torch.linalg.inv(torch.eye(n).cuda() + A)
    assert torch.linalg.matrix_norm(resolvent(A.float()) - exact) <= 1e-6


@gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_waits_for_nobody_and_lets_nan_through() -> None:
    A = skew(300, 0.5).cuda().float()
    first = resolvent(A)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        again = [resolvent(A) for _ in range(5)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(X, first) for X in again)
    A[3, 5] = torch.nan
    assert resolvent(A).isnan().any()


@gpu
def test_which_are_inverted_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def count(A: Tensor) -> Tensor:
        sizes.append(len(A))
        return kernel(A)

    kernel = kernels.resolvent
    monkeypatch.setattr(kernels, "resolvent", count)
    A = skew(200, 0.5).cuda()
    resolvent(A)
    with cayley.backend("reference"):
        resolvent(A.float())
    resolvent(skew(1500, 0.5).cuda().float())
    resolvent(A[:0, :0].float())
    assert sizes == []
    resolvent(A.float())
    resolvent(torch.stack([A, A]).float())
    resolvent(torch.complex(A, A.abs()).to(torch.complex64).mH)
    assert sizes == [200, 200, 200, 400]


@gpu
@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_several_are_inverted_in_a_cuda_graph(is_complex: bool, dtype: torch.dtype) -> None:
    A = torch.stack([skew(190, 0.5) for _ in range(4)]).cuda().to(dtype)
    if is_complex:
        A = torch.complex(A, A.abs())
    resolvent(A)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        X = resolvent(A)
    A.mul_(0.5)
    graph.replay()
    torch.testing.assert_close(X, torch.stack([resolvent(one) for one in A]))


@gpu
def test_matrices_on_a_gpu_have_the_gradient_of_the_cpu() -> None:
    W: Any = StructuredMatrix(ScaledCayley(70), dtype=torch.float32)
    G = torch.randn(70, 70, dtype=torch.float32)
    (expected,) = torch.autograd.grad(W(), W.A, G)
    W.cuda()
    (found,) = torch.autograd.grad(W(), W.A, G.cuda())
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


@gpu
def test_a_matrix_is_formed_in_a_cuda_graph() -> None:
    W: Any = StructuredMatrix(ScaledCayley(70), device="cuda", dtype=torch.float32)
    G = torch.randn(70, 70, dtype=torch.float32, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        W().backward(G)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (gradient,) = torch.autograd.grad(W(), W.A, G)
    with torch.no_grad():
        W.A.mul_(0.5)
    graph.replay()
    (expected,) = torch.autograd.grad(W(), W.A, G)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)
