"""The running inverse: its error, when it is renewed, and what may write it."""

import copy
from typing import Any

import pytest
import torch
from gradients import grad_of
from torch import Tensor, nn

from cayley.parametrizations import ScaledCayley, StructuredMatrix, orthogonal_, skew_symmetric
from cayley.parametrizations.neumann import NeumannCayley, neumann_update

orders = pytest.mark.parametrize("order", [1, 2, 3])


def random_skew(n: int, scale: float = 1.0) -> Tensor:
    return skew_symmetric(scale * torch.randn(n * (n - 1) // 2), n)


def matrix_of(n: int, dtype: torch.dtype | None = None, **options: Any) -> Any:
    return StructuredMatrix(NeumannCayley(n, **options), dtype=dtype)


def state_of(map: NeumannCayley) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in map.named_buffers()}


def true_residual(matrix: Any) -> Tensor:
    eye = torch.eye(matrix.map.n)
    A = skew_symmetric(matrix.A.detach().double(), matrix.map.n)
    return torch.linalg.matrix_norm(eye - matrix.map.inverse.double() @ (eye + A))


def train(matrix: Any, optimizer: torch.optim.Optimizer, steps: range) -> Tensor:
    """Steps along noisy gradients of order 1e-3, and the matrix of the last."""
    n = matrix.map.n
    generator = torch.Generator().manual_seed(0)
    target = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=matrix.A.dtype))[0]
    for step in steps:
        generator.manual_seed(step)
        W = matrix(update=True)
        noise = torch.randn(n, n, generator=generator, dtype=W.dtype)
        optimizer.zero_grad()
        W.backward(1e-3 * (noise + W.detach() - target))
        optimizer.step()
    return matrix(update=True)


@orders
def test_halving_the_step_divides_the_error_by_two_to_the_order_and_one(order: int) -> None:
    n = 20
    M, delta = torch.eye(n) + random_skew(n), random_skew(n)
    delta = 0.02 * delta / torch.linalg.matrix_norm(delta, 2)
    inverse = torch.linalg.inv(M)

    def error(step: Tensor) -> Tensor:
        exact = torch.linalg.inv(M - step)
        return torch.linalg.matrix_norm(neumann_update(inverse, step, order) - exact)

    assert error(delta) / error(delta / 2) == pytest.approx(2 ** (order + 1), rel=0.05)


@orders
def test_inverse_follows_the_step_that_was_taken(order: int) -> None:
    """Whatever moved A, and whatever its gradient: the map compares A with the A before."""
    matrix = matrix_of(12, order=order, tolerance=torch.inf)
    matrix(update=True)
    before = matrix.map.inverse.clone()
    step = 1e-3 * torch.randn_like(matrix.A)
    with torch.no_grad():
        matrix.A.add_(step)
    matrix(update=True)
    expected = neumann_update(before, skew_symmetric(-step, 12), order)
    torch.testing.assert_close(matrix.map.inverse, expected)
    torch.testing.assert_close(matrix.map.residual, true_residual(matrix))
    assert matrix.map.residual < (1e-3 * 12) ** (order + 1)
    assert (int(matrix.map.updates), int(matrix.map.refreshes)) == (2, 1)


def test_learning_rate_times_gradient_is_not_the_step() -> None:
    """With Adam, the published code's δA loses orthogonality within 48 steps; the true one not."""
    n, lr, steps = 118, 1e-3, 48
    matrix = matrix_of(n, tolerance=torch.inf)
    optimizer = torch.optim.Adam(matrix.parameters(), lr=lr)
    eye = torch.eye(n)
    wrong = torch.linalg.inv(eye + skew_symmetric(matrix.A.detach(), n))
    for step in range(steps):
        train(matrix, optimizer, range(step, step + 1))
        wrong = neumann_update(wrong, skew_symmetric(lr * matrix.A.grad, n), 2)
    A = skew_symmetric(matrix.A.detach(), n)
    lost, kept = (X @ (eye - A) * matrix.map.D for X in (wrong, matrix.map.inverse))
    assert matrix.map.refreshes == 1
    assert matrix.map.defect(lost) > 0.1
    assert matrix.map.defect(kept) < 1e-3
    assert matrix.map.defect(matrix(update=True)) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "order", "steps"), [(118, 2, 1000), (118, 1, 300), (118, 3, 300), (435, 2, 100)]
)
def test_stays_orthogonal_over_adam_steps_in_float32(n: int, order: int, steps: int) -> None:
    matrix = matrix_of(n, torch.float32, order=order)
    optimizer = torch.optim.Adam(matrix.parameters(), lr=1e-3)
    for first in range(0, steps, 50):
        W = train(matrix, optimizer, range(first, first + 50))
        assert matrix.map.defect(W) <= 1e-5
        assert true_residual(matrix) <= 5e-4
    assert matrix.map.updates == steps + 1
    if order > 1:  # the higher orders are there to spare factorisations
        assert matrix.map.refreshes <= steps / 20


