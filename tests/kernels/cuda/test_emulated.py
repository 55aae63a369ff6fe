"""The kernels, emulated on the CPU, against the loop in double precision."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from emulator import COMPILER, Kernel, emulated
from teams import force_plan, force_team
from torch import Tensor

from cayley.activations import ACTIVATIONS
from cayley.kernels.calls import (
    ElmanCall,
    ElmanGradients,
    GruCall,
    GruGradients,
    LstmCall,
    LstmGradients,
    Site,
)
from cayley.kernels.crowds import crowded
from cayley.kernels.cuda import elman, gru
from cayley.kernels.cuda.lstm import recurrence as lstm
from cayley.kernels.cuda.lstm.references import references
from cayley.kernels.cuda.runtime import projection
from cayley.kernels.cuda.runtime.clusters import Plan
from cayley.norms.layouts import padded, step_mask
from cayley.norms.windows import coarse, reference_of
from cayley.parametrizations.structured import acting_on_reals
from cayley.recurrences import NormSite, elman_loop, gru_loop, lstm_loop

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux"),
    pytest.mark.slow,
]

PACKED = torch.tensor([5, 4, 2, 1])
# one block, and clusters of blocks with several rows and passes
PLANS = [
    Plan(21, 1, 2, 1, 4, 8, 2, 1),
    Plan(22, 2, 1, 3, 8, 32, 2, 0),
    Plan(22, 4, 4, 1, 4, 8, 2, 1),
]
# a row for each block, and teams of blocks that take their rows in turn
TEAMS = [None, (2, 2, 128, 4), (3, 1, 128, 8)]


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    with emulated():
        yield


def rows_of(sizes: Tensor | None, *features: int) -> list[Tensor]:
    """Random steps of five sequences, as float32 holds them."""
    T, B = (4, 5) if sizes is None else (len(sizes), int(sizes[0]))
    steps = (T, B) if sizes is None else (int(sizes.sum()),)
    return [torch.randn(*steps, F).float().double() for F in features]


def matrices(H: int, count: int) -> Tensor:
    W = torch.cat([torch.linalg.qr(torch.randn(H, H))[0] for _ in range(count)])
    return W.float().double()


def compare(ours: Sequence[Any], theirs: Sequence[Tensor]) -> None:
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        error = (one.double() - other).norm() / other.norm().clamp(min=1)
        assert error <= 2e-6, f"result {number} is off by {error:.1g}"


def expected(h: Tensor, leaves: list[Tensor], g: Tensor) -> list[Tensor]:
    return [h.detach(), *torch.autograd.grad(h, leaves, g)]


elman_cases = pytest.mark.parametrize(
    ("nonlinearity", "sizes"), [("modrelu", None), ("tanh", PACKED), ("modrelu_stacked", PACKED)]
)

# complex weights in all ways in which the parts of a number end up in lanes: in one, or in two of
# them (one value each) that may have copies; in registers, in shared memory, and in both
COMPLEX_PLANS = [
    Plan(2, 1, 1, 1, 4, 4, 2, 1, True),  # one complex unit, one value a lane
    Plan(22, 1, 2, 1, 8, 8, 2, 1, True),  # two values, some weights in shared memory
    Plan(30, 1, 1, 1, 4, 16, 4, 0, True),  # one value in four lanes, all weights in shared memory
    Plan(22, 2, 4, 2, 8, 8, 4, 1, True),  # four values, as one quad
    Plan(26, 2, 1, 3, 8, 32, 2, 0, True),  # one value in four lanes, sent by each
    Plan(22, 4, 2, 1, 16, 32, 2, 1, True),  # one value; two blocks have no unit
    Plan(54, 4, 4, 1, 4, 4, 2, 4, True),  # four values in each lane, of one row
    Plan(64, 2, 2, 2, 8, 8, 2, 3, True),  # every lane has outputs, so that none asks
    Plan(140, 2, 2, 2, 8, 16, 4, 1, True),  # two passes; most weights in shared memory
]


@elman_cases
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_elman(
    plan: Plan, nonlinearity: str, sizes: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if nonlinearity == "modrelu_stacked" and plan.H % 2 == 1:
        plan = Plan(20, *list(vars(plan).values())[1:])
    force_plan(monkeypatch, plan)
    check_elman(plan.H, nonlinearity, sizes)


@pytest.mark.parametrize("nonlinearity", ["modrelu", "tanh", "modrelu_stacked"])
@pytest.mark.parametrize(
    "plan", [*PLANS[1:], Plan(20, 1, 2, 1, 4, 8, 2, 1), *COMPLEX_PLANS[1:6:2]], ids=str
)
def test_elman_of_one_input(plan: Plan, nonlinearity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which kernels multiply themselves, unless they have several passes."""
    force_plan(monkeypatch, plan)
    H, T, B, reverse = plan.H, 6, 5, nonlinearity == "tanh"
    x, h0, g = (torch.randn(*s).float().double() for s in ((T, B, 1), (B, H), (T, B, H)))
    W = complex_matrix(H) if plan.is_complex else matrices(H, 1)
    U = torch.randn(H, 1).float().double()
    c = torch.randn(H).float().double() if nonlinearity == "tanh" else None
    units = H // 2 if nonlinearity == "modrelu_stacked" else H
    b = -0.3 * torch.rand(units).float().double() if nonlinearity != "tanh" else None
    named = {"x": x, "h0": h0, "W": W, "b": b, "U": U, "c": c}
    leaves: dict[str, Any] = {n: v.requires_grad_() for n, v in named.items() if v is not None}
    options: dict[str, Any] = {"nonlinearity": nonlinearity, "reverse": reverse}
    theirs = expected(elman_loop(x, h0, W, b, U=U, c=c, **options), [*leaves.values()], g)
    own: dict[str, Any] = {name: v.detach().float() for name, v in leaves.items()}
    call = ElmanCall(**own, **options, is_complex=plan.is_complex)
    assert elman._inputs(call, plan) == (plan.passes == 1)
    states = elman.elman(call)
    found = elman.elman_backward(ElmanGradients(g.float()), states, call, [*leaves])
    compare([states.h, *(found[name] for name in leaves)], theirs)


