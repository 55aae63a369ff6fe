"""The dominant eigenpair, followed from call to call."""

import math
import warnings

import pytest
import torch
from eigenpairs import crowd
from torch import Tensor

from cayley.parametrizations.eigenvalue import EigenvalueNormalization
from cayley.parametrizations.eigenvalue.dominant import (
    AUDIT,
    Event,
    dominant_eigenpair,
    followed_columns,
)

S = 120  # large enough to be followed


class Follower:
    """Calls the operator as the parametrisation does."""

    def __init__(self, s: int, dtype: torch.dtype = torch.float64, lax: bool = False) -> None:
        self.right = self.left = torch.zeros(s, followed_columns(s), dtype=dtype)
        self.counts = torch.zeros(len(Event), dtype=torch.int64)
        self.lax = torch.tensor(lax)

    def __call__(self, T: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Event]:
        rho, eigenvalue, u, v, self.right, self.left, event = dominant_eigenpair(
            T, self.right, self.left, self.counts, self.lax
        )
        self.counts[event] += 1
        return rho, eigenvalue, u, v, Event(int(event))


def rotations(radii: Tensor, angles: Tensor) -> Tensor:
    """Block diagonal, with eigenvalues radius · e^{± i angle}."""
    blocks = [
        r * torch.tensor([[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]])
        for r, t in zip(radii.tolist(), angles.tolist(), strict=True)
    ]
    return torch.block_diag(*blocks)


def similar(T: Tensor) -> Tensor:
    """A matrix with the same eigenvalues and no special directions, neither normal."""
    P = torch.eye(len(T)) + 0.3 * torch.randn(len(T), len(T)) / len(T) ** 0.5
    return P @ T @ torch.linalg.inv(P)


def check(T: Tensor, answer: tuple[Tensor, Tensor, Tensor, Tensor, Event]) -> None:
    """λ is an eigenvalue of largest modulus, u and v are its vectors."""
    rho, eigenvalue, u, v, _ = answer
    exact = torch.linalg.eigvals(T).abs().max()
    torch.testing.assert_close(rho, exact, rtol=1e-10, atol=0)
    torch.testing.assert_close(eigenvalue.abs(), exact, rtol=1e-10, atol=0)
    assert eigenvalue.imag >= 0
    T = T.to(torch.complex128)
    for residual in (T @ u - eigenvalue * u, v.conj() @ T - eigenvalue * v.conj()):
        assert torch.linalg.vector_norm(residual) < 1e-7
    assert torch.linalg.vector_norm(u).item() == pytest.approx(1)
    assert torch.linalg.vector_norm(v).item() == pytest.approx(1)


@pytest.mark.parametrize("s", [1, 2, 7, S])
def test_first_call_decomposes(s: int) -> None:
    T = torch.randn(s, s)
    answer = Follower(s)(T)
    check(T, answer)
    assert answer[-1] == Event.DIRECT


def test_small_matrices_are_decomposed_every_time() -> None:
    follow, T = Follower(8), torch.randn(8, 8)
    for _ in range(3):
        assert follow(T)[-1] == Event.DIRECT
    assert follow.right.shape == (8, 0)