def test_refresh_restores_the_inverse() -> None:
    matrix = matrix_of(40, order=1, tolerance=torch.inf)
    train(matrix, torch.optim.Adam(matrix.parameters(), lr=1e-3), range(100))
    assert true_residual(matrix) > 1e-3
    matrix.map.refresh_()
    matrix(update=True)
    assert true_residual(matrix) <= 1e-12
    eye = torch.eye(40)
    A = skew_symmetric(matrix.A.detach(), 40)
    assert matrix.map.defect(matrix.map.inverse @ (eye - A) * matrix.map.D) <= 1e-12


def test_residual_above_the_tolerance_is_not_left() -> None:
    matrix = matrix_of(10, order=1, tolerance=1e-6)
    for size in (1e-5, 1e-2, 1e-5, 10.0):
        with torch.no_grad():
            matrix.A.add_(size * torch.randn_like(matrix.A))
        matrix(update=True)
        assert true_residual(matrix) <= 1e-6
    assert (int(matrix.map.updates), int(matrix.map.refreshes)) == (4, 3)


def test_refresh_every_so_many_updates() -> None:
    matrix = matrix_of(8, refresh_every=4, tolerance=torch.inf)
    train(matrix, torch.optim.SGD(matrix.parameters(), lr=1e-3), range(11))
    # the first, the 4th, the 8th and the 12th
    assert (int(matrix.map.updates), int(matrix.map.refreshes)) == (12, 4)


def test_is_the_exact_transform_when_refreshed() -> None:
    matrix, exact = matrix_of(9, negative_ones=2), ScaledCayley(9, negative_ones=2)
    A = matrix.A.detach() + torch.randn_like(matrix.A)
    torch.testing.assert_close(matrix.map(A), exact(A))


def test_gradient_is_the_closed_form_with_the_running_inverse() -> None:
    """Q = Ãᵀ G (D + Wᵀ), ∂L/∂A = Qᵀ − Q, also where Ã is not the inverse."""
    n = 9
    matrix = matrix_of(n, tolerance=torch.inf, order=1)
    matrix(update=True)
    with torch.no_grad():
        matrix.A.add_(0.1 * torch.randn_like(matrix.A))
    W, G = matrix(update=True), torch.randn(n, n)
    (grad,) = torch.autograd.grad(W, matrix.A, G)
    inverse, D = matrix.map.inverse, matrix.map.D.diag()
    assert true_residual(matrix) > 1e-2
    Q = inverse.T @ G @ (D + ((2 * inverse - torch.eye(n)) @ D).T)
    upper = skew_entries(Q.T - Q)
    torch.testing.assert_close(grad, upper)


def test_without_refining_it_is_the_algorithm_as_printed() -> None:
    """Algorithm 8 of Pospisil's dissertation (2023), written out, beside a layer's training."""
    n, lr = 9, 0.02
    matrix = matrix_of(n, order=2, negative_ones=4, tolerance=torch.inf, refine=False)
    eye, D = torch.eye(n), matrix.map.D.diag()
    A = skew_symmetric(matrix.A.detach(), n)
    inverse = torch.linalg.inv(eye + A)
    U = inverse @ (eye - A) @ D
    optimizer = torch.optim.SGD(matrix.parameters(), lr=lr)
    for _ in range(30):
        W, G = matrix(update=True), torch.randn(n, n)
        torch.testing.assert_close(W, U)
        optimizer.zero_grad()
        W.backward(G)
        V = inverse.T @ G @ (D + U.T)
        torch.testing.assert_close(matrix.A.grad, skew_entries(V.T - V))
        optimizer.step()
        delta = lr * (V.T - V)
        A, X = A - delta, inverse @ delta
        inverse = (eye + X + X @ X) @ inverse
        U = inverse @ (eye - A) @ D
    assert (int(matrix.map.updates), int(matrix.map.refreshes)) == (30, 1)
    # as far from the orthogonal matrices as the inverse is from that of I + A
    assert 0.1 * true_residual(matrix) < matrix.map.defect(W) < 10 * true_residual(matrix)
    assert matrix.map.defect(W) > 1e-4
    matrix.map.refresh_()
    assert matrix.map.defect(matrix(update=True)) < 1e-13


