"""The kernels against the loop in double precision: outputs, statistics and every gradient."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from teams import choose_steps, fill_new_memory, force_steps, force_team
from torch import Tensor

import cayley
from cayley.kernels.calls import LstmCall, LstmGradients, Site
from cayley.kernels.cuda.lstm import kernels as lstm_kernels
from cayley.kernels.cuda.lstm import recurrence as cuda
from cayley.kernels.cuda.lstm.references import references
from cayley.kernels.cuda.runtime.blocks import BlockLayout
from cayley.norms.windows import TimeWindow
from cayley.recurrences import NormSite, lstm, lstm_loop

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
NAMES = ("input", "recurrent", "cell")


class Case(NamedTuple):
    """A size, which normalisations there are, their window, and whether there is a past and a b.

    Packed, the first half of the sequences have all steps, and the others end one after another.
    """

    T: int
    B: int
    H: int
    norms: str = ""
    window: int = 1
    past: bool = False
    bias: bool = True
    packed: bool = False

    @property
    def batch_sizes(self) -> Tensor | None:
        sizes = (self.B - torch.arange(self.T)).clamp(min=(self.B + 1) // 2)
        return sizes if self.packed else None


# x, h and c are N_x, N_h and N_c
SIZES = [(1, 1, 1), (1, 3, 2), (5, 1, 3), (9, 2, 17), (4, 5, 60), (7, 20, 68), (3, 200, 33)]
SIZES += [(12, 7, 100), (3, 150, 100), (5, 3, 127), (6, 4, 128)]
CASES = [Case(*size) for size in SIZES]
CASES += [Case(*size, "xhc") for size in SIZES if size[2] > 3]
CASES += [Case(*size, "xhc", 4) for size in SIZES if size[2] > 3]
CASES += [Case(9, 3, 38, norms) for norms in ("x", "h", "c", "xh", "xc", "hc")]
CASES += [Case(9, 3, 38, norms, 3, bias=False) for norms in ("x", "h", "c", "hc")]
CASES += [Case(9, 3, 38, "xhc", window, True) for window in (2, 5, 9, 40)]
CASES += [Case(50, 2, 20, "xhc", window) for window in (2, 33, 45, 200)]
CASES += [Case(5, 2, 100, "xhc", 300, True), Case(7, 3, 9, "hc", 4, True, False)]
# more steps than a block of the kernels for the input takes
LONG = [Case(150, 3, 5, "xhc", window) for window in (1, 10, 100)]
LONG += [Case(150, 3, 5, norms, 10, True) for norms in ("x", "h", "xhc")]
CASES += LONG
PACKED = LONG + [Case(9, 3, 38, norms, window) for norms in ("", "xhc") for window in (1, 3)]
PACKED += [Case(9, 3, 38, "xhc", window, True) for window in (5, 40)]
PACKED += [Case(12, 7, 100, "xhc", 4), Case(6, 4, 128), Case(3, 150, 100), Case(1, 3, 2)]
PACKED += [Case(50, 2, 20, "xhc", 33), Case(7, 3, 9, "hc", 4, True, False), Case(5, 1, 3)]
# weights of several multiprocessors
LARGE = [Case(5, 3, 145), Case(3, 150, 145), Case(4, 9, 200, "xhc"), Case(3, 2, 512)]
LARGE += [Case(6, 5, 200, norms, 3, True) for norms in ("h", "c", "xhc")]
LARGE += [Case(1, 1, 145, "xhc"), Case(3, 20, 512, "xhc", 2, True), Case(70, 2, 210, "xhc", 10)]
LARGE += [Case(2, 128, 1024), Case(3, 128, 1024, "xhc", 2)]
CASES += LARGE
CASES += [case._replace(packed=True) for case in PACKED + LARGE]


def inputs(case: Case) -> dict[str, Tensor]:
    """All tensors of a call, as float32 holds them."""
    T, B, H = case.T, case.B, case.H
    tensors = {"x": torch.randn(T, B, 4 * H) + 2, "h0": torch.randn(B, H), "c0": torch.randn(B, H)}
    if case.batch_sizes is not None:
        x = tensors["x"]
        tensors["x"] = torch.cat([x[t, :size] for t, size in enumerate(case.batch_sizes)])
    tensors["W"] = torch.randn(4 * H, H) / H**0.5
    if case.bias:
        tensors["b"] = torch.randn(4 * H)
    for name, features in zip("xhc", (4 * H, 4 * H, H), strict=True):
        if name in case.norms:
            tensors[f"gamma {name}"] = 1 + 0.3 * torch.randn(features)
            tensors[f"beta {name}"] = 0.3 * torch.randn(features)
            if case.past:
                steps = case.window - 1
                tensors[f"reference {name}"] = torch.randn(B, 1)
                tensors[f"means {name}"] = torch.randn(steps, B, 1)
                tensors[f"variances {name}"] = torch.rand(steps, B, 1)
    return {name: tensor.float().double() for name, tensor in tensors.items()}


def weights(case: Case) -> Tensor:
    """Sequence b has a past of b steps less than the window has, but of one at least."""
    steps = torch.arange(case.window - 1)[:, None, None]
    missing = torch.arange(case.B)[:, None].clamp(max=case.window - 2)
    return (steps >= missing).double()


def results(function: Callable, case: Case, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """h, c, the statistics, and the gradients of all tensors from those of these."""
    leaves = {name: tensor.cuda().requires_grad_() for name, tensor in tensors.items()}
    dtype = leaves["x"].dtype
    sites: dict[str, Any] = {}
    for argument, name in zip(NAMES, "xhc", strict=True):
        if name in case.norms:
            past = None
            if case.past:
                past = TimeWindow(
                    leaves[f"reference {name}"],
                    leaves[f"means {name}"],
                    leaves[f"variances {name}"],
                    weights(case).to("cuda", dtype),
                )
            sites[argument] = NormSite(leaves[f"gamma {name}"], leaves[f"beta {name}"], past)
    arguments = [leaves[name] for name in ("x", "h0", "c0", "W")]
    states = function(
        *(*arguments, leaves.get("b")),
        **sites,
        window=case.window,
        batch_sizes=case.batch_sizes,
    )
    outputs = {"h": states.h, "c": states.c}
    for argument in sites:
        _, statistics = getattr(states, argument)
        outputs[f"{argument} statistics"] = statistics
    # mean and variance of a step have gradients where the stream goes on
    used = [states.h] if case.T % 2 else [states.h, states.c]
    if case.past:
        used += [getattr(states, argument)[1][:2] for argument in sites]
    generator = torch.Generator().manual_seed(case.T)
    gradients = [torch.randn(v.shape, generator=generator).to("cuda", dtype) for v in used]
    found = torch.autograd.grad(used, list(leaves.values()), gradients)
    outputs = {name: output.detach() for name, output in outputs.items()}
    return outputs | {f"∂{name}": v for name, v in zip(leaves, found, strict=True)}


def found(case: Case, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same by the kernels, or an error."""
    with cayley.backend("cuda"):
        return results(lstm, case, {name: tensor.float() for name, tensor in tensors.items()})


