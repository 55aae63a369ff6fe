"""Following without waiting: the answers, and what happens when they were not good."""

import copy
import math
import pickle

import pytest
import torch
from eigenpairs import crowd, on_cpu, rotation
from torch import Tensor

from cayley.cache import Cache
from cayley.parametrizations.eigenvalue import tracker as module
from cayley.parametrizations.eigenvalue.dominant import Event, dominant_eigenpair
from cayley.parametrizations.eigenvalue.ritz import factors, ritz_pairs, ritz_problem
from cayley.parametrizations.eigenvalue.tracker import (
    CALM,
    CHECK,
    FADE,
    LITTLE,
    MORE,
    MOST,
    MUCH,
    PACE,
    SETTLED,
    Following,
    Status,
    Track,
    Tracker,
    Work,
    track,
)

S = 120
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where T is; on the CPU, torch in the place of the kernels."""
    if request.param == "cpu":
        on_cpu(monkeypatch)
    return request.param


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu(monkeypatch)


class Follower:
    """A tracker and its buffers."""

    def __init__(
        self, device: str = "cpu", s: int = S, eps: float = 0.0, latched: bool = True
    ) -> None:
        self.eps, self.tracker = eps, Cache()
        state = Following.zeros(s, dtype=torch.float32)
        self.state = Following(*(buffer.to(device) for buffer in state))
        self.state.latched.fill_(latched)

    def __call__(self, T: Tensor) -> Tensor:
        tracker = self.tracker.value = self.tracker.value or Tracker()
        return tracker(T.float().to(self.state.right.device), self.state, self.eps).cpu()

    @property
    def status(self) -> Status:
        return Status(*self.state.status.tolist())

    @property
    def rho(self) -> float:
        return abs(self.status.eigenvalue)

    @property
    def calm(self) -> bool:
        return self.status.streak >= CALM

    def count(self, event: Event) -> int:
        return int(self.state.counts[event])


def radius(T: Tensor) -> float:
    return float(torch.linalg.eigvals(T.double()).abs().max())


def leading(kind: str) -> Tensor:
    T = torch.randn(S, S) / S**0.5
    if kind == "pair":
        T[:2, :2] = torch.tensor([[1.1, -0.9], [0.9, 1.1]])
    else:
        T[0, 0] = -1.8
    return T.float().double()


def rotations(radii: Tensor, angles: Tensor) -> Tensor:
    """Block diagonal, with eigenvalues radius · e^{± i angle}."""
    return torch.block_diag(*map(rotation, radii.tolist(), angles.tolist()))


def gradient(answer: Tensor, T: Tensor, G: Tensor) -> Tensor:
    """∂L/∂T by the rows of an answer."""
    s, answer = len(T), answer.double()
    f_1, f_2, u_1, u_2 = answer[: 4 * s].view(4, s)
    d = answer[-1]
    return G / d + (G * T / d).sum() * (torch.outer(f_1, u_1) + torch.outer(f_2, u_2))


def exact_gradient(T: Tensor, G: Tensor, eps: float) -> Tensor:
    T = T.clone().requires_grad_()
    rho = torch.linalg.eigvals(T).abs().max()
    return torch.autograd.grad((G * T / (rho + eps)).sum(), T)[0]


@pytest.mark.parametrize("kind", ["pair", "real"])
@pytest.mark.parametrize("eps", [0.0, 0.2])
def test_follows_a_matrix_that_changes(device: str, kind: str, eps: float) -> None:
    """Steps as an optimiser takes them: ρ at every step, the gradient before and after calm."""
    T, follow = leading(kind), Follower(device, eps=eps)
    for call in range(CALM + CHECK + 20):
        answer = follow(T)
        assert follow.rho == pytest.approx(radius(T), rel=1e-6)
        assert float(answer[-1]) == pytest.approx(radius(T) + eps, rel=1e-6)
        if call % 9 == 0:
            G = torch.randn(S, S)
            exact = exact_gradient(T, G, eps)
            assert (gradient(answer, T, G) - exact).norm() < 2e-3 * (exact - G / answer[-1]).norm()
        T = (T + 2e-4 * torch.randn(S, S)).float().double()
    assert follow.calm
    assert follow.count(Event.DIRECT) == 1
    assert follow.count(Event.FOLLOWED) == CALM + CHECK + 19


@pytest.mark.parametrize("kind", ["pair", "real"])
@pytest.mark.parametrize("faster", [1.0, 1.3])
def test_no_crossing_is_missed(device: str, kind: str, faster: float) -> None:
    """A pair is overtaken slowly, or ever faster, by another pair or by a real eigenvalue."""
    angles, radii = torch.rand(S // 2) * 1.5, torch.linspace(0.1, 0.8, S // 2)
    if kind == "real":
        angles[20] = 0.0
    P = torch.eye(S) + 0.3 * torch.randn(S, S) / S**0.5
    inverse = torch.linalg.inv(P)
    follow = Follower(device)
    radii[10], radii[20] = 1.05, 0.9
    speed, calm = 0.002, False
    while radii[20] < 1.12:
        block = rotations(radii, angles)
        if kind == "real":
            # two real eigenvalues, one of them far below
            block[41, 41] = 0.1
        follow(P @ block @ inverse)
        assert follow.rho == pytest.approx(float(radii.max()), rel=1e-6)
        calm |= follow.calm and follow.status.alone
        if follow.calm:
            speed *= faster
        radii[20] += speed
    # some results were not waited for
    assert calm
    assert follow.count(Event.LATE) == 0
    assert follow.status.eigenvalue.imag == pytest.approx(
        follow.rho * math.sin(float(angles[20])), abs=1e-4
    )


def test_others_are_looked_at_before_they_can_have_caught_up() -> None:
    status = Status(*[0.0] * 7, seen=40.0, latched=1.0, streak=8.0, terms=4.0, looked=40.0)
    assert status._replace(rival=0.9).trusted_calls == CHECK
    assert status._replace(rival=0.9, motion=0.1 / (3.5 * PACE)).trusted_calls == 3
    assert status._replace(rival=0.9, motion=0.11 / PACE).trusted_calls == 0
    assert status._replace(rival=1.0).trusted_calls == 0
    status = status._replace(rival=0.9, motion=0.1 / (3.5 * PACE))
    assert [status._replace(seen=seen).alone for seen in (40.0, 42.0, 43.0)] == [True, True, False]


def test_the_pace_of_others_is_that_of_the_last_looks() -> None:
    status = Status(*[0.0] * 7, seen=1.0, latched=1.0, streak=8.0, terms=4.0)
    first = status.watched(0.9)
    assert (first.looked, first.rival, first.motion) == (1.0, 0.9, 0.0)
    second = first._replace(seen=5.0).watched(0.8)
    assert second.motion == pytest.approx(0.025)
    third = second._replace(seen=6.0).watched(0.801)
    assert third.motion == pytest.approx(FADE * 0.025)


def test_a_leap_is_noticed_one_call_later(device: str) -> None:
    follow, T = Follower(device), leading("pair")
    for _ in range(CALM + 3):
        follow(T)
    assert follow.calm
    T = leading("real")
    follow(T)
    follow(T)
    assert follow.rho == pytest.approx(radius(T), rel=1e-6)
    assert follow.count(Event.LATE) == 1


@pytest.mark.parametrize("calls", [4, CALM + 5, CALM + CHECK - 1])
def test_resumes_exactly(device: str, calls: int) -> None:
    """From the buffers alone, in every phase; also before a late look."""
    T, follow = leading("pair"), Follower(device)
    steps = [1e-3 * torch.randn(S, S) for _ in range(calls + 20)]
    for step in steps[:calls]:
        T = T + step
        follow(T)
    twin = Follower(device)
    twin.state = Following(*(buffer.clone() for buffer in follow.state))
    for step in steps[calls:]:
        T = T + step
        assert torch.equal(follow(T), twin(T))
    for ours, theirs in zip(follow.state, twin.state, strict=True):
        assert torch.equal(ours, theirs)


def test_changed_buffers_are_noticed(device: str) -> None:
    """What was posted is not what stands there after a checkpoint was loaded."""
    T, follow = leading("pair"), Follower(device)
    for _ in range(CALM + 3):
        follow(T)
    for buffer in follow.state:
        buffer.zero_()
    T = leading("real")
    follow(T)
    assert follow.count(Event.DIRECT) == 1
    assert follow.rho == pytest.approx(radius(T), rel=1e-6)


def test_the_latch(device: str) -> None:
    follow, T = Follower(device, latched=False), leading("real")
    T = T / radius(T)
    for scale in (0.9,) * (CALM + 4) + (1.001, 0.97):
        closed = bool(follow.state.latched)
        answer = follow(scale * T)
        assert float(answer[-1]) == pytest.approx(scale if closed or scale > 1 else 1.0, rel=1e-6)
    assert follow.calm
    assert bool(follow.state.latched)


def test_no_gradient_of_the_radius_before_the_latch(device: str) -> None:
    follow, T = Follower(device, latched=False), leading("real")
    T = 0.9 * T / radius(T)
    for _ in range(3):
        answer = follow(T)
    assert not answer[: 2 * S].any()
    assert answer[-1] == 1


@pytest.mark.parametrize("calls", [2, CALM + 3])
def test_nonfinite_entries_leave_no_trace(device: str, calls: int) -> None:
    T, follow = leading("pair"), Follower(device)
    for _ in range(calls):
        follow(T)
    right = follow.state.right.clone()
    broken = T.clone()
    broken[3, 5] = math.nan
    for _ in range(2):
        assert (broken / follow(broken)[-1])[3, 5].isnan()
        assert torch.equal(follow.state.right, right)
    assert float(follow(T)[-1]) == pytest.approx(radius(T), rel=1e-6)


def test_a_multiple_eigenvalue_has_no_gradient(device: str) -> None:
    T = torch.diag(torch.linspace(0.0, 0.8, S))
    T[-2:, -2:] = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    follow = Follower(device)
    with pytest.warns(UserWarning, match="multiple"):
        answers = [follow(T) for _ in range(3)]
    for answer in answers:
        assert not answer[: 2 * S].any()
        assert float(answer[-1]) == pytest.approx(1, rel=1e-3)
    assert follow.count(Event.MULTIPLE) == 3


@pytest.mark.usefixtures("cpu")
def test_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AUDIT", 128)
    T, follow = leading("real"), Follower()
    for _ in range(129):
        follow(T)
    assert follow.count(Event.AUDIT) == 1
    assert follow.count(Event.FOLLOWED) == 127


def test_copies_share_nothing(device: str) -> None:
    follow, T = Follower(device), leading("pair")
    for _ in range(CALM + 3):
        follow(T)
    for duplicate in (copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))):
        twin = duplicate(follow)
        assert torch.equal(twin(T), follow(T))
        assert twin.state.right.data_ptr() != follow.state.right.data_ptr()


def test_an_answer_without_vectors_takes_the_last_radius(device: str) -> None:
    """A matrix of its own at every call; before anybody has looked."""
    follow, T = Follower(device), leading("pair")
    for _ in range(CALM + 3):
        follow(T)
    rho = follow.rho
    answer = follow(torch.randn(S, S))
    assert float(answer[-1]) == pytest.approx(rho, rel=1e-6)
    assert not answer[:-1].any()
    T = torch.randn(S, S)
    follow(T)
    assert follow.rho == pytest.approx(radius(T.float()), rel=1e-6)
    assert follow.count(Event.LATE) == 1


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The matrices that the operator that waits has seen."""
    seen: list[Tensor] = []

    def operator(T: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        seen.append(T)
        return dominant_eigenpair(T, *rest)

    monkeypatch.setattr(module, "dominant_eigenpair", operator)
    return seen


def test_large_steps_are_followed_in_several_tries(device: str, waited: list[Tensor]) -> None:
    """Those of a size that one try does not suffice for."""
    T, follow, steps = leading("pair"), Follower(device), []
    tried = module._Stage.step

    def step(self: module._Stage, T: Tensor, work: Work) -> None:
        steps.append(work)
        tried(self, T, work)

    calls = 20
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module._Stage, "step", step)
        for _ in range(calls):
            answer = follow(T)
            assert float(answer[-1]) == pytest.approx(radius(T), rel=1e-6)
            T = (T + 2e-2 * torch.randn(S, S)).float().double()
    assert len(steps) > calls
    assert len(waited) == 1
    assert follow.count(Event.FOLLOWED) + follow.count(Event.LATE) == calls - 1


