"""Eigenvalue normalisation: its gradient, its latch, and what it remembers."""

import copy
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import cayley
from cayley.parametrizations import StructuredMatrix
from cayley.parametrizations.eigenvalue import EigenvalueNormalization, spectral_radius

REAL = torch.tensor([[1.7, 0.4, 0.1], [-0.3, 0.6, 0.2], [0.5, 0.1, -0.4]])
PAIR = torch.tensor([[1.1, -1.0, 0.3], [0.9, 1.0, 0.1], [0.2, -0.5, 0.3]])
NEGATIVE = -REAL
matrices = pytest.mark.parametrize("T", [REAL, PAIR, NEGATIVE], ids=["real", "pair", "negative"])


def radius(T: Tensor) -> Tensor:
    return torch.linalg.eigvals(T).abs().max()


def differences(f: Callable[[Tensor], Tensor], T: Tensor, step: float = 1e-6) -> Tensor:
    """Central differences of a scalar function."""
    gradient = torch.zeros_like(T)
    for i in range(len(T)):
        for j in range(len(T)):
            E = torch.zeros_like(T)
            E[i, j] = step
            gradient[i, j] = (f(T + E) - f(T - E)) / (2 * step)
    return gradient


def large(kind: str) -> Tensor:
    """A matrix that is followed, with a dominant pair or a real dominant eigenvalue."""
    T = torch.randn(100, 100) / 10
    if kind == "pair":
        T[:2, :2] = torch.tensor([[1.2, -1.0], [1.0, 1.2]])
    else:
        T[0, 0] = 2.0
    return T


@matrices
def test_gradient_of_the_radius(T: Tensor) -> None:
    T = T.double()
    assert (torch.linalg.eigvals(T)[0].imag != 0) == (T is PAIR or torch.equal(T, PAIR.double()))
    X = T.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(spectral_radius(X), X)
    torch.testing.assert_close(gradient, differences(radius, T), rtol=1e-7, atol=1e-8)
    assert gradcheck(spectral_radius, X)
    assert gradgradcheck(spectral_radius, X)


@matrices
@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_gradient_of_the_normalised_matrix(T: Tensor, eps: float) -> None:
    """Against differences and the closed form with the inner factor 1/ρ."""
    T, G = T.double(), torch.randn(3, 3)
    normalise = EigenvalueNormalization(3, eps=eps)
    X = T.clone().requires_grad_()
    W = normalise.advance(X)
    assert normalise.latched
    rho = radius(T)
    torch.testing.assert_close(W, T / (rho + eps))
    (gradient,) = torch.autograd.grad((G * W).sum(), X)
    expected = differences(lambda T: (G * T / (radius(T) + eps)).sum(), T)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-8)

    theta, U = torch.linalg.eig(T)
    j = int(theta.abs().argmax())
    V = torch.linalg.inv(U).mH
    u, v = U[:, j], V[:, j]
    S = torch.outer(v.conj(), u) / torch.vdot(v, u)
    C = theta[j].real * S.real + theta[j].imag * S.imag
    closed = (G - (G * W.detach()).sum() / rho * C) / (rho + eps)
    torch.testing.assert_close(gradient, closed, rtol=1e-9, atol=1e-12)
    printed = (G - (G * W.detach()).sum() / (rho + eps) * C) / (rho + eps)
    assert torch.allclose(gradient, printed) == (eps == 0)
    if eps == 0:
        assert abs(float((gradient * T).sum())) < 1e-13
    assert gradcheck(normalise, X)
    assert gradgradcheck(normalise, X)


@pytest.mark.parametrize("kind", ["pair", "real"])
def test_gradient_where_the_pair_is_followed(kind: str) -> None:
    normalise = EigenvalueNormalization(100)
    T, G = large(kind), torch.randn(100, 100)
    for _ in range(3):
        X = T.clone().requires_grad_()
        (gradient,) = torch.autograd.grad((G * normalise.advance(X)).sum(), X)
        Z = T.clone().requires_grad_()
        (expected,) = torch.autograd.grad((G * Z / radius(Z)).sum(), Z)
        torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-6)
        assert abs(float((gradient * T).sum())) < 1e-6
        T = T + 1e-3 * torch.randn(100, 100)
    assert normalise.events["FOLLOWED"] == 2


