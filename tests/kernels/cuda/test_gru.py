"""The kernels against the loop in double precision: outputs and every gradient."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from teams import choose_steps, fill_new_memory, force_steps, force_team, force_tiles
from torch import Tensor

import cayley
from cayley.kernels.calls import GruCall, GruGradients
from cayley.kernels.cuda import gru as cuda
from cayley.kernels.cuda.gru import TILES, gru_backward, refusal
from cayley.kernels.cuda.runtime import chip as chips
from cayley.kernels.cuda.runtime.blocks import BlockLayout
from cayley.kernels.cuda.runtime.chip import chip
from cayley.kernels.cuda.runtime.tiles import tiles
from cayley.recurrences import gru, gru_loop

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
candidates = pytest.mark.parametrize("candidate", ["modrelu", "tanh"])

# T, B, H: odd sizes, more rows than multiprocessors, and weights that need shared memory
SIZES = [(1, 1, 1), (1, 3, 2), (5, 1, 3), (9, 2, 17), (4, 5, 60), (7, 20, 68), (3, 200, 33)]
SIZES += [(12, 7, 100), (3, 150, 100), (5, 3, 127), (6, 4, 128), (3, 2, 150)]
# teams of blocks: few rows and more than they take at a time, units that blocks share unevenly
LARGE = [(1, 1, 161), (7, 1, 200), (4, 20, 257), (5, 130, 300), (3, 128, 512), (2, 33, 1030)]
LARGE += [(2, 128, 1024)]
SIZES += LARGE
TILED = [*(size for size in LARGE if size[2] <= 1024), (2, 70, 1000), (40, 130, 1024)]


def inputs(T: int, B: int, H: int, candidate: str) -> list[Tensor]:
    """x, h0, W of three matrices with norm 1, and b, as float32 holds them."""
    W = torch.cat([torch.linalg.qr(torch.randn(H, H))[0] for _ in range(3)])
    tensors = [torch.randn(T, B, 3 * H), torch.randn(B, H), W]
    if candidate == "modrelu":
        # where b > 0, modReLU jumps at 0, and rounding can take it to the other side
        tensors.append(-0.3 * torch.rand(H))
    return [tensor.float().double() for tensor in tensors]


def results(
    function: Callable,
    tensors: list[Tensor],
    g: Tensor,
    reverse: bool = False,
    batch_sizes: Tensor | None = None,
) -> list[Tensor]:
    """h and the gradients of all tensors."""
    leaves = [tensor.cuda().requires_grad_() for tensor in tensors]
    h = function(*leaves, reverse=reverse, batch_sizes=batch_sizes)
    return [h.detach(), *torch.autograd.grad(h, leaves, g.cuda().to(h.dtype))]


def found(
    tensors: list[Tensor],
    g: Tensor,
    reverse: bool = False,
    batch_sizes: Tensor | None = None,
) -> list[Tensor]:
    """The same by the kernels, or an error."""
    with cayley.backend("cuda"):
        return results(gru, [tensor.float() for tensor in tensors], g, reverse, batch_sizes)


def check(
    T: int,
    B: int,
    H: int,
    candidate: str,
    reverse: bool = False,
    batch_sizes: Tensor | None = None,
) -> None:
    tensors, g = inputs(T, B, H, candidate), torch.randn(T, B, H).float().double()
    if batch_sizes is not None:
        tensors[0], g = (
            torch.cat([v[t, :size] for t, size in enumerate(batch_sizes)]) for v in (tensors[0], g)
        )
    options = (reverse, batch_sizes)
    pairs = zip(found(tensors, g, *options), results(gru_loop, tensors, g, *options), strict=True)
    for name, (ours, theirs) in zip(("h", "x", "h0", "W", "b"), pairs, strict=False):
        error = (ours - theirs).norm() / theirs.norm().clamp(min=1)
        assert error <= 2e-6, f"{name} is off by {error:.1g}"


def skip_on_small_chips(H: int) -> None:
    if H > 800 and torch.cuda.get_device_properties(0).multi_processor_count < 100:
        pytest.skip(f"{H} units need about 100 multiprocessors")


def skip_without_tiles(H: int) -> None:
    if tiles(H, TILES["forward"], chip(0)) is None:
        pytest.skip(f"{H} units have no tiles here")


@gpu
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(size: tuple[int, int, int]) -> None:
    skip_on_small_chips(size[2])
    check(*size, "modrelu", reverse=size[1] % 2 == 1)


@gpu
@candidates
@pytest.mark.parametrize("reverse", [False, True])
def test_candidates(candidate: str, reverse: bool) -> None:
    check(6, 3, 38, candidate, reverse)


@gpu
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("H", [33, 100, 128, 200])
def test_packed_sequences(H: int, reverse: bool) -> None:
    """Few and many rows, lengths that repeat and differ, more steps than are read ahead."""
    for sizes in ([5, 5, 3, 2, 2, 1], [1, 1, 1], [40], [3] * 9, [200] * 3 + [9] * 12 + [2] * 4):
        check(len(sizes), sizes[0], H, "modrelu", reverse, torch.tensor(sizes))


@gpu
@pytest.mark.parametrize("spare", [60, 120, 255])
def test_weights_in_shared_memory(spare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cuda,
        "best_block_layout",
        lambda H, f, streams, extra, *_: BlockLayout(H, f, streams, extra, spare),
    )
    check(4, 3, 70, "modrelu")


# blocks, rows, threads and outputs: single rows, warps without one, sums in parts
TEAMS = [(2, 1, 128, 4), (4, 2, 128, 4), (2, 8, 384, 4), (3, 4, 256, 8)]


@gpu
@candidates
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("sizes", [[11] * 4, [11, 10, 9, 3, 1]], ids=["dense", "packed"])
@pytest.mark.parametrize("team", TEAMS, ids=str)
def test_teams_that_take_their_rows_in_turn(
    team: tuple[int, int, int, int],
    sizes: list[int],
    reverse: bool,
    candidate: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    force_team(monkeypatch, team)
    packed = None if len(set(sizes)) == 1 else torch.tensor(sizes)
    check(len(sizes), sizes[0], 33, candidate, reverse, packed)


@gpu
@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize("size", LARGE, ids=str)
def test_plans_of_large_sizes(
    size: tuple[int, int, int], stepwise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_on_small_chips(size[2])
    force_steps(monkeypatch, stepwise)
    check(*size, "tanh", reverse=size[1] % 2 == 0)


@gpu
@pytest.mark.parametrize("size", TILED, ids=str)
def test_tiles(size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_tiles(size[2])
    force_tiles(monkeypatch)
    check(*size, "modrelu", reverse=size[1] % 2 == 0)


@gpu
@candidates
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("sizes", [[70] * 4, [150, 130, 64, 9, 1], [1], [1, 1]], ids=str)
@pytest.mark.parametrize("H", [1, 33, 171])
def test_tiles_of_packed_sequences(
    H: int, sizes: list[int], reverse: bool, candidate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_tiles(monkeypatch)
    packed = None if len(set(sizes)) == 1 else torch.tensor(sizes)
    check(len(sizes), sizes[0], H, candidate, reverse, packed)


@gpu
def test_tiles_repeat_themselves_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over so many steps that a block which reads too early would be seen."""
    skip_without_tiles(1024)
    force_tiles(monkeypatch)
    tensors = [tensor.cuda().float() for tensor in inputs(300, 128, 1024, "modrelu")]
    g = torch.randn(300, 128, 1024).cuda().float()
    first = both_ways(*tensors, g=g)
    for _ in range(5):
        for one, other in zip(first, both_ways(*tensors, g=g), strict=True):
            assert torch.equal(one, other)


