"""Steps along the Stiefel manifold: they stay on it, and go down."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cayley.optim import StiefelRMSprop, StiefelSGD, parameter_groups, stiefel_step
from cayley.parametrizations import StiefelPoint, StructuredMatrix, polar, refine

kinds = pytest.mark.parametrize(
    "dtype", [torch.float64, torch.complex128], ids=["orthogonal", "unitary"]
)
optimizers = pytest.mark.parametrize("make", [StiefelSGD, StiefelRMSprop])


def unitary(n: int, dtype: torch.dtype) -> Tensor:
    return torch.linalg.qr(torch.randn(n, n, dtype=dtype)).Q


def defect(W: Tensor) -> float:
    W = W.detach().to(torch.complex128)
    return torch.linalg.matrix_norm(W.mH @ W - torch.eye(W.shape[0])).item()


@kinds
@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("lr", [0.0, 1e-6, 1e-2, 1.0, 10.0, -1.0])
def test_every_step_stays_on_the_manifold(dtype: torch.dtype, n: int, lr: float) -> None:
    W, G = unitary(n, dtype), torch.randn(n, n, dtype=dtype)
    new = stiefel_step(W, G, lr)
    assert new.dtype == dtype
    assert defect(new) <= 1e-13 * n**0.5
    assert torch.equal(new, W) == (lr == 0 or (n == 1 and dtype == torch.float64))


@kinds
@pytest.mark.parametrize("lr", [1e-4, 0.3, 7.0])
def test_equals_the_product_as_printed(dtype: torch.dtype, lr: float) -> None:
    W, G = unitary(6, dtype), torch.randn(6, 6, dtype=dtype)
    w, g, eye = W.numpy(), G.numpy(), np.eye(6)
    A = g @ w.conj().T - w @ g.conj().T
    expected = np.linalg.inv(eye + lr / 2 * A) @ (eye - lr / 2 * A) @ w
    np.testing.assert_allclose(stiefel_step(W, G, lr).numpy(), expected, atol=1e-13)


def loss_of(dtype: torch.dtype, n: int) -> Callable[[Tensor], Tensor]:
    """A loss without symmetries, and for complex W not holomorphic."""
    x, y = torch.randn(2, n, n, dtype=dtype)
    return lambda W: (W @ x - y).abs().square().sum() + ((W * y).real ** 3).sum() + W[0, 0].abs()


@kinds
def test_the_slope_at_the_start_is_minus_half_the_squared_norm_of_A(dtype: torch.dtype) -> None:
    n, h = 5, 1e-5
    loss = loss_of(dtype, n)
    W = unitary(n, dtype).requires_grad_()
    (G,) = torch.autograd.grad(loss(W), W)
    W = W.detach()
    A = G @ W.mH - W @ G.mH
    slope = (loss(stiefel_step(W, G, h)) - loss(stiefel_step(W, G, -h))) / (2 * h)
    expected = -0.5 * torch.linalg.matrix_norm(A) ** 2
    assert slope.item() == pytest.approx(expected.item(), rel=1e-6)


def test_the_gradient_must_be_the_conjugate_one() -> None:
    """With ∂L/∂W for G, as printed, the slope is another one."""
    n, h = 5, 1e-5
    loss = loss_of(torch.complex128, n)
    W = unitary(n, torch.complex128).requires_grad_()
    (G,) = torch.autograd.grad(loss(W), W)
    W, G = W.detach(), G.conj() / 2
    A = G @ W.mH - W @ G.mH
    slope = (loss(stiefel_step(W, G, h)) - loss(stiefel_step(W, G, -h))) / (2 * h)
    assert abs(slope / torch.linalg.matrix_norm(A) ** 2 + 1) > 0.1


@kinds
def test_small_steps_descend(dtype: torch.dtype) -> None:
    loss = loss_of(dtype, 6)
    W = torch.nn.Parameter(unitary(6, dtype))
    optimizer = StiefelSGD([W], lr=1e-4)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        losses.append(loss(W))
        losses[-1].backward()
        optimizer.step()
    assert all(after < before for before, after in itertools.pairwise(losses))


@kinds
@pytest.mark.parametrize("lr", [1e-3, 1e-2])
def test_moves_a_1_by_1_matrix_by_the_angle_of_the_formula(dtype: torch.dtype, lr: float) -> None:
    """For n = 1 the step is a rotation by 2 arctan(λ|A|/2); a real number cannot move."""
    phase = torch.polar(torch.ones(1, 1), torch.full((1, 1), 0.7))
    W = phase if dtype.is_complex else torch.ones(1, 1)
    G = torch.full((1, 1), 2.0 - 3.0j) if dtype.is_complex else torch.full((1, 1), 2.0)
    A = G * W.conj() - W * G.conj()
    angle = -2 * math.atan(lr / 2 * complex(A.item()).imag)
    expected = W * torch.polar(torch.ones(1, 1), torch.full((1, 1), angle))
    torch.testing.assert_close(stiefel_step(W, G, lr).to(torch.complex128), expected + 0j)


@kinds
@pytest.mark.parametrize(
    ("make", "noise"), [(StiefelSGD, 0.01), (StiefelSGD, 0.0), (StiefelRMSprop, 0.0)]
)
def test_solves_a_procrustes_problem(make: type, noise: float, dtype: torch.dtype) -> None:
    """The unitary W with the least ‖WX − Y‖ is the polar factor of YX*."""
    n = 5
    start = unitary(n, dtype)
    X = torch.randn(n, 3 * n, dtype=dtype) / (3 * n) ** 0.5
    # near the start, so that a real solution has the determinant of the start
    M = torch.randn(n, n, dtype=dtype)
    Y = torch.linalg.matrix_exp(0.3 * (M - M.mH)) @ start @ X
    Y = Y + noise * torch.randn_like(Y)
    solution = polar(Y @ X.mH)
    W = torch.nn.Parameter(start.clone())
    optimizer = make([W], lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.98)
    for _ in range(400):
        optimizer.zero_grad()
        (W @ X - Y).abs().square().sum().backward()
        optimizer.step()
        scheduler.step()
    assert torch.linalg.matrix_norm(start - solution) > 0.5
    assert torch.linalg.matrix_norm(W - solution) < 2e-3
    assert defect(W) <= 1e-12


def test_rms_comes_to_rest_where_the_normalised_gradient_wants_it() -> None:
    """The least ⟨C, W⟩ is at −polar(C); a constant gradient is normalised to sign(C)."""

    def rotation(angle: float) -> Tensor:
        cos, sin = math.cos(angle), math.sin(angle)
        return torch.tensor([[cos, -sin], [sin, cos]])

    C = torch.tensor([[3.0, 1.0], [-1.0, 1.0]])
    # the polar factor of a 2 × 2 matrix is the rotation by atan2(c21 − c12, c11 + c22)
    expected = {StiefelSGD: math.atan2(-2.0, 4.0), StiefelRMSprop: math.atan2(-2.0, 2.0)}
    for make, angle in expected.items():
        W = torch.nn.Parameter(-torch.eye(2))
        optimizer = make([W], lr=0.05)
        for _ in range(500):
            optimizer.zero_grad()
            (C * W).sum().backward()
            optimizer.step()
        torch.testing.assert_close(W.detach(), -rotation(angle))


@kinds
def test_rms_normalises_before_it_forms_A(dtype: torch.dtype) -> None:
    alpha, eps, initial, lr = 0.8, 1e-4, 0.5, 0.2
    W = torch.nn.Parameter(unitary(4, dtype))
    expected = W.detach().numpy().copy()
    optimizer = StiefelRMSprop([W], lr=lr, alpha=alpha, eps=eps, initial_square=initial)
    square = np.full((4, 4, 2 if dtype.is_complex else 1), initial)
    for _ in range(5):
        W.grad = torch.randn(4, 4, dtype=dtype)
        g = W.grad.numpy()
        parts = np.stack([g.real, g.imag] if dtype.is_complex else [g], axis=-1)
        square = alpha * square + (1 - alpha) * parts**2
        parts = parts / (np.sqrt(square) + eps)
        G = parts[..., 0] + 1j * parts[..., 1] if dtype.is_complex else parts[..., 0]
        A = G @ expected.conj().T - expected @ G.conj().T
        eye = np.eye(4)
        expected = np.linalg.inv(eye + lr / 2 * A) @ (eye - lr / 2 * A) @ expected
        optimizer.step()
    np.testing.assert_allclose(W.detach().numpy(), expected, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_other_groups_take_the_plain_step(dtype: torch.dtype, weight_decay: float) -> None:
    """Without ``stiefel`` they are torch's SGD and RMSprop."""
    gradients = torch.randn(10, 3, dtype=dtype)
    options = {"lr": 0.1, "weight_decay": weight_decay}
    pairs = [
        (lambda group: StiefelSGD([group], **options), torch.optim.SGD),
        (
            lambda group: StiefelRMSprop([group], alpha=0.9, eps=1e-3, **options),
            lambda params, **more: torch.optim.RMSprop(params, alpha=0.9, eps=1e-3, **more),
        ),
    ]
    for ours, theirs in pairs:
        p, q = (torch.nn.Parameter(torch.ones(3, dtype=dtype)) for _ in range(2))
        left, right = ours({"params": [p], "stiefel": False}), theirs([q], **options)
        for g in gradients:
            p.grad, q.grad = g.clone(), g.clone()
            left.step()
            right.step()
        torch.testing.assert_close(p, q)