@pytest.mark.parametrize("kind", ["pair", "real", "bulk"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_follows_a_matrix_that_changes(kind: str, dtype: torch.dtype) -> None:
    """A dominant pair, a real one, and none that stands out; steps as an optimiser takes them."""
    T = torch.randn(S, S) / S**0.5
    if kind == "pair":
        T[:2, :2] = torch.tensor([[1.1, -0.9], [0.9, 1.1]])
    elif kind == "real":
        T[0, 0] = -1.8
    follow = Follower(S, dtype)
    for _ in range(40):
        rho, eigenvalue, *_ = follow(T.to(dtype))
        exact = torch.linalg.eigvals(T.to(dtype).double()).abs().max()
        torch.testing.assert_close(rho.double(), exact, rtol=1e-6, atol=0)
        if kind != "bulk":
            assert (eigenvalue.imag == 0) == (kind == "real")
        T = T + 1e-3 * torch.randn(S, S).sign()
    if kind == "bulk":  # near ties are many: what matters is that the answers were right
        assert follow.counts[Event.FOLLOWED] >= 10
    else:
        assert follow.counts[Event.FOLLOWED] >= 36, follow.counts


def test_eigenvectors_are_those_of_the_decomposition() -> None:
    T = torch.randn(S, S) / S**0.5
    T[:2, :2] = torch.tensor([[1.1, -0.9], [0.9, 1.1]])
    follow = Follower(S)
    for _ in range(5):
        answer = follow(T)
        check(T, answer)
        T = T + 1e-3 * torch.randn(S, S)
    assert answer[-1] == Event.FOLLOWED


@pytest.mark.parametrize("general", [True, False], ids=["general", "block-diagonal"])
@pytest.mark.parametrize("lax", [False, True])
def test_crossings_are_seen(general: bool, lax: bool) -> None:
    """Two pairs change places over and over; and a third comes from below them all.

    In the block-diagonal matrix the eigenvectors do not move at all: what is followed never
    learns anything about the others from the products alone. Half of it all is below 1, where lax
    matters.
    """
    scale, tolerance = (0.5, 1e-6) if lax else (1.0, 1e-8)
    angles = torch.rand(S // 2) * math.pi / 2
    P = torch.eye(S) + (0.3 * torch.randn(S, S) / S**0.5 if general else 0)
    inverse = torch.linalg.inv(P)
    follow = Follower(S, lax=lax)
    leaders = set()
    for step in range(1, 61):
        radii = torch.linspace(0.1, 0.9, S // 2)
        radii[10] = 1 + 0.1 * math.sin(step / 3)
        radii[20] = 1 - 0.1 * math.sin(step / 3)
        radii[0] = 0.1 + 0.03 * step
        T = P @ rotations(scale * radii, angles) @ inverse
        rho, eigenvalue, *_ = follow(T)
        torch.testing.assert_close(rho, scale * radii.max(), rtol=tolerance, atol=0)
        leader = int(radii.argmax())
        leaders.add(leader)
        assert float(eigenvalue.angle()) == pytest.approx(float(angles[leader]), abs=1e-6)
    assert leaders == {0, 10, 20}
    assert follow.counts[Event.FOLLOWED] >= 40, follow.counts


@pytest.mark.parametrize("lax", [False, True])
def test_leap_from_outside_is_found_again(lax: bool) -> None:
    """The worst case: the subspace is invariant, and what leaps ahead is orthogonal to it."""
    angles, radii = torch.rand(S // 2) * math.pi / 2, torch.linspace(0.1, 0.9, S // 2)
    follow = Follower(S, lax=lax)
    for _ in range(3):
        follow(rotations(radii, angles))
    radii[0] = 0.95
    late = 0
    while follow(rotations(radii, angles))[0] < 0.95 - 1e-6:
        late += 1
        assert late < 20, "locked on to an eigenvalue that is not dominant"


@pytest.mark.parametrize("lax", [False, True])
def test_crowded_spectrum(lax: bool) -> None:
    """The matrix that training starts from, and its steps: moduli 1 % apart, in float32."""
    s = 200
    torch.manual_seed(1)
    (T,) = EigenvalueNormalization(s).sample()
    T = 0.99 * T / torch.linalg.eigvals(T).abs().max() if lax else 1.2 * T
    follow = Follower(s, torch.float32, lax)
    for _ in range(30):
        T = (T + 2e-4 * torch.randn(s, s)).float().double()
        rho, eigenvalue, u, v, _ = follow(T.float())
        theta, E = torch.linalg.eig(T)
        j = int(theta.abs().argmax())
        torch.testing.assert_close(rho.double(), theta[j].abs(), rtol=1e-6, atol=0)
        if not lax:
            S = torch.outer(torch.linalg.inv(E)[j], E[:, j])
            exact = (theta[j].conj() * S).real
            S = torch.outer(v.conj(), u) / torch.vdot(v, u)
            gradient = (eigenvalue.conj() * S).real.double()
            assert torch.linalg.matrix_norm(gradient - exact) < 2e-3 * torch.linalg.matrix_norm(
                exact
            )
    assert follow.counts[Event.FOLLOWED] >= 27, follow.counts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_crowd_takes_powers_instead_of_decompositions(dtype: torch.dtype) -> None:
    follow = Follower(S, dtype)
    for T in crowd(S, 16):
        rho, *_ = follow(T.to(dtype))
        exact = torch.linalg.eigvals(T).abs().max()
        torch.testing.assert_close(rho.double(), exact, rtol=1e-6, atol=0)
    assert follow.counts[Event.FOLLOWED] == 15, follow.counts


def test_audit() -> None:
    T = torch.randn(S, S) / S**0.5
    T[0, 0] = 1.8
    follow = Follower(S)
    events = [follow(T)[-1] for _ in range(AUDIT + 2)]
    assert events[0] == Event.DIRECT
    assert set(events[1:AUDIT]) == {Event.FOLLOWED}
    assert events[AUDIT:] == [Event.AUDIT, Event.FOLLOWED]


def test_tie_between_pairs_takes_the_decomposition() -> None:
    """Equal moduli at different angles: ρ is right, and a gradient is that of one of them."""
    radii, angles = torch.linspace(0.1, 0.9, S // 2), torch.linspace(0.1, 1.4, S // 2)
    radii[[3, 40]] = 1.0
    T = similar(rotations(radii, angles))
    follow = Follower(S)
    for _ in range(3):
        rho, _, u, v, event = follow(T)
        torch.testing.assert_close(rho, torch.tensor(1.0), rtol=1e-9, atol=0)
        assert torch.vdot(v, u).abs() > 0.1
    assert event == Event.TIE


def jordan(s: int, split: float = 0.0) -> Tensor:
    """Eigenvalue 1 in one block of size two, or split a little; the others are smaller."""
    T = torch.diag(torch.linspace(0.0, 0.8, s))
    T[-2:, -2:] = torch.tensor([[1.0, 1.0], [split, 1.0]])
    return T


@pytest.mark.parametrize("s", [4, S])
@pytest.mark.parametrize("split", [0.0, 1e-18, -1e-18])
def test_defective_matrix(s: int, split: float) -> None:
    follow, T = Follower(s), jordan(s, split)
    with pytest.warns(UserWarning, match="nearly. multiple"):
        rho, *_, event = follow(T.requires_grad_())
    assert event == Event.MULTIPLE
    assert rho.item() == pytest.approx(1)
    assert not torch.autograd.grad(rho, T)[0].any()
    with warnings.catch_warnings():  # once
        warnings.simplefilter("error")
        assert follow(T.detach())[-1] == Event.MULTIPLE


def test_multiple_without_a_jordan_block() -> None:
    T = torch.diag(torch.tensor([1.0, 1.0, 0.5])).requires_grad_()
    with pytest.warns(UserWarning, match="multiple"):
        rho, *_, event = Follower(3)(T)
    assert event == Event.MULTIPLE
    assert rho.item() == 1
    assert not torch.autograd.grad(rho, T)[0].any()


@pytest.mark.parametrize("s", [1, 4, S])
def test_zero_and_nilpotent(s: int) -> None:
    for T in (torch.zeros(s, s), torch.ones(s, s).triu(1)):
        follow = Follower(s)
        with pytest.warns(UserWarning, match="multiple"):
            rho, *_, event = follow(T.requires_grad_())
        assert event == Event.MULTIPLE
        assert rho.item() == pytest.approx(0, abs=0.5)  # eigenvalues of a nilpotent are ε^{1/s}
        follow(T.detach())
        assert torch.autograd.grad(rho, T)[0].isfinite().all()


def test_low_rank() -> None:
    a, b = torch.randn(S, 1), torch.randn(S, 1)
    T = a @ b.T
    follow = Follower(S)
    for _ in range(3):
        rho = follow(T)[0]
        torch.testing.assert_close(rho, (a * b).sum().abs(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("s", [4, S])
def test_nonfinite_entries_give_nan_and_leave_no_trace(s: int) -> None:
    follow, T = Follower(s), torch.randn(s, s)
    follow(T)
    right = follow.right.clone()
    rho, eigenvalue, u, v, event = follow(T.index_fill(0, torch.tensor(1), torch.nan))
    assert event == Event.NONFINITE
    assert rho.isnan()
    assert eigenvalue.isnan()
    assert u.isnan().all()
    assert v.isnan().all()
    assert torch.equal(follow.right, right)


def test_is_a_function_of_its_arguments() -> None:
    """What resuming from a checkpoint needs: the same bits for the same inputs."""
    T = torch.randn(S, S) / S**0.5
    T[0, 0] = 1.5
    follow = Follower(S)
    for _ in range(3):
        follow(T)
        T = T + 1e-3 * torch.randn(S, S)
    twin = Follower(S)
    twin.right, twin.left = follow.right.clone(), follow.left.clone()
    twin.counts = follow.counts.clone()
    torch.rand(3)  # nor does the global generator matter
    for a, b in zip(follow(T), twin(T), strict=True):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))
    assert torch.equal(follow.left, twin.left)


def test_operator_registration() -> None:
    T = torch.randn(5, 5, requires_grad=True)
    nothing, counts = torch.zeros(5, 0), torch.zeros(len(Event), dtype=torch.int64)
    torch.library.opcheck(
        torch.ops.cayley.dominant_eigenpair.default,
        (T, nothing, nothing, counts, torch.tensor(False)),
    )
