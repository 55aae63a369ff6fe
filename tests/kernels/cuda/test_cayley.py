"""Small matrices by kernels of a GPU: against double precision, and against the same in torch."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import cayley
from cayley.kernels.cuda.cayley import cayley as transform
from cayley.kernels.cuda.cayley import cayley_backward, neumann, pitch, refusal
from cayley.parametrizations import NeumannCayley, ScaledCayley, StructuredMatrix, skew_symmetric
from cayley.parametrizations.formation import pulled_back
from cayley.parametrizations.neumann import update_inverse_
from cayley.parametrizations.polar import refine
from cayley.parametrizations.skew import diagonal_entries, last_diagonal, positions

H200 = 232448  # bytes of shared memory

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
sizes = pytest.mark.parametrize("n", [1, 2, 5, 16, 33, 64, 100, 129, 170])
bandwidths = pytest.mark.parametrize("bandwidth", [None, 1, 3])


def entries(n: int, scale: float, bandwidth: int | None = None) -> Tensor:
    count = diagonal_entries(n, 1, last_diagonal(n, bandwidth))
    return (scale * torch.randn(count)).float().cuda()


def signs(n: int) -> Tensor:
    return (2 * torch.randint(2, (n,)) - 1).float().cuda()


def exact_inverse(x: Tensor, n: int, bandwidth: int | None = None) -> Tensor:
    A = skew_symmetric(x.cpu().double(), n, bandwidth)
    return torch.linalg.inv(torch.eye(n) + A)


def distance(found: Tensor, expected: Tensor) -> float:
    return float(torch.linalg.vector_norm(found.cpu().double() - expected))


def small_map(n: int, **options: Any) -> NeumannCayley:
    return NeumannCayley(n, **options).float().cuda()


def residual_of(inverse: Tensor, x: Tensor) -> float:
    n = len(inverse)
    M = torch.eye(n) + skew_symmetric(x.cpu().double(), n)
    return distance(inverse.cpu().double() @ M, torch.eye(n))


def counts(map: NeumannCayley) -> tuple[int, int]:
    return int(map.updates), int(map.refreshes)


@pytest.mark.parametrize("memory", [H200, 166912, 101376])
def test_rows_are_as_long_as_there_is_memory_for(memory: int) -> None:
    largest = max(n for n in range(1, 200) if pitch(n, memory) is not None)
    assert largest == {H200: 170, 166912: 144, 101376: 112}[memory]
    for n in range(1, largest + 1):
        width = pitch(n, memory)
        assert width is not None
        assert n <= width < n + 4
        assert 8 * n * width <= memory
        assert width % 4 == 0 or 8 * n * (width + 4) > memory - 2048


@gpu
def test_refusals() -> None:
    x, D = entries(5, 1.0), signs(5)
    assert refusal(5, x, D) is None
    assert "float32, not torch.float64" in (refusal(5, x.double(), D.double()) or "")
    assert "strided" in (refusal(5, x, D, torch.zeros(4, 3).float().cuda().mT) or "")
    assert "two 500 × 500 matrices do not fit" in (refusal(500, x, D) or "")


@gpu
@pytest.mark.parametrize("make", [ScaledCayley, NeumannCayley])
def test_the_back_end_is_that_in_force(make: Callable[[int], ScaledCayley]) -> None:
    matrix: Any = StructuredMatrix(make(5), device="cuda", dtype=torch.float32)
    large: Any = StructuredMatrix(make(500), device="cuda", dtype=torch.float32)
    with cayley.backend("cuda"):
        by_kernel = matrix()
        # torch forms what does not fit into one multiprocessor
        assert large().shape == (500, 500)
    with cayley.backend("reference"):
        torch.testing.assert_close(matrix(), by_kernel)
        assert matrix.map.capturable(matrix.A) == (make is ScaledCayley)
    with cayley.backend("cpu"), pytest.raises(ValueError, match="device of back end 'cpu'"):
        matrix()
    assert matrix.map.capturable(matrix.A)
    # an update by torch asks the host
    assert large.map.capturable(large.A) == (make is ScaledCayley)


@gpu
@sizes
@pytest.mark.parametrize("scale", [1e-3, 0.5, 30.0])
@bandwidths
def test_transform_is_as_good_as_one_with_pivots(
    n: int, scale: float, bandwidth: int | None
) -> None:
    x, D, eye = entries(n, scale, bandwidth), signs(n), torch.eye(n)
    W, X, copied = transform(x, D, last_diagonal(n, bandwidth))
    exact = exact_inverse(x, n, bandwidth)
    pivoted = torch.linalg.inv((eye + skew_symmetric(x.cpu(), n, bandwidth)).float())
    rounding = 1e-6 * n**0.5
    assert distance(X, exact) <= rounding + 2 * distance(pivoted, exact)
    by_torch, expected = refine(2 * pivoted - eye.float()), 2 * exact - eye
    assert distance(W * D, expected) <= rounding + 2 * distance(by_torch, expected)
    assert ScaledCayley(n).defect(W.cpu()) <= rounding
    assert torch.equal(copied, D)


@gpu
@sizes
@bandwidths
def test_gradient(n: int, bandwidth: int | None) -> None:
    x, D, last = entries(n, 0.5, bandwidth), signs(n), last_diagonal(n, bandwidth)
    _, X, _ = transform(x, D, last)
    # not contiguous, as the gradient of a transpose is
    G = torch.randn(n, n).float().cuda().mT
    G64, X64, D64 = (v.cpu().double() for v in (G, X, D))
    expected = pulled_back(G64, X64, D64, positions(n, bandwidth, D64))
    found = cayley_backward(G, X, D, last)
    assert found.shape == expected.shape
    assert distance(found, expected) <= 1e-6 * torch.linalg.vector_norm(expected)


@gpu
def test_wrong_numbers_of_entries_are_refused() -> None:
    x, D, map = entries(5, 1.0), signs(5), small_map(5)
    for call in (lambda: transform(x[1:], D, 4), lambda: transform(x, D, 2), lambda: map(x[1:])):
        with pytest.raises(ValueError, match="entries above the diagonal for n = 5"):
            call()


@gpu
def test_a_nan_goes_through() -> None:
    x = entries(40, 0.5)
    x[7] = torch.nan
    W, _, _ = transform(x, signs(40), 39)
    assert W.isnan().all()


# the size of a step, and the updates and factorisations after it
STEPS = ((0.0, (1, 1)), (1e-4, (2, 1)), (0.0, (2, 1)), (3.0, (3, 2)), (1e-4, (4, 2)))


@gpu
@pytest.mark.parametrize("n", [2, 33, 100, 170])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_each_update_is_that_of_torch_in_double_precision(n: int, order: int) -> None:
    map, x, eye = small_map(n, order=order, tolerance=1e-2), entries(n, 0.5), torch.eye(n)
    for size, expected_counts in STEPS:
        x = x + entries(n, size)
        state = (map.inverse, map.point, map.residual)
        inverse, point, residual = (v.cpu().double() for v in state)
        updates, refreshes = (v.cpu().clone() for v in (map.updates, map.refreshes))
        x64, D = x.cpu().double(), map.D.cpu().double()
        update_inverse_(inverse, point, residual, updates, refreshes, x64, order, 1e-2, 0)
        W, pullback = map.with_pullback(x, update=True)
        assert counts(map) == expected_counts == (int(updates), int(refreshes))
        assert torch.equal(map.point.cpu().double(), point)
        # rounding of X and of X (I + A), with |X| at most 1
        rounding = 1e-7 * float(torch.linalg.matrix_norm(eye + skew_symmetric(x64, n)))
        assert distance(map.inverse, inverse) <= 1e-6 * n**0.5 + rounding
        measured = residual_of(map.inverse, x)
        assert float(map.residual) == pytest.approx(measured, rel=1e-2, abs=rounding)
        assert distance(W, refine(2 * inverse - eye) * D) <= 2e-6 * n**0.5 + 2 * rounding
        G = torch.randn(n, n).float().cuda()
        gradient = pulled_back(G.cpu().double(), inverse, D, positions(n, None, inverse))
        assert distance(pullback(G)[0], gradient) <= 1e-5 * n


@gpu
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tolerance": 0.0}, (12, 12)),
        ({"tolerance": torch.inf}, (12, 1)),
        # the first, the 4th, the 8th and the 12th
        ({"tolerance": torch.inf, "refresh_every": 4}, (12, 4)),
        ({"refresh_every": 1}, (12, 12)),
    ],
)
def test_rules_of_renewal(options: dict[str, float], expected: tuple[int, int]) -> None:
    map, x = small_map(21, **options), entries(21, 0.5)
    for _ in range(12):
        x = x + entries(21, 1e-4)
        map.with_pullback(x, update=True)
    assert counts(map) == expected


@gpu
def test_refresh_and_a_matrix_that_is_left_alone() -> None:
    map, x = small_map(21, order=1, tolerance=torch.inf), entries(21, 0.5)
    map.with_pullback(x, update=True)
    x = x + entries(21, 1e-2)
    W, _ = map.with_pullback(x, update=True)
    assert residual_of(map.inverse, x) > 1e-4
    inverse = map.inverse.clone()
    assert torch.equal(map.with_pullback(x, update=True)[0], W)
    assert torch.equal(map.inverse, inverse)
    assert counts(map) == (2, 1)
    map.refresh_()
    map.with_pullback(x, update=True)
    assert residual_of(map.inverse, x) < 1e-5
    assert counts(map) == (3, 2)


@gpu
@pytest.mark.parametrize("step", [1e-3, 3.0])
def test_what_is_not_training_gives_the_next_matrix_and_writes_nothing(step: float) -> None:
    map, x = small_map(30), entries(30, 0.5)
    map.with_pullback(x, update=True)
    x = x + entries(30, step)
    before = copy.deepcopy(map.state_dict())
    with torch.no_grad():
        seen = [map(x), map.eval().with_pullback(x)[0], map(x)]
    recorded = map(x.clone().requires_grad_())
    assert all(torch.equal(value, before[name]) for name, value in map.state_dict().items())
    W, _ = map.train().with_pullback(x, update=True)
    assert counts(map) == (2, 2 if step > 1 else 1)
    assert all(torch.equal(other, W) for other in seen)
    torch.testing.assert_close(recorded, W)


@gpu
def test_forward_follows_as_the_pullback_does() -> None:
    by_pullback, x = small_map(30), entries(30, 0.5)
    by_forward, G = copy.deepcopy(by_pullback), torch.randn(30, 30).float().cuda()
    for _ in range(4):
        x = (x + entries(30, 1e-3)).requires_grad_()
        W, pullback = by_pullback.with_pullback(x, update=True)
        other = by_forward.advance(x)
        torch.testing.assert_close(other, W)
        (gradient,) = torch.autograd.grad(other, x, G)
        torch.testing.assert_close(gradient, pullback(G)[0], rtol=1e-4, atol=1e-4)
        x = x.detach()
        for one, two in zip(by_pullback.buffers(), by_forward.buffers(), strict=True):
            assert torch.equal(one, two)
    assert counts(by_forward) == (4, 1)


@gpu
@pytest.mark.parametrize("everywhere", [True, False])
def test_nan_does_not_stick(everywhere: bool) -> None:
    map, x = small_map(40), entries(40, 0.5)
    map.with_pullback(x, update=True)
    bad = x.clone()
    bad[slice(None) if everywhere else 7] = torch.nan
    for _ in range(2):
        assert map.with_pullback(bad, update=True)[0].isnan().all()
    assert map.residual.isnan()
    W, _ = map.with_pullback(x, update=True)
    assert map.defect(W.cpu()) <= 1e-5
    assert residual_of(map.inverse, x) <= 1e-5
    assert counts(map) == (4, 4)


@gpu
@pytest.mark.parametrize(("n", "order"), [(17, 2), (60, 1), (118, 2)])
def test_fifty_steps_are_those_of_torch(n: int, order: int) -> None:
    map = small_map(n, order=order)
    twin = copy.deepcopy(map).cpu()
    x = entries(n, 0.3)
    for _ in range(50):
        x = x + entries(n, 1e-3)
        W, _ = map.with_pullback(x, update=True)
        with cayley.backend("reference"):
            expected, _ = twin.with_pullback(x.cpu(), update=True)
        assert counts(map) == counts(twin)
        # each may be off by four times the tolerance
        assert distance(W, expected.double()) <= 3e-3
        assert residual_of(map.inverse, x) <= 5e-4
        assert map.defect(W.cpu()) <= 1e-6 * n**0.5
    updates, refreshes = counts(map)
    assert updates == 50
    assert 1 <= refreshes < 50


@gpu
@pytest.mark.parametrize("make", [ScaledCayley, NeumannCayley])
def test_a_matrix_is_trained_as_on_the_cpu(make: Callable[[int], ScaledCayley]) -> None:
    n = 40
    ours: Any = StructuredMatrix(make(n), dtype=torch.float32)
    theirs, target = copy.deepcopy(ours).double(), torch.linalg.qr(torch.randn(n, n))[0]
    ours.cuda()
    for _ in range(5):
        losses = []
        for matrix in (ours, theirs):
            W = matrix(update=True)
            loss = -(W * target.to(W)).sum()
            losses.append(loss.item())
            (matrix.A.grad,) = torch.autograd.grad(loss, matrix.A)
            with torch.no_grad():
                matrix.A -= 1e-3 * matrix.A.grad
        assert losses[0] == pytest.approx(losses[1], abs=1e-4)
        assert distance(ours.A.grad, theirs.A.grad) <= 1e-4 * theirs.A.grad.norm()


@gpu
def test_a_gradient_belongs_to_the_matrix_of_its_pass() -> None:
    map, x = small_map(20), entries(20, 0.5)
    _, pullback = map.with_pullback(x, update=True)
    G = torch.randn(20, 20).float().cuda()
    (before,) = pullback(G)
    map.with_pullback(x + entries(20, 1.0), update=True)
    map.right_inverse(torch.eye(20).float().cuda())
    assert torch.equal(pullback(G)[0], before)


@gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_nobody_waits_for_the_gpu() -> None:
    matrix: Any = StructuredMatrix(NeumannCayley(64), device="cuda", dtype=torch.float32)
    G = torch.randn(64, 64).float().cuda()
    matrix(update=True).backward(G)
    matrix.map.advance(matrix.A).backward(G)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for step in (1e-4, 0.0, 1.0, torch.nan):
            with torch.no_grad():
                matrix.A += step
            matrix(update=True).backward(G)
            matrix.map.advance(matrix.A).backward(G)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert counts(matrix.map) == (5, 4)


@gpu
def test_a_cuda_graph_follows_at_every_replay() -> None:
    matrix: Any = StructuredMatrix(NeumannCayley(50), device="cuda", dtype=torch.float32)
    G = torch.randn(50, 50).float().cuda()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.autograd.grad(matrix.map.advance(matrix.A), matrix.A, G)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        W = matrix(update=True)
        (gradient,) = torch.autograd.grad(W, matrix.A, G)
    for updates, refreshes, step in ((2, 1, 1e-4), (3, 2, 1.0)):
        with torch.no_grad():
            matrix.A += step
        graph.replay()
        assert counts(matrix.map) == (updates, refreshes)
        expected, pullback = matrix.map.with_pullback(matrix.A, update=True)
        torch.testing.assert_close(W, expected)
        torch.testing.assert_close(gradient, pullback(G)[0], rtol=1e-4, atol=1e-4)


@gpu
def test_the_kernel_has_the_state_that_it_was_given() -> None:
    """A second matrix, formed from the buffers of the first, is the first's next one."""
    map, x = small_map(10), entries(10, 0.5)
    map.with_pullback(x, update=True)
    state = [v.clone() for v in (map.inverse, map.point, map.residual, map.updates, map.refreshes)]
    x = x + entries(10, 1e-3)
    W, X, D = neumann(state, x, map.D, (map.order, 1e-3, 0))
    expected, _ = map.with_pullback(x, update=True)
    assert torch.equal(W, expected)
    assert torch.equal(X, map.inverse)
    assert torch.equal(D, map.D)
    assert torch.equal(state[0], map.inverse)