@optimizers
def test_weight_decay_leaves_the_manifold_alone(make: type) -> None:
    W = unitary(4, torch.complex128)
    p, q = (torch.nn.Parameter(W.clone()) for _ in range(2))
    p.grad = torch.randn_like(W)
    q.grad = p.grad.clone()
    make([p], lr=0.1, weight_decay=0.5).step()
    make([q], lr=0.1).step()
    assert torch.equal(p, q)


@optimizers
def test_one_optimizer_trains_a_whole_model(make: type) -> None:
    matrix, linear = StructuredMatrix(StiefelPoint(4)), torch.nn.Linear(8, 1)
    model = torch.nn.ModuleList([matrix, linear])
    optimizer = make(parameter_groups(model, lr=1e-3, recurrent_lr=1e-2))
    x = torch.randn(16, 4, dtype=torch.complex128)
    start = [p.detach().clone() for p in model.parameters()]
    for _ in range(20):
        optimizer.zero_grad()
        linear(torch.view_as_real(x @ matrix().mT).flatten(1)).square().mean().backward()
        optimizer.step()
    assert all(not torch.equal(p, old) for p, old in zip(model.parameters(), start, strict=True))
    assert defect(matrix()) <= 1e-13


@optimizers
@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 3, 3), ()])
def test_other_shapes_are_refused(make: type, shape: tuple[int, ...]) -> None:
    p, W = torch.nn.Parameter(torch.zeros(shape)), torch.nn.Parameter(torch.eye(3))
    with pytest.raises(ValueError, match="expected square matrices"):
        make([W, p], lr=0.1)
    optimizer = make([W], lr=0.1)
    with pytest.raises(ValueError, match="expected square matrices"):
        optimizer.add_param_group({"params": [p]})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [p], "stiefel": False})
    make([p], lr=0.1, stiefel=False)