@pytest.mark.parametrize("eps", [0.0, 0.1])
@pytest.mark.parametrize("s", [1, 6, 100])
def test_radius_once_latched(eps: float, s: int) -> None:
    normalise = EigenvalueNormalization(s, eps=eps)
    for scale in (3.0, 0.5):  # also where ρ(T) has fallen below 1 again
        T = torch.randn(s, s)
        T = scale * T / radius(T)
        W = normalise.advance(T.requires_grad_()).detach()
        assert radius(W).item() == pytest.approx(scale / (scale + eps), rel=1e-9)
    assert normalise.latched


def test_before_the_latch_the_matrix_is_free() -> None:
    normalise = EigenvalueNormalization(4)
    T = torch.randn(4, 4)
    T = (0.9 * T / radius(T)).requires_grad_()
    G = torch.randn(4, 4)
    W = normalise.advance(T)
    assert torch.equal(W, T)
    (gradient,) = torch.autograd.grad(W, T, G)
    assert torch.equal(gradient, G)
    assert not normalise.latched
    exactly_one = torch.diag(torch.tensor([1.0, 0.5, -0.25, 0.0])).requires_grad_()
    normalise.advance(exactly_one)  # > 1, not ≥
    assert not normalise.latched


def test_only_training_closes_the_latch() -> None:
    matrix: Any = StructuredMatrix(EigenvalueNormalization(3))
    T, normalise = matrix.T, matrix.map
    with torch.no_grad():
        T.copy_(REAL.double())
    for call in (
        lambda: matrix.eval()(update=True),
        lambda: matrix.train()(),
        lambda: torch.no_grad()(matrix)(update=True),
        lambda: torch.inference_mode()(matrix)(update=True),
        lambda: normalise(T),
    ):
        # the matrix is what it will be when training sees it
        torch.testing.assert_close(call().detach().clone(), T.detach() / radius(T.detach()))
        assert not normalise.latched
        assert sum(normalise.events.values()) == 0
    matrix(update=True)
    assert normalise.latched
    assert normalise.events["DIRECT"] == 1


def test_evaluation_leaves_no_trace_in_training() -> None:
    """The same bits with and without evaluations in between."""
    T0 = large("pair")
    ends = []
    for evaluate in (False, True):
        torch.manual_seed(0)
        matrix: Any = StructuredMatrix(EigenvalueNormalization(100))
        with torch.no_grad():
            matrix.T.copy_(T0)
        optimizer = torch.optim.Adam(matrix.parameters(), lr=1e-3)
        for _ in train(matrix, optimizer, range(6)):
            if evaluate:
                matrix.eval()
                with counted(matrix.map) as calls:
                    matrix().sum()
                    with torch.no_grad():
                        assert torch.equal(matrix(), matrix())
                assert len(calls) == 1  # the matrix is kept
                matrix.train()
                matrix()
                with torch.no_grad():
                    matrix()
        ends.append(matrix.state_dict())
    for key, value in ends[0].items():
        assert torch.equal(value, ends[1][key]), key


@contextmanager
def counted(module: nn.Module) -> Iterator[list[int]]:
    """A list that grows with every call of the module."""
    calls: list[int] = []
    hook = module.register_forward_hook(lambda *_: calls.append(1))
    yield calls
    hook.remove()