@gpu
@candidates
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("sizes", [[11] * 4, [11, 10, 9, 3, 1], [1], [1, 1]], ids=str)
@pytest.mark.parametrize("H", [1, 33, 171])
def test_steps_one_by_one(
    H: int, sizes: list[int], reverse: bool, candidate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_steps(monkeypatch)
    packed = None if len(set(sizes)) == 1 else torch.tensor(sizes)
    check(len(sizes), sizes[0], H, candidate, reverse, packed)


@gpu
def test_steps_write_all_that_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """On memory that is full of NaN the bits are the same."""
    force_steps(monkeypatch)
    tensors = [tensor.cuda().float() for tensor in inputs(9, 40, 300, "modrelu")]
    g = torch.randn(9, 40, 300).cuda().float()
    theirs = both_ways(*tensors, g=g)
    fill_new_memory(monkeypatch)
    for one, other in zip(both_ways(*tensors, g=g), theirs, strict=True):
        assert torch.equal(one, other)


@gpu
def test_tf32_changes_nothing() -> None:
    """Where the plan would be step by step, too."""
    tensors = [tensor.cuda().float() for tensor in inputs(3, 256, 1024, "tanh")]
    x, h0, W = tensors
    exact = gru_loop(*(tensor.double() for tensor in tensors))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        h = cuda.gru(GruCall(x, h0, W)).h
    finally:
        torch.set_float32_matmul_precision(before)
    assert (h - exact).norm() <= 2e-6 * exact.norm()


@gpu
@candidates
def test_gradients_are_those_of_finite_differences(candidate: str) -> None:
    """Along a random direction: ⟨∇L, v⟩ = dL/dε at (x, h0, W, b) + ε v."""
    point, g = inputs(4, 3, 38, candidate), torch.randn(4, 3, 38).float().double()
    _, *gradients = found(point, g)
    directions = [torch.randn_like(tensor) for tensor in point]

    def loss(epsilon: float) -> Tensor:
        moved = [p + epsilon * v for p, v in zip(point, directions, strict=True)]
        return (gru_loop(*moved) * g).sum()

    slope = (loss(1e-6) - loss(-1e-6)) / 2e-6
    ours = sum(
        (gradient.cpu().double() * v).sum()
        for gradient, v in zip(gradients, directions, strict=True)
    )
    scale = float(sum(gradient.norm() for gradient in gradients))
    assert abs(ours - slope) <= 1e-5 * max(scale, 1)


@gpu
@pytest.mark.parametrize("H", [60, 200])
def test_drift_over_2000_steps(H: int) -> None:
    tensors, g = inputs(2000, 2, H, "modrelu"), torch.randn(2000, 2, H).float().double()
    for ours, theirs in zip(found(tensors, g), results(gru_loop, tensors, g), strict=True):
        assert (ours - theirs).norm() <= 1e-4 * theirs.norm()


@gpu
@pytest.mark.parametrize("H", [100, 300])
def test_repeats_itself_bit_for_bit_and_reads_only_what_it_has_written(
    H: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_steps(monkeypatch, stepwise=False)  # before and after
    tensors, g = inputs(9, 140, H, "modrelu"), torch.randn(9, 140, H)
    first = found(tensors, g)
    torch.use_deterministic_algorithms(True)  # new memory is filled with NaN
    try:
        for _ in range(5):
            for one, other in zip(first, found(tensors, g), strict=True):
                assert torch.equal(one, other)
    finally:
        torch.use_deterministic_algorithms(False)


@gpu
@candidates
def test_a_nan_stays_in_its_sequence(candidate: str) -> None:
    tensors = [tensor.cuda().float() for tensor in inputs(4, 3, 6, candidate)]
    with cayley.backend("cuda"):
        clean = gru(*tensors)
        tensors[0][1, 2, 0] = torch.nan
        h = gru(*tensors)
    assert torch.equal(h[:, :2], clean[:, :2])
    assert torch.equal(h[0], clean[0])
    assert h[2:, 2].isnan().all()


@gpu
def test_gates_that_are_shut_keep_the_state_exactly() -> None:
    x, W = torch.zeros(3, 2, 15).cuda().float(), torch.zeros(15, 5).cuda().float()
    x[..., 5:10] = -200
    h0 = torch.randn(2, 5).cuda().float()
    with cayley.backend("cuda"):
        assert torch.equal(gru(x, h0, W), h0.expand(3, 2, 5))


def strided(tensor: Tensor) -> Tensor:
    return torch.stack((tensor, tensor), -1)[..., 0]


def both_ways(x: Tensor, h0: Tensor, W: Tensor, b: Tensor, g: Tensor) -> tuple[Any, ...]:
    """h, the gates, and the gradients of x, h0, W and b."""
    call = GruCall(x, h0, W, b)
    states = cuda.gru(call)
    needed = ("x", "h0", "W", "b")
    gradients = gru_backward(GruGradients(g), states, call, needed)
    return *states, *(gradients[name] for name in needed)


@gpu
def test_tensors_that_are_not_contiguous() -> None:
    x, h0, W, b = (tensor.cuda().float() for tensor in inputs(4, 3, 38, "modrelu"))
    g = torch.randn(1).cuda().float().expand(4, 3, 38)
    expected = both_ways(x, h0, W, b, g.contiguous())
    again = both_ways(strided(x), strided(h0), strided(W), strided(b), g)
    for ours, theirs in zip(again, expected, strict=True):
        assert torch.equal(ours, theirs)


@gpu
@pytest.mark.parametrize(("H", "stepwise"), [(22, None), (170, False), (26, True)])
def test_captures_a_graph_with_a_kernel_that_is_not_loaded_yet(
    H: int, stepwise: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if stepwise is not None:
        force_steps(monkeypatch, stepwise)
    tensors = [tensor.cuda().float() for tensor in inputs(6, 4, H, "modrelu")]
    g = torch.randn(6, 4, H).cuda().float()
    if stepwise:
        torch.mm(tensors[1].mT, tensors[1])  # torch itself cannot load cuBLAS into a graph
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both_ways(*tensors, g=g)
    for tensor, value in zip(tensors, inputs(6, 4, H, "modrelu"), strict=True):
        tensor.copy_(value)
    graph.replay()
    for ours, theirs in zip(captured, both_ways(*tensors, g=g), strict=True):
        assert torch.equal(ours, theirs)


@gpu
@pytest.mark.parametrize(("H", "stepwise"), [(38, None), (190, False), (38, True)])
def test_a_side_stream(H: int, stepwise: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if stepwise is not None:
        force_steps(monkeypatch, stepwise)
    tensors = [tensor.cuda().float() for tensor in inputs(6, 4, H, "modrelu")]
    g = torch.randn(6, 4, H).cuda().float()
    theirs = both_ways(tensors[0] + 1, *tensors[1:], g=g)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)  # the null stream would overtake this
        ours = both_ways(tensors[0] + 1, *tensors[1:], g=g)
    stream.synchronize()
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


@gpu
def test_teams_on_two_streams_do_not_wait_for_each_other() -> None:
    """Two launches that together have more blocks than the device runs at a time."""
    tensors = [tensor.cuda().float() for tensor in inputs(50, 64, 300, "modrelu")]
    g = torch.randn(50, 64, 300).cuda().float()
    theirs = both_ways(*tensors, g=g)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    found = []
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)  # until launches are waiting on both
    for _ in range(5):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(both_ways(*tensors, g=g))
    torch.cuda.synchronize()
    for ours in found:
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other)


@gpu
def test_no_rows() -> None:
    x, h0, W = (torch.zeros(size).cuda().float() for size in ((3, 0, 15), (0, 5), (15, 5)))
    call = GruCall(x, h0, W)
    states = cuda.gru(call)
    assert states.h.shape == (3, 0, 5)
    found: Any = gru_backward(GruGradients(states.h), states, call, ("x", "h0", "W"))
    assert found["x"].shape == x.shape
    assert found["h0"].shape == h0.shape
    assert torch.equal(found["W"], torch.zeros_like(W))
    call = GruCall(x[..., :2], h0, W, None, torch.zeros(15, 2).cuda().float(), x.new_zeros(15))
    of_all: Any = gru_backward(GruGradients(states.h), states, call, ("x", "h0", "W", "U", "c"))
    assert [of_all[name].shape for name in ("x", "U", "c")] == [(3, 0, 2), (15, 2), (15,)]


@gpu
@candidates
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("little", [0, cuda.LITTLE])
@pytest.mark.parametrize("H", [33, 128, 150])
def test_networks_in_one_launch(
    H: int, little: float, reverse: bool, candidate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against single ones. All share their input."""
    monkeypatch.setattr(cuda, "LITTLE", little)
    T, B, G = 7, 60, 5
    columns = zip(*(inputs(T, B, H, candidate) for _ in range(G)), strict=True)
    names = ("x", "h0", "W", "b")
    own: dict[str, Any] = {k: torch.stack(v) for k, v in zip(names, columns, strict=False)}
    own |= {"x": torch.randn(T, B, 3), "U": torch.randn(G, 3 * H, 3), "c": torch.randn(G, 3 * H)}
    own = {name: tensor.cuda().float() for name, tensor in own.items()}
    g = torch.randn(G, T, B, H).cuda().float()

    def found(g: Tensor, tensors: dict[str, Any]) -> list[Any]:
        call = GruCall(**tensors, reverse=reverse)
        states = cuda.gru(call)
        gradients = gru_backward(GruGradients(g), states, call, [*tensors])
        return [*states, *(gradients[name] for name in tensors)]

    together = found(g, {**own, "x": own["x"].expand(G, T, B, 3)})
    for k in range(G):
        alone = found(g[k], {n: v if n == "x" else v[k] for n, v in own.items()})
        assert cuda.takes_networks(GruCall(own["x"], own["h0"][k], own["W"][k]), G)
        for name, ours, theirs in zip(("h", "gates", *own), together, alone, strict=True):
            error = (ours[k] - theirs).norm() / theirs.norm()
            assert error <= 2e-6, f"{name} is off by {error:.1g}"


def empty_call(B: int, H: int) -> GruCall:
    x, h0, W = (torch.zeros(size) for size in ((1, B, 3 * H), (B, H), (3 * H, H)))
    return GruCall(x.cuda().float(), h0.cuda().float(), W.cuda().float())


@gpu
def test_refusals() -> None:
    call = empty_call(2, 5)
    h = call.h0[None]
    assert refusal(call) is None
    assert "float32, not torch.float64" in (refusal(call._replace(W=call.W.double())) or "")
    assert refusal(call, GruGradients(h)) is None
    assert "first derivatives" in (refusal(call, GruGradients(h, call.x)) or "")
    assert refusal(empty_call(1, 600)) is None
    assert "do not fit" in (refusal(empty_call(1, 3000)) or "")


@gpu
def test_drivers_without_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    lone = replace(chip(0), together=False)
    for module in (cuda, chips):
        monkeypatch.setattr(module, "chip", lambda _: lone)
    monkeypatch.setattr(cuda, "_has_room", cuda._has_room.__wrapped__)
    assert refusal(empty_call(2, 5)) is None
    assert "driver has no teams" in (refusal(empty_call(1, 600)) or "")