def test_options_out_of_range() -> None:
    W = torch.nn.Parameter(torch.eye(3))
    wrong: dict[str, Any] = {"alpha": 1.5, "eps": -1.0, "initial_square": -1.0}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=f"expected .*{name}"):
            StiefelRMSprop([W], lr=0.1, **{name: value})
    with pytest.raises(ValueError, match="positive eps or initial_square"):
        StiefelRMSprop([W], lr=0.1, eps=0.0)
    StiefelRMSprop([W], lr=0.1, eps=0.0, initial_square=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_drift_in_single_precision(dtype: torch.dtype) -> None:
    """Rounding errors of the sum, one half unit an entry and step, add up as a random walk."""
    n, steps = 32, 400
    W = unitary(n, dtype)
    eps = torch.finfo(dtype).eps
    start = defect(W)
    for _ in range(steps):
        W = stiefel_step(W, torch.randn(n, n, dtype=dtype), 1e-4)
    assert defect(W) <= start + 2 * eps * (n * steps) ** 0.5
    assert defect(refine(W)) <= 5 * eps * n**0.5


@optimizers
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_optimizers_do_not_let_rounding_errors_add_up(make: type, dtype: torch.dtype) -> None:
    n, found = 65, {}
    for refined in (True, False):
        W = torch.nn.Parameter(unitary(n, dtype))
        optimizer = make([W], lr=0.1, refine=refined)
        for _ in range(300):
            W.grad = torch.randn(n, n, dtype=dtype)
            optimizer.step()
        found[refined] = defect(W.detach())
    assert found[True] <= 1e-6 * n**0.5 < found[False]


@optimizers
def test_checkpoints_from_before_rounding_errors_were_taken_out(make: Callable[..., Any]) -> None:
    W = torch.nn.Parameter(unitary(8, torch.float32))
    state = make([W], lr=0.1).state_dict()
    del state["param_groups"][0]["refine"]
    optimizer = make([W], lr=0.1)
    optimizer.load_state_dict(state)
    W.grad = torch.randn(8, 8, dtype=torch.float32)
    optimizer.step()
    assert not optimizer.param_groups[0]["refine"]


@optimizers
def test_autocast_does_not_reach_the_optimizers(make: Callable[..., Any]) -> None:
    W = torch.nn.Parameter(unitary(8, torch.float32))
    W.grad = torch.randn(8, 8, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        make([W], lr=0.1).step()
    assert defect(W.detach()) <= 1e-5


def test_autocast_does_not_reach_the_step() -> None:
    W, G = unitary(8, torch.float32), torch.randn(8, 8, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        new = stiefel_step(W, G, 0.1)
    assert torch.equal(new, stiefel_step(W, G, 0.1))


def test_half_precision_is_refused() -> None:
    W = torch.nn.Parameter(torch.eye(3, dtype=torch.bfloat16))
    W.grad = torch.ones_like(W)
    with pytest.raises(TypeError, match="float32 or float64"):
        StiefelSGD([W], lr=0.1).step()