def check(case: Case) -> None:
    if case.H > 800 and torch.cuda.get_device_properties(0).multi_processor_count < 100:
        pytest.skip(f"{case.H} units need about 100 multiprocessors")
    tensors = inputs(case)
    theirs = results(lstm_loop, case, tensors)
    # dividing by a standard deviation enlarges errors
    most = 1e-5 if case.norms else 2e-6
    for name, ours in found(case, tensors).items():
        error = (ours - theirs[name]).norm() / theirs[name].norm().clamp(min=1)
        assert error <= most, f"{name} is off by {error:.1g}"


@gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_loop(case: Case) -> None:
    check(case)


@gpu
@pytest.mark.parametrize("spare", [60, 120, 255])
@pytest.mark.parametrize("norms", ["", "xhc"])
def test_weights_in_shared_memory(spare: int, norms: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def layout(H: int, factors: tuple, streams: int, extra: int, *rest: int) -> BlockLayout:
        return BlockLayout(H, factors, streams, extra, spare, rest[-1])

    monkeypatch.setattr(lstm_kernels, "best_block_layout", layout)
    monkeypatch.setattr(lstm_kernels, "_kernels", lstm_kernels._kernels.__wrapped__)
    check(Case(4, 3, 70, norms, 2))


# blocks, rows, threads and outputs: more blocks than a warp has lanes, and a row for each warp
TEAMS = [(35, 2, 128, 4), (3, 4, 128, 4), (10, 8, 256, 8), (3, 1, 384, 8), (3, 8, 384, 4)]


@gpu
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("norms", ["", "xhc"])
@pytest.mark.parametrize("team", TEAMS, ids=str)
def test_teams_that_take_their_rows_in_turn(
    team: tuple[int, int, int, int], norms: str, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_team(monkeypatch, team)
    check(Case(6, 9, 70, norms, 3, bool(norms), packed=packed))


# by the plan that is not theirs, all sizes and combinations
STEPS = [Case(9, 3, 38, norms) for norms in ("", "x", "h", "c", "xh", "xc", "hc", "xhc")]
STEPS += [Case(9, 3, 38, "xhc", window, True) for window in (2, 9, 40)]
STEPS += [Case(1, 1, 1), Case(50, 2, 20, "xhc", 45), Case(2, 33, 1030, "xhc", 2, True)]
STEPS += [*LARGE, *(case._replace(packed=True) for case in (*LONG, *LARGE))]
STEPS += [Case(9, 3, 38, norms, 3, bias=False, packed=True) for norms in ("", "xh", "c")]


@gpu
@pytest.mark.parametrize("case", STEPS, ids=str)
def test_steps_one_by_one(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    force_steps(monkeypatch)
    check(case)


@gpu
@pytest.mark.parametrize("norms", ["", "xhc"])
def test_steps_write_all_that_they_read(norms: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On memory that is full of NaN the bits are the same."""
    force_steps(monkeypatch)
    case = Case(9, 40, 300, norms, 4, True)
    tensors = inputs(case)
    first = found(case, tensors)
    fill_new_memory(monkeypatch)
    for name, other in found(case, tensors).items():
        assert torch.equal(first[name], other), name


@gpu
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_teams_of_large_sizes(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    force_steps(monkeypatch, stepwise=False)
    check(case)


@gpu
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("norms", ["", "x", "h", "c", "xhc"])
@pytest.mark.parametrize("window", [1, 4])
def test_derives_references(window: int, norms: str, packed: bool) -> None:
    """The same as with the references that are derived, which are those of references()."""
    case = Case(70, 3, 9, norms, window, packed=packed)
    point = {name: tensor.float().cuda() for name, tensor in inputs(case).items()}
    x, h0, c0, W, b = (point[name] for name in ("x", "h0", "c0", "W", "b"))
    needed = of_x, of_h, _ = ["x" in norms, "h" in norms and window > 1, False]
    near = references(x, b if of_h else None, 3, case.batch_sizes, of_input=of_x)

    def call(given: Sequence[Tensor | None]) -> LstmCall:
        sites: list[Any] = [
            Site(point[f"gamma {name}"], point[f"beta {name}"], reference)
            if name in norms
            else None
            for name, reference in zip("xhc", given, strict=True)
        ]
        return LstmCall(x, h0, c0, W, b, *sites, batch_sizes=case.batch_sizes, window=window)

    ours, derived = cuda.contributed_lstm(call([None] * 3), x, derive=True)
    assert torch.equal(torch.stack(derived), torch.stack(near))
    assert [bool(one.any()) for one in derived] == needed
    for one, other in zip(ours, cuda.lstm(call(near)), strict=True):
        assert torch.equal(one, other)


@gpu
def test_a_mean_of_1000_does_not_hide_a_deviation_of_a_tenth() -> None:
    case = Case(6, 2, 32, "xhc", 3)
    tensors = inputs(case)
    tensors["x"] = (1000 + 0.1 * torch.randn(6, 2, 128)).float().double()
    theirs = results(lstm_loop, case, tensors)
    for name, ours in found(case, tensors).items():
        if name[0] != "∂":
            error = (ours - theirs[name]).norm() / theirs[name].norm().clamp(min=1)
            assert error <= 1e-5, f"{name} is off by {error:.1g}"


@gpu
@pytest.mark.parametrize("window", [1, 3])
def test_gradients_are_those_of_finite_differences(window: int) -> None:
    """Along a random direction: ⟨∇L, v⟩ = dL/dε, with every gradient of one case."""
    case = Case(5, 3, 20, "xhc", window)
    point = inputs(case)
    ours = found(case, point)
    directions = {name: torch.randn_like(tensor) for name, tensor in point.items()}
    generator = torch.Generator().manual_seed(case.T)
    g = torch.randn(5, 3, 20, generator=generator)

    def loss(epsilon: float) -> Tensor:
        moved = {name: tensor + epsilon * directions[name] for name, tensor in point.items()}
        return (results(lstm_loop, case, moved)["h"].cpu() * g).sum()

    slope = (loss(1e-6) - loss(-1e-6)) / 2e-6
    inner = sum((ours[f"∂{name}"].cpu().double() * v).sum() for name, v in directions.items())
    scale = float(sum(ours[f"∂{name}"].norm() for name in directions))
    assert abs(inner - slope) <= 1e-5 * max(scale, 1)


@gpu
@pytest.mark.parametrize("norms", ["", "xhc"])
def test_drift_over_2000_steps(norms: str) -> None:
    case = Case(2000, 2, 60, norms, 10 if norms else 1)
    tensors = inputs(case)
    with cayley.backend("reference"):
        theirs = results(lstm, case, tensors)
    for name, ours in found(case, tensors).items():
        assert (ours - theirs[name]).norm() <= 1e-4 * theirs[name].norm(), name


@gpu
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "case",
    [
        *(Case(9, 140, 100), Case(9, 140, 68, "xhc", 4, True)),
        *(Case(9, 140, 200), Case(9, 140, 200, "xhc", 4, True)),
    ],
    ids=str,
)
def test_repeats_itself_bit_for_bit_and_reads_only_what_it_has_written(
    case: Case, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_steps(monkeypatch, stepwise=False)  # before and after
    case = case._replace(packed=packed)
    tensors = inputs(case)
    first = found(case, tensors)
    torch.use_deterministic_algorithms(True)  # new memory is filled with NaN
    try:
        for _ in range(5):
            for name, other in found(case, tensors).items():
                assert torch.equal(first[name], other), name
    finally:
        torch.use_deterministic_algorithms(False)


@gpu
@pytest.mark.parametrize("norms", ["", "xhc"])
def test_a_nan_stays_in_its_sequence(norms: str) -> None:
    case = Case(4, 3, 6, norms, 2 if norms else 1)
    tensors = inputs(case)
    clean = found(case, tensors)["h"]
    tensors["x"][1, 2, 0] = torch.nan
    h = found(case, tensors)["h"]
    assert torch.equal(h[:, :2], clean[:, :2])
    assert torch.equal(h[0], clean[0])
    assert h[2:, 2].isnan().all()


@gpu
def test_is_the_lstm_of_torch() -> None:
    layer = torch.nn.LSTM(5, 40, dtype=torch.float64).cuda()
    x = torch.randn(7, 3, 5).cuda()
    h, (_, c_n) = layer(x)
    U, W, a, b = (parameter.detach() for parameter in layer.parameters())
    inner = torch.nn.functional.linear(x, U, a)
    zeros = x.new_zeros(3, 40)
    with cayley.backend("cuda"):
        states = lstm(*(tensor.float() for tensor in (inner, zeros, zeros, W, b)))
    torch.testing.assert_close(states.h.double(), h, rtol=0, atol=1e-6)
    torch.testing.assert_close(states.c[-1:].double(), c_n, rtol=0, atol=1e-6)


@gpu
@pytest.mark.parametrize("stepwise", [False, True])
def test_captures_a_graph_with_a_kernel_that_is_not_loaded_yet(
    stepwise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if stepwise:
        force_steps(monkeypatch)
    case = Case(6, 4, 22, "xhc", 3)
    point = {name: tensor.float().cuda() for name, tensor in inputs(case).items()}
    sites: dict[str, Any] = {
        argument: NormSite(point[f"gamma {name}"], point[f"beta {name}"])
        for argument, name in zip(NAMES, "xhc", strict=True)
    }
    arguments = [point[name].requires_grad_() for name in ("x", "h0", "c0", "W")]

    def both_ways() -> list[Tensor]:
        with cayley.backend("cuda"):
            h = lstm(*arguments, **sites, window=3).h
        return [h.detach(), *torch.autograd.grad(h, arguments, h.detach())]

    if stepwise:
        both_ways()  # torch itself cannot load cuBLAS into a graph, for either of two threads
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both_ways()
    with torch.no_grad():
        for name, value in inputs(case).items():
            point[name].copy_(value)
    graph.replay()
    for ours, theirs in zip(captured, both_ways(), strict=True):
        assert torch.equal(ours, theirs)


def with_input(case: Case) -> dict[str, Tensor]:
    """The tensors of a call with an input of five features, its matrix and its bias."""
    tensors = inputs(case)
    tensors["x"] = tensors["x"][..., :5].contiguous()
    F = 4 * case.H
    return tensors | {"U": torch.randn(F, 5).float().double(), "c": torch.randn(F).float().double()}


def states_of(function: Callable, case: Case, leaves: dict[str, Tensor]) -> Tensor:
    sites: dict[str, Any] = {
        argument: NormSite(leaves[f"gamma {name}"], leaves[f"beta {name}"])
        for argument, name in zip(NAMES, "xhc", strict=True)
        if name in case.norms
    }
    x, h0, c0, W, b, U, c = (leaves[name] for name in ("x", "h0", "c0", "W", "b", "U", "c"))
    options = {"window": case.window, "batch_sizes": case.batch_sizes}
    return function(x, h0, c0, W, b, U=U, c=c, **sites, **options).h


@gpu
@pytest.mark.parametrize("little", [0, 1e9])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("norms", ["", "x", "h", "c", "xhc"])
@pytest.mark.parametrize("window", [1, 4])
def test_the_product_with_the_input(
    window: int, norms: str, packed: bool, little: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of all parameters, by our kernel and by the products of a library."""
    monkeypatch.setattr(cuda, "LITTLE", little)
    case = Case(70, 3, 9, norms, window, packed=packed)
    point = with_input(case)

    def gradients(function: Callable, dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = {name: v.cuda().to(dtype).requires_grad_() for name, v in point.items()}
        h = states_of(function, case, leaves)
        return torch.autograd.grad(h.square().sum(), [*leaves.values()])

    exact = gradients(lstm_loop, torch.float64)
    with cayley.backend("cuda"):
        ours = gradients(lstm, torch.float32)
    for name, one, other in zip(point, ours, exact, strict=True):
        error = (one - other).norm() / other.norm().clamp(min=1)
        assert error <= 2e-5, f"{name} is off by {error:.1g}"


@gpu
@pytest.mark.parametrize("norms", ["", "xhc"])
def test_a_gradient_does_not_depend_on_the_others(norms: str) -> None:
    case = Case(20, 3, 9, norms, 4)
    point = {name: tensor.float().cuda() for name, tensor in with_input(case).items()}

    def gradients(*names: str) -> tuple[Tensor, ...]:
        leaves = {name: v.detach().requires_grad_(name in names) for name, v in point.items()}
        h = states_of(lstm, case, leaves)
        return torch.autograd.grad(h.square().sum(), [leaves[name] for name in names])

    with cayley.backend("cuda"):
        for name, gradient in zip(point, gradients(*point), strict=True):
            assert torch.equal(gradients(name)[0], gradient), name


@gpu
def test_a_gradient_can_be_differentiated_again() -> None:
    case = Case(4, 2, 3, "xhc", 3)
    point = with_input(case)

    def second(function: Callable, dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = [v.cuda().to(dtype).requires_grad_() for v in point.values()]
        h = states_of(function, case, dict(zip(point, leaves, strict=True)))
        first = torch.autograd.grad(h.square().sum(), leaves, create_graph=True)
        return torch.autograd.grad([g.square().sum() for g in first], leaves)

    pairs = zip(second(lstm, torch.float32), second(lstm_loop, torch.float64), strict=True)
    for ours, theirs in pairs:
        assert (ours - theirs).norm() <= 1e-3 * theirs.norm().clamp(min=1)


@gpu
# torch hides this one by not showing it, which does not help where warnings are errors
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("norms", ["", "xhc"])
def test_compiled_autograd_sees_one_operator(norms: str, packed: bool) -> None:
    case = Case(5, 4, 7, norms, 3 if norms else 1, packed=packed)
    leaves = {name: v.float().cuda().requires_grad_() for name, v in with_input(case).items()}
    theirs = torch.autograd.grad(states_of(lstm, case, leaves).square().sum(), [*leaves.values()])
    seen = []

    def compiler(graph: Any) -> Any:
        return torch.compile(graph, backend=backend, fullgraph=True)

    def backend(graph: Any, _: Any) -> Callable:
        seen.extend(str(node.target) for node in graph.graph.nodes if "cayley" in str(node.target))
        return graph.forward

    with torch._dynamo.compiled_autograd._enable(compiler):
        states_of(lstm, case, leaves).square().sum().backward()
    # with or without the overload, as torch's version has it
    assert [name.removesuffix(".default") for name in seen] == ["cayley.lstm_backward"]
    for leaf, expected in zip(leaves.values(), theirs, strict=True):
        torch.testing.assert_close(leaf.grad, expected)


@gpu
def test_no_rows() -> None:
    case = Case(3, 0, 5, "xhc", 2)
    shapes = {name: tensor.shape for name, tensor in inputs(case).items()}
    ours = found(case, inputs(case))
    assert ours["h"].shape == ours["c"].shape == (3, 0, 5)
    assert all(ours[f"∂{name}"].shape == shape for name, shape in shapes.items())


@gpu
@pytest.mark.parametrize("norms", ["", "c", "xhc"])
def test_no_rows_of_an_input(norms: str) -> None:
    case = Case(3, 0, 5, norms, 2)
    leaves = {name: v.float().cuda().requires_grad_() for name, v in with_input(case).items()}
    with cayley.backend("cuda"):
        h = states_of(lstm, case, leaves)
    found = torch.autograd.grad(h.sum(), [*leaves.values()])
    for name, leaf, gradient in zip(leaves, leaves.values(), found, strict=True):
        assert gradient.shape == leaf.shape, name
        assert not gradient.any(), name


@gpu
@pytest.mark.parametrize("name", ["h0", "W", "U", "gamma x"])
def test_a_tensor_on_another_device_is_refused(name: str) -> None:
    case = Case(4, 2, 3, "xhc")
    point = {key: v.float().cuda() for key, v in with_input(case).items()}
    point[name] = point[name].cpu()
    with pytest.raises(ValueError, match="expected all tensors on one device"):
        states_of(lstm, case, point)


@gpu
def test_refusals() -> None:
    h0 = torch.zeros(2, 5, device="cuda", dtype=torch.float32)
    x, W, gamma = h0.new_zeros(3, 2, 20), h0.new_zeros(20, 5), h0.new_zeros(20)
    site = Site(gamma, gamma)
    call = LstmCall(x, h0, h0, W)
    assert cuda.refusal(call) is None
    assert cuda.refusal(call._replace(recurrent=site)) is None
    assert cuda.refusal(call._replace(over_batch=True)) is None
    assert "float64" in (cuda.refusal(call._replace(W=W.double())) or "")
    assert cuda.refusal(call, LstmGradients(x)) is None
    assert "float64" in (cuda.refusal(call, LstmGradients(x.double())) or "")
    assert cuda.refusal(call._replace(batch_sizes=torch.tensor([2, 1]))) is None
    over_batch = call._replace(input=site, over_batch=True)
    assert cuda.refusal(over_batch) is None
    past = site._replace(past=h0.new_zeros(2, 1, 1, 20))
    assert "a past" in (cuda.refusal(over_batch._replace(recurrent=past, window=2)) or "")
    given = call._replace(input=site._replace(given=h0.new_zeros(2, 3, 1, 20)))
    assert cuda.refusal(given) is None
    assert "or for none" in (cuda.refusal(given._replace(recurrent=site)) or "")
    empty = over_batch._replace(x=x[:, :0], h0=h0[:0], c0=h0[:0])
    assert "empty batch" in (cuda.refusal(empty) or "")
    many = over_batch._replace(x=x[:, :1].expand(3, 2000, 20), h0=h0[:1].expand(2000, 5))
    assert "2000 rows do not fit" in (cuda.refusal(many) or "")
    long = call._replace(x=h0.new_zeros(20000, 1, 20), h0=h0[:1], c0=h0[:1], window=10**6)
    assert "windows of 20000 steps" in (cuda.refusal(long._replace(input=site)) or "")
    for H in (300, 4000):
        states = h0.new_zeros(2, H)
        large = call._replace(x=h0.new_zeros(3, 2, 4 * H), h0=states, c0=states)
        reason = cuda.refusal(large)
        assert reason is None if H == 300 else "16000 × 4000 weights do not fit" in (reason or "")
