"""The kernels against the loop in double precision: outputs and every gradient."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from teams import force_elman_tiles, force_plan
from torch import Tensor

from cayley.activations import ACTIVATIONS as KNOWN
from cayley.kernels.calls import ElmanCall, ElmanGradients, ElmanStates
from cayley.kernels.cuda import elman as cuda
from cayley.kernels.cuda.elman import ACTIVATIONS, TILES, elman, elman_backward, refusal
from cayley.kernels.cuda.runtime.chip import chip
from cayley.kernels.cuda.runtime.clusters import Plan
from cayley.kernels.cuda.runtime.tiles import TileKind, tiles
from cayley.kernels.steps import previous_states, step_order
from cayley.parametrizations.structured import acting_on_reals
from cayley.recurrences import elman_loop

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
activations = pytest.mark.parametrize("nonlinearity", ACTIVATIONS)
kinds = pytest.mark.parametrize("kind", TILES, ids=lambda kind: f"{kind.groups}-{kind.sets}")

# T, B, H: one block, then clusters of 2 to 16, with odd sizes and all numbers of rows and passes
SIZES = [(1, 1, 1), (1, 3, 2), (5, 1, 3), (9, 2, 17), (4, 5, 64), (12, 7, 170), (3, 132, 190)]
SIZES += [(4, 300, 190), (2, 1, 256), (3, 128, 257), (7, 28, 425), (5, 50, 512), (3, 128, 512)]
SIZES += [(3, 64, 700), (2, 9, 850), (4, 32, 1030), (2, 8, 1150), (2, 33, 1149)]
# teams of blocks, in one turn and in several
SIZES += [(3, 20, 1200), (2, 100, 1301)]

# tiles: one team and several, some of whose rows or sets of rows are empty, or come in turns
TILED = [(1, 1, 1), (5, 3, 17), (9, 64, 33), (4, 65, 170), (3, 132, 512), (5, 512, 300)]
TILED += [(3, 260, 1024), (2, 1000, 1030)]

# all ways in which values end up in lanes, at small sizes
PLANS = [
    Plan(H, blocks, rows, passes, outputs, splits, vector, kept)
    for H, blocks, rows, passes, outputs, splits, vector, kept in [
        (37, 1, 1, 1, 4, 4, 2, 5),
        (38, 1, 1, 1, 4, 32, 4, 1),
        (38, 1, 2, 1, 8, 8, 2, 2),
        (38, 1, 8, 1, 8, 4, 4, 1),
        (37, 2, 1, 1, 4, 8, 4, 2),
        (38, 2, 1, 3, 8, 32, 2, 0),
        (38, 4, 4, 2, 4, 8, 2, 1),
        (38, 4, 8, 1, 8, 4, 4, 3),
        (70, 8, 2, 8, 8, 16, 2, 3),
        (70, 8, 8, 2, 8, 32, 4, 1),
        (70, 16, 1, 1, 4, 16, 2, 2),
        (102, 16, 4, 3, 4, 32, 2, 1),
    ]
]
# with complex weights, of which a lane has both parts: odd numbers of units, and all numbers of
# values and copies of a lane
COMPLEX_PLANS = [replace(plan, is_complex=True) for plan in PLANS if plan.H % 2 == 0]
COMPLEX_PLANS += [
    Plan(2, 1, 1, 1, 4, 4, 2, 1, True),
    Plan(22, 2, 4, 2, 8, 8, 4, 1, True),
    Plan(54, 4, 4, 1, 4, 4, 2, 4, True),
    Plan(70, 4, 2, 1, 16, 32, 2, 1, True),
    Plan(70, 1, 1, 1, 16, 16, 4, 1, True),
]
# T, B, H as above: one block, clusters, and teams
COMPLEX_SIZES = [(1, 1, 2), (5, 1, 6), (9, 2, 34), (4, 5, 128), (12, 7, 200), (7, 50, 232)]
COMPLEX_SIZES += [(3, 128, 232), (5, 50, 380), (5, 50, 500), (3, 128, 500), (4, 50, 1024)]
COMPLEX_SIZES += [(2, 33, 1150), (2, 8, 1600), (2, 20, 2002)]


def inputs(
    T: int, B: int, H: int, nonlinearity: str, is_complex: bool = False
) -> tuple[Tensor, ...]:
    """x, h0, W with norm 1, b or None, and a gradient of h, as float32 holds them."""
    W = torch.complex(*torch.randn(2, H // 2, H // 2)) if is_complex else torch.randn(H, H)
    tensors = [torch.randn(T, B, H), torch.randn(B, H), acting_on_reals(torch.linalg.qr(W)[0])]
    # where b > 0, modReLU jumps at 0, and rounding can take it to the other side
    b = -(0.3 if KNOWN[nonlinearity].stacked else 1) * torch.rand(KNOWN[nonlinearity].thresholds(H))
    tensors += [b, torch.randn(T, B, H)]
    return tuple(tensor.float().double() for tensor in tensors)


def away_from_kinks(
    tensors: tuple[Tensor, ...],
    nonlinearity: str,
    reverse: bool,
    batch_sizes: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The same with another x, so that rounding takes no argument to the other side of a kink.

    Of the arguments of all these tests a few lie so near to a kink, and every order of a sum has
    another rounding.
    """
    x, h0, W, b, _ = tensors
    x, h, stacked = x.clone(), h0.clone(), KNOWN[nonlinearity].stacked
    threshold = b if len(b) else torch.zeros(())
    for t in step_order(len(x), reverse):
        # the rows that this step has
        B = len(h) if batch_sizes is None else int(batch_sizes[t])
        z = x[t, :B] + h[:B] @ W.mT
        size = torch.hypot(*z.chunk(2, -1)) if stacked else z.abs()
        near = ((size + threshold).abs() < 1e-4).repeat(1, 1 + stacked)
        x[t, :B] += 4e-4 * near * torch.where(z < 0, -1.0, 1.0)
        step, own = x[t : t + 1, :B], b if len(b) else None
        h[:B] = elman_loop(step, h[:B].clone(), W, own, nonlinearity=nonlinearity)[0]
    return x.float().double(), *tensors[1:]


