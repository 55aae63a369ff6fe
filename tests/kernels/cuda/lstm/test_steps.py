"""The LSTM step by step, emulated on the CPU, against the loop in double precision."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from emulator import COMPILER, emulated
from teams import fill_new_memory, force_steps, force_team
from torch import Tensor

from cayley.kernels.calls import LstmCall, LstmGradients, Site
from cayley.kernels.cuda.lstm import kernels as lstm_kernels
from cayley.kernels.cuda.lstm import recurrence
from cayley.kernels.cuda.runtime import step_kernels
from cayley.recurrences.lstm_forward import lstm_forward

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux"),
    pytest.mark.slow,
]
NAMES = ("input", "recurrent", "cell")
PACKED = torch.tensor([5, 4, 4, 2, 1, 1])


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    with emulated():
        yield


class Case(NamedTuple):
    """A size, and what there is; x, h and c are N_x, N_h and N_c."""

    T: int = 6
    B: int = 5
    H: int = 21
    norms: str = ""
    window: int = 1
    past: bool = False
    packed: bool = False


# every combination of normalisations, with and without windows, a past and packed sequences
CASES = [
    Case(),
    Case(packed=True),
    Case(norms="x", packed=True),
    Case(norms="c"),
    Case(norms="h", window=3, past=True),
    Case(norms="c", window=4, packed=True),
    Case(norms="xh"),
    Case(norms="xc", window=3, past=True, packed=True),
    Case(norms="hc", packed=True),
    Case(norms="xhc"),
    Case(norms="xhc", window=3),
    Case(norms="xhc", window=3, past=True, packed=True),
    # windows of more steps than a warp has lanes, and than there are; a single row and step
    Case(40, 2, 21, "xhc", 36),
    Case(norms="xhc", window=9, past=True),
    Case(1, 1, 21, "xhc", 3, past=True),
    Case(1, 5, 21),
    Case(4, 1, 21, "xhc", 3),
    # two warps
    Case(3, 2, 45, "xhc", 3, past=True),
]


def call_of(case: Case) -> LstmCall:
    """A call in double precision, as float32 holds it."""
    T, B, H, norms, window, past, packed = case
    if packed:
        assert len(PACKED) == T
        assert PACKED[0] == B
    shape = (int(PACKED.sum()),) if packed else (T, B)
    W = torch.cat([torch.linalg.qr(torch.randn(H, H))[0] for _ in range(4)])
    tensors: list[Any] = [torch.randn(*shape, 4 * H) + 2, *torch.randn(2, B, H), W]
    tensors.append(torch.randn(4 * H))
    sites: dict[str, Any] = {}
    for name, letter, F in zip(NAMES, "xhc", (4 * H, 4 * H, H), strict=True):
        if letter in norms:
            gamma, beta = 1 + 0.3 * torch.randn(F), 0.3 * torch.randn(F)
            before = torch.stack((torch.randn(window - 1, B, 1), torch.rand(window - 1, B, 1)))
            sites[name] = Site(gamma, beta, torch.randn(B, 1), before if past else None)
    # a past of b steps less than the window has, but of one at least
    missing = torch.arange(B)[:, None].clamp(max=window - 2)
    weights = (torch.arange(window - 1)[:, None, None] >= missing).double() if past else None
    call = LstmCall(*tensors, **sites, weights=weights, window=window)
    return converted(call, lambda v: v.float().double())._replace(
        batch_sizes=PACKED if packed else None
    )


def converted(call: LstmCall, convert: Any) -> LstmCall:
    """The call with other tensors."""

    def of(value: Any) -> Any:
        if isinstance(value, Site):
            return Site(*map(of, value))
        return convert(value) if isinstance(value, Tensor) else value

    return LstmCall(*map(of, call._replace(batch_sizes=None)))._replace(
        batch_sizes=call.batch_sizes
    )


def leaves_of(call: LstmCall) -> dict[str, Tensor]:
    """The tensors that have a gradient, under its name."""
    leaves: dict[str, Any] = {name: getattr(call, name) for name in ("x", "h0", "c0", "W", "b")}
    for name, site in zip(NAMES, call.sites(), strict=True):
        if site is not None:
            leaves |= {f"{name}_gamma": site.gamma, f"{name}_beta": site.beta}
            if site.past is not None:
                leaves[f"{name}_past"] = site.past
    return leaves


def exact(call: LstmCall, gradients: LstmGradients) -> dict[str, Tensor]:
    """The states by the loop, and the gradients by autograd."""
    call = converted(call, lambda v: v.clone().requires_grad_())
    states, leaves = lstm_forward(call, by_definition=True), leaves_of(call)
    pairs = [(v, g.double()) for v, g in zip(states, gradients, strict=True) if g is not None]
    used, given = zip(*pairs, strict=True)
    found = torch.autograd.grad(used, list(leaves.values()), given)
    results = {name: v.detach() for name, v in states._asdict().items()}
    return results | {f"∂{name}": v for name, v in zip(leaves, found, strict=True)}


def gradients_of(case: Case, call: LstmCall) -> LstmGradients:
    """Those of h, and with an even number of steps of c and the statistics too."""
    shape, T = (*call.x.shape[:-1], case.H), case.T
    h, c = (torch.randn(shape).float() for _ in range(2))
    if T % 2 == 1:
        return LstmGradients(h)
    of_sites: dict[str, Any] = {
        name: torch.randn(4, T, case.B, 1).float()
        for name, site in zip(NAMES, call.sites(), strict=True)
        if site is not None
    }
    return LstmGradients(h, c, **of_sites)


def by_kernels(call: LstmCall, gradients: LstmGradients) -> dict[str, Any]:
    """The same by the kernels."""
    call = converted(call, lambda v: v.float())
    states, needed = recurrence.lstm(call), list(leaves_of(call))
    found = recurrence.lstm_backward(gradients, states, call, needed)
    return states._asdict() | {f"∂{name}": found[name] for name in needed}


def check(case: Case, ours: dict[str, Any], theirs: dict[str, Tensor]) -> None:
    # dividing by a standard deviation enlarges errors
    most = 1e-5 if case.norms else 2e-6
    assert ours.keys() == theirs.keys()
    for name, other in theirs.items():
        error = (ours[name].double() - other.double()).norm() / other.norm().clamp(min=1)
        assert error <= most, f"{name} is off by {error:.1g}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_loop(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    force_steps(monkeypatch)
    call = call_of(case)
    gradients = gradients_of(case, call)
    theirs = exact(call, gradients)
    fill_new_memory(monkeypatch)
    check(case, by_kernels(call, gradients), theirs)


@pytest.mark.parametrize("norms", ["", "xhc"])
def test_units_that_threads_share_unevenly(norms: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several units for a thread and, without sums over a row, several blocks for a row."""
    monkeypatch.setattr(step_kernels, "MOST_THREADS", 32)
    monkeypatch.setattr(step_kernels, "UNITS", 30)
    monkeypatch.setattr(step_kernels, "PARTS", 2)
    force_steps(monkeypatch)
    case = Case(3, 2, 75, norms, 2, past=True)
    call = call_of(case)
    gradients = gradients_of(case, call)
    check(case, by_kernels(call, gradients), exact(call, gradients))


@pytest.mark.parametrize("first", [True, False])
def test_one_plan_reads_what_the_other_has_written(
    first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(norms="xhc", window=3, past=True, packed=True)
    call = call_of(case)
    gradients = gradients_of(case, call)
    force_team(monkeypatch, (2, 2, 128, 4))
    # the recurrence asks once, and its gradient once
    answers = iter((first, not first))
    monkeypatch.setattr(lstm_kernels, "runs_stepwise", lambda *_: next(answers))
    check(case, by_kernels(call, gradients), exact(call, gradients))
    assert next(answers, None) is None