@elman_cases
@pytest.mark.parametrize("team", TEAMS[1:], ids=str)
def test_elman_by_teams(
    team: tuple[int, int, int, int],
    nonlinearity: str,
    sizes: Tensor | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    force_team(monkeypatch, team)
    check_elman(22, nonlinearity, sizes)


@pytest.mark.parametrize(
    ("nonlinearity", "sizes"), [("modrelu_stacked", None), ("modrelu", PACKED)]
)
@pytest.mark.parametrize("plan", COMPLEX_PLANS, ids=str)
def test_complex_elman(
    plan: Plan, nonlinearity: str, sizes: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_plan(monkeypatch, plan)
    check_elman(plan.H, nonlinearity, sizes, is_complex=True)


@pytest.mark.parametrize("late", [0, 3])
@pytest.mark.parametrize("plan", [PLANS[2], COMPLEX_PLANS[5]], ids=str)
def test_elman_with_a_late_block(plan: Plan, late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one has no units, so that nobody waits for it."""
    force_plan(monkeypatch, plan)
    monkeypatch.setattr(Kernel, "late", late)
    check_elman(plan.H, "modrelu_stacked", None, is_complex=plan.is_complex)


@pytest.mark.parametrize(
    ("nonlinearity", "sizes"), [("modrelu_stacked", PACKED), ("identity", None)]
)
@pytest.mark.parametrize("team", [*TEAMS[1:], (2, 1, 256, 4)], ids=str)
def test_complex_elman_by_teams(
    team: tuple[int, int, int, int],
    nonlinearity: str,
    sizes: Tensor | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    force_team(monkeypatch, team)
    check_elman(50, nonlinearity, sizes, is_complex=True)


@pytest.mark.parametrize("plan", [COMPLEX_PLANS[1], COMPLEX_PLANS[4]], ids=str)
@pytest.mark.parametrize(("T", "B"), [(1, 1), (1, 3), (3, 1)])
def test_complex_weights_are_real_ones_bit_for_bit(
    plan: Plan, T: int, B: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The products and their order are the same."""
    H = plan.H
    x, g, h0 = (torch.randn(*size).float() for size in ((T, B, H), (T, B, H), (B, H)))
    W = complex_matrix(H).float()
    call = ElmanCall(x, h0, W, -0.3 * torch.rand(H // 2).float(), nonlinearity="modrelu_stacked")
    results = []
    for is_complex in (True, False):
        layout = replace(plan, is_complex=is_complex)
        force_plan(monkeypatch, layout)
        own = call._replace(is_complex=is_complex)
        states = elman.elman(own)
        found = elman.elman_backward(ElmanGradients(g), states, own, ("x", "h0", "W", "b"))
        results.append([*states, *(found[name] for name in ("x", "h0", "W", "b"))])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


def test_complex_weights_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second half of the columns says the same again, and is not read."""
    plan = COMPLEX_PLANS[1]
    force_plan(monkeypatch, plan)
    H = plan.H
    x, h0, W = torch.randn(3, 2, H).float(), torch.randn(2, H).float(), complex_matrix(H).float()
    call = ElmanCall(x, h0, W, nonlinearity="identity", is_complex=True)
    half = call._replace(W=torch.cat((W[:, : H // 2], torch.nan * W[:, H // 2 :]), 1))
    assert torch.equal(elman.elman(half).h, elman.elman(call).h)


def complex_matrix(H: int) -> Tensor:
    """A unitary matrix as it acts on real features."""
    random = torch.complex(*torch.randn(2, H // 2, H // 2))
    return acting_on_reals(torch.linalg.qr(random)[0]).float().double()


def check_elman(H: int, nonlinearity: str, sizes: Tensor | None, is_complex: bool = False) -> None:
    reverse = sizes is not None
    x, g = rows_of(sizes, H, H)
    h0 = torch.randn(5, H).float().double()
    W = complex_matrix(H) if is_complex else matrices(H, 1)
    thresholds = ACTIVATIONS[nonlinearity].thresholds(H)
    b = -0.3 * torch.rand(thresholds).float().double() if thresholds else None
    leaves = [v.requires_grad_() for v in (x, h0, W, b) if v is not None]
    options: dict[str, Any] = {"batch_sizes": sizes, "reverse": reverse}
    theirs = expected(elman_loop(x, h0, W, b, nonlinearity=nonlinearity, **options), leaves, g)
    x, h0, W, g = (v.detach().float() for v in (x, h0, W, g))
    b = None if b is None else b.detach().float()
    call = ElmanCall(x, h0, W, b, None, None, sizes, reverse, nonlinearity, is_complex)
    states = elman.elman(call)
    needed = ["x", "h0", "W", *([] if b is None else ["b"])]
    found = elman.elman_backward(ElmanGradients(g), states, call, needed)
    compare([states.h, *(found[name] for name in needed)], theirs)
    assert ACTIVATIONS[nonlinearity].needs_z == (states.z.numel() > 0)


@pytest.mark.parametrize("team", TEAMS, ids=str)
@pytest.mark.parametrize(("candidate", "sizes"), [("modrelu", None), ("tanh", PACKED)])
def test_gru(
    team: tuple[int, int, int, int] | None,
    candidate: str,
    sizes: Tensor | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if team is not None:
        force_team(monkeypatch, team)
    H, reverse = 21, candidate == "tanh"
    x, g = rows_of(sizes, 3 * H, H)
    h0, W = torch.randn(5, H).float().double(), matrices(H, 3)
    b = -0.3 * torch.rand(H).float().double() if candidate == "modrelu" else None
    leaves = [v.requires_grad_() for v in (x, h0, W, b) if v is not None]
    theirs = expected(gru_loop(x, h0, W, b, batch_sizes=sizes, reverse=reverse), leaves, g)
    x, h0, W, g = (v.detach().float() for v in (x, h0, W, g))
    b = None if b is None else b.detach().float()
    call = GruCall(x, h0, W, b, None, None, sizes, reverse)
    states = gru.gru(call)
    needed = ["x", "h0", "W", *([] if b is None else ["b"])]
    found = gru.gru_backward(GruGradients(g), states, call, needed)
    compare([states.h, *(found[name] for name in needed)], theirs)


@pytest.mark.parametrize("team", TEAMS, ids=str)
@pytest.mark.parametrize(("window", "sizes"), [(0, PACKED), (1, None), (3, PACKED)])
def test_lstm(
    team: tuple[int, int, int, int] | None,
    window: int,
    sizes: Tensor | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A window of 0 steps is none: nothing is normalised."""
    if team is not None:
        force_team(monkeypatch, team)
    H = 21
    x, g = rows_of(sizes, 4 * H, H)
    h0, c0 = torch.randn(2, 5, H).float().double()
    W, b = matrices(H, 4), torch.randn(4 * H).float().double()
    features = (4 * H, 4 * H, H) if window else ()
    norms = [torch.rand(2, F).float().double() for F in features]
    pairs: list[Any] = [tuple(v.clone().requires_grad_() for v in pair) for pair in norms]
    leaves = [v.requires_grad_() for v in (x, h0, c0, W, b)]
    sites: dict[str, Any] = {
        name: NormSite(*pair)
        for name, pair in zip(("input", "recurrent", "cell"), pairs, strict=False)
    }
    K = max(window, 1)
    states = lstm_loop(x, h0, c0, W, b, **sites, window=K, batch_sizes=sizes)
    theirs = expected(states.h, [*leaves, *(v for pair in pairs for v in pair)], g)
    own: list[Any] = [Site(*pair.float()) for pair in norms] or [None] * 3
    x, h0, c0, W, b = (v.detach().float() for v in leaves)
    call = LstmCall(x, h0, c0, W, b, *own, batch_sizes=sizes, window=K)
    found, references = lstm.contributed_lstm(call, call.x, derive=window > 0)
    needed = ["x", "h0", "c0", "W", "b"]
    if window > 0:
        # what the means are measured from is an argument of the gradient
        own = [site._replace(reference=r) for site, r in zip(own, references, strict=True)]
        call = call._replace(input=own[0], recurrent=own[1], cell=own[2])
        names = ("input", "recurrent", "cell")
        needed += [f"{name}_{field}" for name in names for field in ("gamma", "beta")]
    gradients = lstm.lstm_backward(LstmGradients(g.float()), found, call, needed)
    compare([found.h, *(gradients[name] for name in needed)], theirs)


@pytest.mark.parametrize("inputs", [0, 1, 2])
@pytest.mark.parametrize(("H", "bias"), [(21, True), (40, False)])
def test_lstm_in_a_crowd(H: int, bias: bool, inputs: int) -> None:
    """Where there are more rows than multiprocessors, a block has two of them."""
    x, g, g_c = rows_of(None, inputs or 4 * H, H, H)
    h0, c0 = torch.randn(2, 5, H).float().double()
    W, b = matrices(H, 4), torch.randn(4 * H).float().double() if bias else None
    U = torch.randn(4 * H, inputs).float().double() if inputs else None
    named = {"x": x, "h0": h0, "c0": c0, "W": W, "b": b, "U": U}
    leaves: dict[str, Any] = {n: v.requires_grad_() for n, v in named.items() if v is not None}
    states = lstm_loop(x, h0, c0, W, b, U=U)
    results = [states.h, states.c]
    theirs = [*results, *torch.autograd.grad(results, [*leaves.values()], [g, g_c])]
    call = LstmCall(**{name: v.detach().float() for name, v in leaves.items()})
    given = LstmGradients(g.float(), g_c.float())
    for networks in (1, 100):
        with crowded(networks):
            found = lstm.lstm(call)
            gradients = lstm.lstm_backward(given, found, call, [*leaves])
            one: Any = lstm.lstm_backward(LstmGradients(c=g_c.float()), found, call, ["h0"])["h0"]
        compare([found.h, found.c, *(gradients[name] for name in leaves)], theirs)
        again = torch.autograd.grad(lstm_loop(x, h0, c0, W, b, U=U).c, [h0], g_c)
        compare([one], again)


@pytest.mark.parametrize("kind", ["elman", "gru", "lstm"])
def test_results_where_they_are_wanted(kind: str) -> None:
    """The part of a network in the results of several."""
    H, gates = 21, {"elman": 1, "gru": 3, "lstm": 4}[kind]
    x, W = torch.randn(4, 5, gates * H).float(), torch.randn(gates * H, H).float()
    h0, c0 = torch.randn(2, 5, H).float()
    run: Any = {"elman": elman.elman, "gru": gru.gru, "lstm": lstm.lstm}[kind]
    call: Any = {
        "elman": ElmanCall(x, h0, W),
        "gru": GruCall(x, h0, W),
        "lstm": LstmCall(x, h0, c0, W),
    }[kind]
    expected = run(call)
    rooms = [value.new_full((3, *value.shape), torch.nan) for value in expected]
    found = run(call, type(expected)(*(room[1] for room in rooms)))
    for room, value, own in zip(rooms, expected, found, strict=True):
        assert own.data_ptr() == room[1].data_ptr()
        assert torch.equal(room[1], value)
        assert room[::2].isnan().all()


@pytest.mark.parametrize("bias", [True, False])
def test_the_product_with_the_input(bias: bool) -> None:
    x, U, c = torch.randn(7, 5, 3), torch.randn(84, 3), torch.randn(84) if bias else None
    exact = torch.nn.functional.linear(x.double(), U.double(), None if c is None else c.double())
    single = x.float(), U.float(), None if c is None else c.float()
    compare([projection.project_on_cuda(*single)], [exact])
    across = projection.project_by_features(*single)
    assert across.stride() == (5, 1, 35)
    compare([across], [exact])


@pytest.mark.parametrize("sizes", [None, torch.tensor([5] * 290 + [4] * 10 + [1])])
def test_references(sizes: Tensor | None) -> None:
    B, H = 5, 3
    x = torch.randn(301, B, 4 * H) if sizes is None else torch.randn(int(sizes.sum()), 4 * H)
    x = (1000 + x).float()
    x[0], x[1], x[2] = torch.nan, -torch.inf, 1e6
    b = (50 + torch.randn(4 * H)).float()
    if sizes is None:
        expected = reference_of(x[..., :1])
    else:
        rows = step_mask(sizes, x.device)
        expected = reference_of(padded(x[:, :1], rows), rows[..., None])
    of_x, of_h, of_c = references(x, b, B, sizes)
    assert torch.equal(of_x, expected)
    assert (of_x - 1000 <= 4).all()
    assert torch.equal(of_h, coarse(b.mean()).expand(B, 1))
    assert not of_c.any()
    assert not torch.stack(references(x * torch.nan, None, B, sizes)).any()


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("bad", [1e6, 1e12])
def test_a_large_first_step_does_not_act_on_later_ones(window: int, bad: float) -> None:
    T, B, H = 9, 5, 21
    x, W, b = torch.randn(T, B, 4 * H), matrices(H, 4), torch.randn(4 * H)
    x[0] = bad * torch.rand(B, 4 * H)
    h0, c0 = torch.randn(2, B, H)
    h0[:] = 1e3 * h0
    norms: list[Any] = [torch.rand(2, F).float() for F in (4 * H, 4 * H, H)]
    x, h0, c0, W, b = (v.float() for v in (x, h0, c0, W, b))
    own: list[Any] = [Site(*pair) for pair in norms]
    call = LstmCall(x, h0, c0, W, b, *own, window=window)
    found, _ = lstm.contributed_lstm(call, x, derive=True)
    names = ("input", "recurrent", "cell")
    sites: dict[str, Any] = {
        name: NormSite(*pair.double()) for name, pair in zip(names, norms, strict=True)
    }
    exact = lstm_loop(*(v.double() for v in (x, h0, c0, W, b)), **sites, window=window)
    torch.testing.assert_close(found.h[window:].double(), exact.h[window:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("sizes", [None, torch.tensor([5] * 40 + [2] * 30)])
def test_references_of_long_sequences_come_first(
    sizes: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a launch of their own, with the same bits."""
    B, H, N = 5, 3, 70 * 5 if sizes is None else int(sizes.sum())
    x = (1000 + torch.randn(N, 4 * H)).float()
    x = x.view(70, B, 4 * H) if sizes is None else x
    h0, c0, W, b = (torch.randn(s).float() for s in ((B, H), (B, H), (4 * H, H), (4 * H,)))
    N_x, N_h, N_c = (Site(*torch.rand(2, F).float()) for F in (4 * H, 4 * H, H))
    call = LstmCall(x, h0, c0, W, b, N_x, N_h, N_c, batch_sizes=sizes, window=3)
    together = lstm.contributed_lstm(call, x, derive=True)
    monkeypatch.setattr(lstm, "FEW_CHUNKS", 0)
    apart = lstm.contributed_lstm(call, x, derive=True)
    for ours, theirs in zip((*together[0], *together[1]), (*apart[0], *apart[1]), strict=True):
        assert torch.equal(ours, theirs)
