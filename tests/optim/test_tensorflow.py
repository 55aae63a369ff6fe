"""TensorFlow's RMSprop and Adagrad against closed forms and loops over numbers."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from cayley.optim import AdagradTF, RMSpropTF
from cayley.optim.tensorflow import rmsprop_tf_


def descend(optimizer: torch.optim.Optimizer, p: Tensor, gradients: Tensor) -> None:
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()


@pytest.mark.parametrize("g", [1e-2, -0.3, 5.0])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop_constant_gradient(g: float, momentum: float, centered: bool) -> None:
    alpha, eps, lr, steps = 0.9, 1e-10, 0.1, 60
    p = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = RMSpropTF([p], lr=lr, alpha=alpha, momentum=momentum, eps=eps, centered=centered)
    descend(optimizer, p, torch.full((steps, 1), g))

    # s_t = α^t + (1 − α^t) g² and m_t = (1 − α^t) g
    expected = 1.0
    for t in range(1, steps + 1):
        variance = alpha**t + (1 - alpha**t) * g**2
        if centered:
            variance -= ((1 - alpha**t) * g) ** 2
        # the step of time t is repeated, times μ, μ², …, until the end
        repeats = sum(momentum**k for k in range(steps - t + 1))
        expected -= repeats * lr * g / math.sqrt(variance + eps)
    assert p.item() == pytest.approx(expected, rel=1e-12)
    assert optimizer.state[p]["square"].item() == pytest.approx(
        alpha**steps + (1 - alpha**steps) * g**2, rel=1e-12
    )


def test_rmsprop_starts_a_thousand_times_slower_than_that_of_torch() -> None:
    g, lr = 1e-2, 1.0
    p, q = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    ours, theirs = RMSpropTF([p], lr=lr), torch.optim.RMSprop([q], lr=lr)
    steps = (0.0, 0.0)
    for t in range(1, 45):
        before = p.item(), q.item()
        descend(ours, p, torch.full((1, 1), g))
        descend(theirs, q, torch.full((1, 1), g))
        steps = before[0] - p.item(), before[1] - q.item()
        assert steps[0] == pytest.approx(g / math.sqrt(0.9**t + (1 - 0.9**t) * g**2 + 1e-10))
        assert steps[1] == pytest.approx(g / (math.sqrt((1 - 0.99**t) * g**2) + 1e-8))
        if t == 1:
            assert steps == pytest.approx((0.0105, 10.0), rel=5e-3)
    assert steps == pytest.approx((0.10, 1.67), rel=2e-2)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_rmsprop_equals_a_loop_in_numpy(
    momentum: float, centered: bool, weight_decay: float
) -> None:
    rng = np.random.default_rng(5544)
    gradients, x = rng.normal(size=(30, 2, 3)), rng.normal(size=(2, 3))
    p = torch.nn.Parameter(torch.tensor(x))
    optimizer = RMSpropTF(
        [p],
        lr=0.2,
        alpha=0.8,
        momentum=momentum,
        eps=1e-3,
        centered=centered,
        weight_decay=weight_decay,
    )
    s, m, v = np.ones_like(x), np.zeros_like(x), np.zeros_like(x)
    for raw in gradients:
        g = raw + weight_decay * x
        s = 0.8 * s + 0.2 * g**2
        m = 0.8 * m + 0.2 * g
        v = momentum * v + 0.2 * g / np.sqrt(s - (m**2 if centered else 0) + 1e-3)
        x = x - v
    descend(optimizer, p, torch.tensor(gradients))
    np.testing.assert_allclose(p.detach().numpy(), x, rtol=1e-12)


def test_rmsprop_momentum_keeps_the_learning_rates_of_old_steps() -> None:
    p = torch.nn.Parameter(torch.zeros(1))
    optimizer = RMSpropTF([p], lr=1.0, momentum=0.5, alpha=1.0, eps=0.0)
    descend(optimizer, p, torch.ones(1, 1))
    optimizer.param_groups[0]["lr"] = 0.0
    descend(optimizer, p, torch.ones(2, 1))
    # α = 1 leaves s at 1, so the steps are 1, 1/2, 1/4
    assert p.item() == -1.75


def test_centered_rmsprop_survives_a_variance_rounded_below_zero() -> None:
    g = torch.tensor([1.0 / 3.0], dtype=torch.float32)
    p, mean = torch.zeros_like(g), g.clone()
    square = g.square() * (1 - 1e-6)
    rmsprop_tf_(p, g, square, lr=1.0, alpha=1.0, eps=1e-4, mean=mean)
    torch.testing.assert_close(p, -g / 1e-2)


def test_rmsprop_does_not_round_its_decay_to_bfloat16() -> None:
    square = torch.linspace(1, 2, 100, dtype=torch.bfloat16)
    expected = (square.float() * 0.9).bfloat16()
    p, g = torch.zeros(2, 100, dtype=torch.bfloat16)
    rmsprop_tf_(p, g, square, lr=1.0, alpha=0.9, eps=1e-4)
    assert torch.equal(square, expected)


@pytest.mark.parametrize("g", [1e-2, -0.3, 5.0])
def test_adagrad_constant_gradient(g: float) -> None:
    lr, steps = 0.1, 40
    p = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = AdagradTF([p], lr=lr)
    descend(optimizer, p, torch.full((steps, 1), g))
    expected = 1 - sum(lr * g / math.sqrt(0.1 + t * g**2) for t in range(1, steps + 1))
    assert p.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adagrad_equals_torch_s_without_eps(weight_decay: float) -> None:
    p, q = (torch.nn.Parameter(torch.ones(2, 3)) for _ in range(2))
    gradients = torch.randn(20, 2, 3)
    descend(
        AdagradTF([p], lr=0.2, initial_accumulator=0.3, weight_decay=weight_decay), p, gradients
    )
    theirs = torch.optim.Adagrad(
        [q], lr=0.2, initial_accumulator_value=0.3, eps=0.0, weight_decay=weight_decay
    )
    descend(theirs, q, gradients)
    torch.testing.assert_close(p, q)


@pytest.mark.parametrize("make", [RMSpropTF, AdagradTF])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_complex_parts_are_separate_numbers(make: type, weight_decay: float) -> None:
    z = torch.nn.Parameter(torch.randn(2, 3, dtype=torch.complex128))
    x = torch.nn.Parameter(torch.view_as_real(z.detach()).clone())
    gradients = torch.randn(10, 2, 3, dtype=torch.complex128)
    descend(make([z], lr=0.1, weight_decay=weight_decay), z, gradients)
    descend(make([x], lr=0.1, weight_decay=weight_decay), x, torch.view_as_real(gradients))
    assert torch.equal(torch.view_as_real(z.detach()), x.detach())


@pytest.mark.parametrize("make", [RMSpropTF, AdagradTF])
def test_a_skew_hermitian_matrix_stays_one(make: type) -> None:
    A = torch.nn.Parameter(torch.zeros(4, 4, dtype=torch.complex128))
    X = torch.randn(10, 4, 4, dtype=torch.complex128)
    descend(make([A], lr=0.1), A, X - X.mH)
    assert torch.equal(A, -A.mH)
    assert A.detach().diagonal().imag.abs().min() > 0


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (RMSpropTF, {"alpha": 1.1}),
        (RMSpropTF, {"alpha": -0.1}),
        (RMSpropTF, {"momentum": 1.0}),
        (RMSpropTF, {"eps": -1e-8}),
        (AdagradTF, {"initial_accumulator": 0.0}),
        (AdagradTF, {"initial_accumulator": -1.0}),
    ],
)
def test_options_out_of_range(make: type, options: dict[str, float]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"expected .*{name}"):
        make([torch.nn.Parameter(torch.zeros(1))], **options)