def skew_entries(M: Tensor) -> Tensor:
    return ScaledCayley(len(M)).skew.right_inverse(M)


def test_gradients_at_a_refreshed_point() -> None:
    matrix = matrix_of(5)
    A = (matrix.A.detach() + 0.3 * torch.randn_like(matrix.A)).requires_grad_()
    matrix.map.advance(A)
    assert matrix.map.residual < 1e-13
    assert torch.autograd.gradcheck(matrix.map, (A,))
    assert torch.autograd.gradgradcheck(matrix.map, (A,))


def test_only_training_writes() -> None:
    matrix = matrix_of(8)
    matrix(update=True)
    before = state_of(matrix.map)
    with torch.no_grad():
        matrix.A.add_(1e-3)
        matrix(update=True)
    with torch.inference_mode():
        matrix(update=True)
    matrix.eval()(update=True)
    matrix.train()
    matrix.requires_grad_(False)(update=True)
    matrix.requires_grad_(True)
    read = matrix()
    assert all(torch.equal(value, before[name]) for name, value in state_of(matrix.map).items())
    assert torch.equal(matrix(update=True), read)
    assert matrix.map.updates == 2
    written = state_of(matrix.map)
    for _ in range(3):  # A is what it was
        matrix(update=True)
    assert all(torch.equal(value, written[name]) for name, value in state_of(matrix.map).items())


def test_evaluation_sees_what_training_will_and_does_not_disturb_it() -> None:
    matrix = matrix_of(8, order=1, tolerance=0.1)
    optimizer = torch.optim.Adam(matrix.parameters(), lr=1e-2)
    twin = copy.deepcopy(matrix)
    twin_optimizer = torch.optim.Adam(twin.parameters(), lr=1e-2)
    for step in range(5):
        train(matrix, optimizer, range(step, step + 1))
        train(twin, twin_optimizer, range(step, step + 1))
        twin.eval()
        with torch.no_grad():
            torch.func.functional_call(twin, {"A": nn.Parameter(torch.randn_like(twin.A))})
            seen = twin()
        twin.train()
        assert torch.equal(seen, matrix())
    for value, expected in zip(
        twin.state_dict().values(), matrix.state_dict().values(), strict=True
    ):
        assert torch.equal(value, expected)


@pytest.mark.parametrize("moment", ["before the update", "after the update", "after refresh_"])
def test_training_resumes_exactly(moment: str) -> None:
    matrix = matrix_of(10, order=1, tolerance=1e-3)
    optimizer = torch.optim.SGD(matrix.parameters(), lr=1e-1)
    train(matrix, optimizer, range(4))
    with torch.no_grad():
        matrix.A.add_(1e-3)
    if moment == "after the update":
        matrix(update=True)
    if moment == "after refresh_":
        matrix.map.refresh_()
    resumed = matrix_of(10, order=1, tolerance=1e-3)
    resumed.load_state_dict(copy.deepcopy(matrix.state_dict()))
    W = train(resumed, torch.optim.SGD(resumed.parameters(), lr=1e-1), range(4, 8))
    assert torch.equal(W, train(matrix, optimizer, range(4, 8)))
    assert torch.equal(resumed.map.inverse, matrix.map.inverse)
    assert resumed.map.updates == matrix.map.updates


def test_parameters_loaded_without_the_buffers() -> None:
    matrix, other = matrix_of(8), matrix_of(8)
    matrix(update=True), other(update=True)
    matrix.load_state_dict({"A": other.A}, strict=False)
    torch.testing.assert_close(matrix(update=True), other(update=True))
    assert matrix.map.refreshes == 2


def test_change_of_precision_is_noticed() -> None:
    matrix = matrix_of(30, torch.float32)
    train(matrix, torch.optim.Adam(matrix.parameters(), lr=1e-3), range(30))
    assert true_residual(matrix.double()) > 1e-7
    assert matrix.map.defect(matrix(update=True)) <= 1e-13
    assert true_residual(matrix) <= 1e-13
    loaded = matrix_of(30, torch.float32)
    loaded(update=True)
    wide = matrix_of(30)
    wide.load_state_dict(loaded.state_dict())
    wide(update=True)
    assert true_residual(wide) <= 1e-13


def test_assigning_a_matrix_refreshes() -> None:
    matrix = matrix_of(7)
    matrix(update=True)
    W = torch.linalg.qr(torch.randn(7, 7))[0]
    matrix.assign(W)
    torch.testing.assert_close(matrix(update=True), W)
    assert matrix.map.refreshes == 2