def train(
    matrix: StructuredMatrix, optimizer: torch.optim.Optimizer, steps: range
) -> Iterator[int]:
    for step in steps:
        G = torch.randn(matrix.map.n, matrix.map.n, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (G * matrix(update=True)).sum().backward()
        optimizer.step()
        yield step


@pytest.mark.parametrize("start", [0.9, 0.999, 1.2], ids=["open", "closing", "closed"])
def test_resumes_exactly(start: float) -> None:
    """Checkpoints before, around and after the closing of the latch."""
    T0 = large("real")
    T0 = start * T0 / radius(T0)
    matrix: Any = StructuredMatrix(EigenvalueNormalization(100))
    with torch.no_grad():
        matrix.T.copy_(T0)
    optimizer = torch.optim.Adam(matrix.parameters(), lr=1e-3)
    checkpoints = []
    for _ in train(matrix, optimizer, range(8)):
        buffer = io.BytesIO()
        torch.save((matrix.state_dict(), optimizer.state_dict()), buffer)
        checkpoints.append(buffer)
    for step, buffer in enumerate(checkpoints):
        buffer.seek(0)
        state, optimizer_state = torch.load(buffer)
        twin = StructuredMatrix(EigenvalueNormalization(100))
        twin.load_state_dict(state)
        twin_optimizer = torch.optim.Adam(twin.parameters(), lr=1e-3)
        twin_optimizer.load_state_dict(optimizer_state)
        list(train(twin, twin_optimizer, range(step + 1, 8)))
        for key, value in matrix.state_dict().items():
            assert torch.equal(twin.state_dict()[key], value), (step, key)
    if start > 1:
        assert matrix.map.latched


def test_latch_survives_a_checkpoint_in_the_middle() -> None:
    normalise = EigenvalueNormalization(3)
    normalise.advance(REAL.double().requires_grad_())
    twin = EigenvalueNormalization(3)
    twin.load_state_dict(normalise.state_dict())
    T = 0.1 * REAL.double()
    torch.testing.assert_close(twin(T), T / radius(T))
    torch.testing.assert_close(copy.deepcopy(normalise)(T), T / radius(T))
    assert torch.equal(EigenvalueNormalization(3)(T), T)


def test_compiled_training_closes_the_latch() -> None:
    torch.compiler.reset()
    normalise = EigenvalueNormalization(100)
    compiled = torch.compile(normalise.advance, fullgraph=True, backend="aot_eager")
    twin = EigenvalueNormalization(100)
    T = large("pair")
    for scale in (0.5, 1.0, 0.4):
        X, Y = (scale * T).requires_grad_(), (scale * T).requires_grad_()
        W, expected = compiled(X), twin.advance(Y)
        torch.testing.assert_close(W, expected)
        W.square().sum().backward()
        expected.square().sum().backward()
        torch.testing.assert_close(X.grad, Y.grad)
        for key, value in twin.state_dict().items():
            torch.testing.assert_close(normalise.state_dict()[key], value, msg=key)
    assert normalise.latched


def test_plain_step_at_a_multiple_eigenvalue() -> None:
    """The matrix stays normalised, the gradient takes ρ as constant, and it warns once."""
    normalise = EigenvalueNormalization(3)
    T = torch.tensor([[2.0, 1.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]]).requires_grad_()
    G = torch.randn(3, 3)
    with pytest.warns(UserWarning, match="spectral radius as a constant"):
        W = normalise.advance(T)
    torch.testing.assert_close(W, T / 2)
    torch.testing.assert_close(torch.autograd.grad(W, T, G)[0], G / 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        normalise.advance(T)
    assert normalise.events["MULTIPLE"] == 2
    normalise.advance(REAL.double().requires_grad_())  # and back to the gradient of the reference
    assert normalise.events["DIRECT"] == 1


def test_multiple_eigenvalue_before_the_latch_is_nothing_to_warn_of() -> None:
    normalise = EigenvalueNormalization(3)
    T = (0.5 * torch.eye(3)).requires_grad_()
    assert torch.equal(normalise(T), T)
    T = torch.zeros(3, 3, requires_grad=True)
    W = normalise(T)
    assert torch.equal(torch.autograd.grad(W.sum(), T)[0], torch.ones(3, 3))


@pytest.mark.parametrize("s", [1, 2, 5, 8])
def test_start(s: int) -> None:
    normalise = EigenvalueNormalization(s)
    (T,) = normalise.sample()
    theta = torch.linalg.eigvals(T)
    assert theta.abs().max() < 1
    for j in range(0, s - 1, 2):
        block = T[j : j + 2, j : j + 2]
        assert block[0, 0] == block[1, 1]
        assert block[0, 1] == -block[1, 0]
        T[j : j + 2, j : j + 2] = 0
    assert (T != 0).sum() == s % 2
    normalise.latched.fill_(True)
    normalise.sample()
    assert not normalise.latched


def test_start_is_uniform_in_modulus_and_angle() -> None:
    (T,) = EigenvalueNormalization(4000).sample()
    i = torch.arange(0, 4000, 2)
    z = torch.complex(T[i, i], T[i + 1, i])
    gamma, t = z.abs() * z.real.sign(), (z.imag / z.real).atan()
    assert abs(float(gamma.mean())) < 0.06
    assert float(z.abs().square().mean()) == pytest.approx(1 / 3, abs=0.03)
    assert float(t.mean()) == pytest.approx(torch.pi / 4, abs=0.04)
    assert ((t >= 0) & (t <= torch.pi / 2)).all()


def test_tangent_of_the_radius() -> None:
    normalise, T, v = EigenvalueNormalization(5), 2 * torch.randn(5, 5), torch.randn(5, 5)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(normalise(forward_ad.make_dual(T, v))).tangent
    difference = (normalise(T + 1e-6 * v) - normalise(T - 1e-6 * v)) / 2e-6
    assert tangent is not None
    torch.testing.assert_close(tangent, difference, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-14)])