@pytest.mark.slow
@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize("step", [0.03, 0.1])
def test_fast_changes_are_waited_for(step: float) -> None:
    """That a later try, of the same T, was good does not mean that the next answer will be."""
    follow, T = Follower(), torch.randn(S, S) / S**0.5
    for _ in range(60):
        answer = follow(T)
        assert float(answer[-1]) == pytest.approx(radius(T.float()), rel=1e-5)
        T = (1 - step**2) ** 0.5 * T + step * torch.randn(S, S) / S**0.5


def test_another_eigenvalue_that_has_become_larger_is_turned_to(
    device: str, waited: list[Tensor]
) -> None:
    angles, radii = torch.rand(S // 2) * 1.5, torch.linspace(0.1, 0.8, S // 2)
    follow = Follower(device)
    for call in range(4 * CHECK):
        radii[10], radii[20] = 1.05, 1.0 + 0.1 * (call >= 2 * CHECK)
        follow(rotations(radii, angles))
    assert follow.rho == pytest.approx(1.1, rel=1e-6)
    assert follow.status.eigenvalue.imag == pytest.approx(1.1 * math.sin(angles[20]), abs=1e-4)
    assert follow.count(Event.LATE) == 1
    assert len(waited) == 1


def test_a_crowd_is_tracked_without_a_decomposition(device: str, waited: list[Tensor]) -> None:
    """Few products never separate these eigenvalues; powers of T do."""
    follow = Follower(device)
    for T in crowd(S, 16):
        follow(T)
        assert follow.rho == pytest.approx(radius(T), rel=1e-6)
    assert follow.count(Event.FOLLOWED) == 15
    assert len(waited) <= 3


K = 32
REAL = torch.tensor([[-1.1]])
PAIR = torch.tensor([[0.7, -0.9], [0.9, 0.7]])
blocks = pytest.mark.parametrize("block", [REAL, PAIR], ids=["real", "pair"])


def matrix(block: Tensor) -> Tensor:
    """Eigenvalues of at most 0.9 in modulus, and the given ones, in general position."""
    T = torch.randn(S, S)
    T = 0.9 * T / torch.linalg.eigvals(T).abs().max()
    k = len(block)
    T[:k, k:] = 0
    T[:k, :k] = block
    P = torch.eye(S) + 0.3 * torch.randn(S, S) / S**0.5
    return P @ T @ torch.linalg.inv(P)


def exact_start(T: Tensor) -> tuple[Tensor, Tensor, float]:
    """Columns that span the K largest eigenvalues, those of the leading one in these, and ρ."""
    columns, lead, rho = [], [], 0.0
    for A in (T, T.mT):
        theta, E = torch.linalg.eig(A)
        order = (theta.abs() + 1e-9 * theta.imag.sign()).argsort(descending=True)
        theta, E = theta[order], E[:, order]
        X = torch.linalg.qr(torch.where(theta.imag < 0, E.imag, E.real)[:, :K]).Q
        columns.append(X)
        lead.append(torch.stack((E[:, 0].real @ X, E[:, 0].imag @ X)))
        rho = float(theta[0].abs())
    return torch.stack(columns), torch.stack(lead), rho


def one_step(T: Tensor, change: float, terms: int = 8) -> tuple[Tensor, Track]:
    """A in units of ρ, and a step from the eigenvectors of a matrix nearby."""
    columns, lead, rho = exact_start(T + change * torch.randn(S, S) / S**0.5)
    A = torch.stack((T, T.mT)) / rho
    return A[0], track(A, columns, lead, 3, terms)


@pytest.mark.usefixtures("cpu")
@blocks
def test_finds_the_eigenpair_next_to_the_last_one(block: Tensor) -> None:
    A, found = one_step(matrix(block.double()), 1e-3)
    u, w = torch.complex(found.u[:, 0], found.u[:, 1])
    torch.testing.assert_close(found.Au[0], found.u[0] @ A.mT)
    torch.testing.assert_close(found.Au[1], found.u[1] @ A)
    theta, E = torch.linalg.eig(A)
    j = int((theta.abs() + 1e-9 * theta.imag.sign()).argmax())
    quotient = (w @ (A.to(u.dtype) @ u)) / (w @ u)
    assert abs(complex(quotient - theta[j])) < 1e-9
    left = torch.linalg.inv(E)[j]
    for x, exact in ((u, E[:, j]), (w, left)):
        cosine = torch.vdot(x, exact).abs() / x.norm() / exact.norm()
        assert 1 - cosine < 1e-8


@pytest.mark.usefixtures("cpu")
@blocks
def test_terms_of_the_series_shorten_the_residual(block: Tensor) -> None:
    T = matrix(block.double())
    residuals = []
    for terms in (1, 6, 12):
        torch.manual_seed(1)
        A, found = one_step(T, 1e-3, terms)
        u, w = torch.complex(found.u[:, 0], found.u[:, 1])
        A = A.to(u.dtype)
        theta = (w @ A @ u) / (w @ u)
        residuals.append(float((A @ u - theta * u).norm() / u.norm()))
    assert residuals[1] < 0.4 * residuals[0]
    assert residuals[2] < 0.4 * residuals[1]


@pytest.mark.usefixtures("cpu")
@blocks
def test_columns_of_the_next_step_hold_the_vectors(block: Tensor) -> None:
    _, found = one_step(matrix(block.double()), 1e-2)
    lead = found.iteration.rows @ found.iteration.factor
    torch.testing.assert_close(lead @ found.columns.mT, found.u)
    for X in found.columns:
        assert torch.linalg.cond(X) < 2


@pytest.mark.usefixtures("cpu")
def test_a_real_eigenvalue_stays_real() -> None:
    _, found = one_step(matrix(REAL.double()), 1e-2)
    assert found.u[:, 1].norm() < 1e-15 * found.u[:, 0].norm()


@pytest.mark.usefixtures("cpu")
def test_an_unchanged_matrix_is_no_singular_case() -> None:
    _, found = one_step(matrix(PAIR.double()), 0.0)
    assert found.u.isfinite().all()
    assert float(found.residual.norm() / found.u.norm()) < 1e-9


@pytest.mark.usefixtures("cpu")
def test_dependent_columns_are_not_sound() -> None:
    T = matrix(PAIR.double())
    columns, lead, rho = exact_start(T)
    columns[0, :, -1] = 0
    found = track(torch.stack((T, T.mT)) / rho, columns, lead, 3, 4)
    assert found.iteration.sound.tolist() == [0, 1]
    assert ritz_pairs(ritz_problem(found.gram, factors(found.gram))) is None


def test_more_terms_where_the_residual_falls_slowly() -> None:
    slow = Status(*(1.0, 0.0, 1e-4, 1e-4, 1e-3, 1.0, 1.0, 9.0, 1.0, 8.0, 24.0, 0.0))
    assert slow.next_work == MUCH
    assert slow._replace(r_u=1e-7, r_v=1e-7, start=1e-4).next_work == LITTLE
    assert slow._replace(terms=0.0).next_work == MUCH


def test_more_work_until_results_are_calm() -> None:
    """That a result was good with much work does not mean that it will be with little."""
    status = Status(*(1.0, 0.0, 1e-7, 1e-7, 1e-4, 1.0, 1.0, 9.0, 1.0, 0.0, 24.0, 0.0))
    assert status.next_work == MORE
    assert status._replace(crowded=1.0).next_work == MOST
    assert status._replace(crowded=1.0, streak=SETTLED).next_work == LITTLE


@pytest.mark.usefixtures("cpu")
def test_squarings_are_products() -> None:
    T = matrix(PAIR.double())
    columns, lead, rho = exact_start(T + 1e-2 * torch.randn(S, S) / S**0.5)
    A = torch.stack((T, T.mT)) / rho
    one, other = track(A, columns, lead, 1, 4, 3), track(A, columns, lead, 8, 4)
    torch.testing.assert_close(one.gram, other.gram)
    torch.testing.assert_close(one.u, other.u)


def test_quality() -> None:
    status = Status(*(2.0, 0.0, 1e-4, 1e-4, 1e-3, 1.0, 1.0, 9.0, 1.0, 8.0, 4.0, 0.0))
    assert status.good
    assert status.calm
    assert not status._replace(r_u=6e-4, r_v=6e-4).calm
    assert status._replace(r_u=6e-4, r_v=6e-4).good
    assert not status._replace(r_u=math.nan).good
    assert not status._replace(r_u=2e-3, r_v=1e-6).good
    # before the latch closes, nobody needs the vectors
    assert status._replace(real=0.9, latched=0.0, r_u=2e-3, r_v=1e-6).good
    assert not status._replace(real=0.9, latched=0.0, r_u=2e-3, r_v=2e-3).good
    assert not status._replace(overlap=1e-3).good
