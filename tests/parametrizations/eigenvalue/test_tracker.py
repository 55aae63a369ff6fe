"""Following without waiting: the answers, and what happens when they were not good."""

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor

from cayley.parametrizations.eigenvalue import tracker as module
from cayley.parametrizations.eigenvalue.dominant import Event, dominant_eigenpair, followed_columns
from cayley.parametrizations.eigenvalue.stage import Following, Stage, Status, Work, memory_size
from cayley.parametrizations.eigenvalue.tracker import CALM, CHECK, Tracker

S = 120
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]
devices = pytest.mark.parametrize("device", DEVICES)


class Follower:
    """A tracker and its buffers."""

    def __init__(self, device: str = "cpu", s: int = S, eps: float = 0.0, latched: bool = True):
        k = followed_columns(s)
        self.eps, self.tracker = eps, Tracker()
        self.state = Following(
            torch.zeros(s, k, dtype=torch.float32, device=device),
            torch.zeros(s, k, dtype=torch.float32, device=device),
            torch.tensor(latched, device=device),
            torch.zeros(len(Event), dtype=torch.int64, device=device),
            torch.zeros(memory_size(k), dtype=torch.int64, device=device),
        )

    def __call__(self, T: Tensor) -> Tensor:
        return self.tracker(T.float().to(self.state.right.device), self.state, self.eps).cpu()

    @property
    def status(self) -> Status:
        return Status(*self.state.memory.cpu().view(torch.float64)[: len(Status._fields)].tolist())

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
    blocks = [
        r * torch.tensor([[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]])
        for r, t in zip(radii.tolist(), angles.tolist(), strict=True)
    ]
    return torch.block_diag(*blocks)


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


@devices
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


@devices
@pytest.mark.parametrize("rival", ["pair", "real"])
def test_a_crossing_is_noticed(device: str, rival: str) -> None:
    """A pair is overtaken slowly, by another pair or by a real eigenvalue."""
    angles, radii = torch.rand(S // 2) * 1.5, torch.linspace(0.1, 0.8, S // 2)
    if rival == "real":
        angles[20] = 0.0
    P = torch.eye(S) + 0.3 * torch.randn(S, S) / S**0.5
    inverse = torch.linalg.inv(P)
    follow = Follower(device)
    crossed, wrong = False, 0
    for call in range(90):
        radii[10], radii[20] = 1.05, 0.96 + 0.002 * call
        block = rotations(radii, angles)
        if rival == "real":
            # two real eigenvalues, one of them far below
            block[41, 41] = 0.1
        follow(P @ block @ inverse)
        if follow.rho != pytest.approx(float(radii.max()), rel=1e-6):
            wrong += 1
            crossed = True
    assert crossed
    assert wrong <= CHECK
    assert follow.count(Event.LATE) == 1
    assert follow.calm
    assert follow.status.eigenvalue.imag == pytest.approx(
        radii[20].item() * math.sin(float(angles[20])), abs=1e-4
    )


@devices
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


@devices
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


@devices
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


@devices
def test_the_latch(device: str) -> None:
    follow, T = Follower(device, latched=False), leading("real")
    T = T / radius(T)
    for scale in (0.9,) * (CALM + 4) + (1.001, 0.97):
        closed = bool(follow.state.latched)
        answer = follow(scale * T)
        assert float(answer[-1]) == pytest.approx(scale if closed or scale > 1 else 1.0, rel=1e-6)
    assert follow.calm
    assert bool(follow.state.latched)


@devices
def test_no_gradient_of_the_radius_before_the_latch(device: str) -> None:
    follow, T = Follower(device, latched=False), leading("real")
    T = 0.9 * T / radius(T)
    for _ in range(3):
        answer = follow(T)
    assert not answer[: 2 * S].any()
    assert answer[-1] == 1


@devices
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


@devices
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


def test_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AUDIT", 128)
    T, follow = leading("real"), Follower()
    for _ in range(129):
        follow(T)
    assert follow.count(Event.AUDIT) == 1
    assert follow.count(Event.FOLLOWED) == 127


@devices
def test_copies_share_nothing(device: str) -> None:
    follow, T = Follower(device), leading("pair")
    for _ in range(CALM + 3):
        follow(T)
    for duplicate in (copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))):
        twin = duplicate(follow)
        assert torch.equal(twin(T), follow(T))
        assert twin.state.right.data_ptr() != follow.state.right.data_ptr()


@devices
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


@devices
def test_large_steps_are_followed_in_several_tries(device: str, waited: list[Tensor]) -> None:
    """Those of a size that one try does not suffice for."""
    T, follow, steps = leading("pair"), Follower(device), []
    tried = Stage.step

    def step(self: Stage, T: Tensor, work: Work) -> None:
        steps.append(work)
        tried(self, T, work)

    calls = 20
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stage, "step", step)
        for _ in range(calls):
            answer = follow(T)
            assert float(answer[-1]) == pytest.approx(radius(T), rel=1e-6)
            T = (T + 2e-2 * torch.randn(S, S)).float().double()
    assert len(steps) > calls
    assert len(waited) == 1
    assert follow.count(Event.FOLLOWED) + follow.count(Event.LATE) == calls - 1


@pytest.mark.parametrize("step", [0.03, 0.1])
def test_fast_changes_are_waited_for(step: float) -> None:
    """That a later try, of the same T, was good does not mean that the next answer will be."""
    follow, T = Follower(), torch.randn(S, S) / S**0.5
    for _ in range(60):
        answer = follow(T)
        assert float(answer[-1]) == pytest.approx(radius(T.float()), rel=1e-5)
        T = (1 - step**2) ** 0.5 * T + step * torch.randn(S, S) / S**0.5


@devices
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