def test_right_inverse_of_a_radius_of_one(dtype: torch.dtype, tolerance: float) -> None:
    """Rounding takes that of every second orthogonal matrix above 1."""
    for _ in range(10):
        normalise = EigenvalueNormalization(7, eps=0.1)
        W = torch.linalg.qr(torch.randn(7, 7)).Q.to(dtype)
        T = normalise.right_inverse(W).requires_grad_()
        torch.testing.assert_close(normalise(T).detach(), W, atol=tolerance, rtol=0)


def test_right_inverse_opens_the_latch() -> None:
    normalise = EigenvalueNormalization(4)
    normalise.advance((3 * torch.eye(4) + torch.randn(4, 4)).requires_grad_())
    assert normalise.latched
    W = torch.randn(4, 4)
    with pytest.raises(ValueError, match="spectral radius of at most 1"):
        normalise.right_inverse(2 * W / radius(W))
    assert normalise.latched  # a refusal changes nothing
    for scale in (0.5, 1.0):
        W = scale * W / radius(W)
        T = normalise.right_inverse(W)
        torch.testing.assert_close(normalise(T), W)
    torch.testing.assert_close(normalise.project(5 * W), W)
    assert normalise.defect(3 * W).item() == pytest.approx(2)
    assert normalise.defect(W * torch.nan).isnan()
    # eigenvalues of NaN end the process on some builds of torch
    assert normalise.project(W * torch.nan).isnan().all()


def test_eps_out_of_range() -> None:
    for eps in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="eps of at least 0"):
            EigenvalueNormalization(3, eps=eps)


def test_buffers_have_names_and_a_precision_of_their_own() -> None:
    matrix: Any = StructuredMatrix(EigenvalueNormalization(100), dtype=torch.float32)
    dtypes = {name: buffer.dtype for name, buffer in matrix.map.named_buffers()}
    exact = dict.fromkeys(("status", "lead", "gram"), torch.float64)
    assert dtypes == {
        "right": torch.float32,
        "left": torch.float32,
        "latched": torch.bool,
        "counts": torch.int64,
        **exact,
    }
    matrix.map.gram.normal_()
    gram = matrix.map.gram.clone()
    for move in (matrix.half, matrix.float, matrix.double, lambda: matrix.to(torch.float32)):
        move()
        assert all(matrix.map.get_buffer(name).dtype == kind for name, kind in exact.items())
        assert torch.equal(matrix.map.gram, gram)
    assert matrix.map.right.dtype == torch.float32
    assert {*EigenvalueNormalization(20).state_dict()} == {"latched", "counts"}