def packed(tensors: tuple[Tensor, ...], batch_sizes: Tensor) -> tuple[Tensor, ...]:
    """The same with the first ``batch_sizes[t]`` rows of each step of x and of the gradient."""
    x, h0, W, b, g = tensors
    x, g = (torch.cat([v[t, :B] for t, B in enumerate(batch_sizes)]) for v in (x, g))
    return x, h0, W, b, g


def expected(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor,
    g: Tensor,
    *,
    nonlinearity: str,
    reverse: bool,
    batch_sizes: Tensor | None = None,
) -> list[Tensor]:
    """h and the gradients of x, h0, W and b, by the loop under autograd, in double precision."""
    leaves = [tensor.cuda().requires_grad_() for tensor in (x, h0, W, b)]
    h = elman_loop(
        *leaves[:3],
        b=leaves[3] if len(b) else None,
        nonlinearity=nonlinearity,
        reverse=reverse,
        batch_sizes=batch_sizes,
    )
    used = leaves if len(b) else leaves[:3]
    return [h, *torch.autograd.grad(h, used, g.cuda())]


def found(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor,
    g: Tensor,
    *,
    nonlinearity: str,
    reverse: bool,
    batch_sizes: Tensor | None = None,
    is_complex: bool = False,
) -> list[Tensor]:
    """The same by the kernels."""
    x, h0, W, b, g = (tensor.cuda().float() for tensor in (x, h0, W, b, g))
    threshold = b if len(b) else None
    options = batch_sizes, reverse, nonlinearity, is_complex
    call = ElmanCall(x, h0, W, threshold, None, None, *options)
    h, delta, grad_h0, *grad_b = both_ways(call, g)
    before = previous_states(h, h0, batch_sizes, reverse)
    grad_W = delta.flatten(0, -2).double().mT @ before.flatten(0, -2).double()
    return [h, delta, grad_h0, grad_W, *grad_b]