def test_nan_does_not_stick() -> None:
    matrix = matrix_of(6)
    A = matrix.A.detach().clone()
    with torch.no_grad():
        matrix.A.fill_(torch.nan)
    assert matrix(update=True).isnan().all()
    with torch.no_grad():
        matrix.A.copy_(A)
    assert matrix.map.defect(matrix(update=True)) <= 1e-13


def test_compiled_training_is_the_same_training() -> None:
    torch.compiler.reset()
    matrix = matrix_of(6, refresh_every=3, tolerance=torch.inf)
    twin = copy.deepcopy(matrix)
    # all of inductor, but not a C++ compiler for every sum of two matrices
    compiled = torch.compile(twin, fullgraph=True, options={"fallback_by_default": True})
    G = torch.randn(6, 6)
    for _ in range(5):
        matrix.A.grad = twin.A.grad = None
        matrix(update=True).backward(G)
        compiled(update=True).backward(G)
        with torch.no_grad():
            matrix.A -= 1e-2 * grad_of(matrix.A)
            twin.A -= 1e-2 * grad_of(twin.A)
    torch.testing.assert_close(twin.state_dict(), matrix.state_dict())
    assert (int(twin.map.updates), int(twin.map.refreshes)) == (5, 2)


def test_exported_program_writes_no_buffer() -> None:
    matrix = matrix_of(6).eval()
    program = torch.export.export(matrix, ())
    assert not program.graph_signature.buffers_to_mutate
    torch.testing.assert_close(program.module()(), matrix())


def test_operators_are_registered_soundly() -> None:
    map = NeumannCayley(5)
    (A,) = map.sample()
    state = (map.inverse, map.point, map.residual, map.updates)
    rule = (2, 1e-6, 0)
    ops = torch.ops.cayley
    torch.library.opcheck(ops.neumann_update_inverse.default, (*state, map.refreshes, A, *rule))
    torch.library.opcheck(ops.neumann_next_inverse.default, (*state, A, *rule))
    arguments = (random_skew(5).requires_grad_(), torch.randn(5, 5))
    torch.library.opcheck(ops.inverse_of.default, arguments)


def test_on_a_weight_of_any_module() -> None:
    layer: Any = orthogonal_(nn.Linear(6, 6), map=NeumannCayley(6))
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
    for _ in range(10):
        optimizer.zero_grad()
        layer(torch.randn(3, 6)).square().sum().backward()
        optimizer.step()
    (map,) = layer.parametrizations.weight
    before = state_of(map)
    assert map.defect(layer.weight) <= 1e-13
    with torch.no_grad():
        layer(torch.randn(3, 6))
    assert all(torch.equal(value, before[name]) for name, value in state_of(map).items())
    assert map.updates > map.refreshes > 0


def test_bad_arguments_are_refused() -> None:
    for order in (0, 1.5, None):
        with pytest.raises(ValueError, match="order of at least 1"):
            NeumannCayley(4, order=order)  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ValueError, match="tolerance of at least 0"):
        NeumannCayley(4, tolerance=-1.0)
    with pytest.raises(ValueError, match="refresh_every to be at least 1"):
        NeumannCayley(4, refresh_every=0)
    with pytest.raises(ValueError, match="negative_ones from 0 to n = 4"):
        NeumannCayley(4, negative_ones=5)
    with pytest.raises(TypeError, match=r"inverse, torch.float64, got torch.float32"):
        NeumannCayley(4)(torch.zeros(6, dtype=torch.float32))
    assert "order=3, negative_ones=1, tolerance=0.1, refresh_every=9, refine=False" in repr(
        NeumannCayley(4, order=3, negative_ones=1, tolerance=0.1, refresh_every=9, refine=False)
    )


@pytest.mark.parametrize("update", [True, False])
@pytest.mark.parametrize("refine", [True, False])
def test_the_pullback_does_what_forward_and_its_gradient_do(update: bool, refine: bool) -> None:
    by_forward = NeumannCayley(7, refine=refine).double()
    (A,) = by_forward.sample(dtype=torch.float64)
    by_pullback, G = copy.deepcopy(by_forward), torch.randn(7, 7, dtype=torch.float64)
    for _ in range(4):
        A = (A + 0.01 * torch.randn_like(A)).requires_grad_()
        W = by_forward(A, update=update)
        found, pullback = by_pullback.with_pullback(A, update=update)
        assert torch.equal(found, W)
        torch.testing.assert_close(pullback(G), torch.autograd.grad(W, A, G))
        A = A.detach()
        for one, other in zip(by_forward.buffers(), by_pullback.buffers(), strict=True):
            assert torch.equal(one, other)
    assert int(by_pullback.updates) == (4 if update else 0)