def steps_of(layer: cayley.ENRNN, prepared: bool) -> Iterator[list[Tensor]]:
    """The output, gradients and buffers of steps in which the latch closes."""
    parameters, generator = [*layer.parameters()], torch.Generator().manual_seed(1)
    for _ in range(6):
        with layer.prepared() if prepared else nullcontext():
            output = layer(torch.randn(4, 3, 2, generator=generator))[0]
            gradients = torch.autograd.grad(output.square().sum(), parameters)
        yield [output.detach(), *gradients, *(buffer.clone() for buffer in layer.buffers())]
        with torch.no_grad():
            layer.get_parameter("structured.weight_hh_l0.T").mul_(1.2)


@pytest.mark.parametrize("sizes", [(3, 4), (0, 4), (2, 100)], ids=str)
@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_a_prepared_step_is_the_same_step(sizes: tuple[int, int], eps: float) -> None:
    layer = cayley.ENRNN(2, *sizes, eps=eps)
    twin = copy.deepcopy(layer)
    for ours, plain in zip(steps_of(layer, True), steps_of(twin, False), strict=True):
        torch.testing.assert_close(ours, plain)
    assert layer.events == twin.events
    assert layer.get_buffer("structured.weight_hh_l0.map.short.latched")


def test_a_prepared_step_without_a_pullback_is_the_same_step() -> None:
    """As a graph takes it where the other block cannot be captured."""
    G, found = torch.randn(3, 3), []
    for prepared in (True, False):
        map, T = EigenvalueNormalization(3, eps=0.1), PAIR.double().requires_grad_()
        with map.prepared(T) if prepared else nullcontext():
            W = map.advance(T)
        found.append([W.detach(), *torch.autograd.grad(W, T, G), *map.buffers()])
    torch.testing.assert_close(*found)


def test_nothing_is_prepared_in_evaluation() -> None:
    layer = cayley.ENRNN(2, 3, 4).eval()
    before = copy.deepcopy(layer.state_dict())
    with layer.prepared():
        layer(torch.randn(4, 3, 2))
    torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)