def both_ways(call: ElmanCall, g: Tensor) -> tuple[Any, ...]:
    """h, and the gradients of x, h0 and b, if there is one."""
    states = elman(call)
    needed = ("x", "h0") if call.b is None else ("x", "h0", "b")
    gradients = elman_backward(ElmanGradients(g), states, call, needed)
    return states.h, *(gradients[name] for name in needed)


def modrelu_ways(x: Tensor, h0: Tensor, W: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    return both_ways(ElmanCall(x, h0, W, b, nonlinearity="modrelu"), g)


def check(
    T: int,
    B: int,
    H: int,
    nonlinearity: str,
    reverse: bool = False,
    batch_sizes: Tensor | None = None,
    is_complex: bool = False,
) -> None:
    tensors = inputs(T, B, H, nonlinearity, is_complex)
    tensors = away_from_kinks(tensors, nonlinearity, reverse, batch_sizes)
    if batch_sizes is not None:
        tensors = packed(tensors, batch_sizes)
    options = {"nonlinearity": nonlinearity, "reverse": reverse, "batch_sizes": batch_sizes}
    results = found(*tensors, **options, is_complex=is_complex)
    pairs = zip(results, expected(*tensors, **options), strict=True)
    for name, (ours, theirs) in zip(("h", "x", "h0", "W", "b"), pairs, strict=False):
        error = (ours - theirs).norm() / theirs.norm().clamp(min=1)
        assert error <= 2e-6, f"{name} is off by {error:.1g}"


@gpu
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(size: tuple[int, int, int]) -> None:
    check(*size, "modrelu", reverse=size[1] % 2 == 1)


@gpu
@activations
@pytest.mark.parametrize("sizes", [[40] * 3, [40, 40, 7, 3, 1]], ids=["dense", "packed"])
def test_teams_where_there_are_no_clusters(
    sizes: list[int], nonlinearity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_plan(monkeypatch, None)
    batch_sizes = None if len(set(sizes)) == 1 else torch.tensor(sizes)
    for reverse in (False, True):
        check(len(sizes), sizes[0], 426, nonlinearity, reverse, batch_sizes)


def force_tiles(monkeypatch: pytest.MonkeyPatch, kind: TileKind, H: int) -> None:
    if tiles(H, kind, chip(0)) is None:
        pytest.skip(f"{H} units have no tiles here")
    force_elman_tiles(monkeypatch, kind)


@gpu
@kinds
@pytest.mark.parametrize("size", TILED, ids=str)
def test_tiles(size: tuple[int, int, int], kind: TileKind, monkeypatch: pytest.MonkeyPatch) -> None:
    force_tiles(monkeypatch, kind, size[2])
    check(*size, "modrelu", reverse=size[1] % 2 == 0)


@gpu
@kinds
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("nonlinearity", [phi for phi in ACTIVATIONS if not KNOWN[phi].stacked])
@pytest.mark.parametrize("sizes", [[70] * 4, [300, 130, 64, 9, 1], [1], [1, 1]], ids=str)
def test_tiles_of_packed_sequences(
    sizes: list[int],
    nonlinearity: str,
    reverse: bool,
    kind: TileKind,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    force_tiles(monkeypatch, kind, 171)
    packing = None if len(set(sizes)) == 1 else torch.tensor(sizes)
    for H in (1, 33, 171):
        check(len(sizes), sizes[0], H, nonlinearity, reverse, packing)


@gpu
@kinds
def test_tiles_repeat_themselves_bit_for_bit(
    kind: TileKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over so many steps that a block which reads too early would be seen."""
    force_tiles(monkeypatch, kind, 1024)
    tensors = [tensor.cuda().float() for tensor in inputs(300, 300, 1024, "modrelu")]
    first = modrelu_ways(*tensors)
    for _ in range(5):
        for one, other in zip(first, modrelu_ways(*tensors), strict=True):
            assert torch.equal(one, other)


@gpu
@activations
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", [(6, 3, 38), (5, 4, 426)], ids=str)
def test_activations(nonlinearity: str, reverse: bool, size: tuple[int, int, int]) -> None:
    check(*size, nonlinearity, reverse)


@gpu
@pytest.mark.parametrize("nonlinearity", ["modrelu", "modrelu_stacked"])
@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("B", [1, 13])
def test_plans(plan: Plan, B: int, nonlinearity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if plan.blocks > chip(0).cluster:
        pytest.skip(f"this GPU has no clusters of {plan.blocks} blocks")
    if nonlinearity == "modrelu_stacked" and plan.H % 2:
        pytest.skip("complex numbers have two parts")
    force_plan(monkeypatch, plan)
    for T in (1, 2, 5):
        check(T, B, plan.H, nonlinearity, reverse=T == 2)


@gpu
@pytest.mark.parametrize("size", COMPLEX_SIZES, ids=str)
def test_complex_sizes(size: tuple[int, int, int]) -> None:
    check(*size, "modrelu_stacked", reverse=size[1] % 2 == 1, is_complex=True)


@gpu
@pytest.mark.parametrize("nonlinearity", ["modrelu", "modrelu_stacked"])
@pytest.mark.parametrize("plan", COMPLEX_PLANS, ids=str)
def test_complex_plans(plan: Plan, nonlinearity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if plan.blocks > chip(0).cluster:
        pytest.skip(f"this GPU has no clusters of {plan.blocks} blocks")
    force_plan(monkeypatch, plan)
    for B, T in ((1, 1), (13, 1), (1, 5), (13, 5)):
        check(T, B, plan.H, nonlinearity, reverse=T == 1, is_complex=True)
    for sizes in ([13, 13, 12, 7, 7, 1], [40], [9, 8, 7, 6, 5, 4, 3, 2, 1]):
        packing = torch.tensor(sizes)
        check(len(sizes), sizes[0], plan.H, nonlinearity, True, packing, is_complex=True)


@gpu
@pytest.mark.parametrize("H", [38, 426])
@pytest.mark.parametrize("sizes", [[40] * 3, [40, 40, 7, 3, 1]], ids=["dense", "packed"])
def test_complex_teams(sizes: list[int], H: int, monkeypatch: pytest.MonkeyPatch) -> None:
    force_plan(monkeypatch, None)
    packing = None if len(set(sizes)) == 1 else torch.tensor(sizes)
    for reverse in (False, True):
        check(len(sizes), sizes[0], H, "modrelu_stacked", reverse, packing, is_complex=True)


@gpu
@pytest.mark.parametrize("H", [128, 500])
def test_complex_drift_over_2000_steps(H: int) -> None:
    x, h0, W, b, g = inputs(2000, 2, H, "modrelu_stacked", is_complex=True)
    tensors = (0.1 * x, h0, W, torch.zeros_like(b), g)
    options = {"nonlinearity": "modrelu_stacked", "reverse": False}
    ours = found(*tensors, **options, is_complex=True)
    for one, other in zip(ours, expected(*tensors, **options), strict=True):
        assert (one - other).norm() <= 1e-4 * other.norm()


@gpu
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("nonlinearity", ["modrelu", "modrelu_stacked"])
@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_plans_of_packed_sequences(
    plan: Plan, nonlinearity: str, reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plan.blocks > chip(0).cluster:
        pytest.skip(f"this GPU has no clusters of {plan.blocks} blocks")
    if nonlinearity == "modrelu_stacked" and plan.H % 2:
        pytest.skip("complex numbers have two parts")
    force_plan(monkeypatch, plan)
    for sizes in ([13, 13, 12, 7, 7, 1], [1, 1, 1], [40], [5, 5], [9, 8, 7, 6, 5, 4, 3, 2, 1]):
        check(len(sizes), sizes[0], plan.H, nonlinearity, reverse, torch.tensor(sizes))


@gpu
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("H", [95, 512])
def test_many_packed_sequences(H: int, reverse: bool) -> None:
    """More rows than run at a time, and more steps than are read ahead."""
    sizes = torch.tensor([300] * 20 + [131] * 3 + [130] * 20 + [7] * 9 + [1] * 12)
    check(len(sizes), 300, H, "modrelu", reverse, sizes)


@gpu
def test_packed_sequences_of_one_length_are_dense_ones() -> None:
    tensors = inputs(6, 5, 70, "modrelu")
    sizes = torch.tensor([5] * 6)
    options = {"nonlinearity": "modrelu", "reverse": True}
    dense = found(*tensors, **options)
    for ours, theirs in zip(
        found(*packed(tensors, sizes), **options, batch_sizes=sizes), dense, strict=True
    ):
        assert torch.equal(ours.view_as(theirs), theirs)


@gpu
@activations
@pytest.mark.parametrize("H", [38, 258])
def test_gradients_are_those_of_finite_differences(nonlinearity: str, H: int) -> None:
    """Along a random direction: ⟨∇L, v⟩ = dL/dε at (x, h0, W, b) + ε v."""
    tensors = inputs(4, 3, H, nonlinearity)
    *point, g = tensors
    _, *gradients = found(*tensors, nonlinearity=nonlinearity, reverse=False)
    directions = [torch.randn_like(tensor) for tensor in point]

    def loss(epsilon: float) -> Tensor:
        moved = [p + epsilon * v for p, v in zip(point, directions, strict=True)]
        x, h0, W, b = moved
        h = elman_loop(x, h0, W, b if len(b) else None, nonlinearity=nonlinearity)
        return (h * g).sum()

    slope = (loss(1e-6) - loss(-1e-6)) / 2e-6
    ours = sum(
        (gradient.cpu().double() * v).sum()
        for gradient, v in zip(gradients, directions, strict=False)
    )
    scale = float(sum(gradient.norm() for gradient in gradients))
    assert abs(ours - slope) <= 1e-5 * max(scale, 1)


@gpu
@pytest.mark.parametrize("H", [95, 300])
def test_drift_over_2000_steps(H: int) -> None:
    """An orthogonal recurrence keeps every rounding error; it must not add to them."""
    x, h0, W, b, g = inputs(2000, 2, H, "modrelu")
    tensors = (0.1 * x, h0, W, torch.zeros_like(b), g)
    options = {"nonlinearity": "modrelu", "reverse": False}
    for ours, theirs in zip(found(*tensors, **options), expected(*tensors, **options), strict=True):
        assert (ours - theirs).norm() <= 1e-4 * theirs.norm()


@gpu
@pytest.mark.parametrize("size", [(9, 5, 70), (9, 60, 512), (5, 8, 1030)], ids=str)
def test_repeats_itself_bit_for_bit(size: tuple[int, int, int]) -> None:
    tensors = inputs(*size, "modrelu")
    options = {"nonlinearity": "modrelu", "reverse": False}
    first = found(*tensors, **options)
    for _ in range(10):
        for one, other in zip(first, found(*tensors, **options), strict=True):
            assert torch.equal(one, other)


@gpu
def test_reads_nothing_that_it_has_not_written() -> None:
    tensors = inputs(4, 5, 70, "modrelu_stacked")
    options = {"nonlinearity": "modrelu_stacked", "reverse": False}
    first = found(*tensors, **options)
    torch.use_deterministic_algorithms(True)  # new memory is filled with NaN
    try:
        second = found(*tensors, **options)
    finally:
        torch.use_deterministic_algorithms(False)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


@gpu
@activations
@pytest.mark.parametrize("H", [6, 300])
def test_a_nan_stays_in_its_sequence(nonlinearity: str, H: int) -> None:
    x, h0, W, b, _ = (t.cuda().float() for t in inputs(4, 3, H, nonlinearity))
    call = ElmanCall(x, h0, W, b if len(b) else None, nonlinearity=nonlinearity)
    clean, _ = elman(call)
    x[1, 2, 0] = torch.nan
    h, _ = elman(call)
    assert torch.equal(h[:, :2], clean[:, :2])
    assert torch.equal(h[0], clean[0])
    assert h[2:, 2].isnan().all()


@gpu
@activations
@pytest.mark.parametrize("reverse", [False, True])
def test_a_nan_stays_in_its_packed_sequence(
    nonlinearity: str, reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where a block computes all three rows at a time, and two of them have ended."""
    force_plan(monkeypatch, Plan(38, 1, 8, 1, 8, 4, 4, 1))
    sizes = torch.tensor([3, 2, 1])
    x, *others = packed(inputs(3, 3, 38, nonlinearity), sizes)
    options = {"nonlinearity": nonlinearity, "reverse": reverse, "batch_sizes": sizes}
    clean = found(x, *others, **options)
    x[5, 0] = torch.nan
    h, delta, grad_h0, *_ = found(x, *others, **options)
    assert h[5].isnan().any()
    rest = [1, 2, 4]  # the steps of the other two
    assert torch.equal(h[rest], clean[0][rest])
    assert torch.equal(delta[rest], clean[1][rest])
    assert torch.equal(grad_h0[1:], clean[2][1:])


@gpu
def test_modrelu_of_zero_is_zero() -> None:
    x, W, b = torch.zeros(2, 1, 3), torch.eye(3), torch.ones(3)
    x, h0, W, b = (t.cuda().float() for t in (x, x[0], W, b))
    h, _ = elman(ElmanCall(x, h0, W, b, nonlinearity="modrelu"))
    assert torch.equal(h, torch.zeros_like(h))


@gpu
def test_tensors_that_are_not_contiguous() -> None:
    tensors = [t.cuda().float() for t in inputs(4, 3, 38, "modrelu")]
    expected = modrelu_ways(*tensors)

    def strided(tensor: Tensor) -> Tensor:
        return torch.stack((tensor, tensor), -1)[..., 0]

    assert not strided(tensors[0]).is_contiguous()
    for ours, theirs in zip(modrelu_ways(*map(strided, tensors)), expected, strict=True):
        assert torch.equal(ours, theirs)
    # the gradient of a sum is one number, expanded
    *others, g = tensors
    one = g[:1, :1, :1].expand_as(g)
    expanded, full = (modrelu_ways(*others, g=v) for v in (one, one.contiguous()))
    for ours, theirs in zip(expanded, full, strict=True):
        assert torch.equal(ours, theirs)


@gpu
@pytest.mark.parametrize("H", [38, 300])
def test_cuda_graphs(H: int) -> None:
    tensors = [t.cuda().float() for t in inputs(6, 4, H, "modrelu")]
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        modrelu_ways(*tensors)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        captured = modrelu_ways(*tensors)
    for tensor, value in zip(tensors, inputs(6, 4, H, "modrelu"), strict=True):
        tensor.copy_(value)
    graph.replay()
    for ours, theirs in zip(captured, modrelu_ways(*tensors), strict=True):
        assert torch.equal(ours, theirs)


@gpu
def test_captures_a_graph_with_a_kernel_that_is_not_loaded_yet() -> None:
    cuda._kernel.cache_clear()
    tensors = [t.cuda().float() for t in inputs(3, 2, 22, "modrelu")]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = modrelu_ways(*tensors)
    graph.replay()
    for ours, theirs in zip(captured, modrelu_ways(*tensors), strict=True):
        assert torch.equal(ours, theirs)


def on_a_side_stream(run: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)  # the null stream would overtake this
        result = run()
    stream.synchronize()
    return result


def on_a_thread(run: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    results: list[tuple[Tensor, ...]] = []
    thread = threading.Thread(target=lambda: results.append(run()))
    thread.start()
    thread.join()
    return results[0]


@gpu
@pytest.mark.parametrize("place", [on_a_side_stream, on_a_thread])
def test_streams_and_threads(place: Callable) -> None:
    tensors = [t.cuda().float() for t in inputs(6, 4, 38, "modrelu")]

    def run() -> tuple[Tensor, ...]:
        return modrelu_ways(tensors[0] + 1, *tensors[1:])

    theirs = run()
    torch.cuda.synchronize()
    for one, other in zip(place(run), theirs, strict=True):
        assert torch.equal(one, other)


@gpu
def test_many_clusters_at_a_time() -> None:
    """More clusters than fit on the chip, on several streams: they take turns, and none waits."""
    tensors = [t.cuda().float() for t in inputs(20, 500, 512, "modrelu")]
    theirs = modrelu_ways(*tensors)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    results = []
    for stream in streams:
        with torch.cuda.stream(stream):
            results.append(modrelu_ways(*tensors))
    torch.cuda.synchronize()
    for ours in results:
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other)


@gpu
def test_several_devices() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    tensors = [t.float() for t in inputs(6, 4, 300, "modrelu")]
    results = [modrelu_ways(*(t.to(device) for t in tensors)) for device in ("cuda:0", "cuda:1")]
    for one, other in zip(*results, strict=True):
        assert torch.equal(one.cpu(), other.cpu())


@gpu
def test_no_rows() -> None:
    x, W = torch.zeros(3, 0, 5), torch.eye(5)
    x, h0, W = (t.cuda().float() for t in (x, x[0], W))
    call = ElmanCall(x, h0, W)
    h, delta, grad_h0 = both_ways(call, call.x)
    assert h.shape == x.shape
    assert delta.shape == x.shape
    assert grad_h0.shape == h0.shape


def check_equal(name: str, ours: Any, theirs: Any) -> None:
    error = (ours - theirs).norm() / theirs.norm()
    assert error <= 2e-6, f"{name} is off by {error:.1g}"


@gpu
@pytest.mark.parametrize("is_complex", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("H", [60, 170, 360, 512])
def test_networks_in_one_launch(H: int, is_complex: bool) -> None:
    """Against single ones. All share their input."""
    T, B, G = 6, 50, 5
    nonlinearity = "modrelu_stacked" if is_complex else "modrelu"
    drawn = [inputs(T, B, H, nonlinearity, is_complex) for _ in range(G)]
    x, h0, W, b, g = (torch.stack(column).cuda().float() for column in zip(*drawn, strict=True))
    own: dict[str, Any] = {"x": x[0], "h0": h0, "W": W, "b": b}

    def made(tensors: dict[str, Any]) -> ElmanCall:
        return ElmanCall(**tensors, nonlinearity=nonlinearity, is_complex=is_complex)

    together = made({**own, "x": x[:1].expand_as(x)})
    assert cuda.takes_networks(made({n: v if n == "x" else v[0] for n, v in own.items()}), G)
    states = elman(together)
    gradients: dict[str, Any] = elman_backward(ElmanGradients(g), states, together, [*own])
    for k in range(G):
        alone = made({n: v if n == "x" else v[k] for n, v in own.items()})
        check_equal("h", states.h[k], elman(alone).h)
        # from the same states: φ jumps where rounding may decide on its side
        same = ElmanStates(states.h[k], states.z[k])
        for name, theirs in elman_backward(ElmanGradients(g[k]), same, alone, [*own]).items():
            if name in own:
                check_equal(name, gradients[name][k], theirs)


@gpu
def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(T: int, B: int, H: int) -> ElmanCall:
        zeros = partial(torch.zeros, device="cuda", dtype=torch.float32)
        return ElmanCall(zeros(T, B, H), zeros(B, H), zeros(H, H))

    small = call(3, 2, 5)
    assert refusal(small) is None
    assert refusal(call(3, 0, 512)) is None
    assert "float32, not torch.float64" in (refusal(small._replace(W=small.W.double())) or "")
    packed = small._replace(x=small.x.flatten(0, 1)[:3], batch_sizes=torch.tensor([2, 1]))
    assert refusal(packed) is None
    assert refusal(small, ElmanGradients(small.x)) is None
    assert "float64" in (refusal(small, ElmanGradients(small.x.double())) or "")
    assert "first derivatives" in (refusal(small, ElmanGradients(small.x, small.x)) or "")
    assert "have no softsign" in (refusal(small._replace(nonlinearity="softsign")) or "")
    assert "do not fit" in (refusal(call(1, 1, 6000)) or "")
    monkeypatch.setattr(cuda, "_clusters", lambda *_: 0)
    assert refusal(call(1, 1, 512)) is None  # by a team