def test_a_step_keeps_what_was_prepared_for_it() -> None:
    """Its backward pass may come after the next one has been prepared."""
    matrix, G = StructuredMatrix(EigenvalueNormalization(3)), torch.randn(3, 3)
    twin, T = copy.deepcopy(matrix), matrix.get_parameter("T")
    graphs = []
    for value in (REAL, PAIR):
        with torch.no_grad():
            T.copy_(value)
        with matrix.prepared():
            graphs.append(matrix(update=True))
    for value, W in zip((REAL, PAIR), graphs, strict=True):
        with torch.no_grad():
            twin.get_parameter("T").copy_(value)
        (ours,) = torch.autograd.grad(W, T, G)
        (plain,) = torch.autograd.grad(twin(update=True), twin.get_parameter("T"), G)
        torch.testing.assert_close(ours, plain)


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_graph_needs_a_prepared_step() -> None:
    matrix = on_the_gpu(large("pair"))
    matrix(update=True)
    with (
        pytest.raises(RuntimeError, match=r"inside `with layer.prepared\(\):`"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        matrix(update=True)


def on_the_gpu(T: Tensor) -> Any:
    matrix: Any = StructuredMatrix(
        EigenvalueNormalization(len(T)), device="cuda", dtype=torch.float32
    )
    with torch.no_grad():
        matrix.T.copy_(T)
    return matrix


def gpu_steps(matrix: Any, steps: range) -> Iterator[int]:
    """Plain descent: an optimizer would bring kernels and a state of its own."""
    for step in steps:
        G = torch.randn(matrix.map.n, matrix.map.n, generator=torch.Generator().manual_seed(step))
        (gradient,) = torch.autograd.grad(matrix(update=True), matrix.T, G.float().cuda())
        with torch.no_grad():
            matrix.T.sub_(gradient, alpha=1e-4)
        yield step


@gpu
@pytest.mark.parametrize("kind", ["pair", "real"])
def test_follows_on_the_gpu(kind: str) -> None:
    matrix = on_the_gpu(1.5 * large(kind))
    G = torch.randn(100, 100)
    for step in gpu_steps(matrix, range(40)):
        T = matrix.T.detach().cpu().double().requires_grad_()
        expected = T / radius(T)
        if step % 8:
            continue
        twin = copy.deepcopy(matrix)
        read = twin()
        W = twin(update=True)
        assert torch.equal(read, W)
        torch.testing.assert_close(W.cpu().double(), expected, rtol=1e-5, atol=1e-6)
        (ours,) = torch.autograd.grad(W, twin.T, G.float().cuda())
        (theirs,) = torch.autograd.grad(expected, T, G)
        assert (ours.cpu() - theirs).norm() < 2e-3 * theirs.norm()
    assert matrix.map.events["FOLLOWED"] >= 38


@gpu
@pytest.mark.parametrize("steps", [0, 3, 20])
def test_reading_on_the_gpu_changes_nothing(steps: int) -> None:
    matrix = on_the_gpu(large("pair"))
    list(gpu_steps(matrix, range(steps)))
    before = copy.deepcopy(matrix.state_dict())
    read = [matrix(), matrix()]
    with torch.no_grad():
        read.append(matrix())
    for key, value in matrix.state_dict().items():
        assert torch.equal(value, before[key]), key
    W = matrix(update=True)
    assert all(torch.equal(other, W) for other in read)


@gpu
def test_the_reference_decides_without_kernels() -> None:
    matrix: Any = on_the_gpu(large("pair"))
    with cayley.backend("reference"):
        list(gpu_steps(matrix, range(3)))
        assert not matrix.map.status.any()
    assert sum(matrix.map.events.values()) == 3


@gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_does_not_wait_for_the_gpu_once_it_is_calm() -> None:
    matrix = on_the_gpu(large("pair"))
    list(gpu_steps(matrix, range(20)))
    G = torch.randn(100, 100, device="cuda", dtype=torch.float32)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(20):
            (matrix(update=True) * G).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@gpu
@pytest.mark.parametrize("stop", [3, 12, 23, 24])
def test_resumes_exactly_on_the_gpu(stop: int) -> None:
    matrix = on_the_gpu(large("pair"))
    list(gpu_steps(matrix, range(stop)))
    state = copy.deepcopy(matrix.state_dict())
    twin = on_the_gpu(large("real"))
    list(gpu_steps(twin, range(14)))  # a past of its own
    twin.load_state_dict(state)
    for one in (matrix, twin):
        list(gpu_steps(one, range(stop, stop + 20)))
    for key, value in matrix.state_dict().items():
        assert torch.equal(twin.state_dict()[key], value), key


@gpu
def test_graphs_that_wait_for_their_backward_pass() -> None:
    """Several forward passes before the first backward pass: none overwrites what others need."""
    matrix: Any = on_the_gpu(large("pair"))
    list(gpu_steps(matrix, range(16)))
    G = torch.randn(100, 100, device="cuda", dtype=torch.float32)
    first = matrix(update=True)
    (expected,) = torch.autograd.grad(first, matrix.T, G, retain_graph=True)
    with torch.no_grad():
        matrix.T.add_(1e-3 * torch.randn(100, 100, device="cuda"))
    matrix(update=True)
    (gradient,) = torch.autograd.grad(first, matrix.T, G)
    assert torch.equal(gradient, expected)
