"""Statistics over the batch, and given ones: the kernels against the loop in double precision.

Small sizes are emulated on the CPU too, with layouts of every kind.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from emulator import COMPILER, H200, Kernel, emulated
from torch import Tensor

import cayley
from cayley.kernels.calls import LstmCall, LstmGradients, Site
from cayley.kernels.cuda.lstm import batch, recurrence
from cayley.kernels.cuda.lstm.batch_layout import BatchLayout, Share
from cayley.kernels.cuda.runtime.projection import project_by_features
from cayley.recurrences import NormSite, lstm, lstm_loop
from cayley.recurrences.lstm_call import LstmArguments, lstm_call

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
NAMES = ("input", "recurrent", "cell")


class Case(NamedTuple):
    """Sizes, one of LAYOUTS or none for the best, and what is normalised how.

    Packed, the sequences end one after another from the second step on.
    """

    T: int
    B: int
    H: int
    layout: str = ""
    norms: str = "xhc"
    window: int = 1
    bias: bool = True
    packed: bool = False
    given: str = ""

    @property
    def batch_sizes(self) -> Tensor | None:
        return (self.B - torch.arange(self.T)).clamp(min=1) if self.packed else None


# units, threads, parts and items, and lanes and rows of both products: one warp a unit or several,
# of which some have no rows; one row a lane or several; rows of a product in one turn or several;
# blocks with a unit less than the others; weights in registers and in shared memory; teams of
# blocks
LAYOUTS = {
    "one": (1, 64, 1, 1, Share(8, 1), Share(8, 1)),
    "two": (2, 128, 2, 1, Share(8, 2), Share(32, 4)),
    "four": (4, 128, 1, 2, Share(8, 1), Share(16, 1)),
    "many": (2, 256, 4, 1, Share(32, 4), Share(32, 2)),
    "pair": (1, 96, 2, 1, Share(8, 4), Share(32, 2, 96, 2)),
    "team": (2, 256, 4, 1, Share(8, 1), Share(32, 1, 64, 4)),
    "eight": (1, 128, 4, 1, Share(16, 2), Share(32, 4, 64, 8)),
    "rows": (1, 64, 1, 3, Share(8, 2), Share(16, 2, 32, 2)),
    "half": (1, 128, 2, 1, Share(16, 1), Share(16, 1, 64, 4)),
    "twos": (2, 128, 2, 1, Share(8, 2), Share(32, 1, 64, 2)),
}
CASES = [
    Case(4, 5, 8, "one"),
    Case(4, 5, 7, "two"),
    Case(3, 40, 6, "four"),
    Case(3, 70, 5, "many", packed=True),
    Case(1, 2, 3, "two"),
    Case(1, 1, 1, "one"),
    Case(3, 1, 2, "two", "hc"),
    Case(5, 4, 6, "two", packed=True),
    *(Case(4, 3, 6, "one", norms, bias=False) for norms in ("x", "h", "c", "xh")),
    Case(6, 5, 6, "two", window=3),
    Case(6, 5, 6, "one", window=99, packed=True),
    Case(9, 4, 5, "two", "hc", window=2, packed=True),
    Case(38, 3, 2, "one", "xc", window=36),
    Case(4, 5, 6, "two", given="step"),
    Case(4, 5, 6, "two", "xh", given="row", packed=True),
    Case(4, 3, 6, "one", "c", given="step"),
    Case(5, 5, 7, "half"),
    Case(5, 40, 6, "pair"),
    Case(4, 70, 11, "team", packed=True),
    Case(4, 101, 9, "eight"),
    Case(4, 3, 5, "team"),
    Case(1, 1, 1, "team"),
    Case(4, 75, 5, "rows", packed=True),
    Case(2, 3, 2, "eight", "hc"),
    Case(5, 40, 9, "twos", packed=True),
    Case(4, 40, 5, "half", window=3, packed=True),
    Case(4, 5, 6, "twos", given="step"),
    *(Case(4, 3, 6, "pair", norms, bias=False) for norms in ("x", "h", "c", "xh")),
    Case(6, 5, 6, "pair", window=3),
    Case(6, 5, 5, "team", window=99, packed=True),
    Case(4, 5, 6, "team", given="step"),
    Case(4, 40, 6, "pair", "xh", given="row", packed=True),
]


@pytest.fixture
def on_the_cpu() -> Iterator[None]:
    with emulated():
        yield


def on_cpu(function: Callable) -> Callable:
    """A test with emulated kernels."""
    for mark in (
        pytest.mark.usefixtures("on_the_cpu"),
        pytest.mark.slow,
        pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux"),
    ):
        function = mark(function)
    return function


def tensors_of(case: Case) -> dict[str, Tensor]:
    """All that has a gradient, as float32 holds it."""
    T, B, H = case.T, case.B, case.H
    sizes = case.batch_sizes
    steps = (T, B) if sizes is None else (int(sizes.sum()),)
    tensors = {"x": torch.randn(*steps, 4 * H) + 2, "h0": torch.randn(B, H)}
    tensors |= {"c0": torch.randn(B, H), "W": torch.randn(4 * H, H) / H**0.5}
    if case.bias:
        tensors["b"] = torch.randn(4 * H)
    for name, features in zip("xhc", (4 * H, 4 * H, H), strict=True):
        if name in case.norms:
            tensors[f"gamma {name}"] = 1 + 0.3 * torch.randn(features)
            tensors[f"beta {name}"] = 0.3 * torch.randn(features)
    return {name: tensor.float().double() for name, tensor in tensors.items()}


def arguments_of(case: Case, tensors: dict[str, Tensor]) -> dict[str, Any]:
    sites: dict[str, Any] = {}
    for argument, name in zip(NAMES, "xhc", strict=True):
        if name in case.norms:
            gamma, beta = tensors[f"gamma {name}"], tensors[f"beta {name}"]
            given = None
            if case.given:
                shape = (case.T, case.B if case.given == "row" else 1, len(gamma))
                table = torch.linspace(-1, 1, shape[0] * shape[1] * shape[2]).view(shape)
                table = table.float().to(gamma)
                given = table, table.square()
            sites[argument] = NormSite(gamma, beta, given=given)
    plain = {name: tensors.get(name) for name in ("x", "h0", "c0", "W", "b", "U", "c")}
    options = {"window": case.window, "over": "batch", "eps": 0.1, "batch_sizes": case.batch_sizes}
    return {**plain, **sites, **options}


def call_of(arguments: dict[str, Any]) -> LstmCall:
    values: Any = [arguments.get(name) for name in LstmArguments._fields]
    return lstm_call(LstmArguments(*values))


def results(
    case: Case, run: Callable, tensors: dict[str, Tensor], device: str = "cpu"
) -> dict[str, Tensor]:
    """h, c, statistics, and the gradients of all tensors from those of these."""
    leaves = {name: v.detach().to(device).requires_grad_() for name, v in tensors.items()}
    states = run(**arguments_of(case, leaves))
    outputs = {"h": states.h, "c": states.c}
    for name in NAMES:
        if getattr(states, name) is not None:
            outputs[f"statistics of {name}"] = getattr(states, name)[1]
    gradients = gradients_of(outputs)
    found = torch.autograd.grad(list(outputs.values()), list(leaves.values()), gradients)
    outputs = {name: output.detach() for name, output in outputs.items()}
    return outputs | {f"∂{name}": v for name, v in zip(leaves, found, strict=True)}


def gradients_of(outputs: dict[str, Tensor]) -> list[Tensor]:
    """Those of h, c, and mean and variance of every step: the others are for reading."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for name, output in outputs.items():
        gradient = torch.randn(output.shape, generator=generator).float().to(output)
        if "statistics" in name:
            gradient[2:] = 0
        found.append(gradient)
    return found


def by_kernels(case: Case, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same, by the functions that launch the kernels."""
    call = call_of(arguments_of(case, tensors))
    assert batch.joins_rows(call)
    states = recurrence.lstm(call)
    outputs = {"h": states.h, "c": states.c}
    for name, own in zip(NAMES, states.statistics(), strict=True):
        if own.numel() > 0:
            outputs[f"statistics of {name}"] = own
    grad_h, grad_c, *external = gradients_of(outputs)
    sites = [name.removeprefix("statistics of ") for name in outputs][2:]
    of_states = LstmGradients(grad_h, grad_c, None, **dict(zip(sites, external, strict=True)))
    needed = {name: gradient_name(name) for name in tensors}
    found: dict[str, Any] = recurrence.lstm_backward(of_states, states, call, needed.values())
    return outputs | {f"∂{name}": found[own] for name, own in needed.items()}


def gradient_name(name: str) -> str:
    """That of a tensor of a case among those that an operator gives."""
    kind, _, site = name.partition(" ")
    return f"{NAMES['xhc'.index(site)]}_{kind}" if site else kind


def compare(ours: dict[str, Tensor], theirs: dict[str, Tensor], most: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, exact in theirs.items():
        error = (ours[name].double() - exact).norm() / exact.norm().clamp(min=1)
        assert error <= most, f"{name} is off by {error:.1g}"


def use_layout(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    if case.layout:
        layout = BatchLayout(case.H, *LAYOUTS[case.layout])
        monkeypatch.setattr(batch, "best_batch_layout", lambda *_: layout)


@on_cpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_loop_emulated(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    use_layout(case, monkeypatch)
    tensors = tensors_of(case)
    exact = results(case, lstm_loop, tensors)
    compare(by_kernels(case, {name: v.float() for name, v in tensors.items()}), exact, 4e-6)


@on_cpu
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("late", [0, 3])
def test_a_block_is_late(late: int, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one has neither units nor rows, so that nobody waits for it."""
    case = Case(5, 3, 5, "team", packed=packed)
    use_layout(case, monkeypatch)
    tensors = {name: v.float() for name, v in tensors_of(case).items()}
    expected = by_kernels(case, tensors)
    monkeypatch.setattr(Kernel, "late", late)
    ours = by_kernels(case, tensors)
    assert all(torch.equal(ours[name], value) for name, value in expected.items())


# sizes of experiments, rows in several turns, several units a block, several rows a lane
LARGE = [Case(9, 128, 60), Case(9, 50, 60), Case(5, 20, 61), Case(4, 512, 200), Case(3, 7, 512)]
LARGE += [Case(30, 33, 128, window=10), Case(3, 300, 350, packed=True), Case(3, 512, 512)]
LARGE += [Case(7, 130, 90, given="row"), Case(150, 65, 60, window=100, packed=True)]


@gpu
@pytest.mark.parametrize("case", CASES + LARGE, ids=str)
def test_the_loop(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    use_layout(case, monkeypatch)
    tensors = tensors_of(case)
    exact = results(case, lstm_loop, tensors, "cuda")
    with cayley.backend("cuda"):
        ours = results(case, lstm, {name: v.float() for name, v in tensors.items()}, "cuda")
    compare(ours, exact, 1e-5)


@gpu
@pytest.mark.parametrize("norm", [{"norm": "batch"}, {"norm": "atn", "window": 3, "over": "batch"}])
def test_a_layer_finds_the_population_of_the_loop(norm: dict[str, Any]) -> None:
    layers = [cayley.LSTM(3, 20, **norm, device="cuda", dtype=torch.float32) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    x = torch.randn(3, 9, 6, 3, device="cuda", dtype=torch.float32)
    for sequences in x:
        outputs = []
        for layer, backend in zip(layers, ("cuda", "reference"), strict=True):
            with cayley.backend(backend):
                outputs.append(layer(sequences)[0])
        torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
    ours, theirs = (layer.state_dict() for layer in layers)
    for name, expected in theirs.items():
        torch.testing.assert_close(ours[name], expected, rtol=1e-4, atol=1e-5)
    found = []
    for layer, backend in zip(layers, ("cuda", "reference"), strict=True):
        layer.load_state_dict(ours)
        with cayley.backend(backend):
            output = layer.eval()(x[0, :, :1])[0]
        gradients = torch.autograd.grad(output.square().sum(), [*layer.parameters()])
        found.append((output, *gradients))
    for own, expected in zip(*found, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-3, atol=1e-5)


@on_cpu
@pytest.mark.parametrize(("window", "layout"), [(1, "one"), (3, "many")])
def test_a_large_mean_or_step_takes_no_digits(
    window: int, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(6, 5, 4, layout, window=window)
    use_layout(case, monkeypatch)
    tensors = tensors_of(case)
    tensors["x"] = (tensors["x"] + 1000).float().double()
    tensors["x"][0] *= 1e3
    exact = lstm_loop(**arguments_of(case, tensors)).h
    call = call_of(arguments_of(case, {name: v.float() for name, v in tensors.items()}))
    error = recurrence.lstm(call).h[window:].double() - exact[window:]
    assert error.norm() <= 1e-4 * exact[window:].norm()


@on_cpu
@pytest.mark.parametrize("layout", ["one", "two", "team"])
@pytest.mark.parametrize("B", [1, 2])
def test_few_rows_leave_little_of_a_gradient(
    B: int, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row is its own mean, and its gradient 0, whatever 1/√ε is; of two, ε leaves the rest."""
    case = Case(10, B, 7, layout)
    use_layout(case, monkeypatch)
    tensors = tensors_of(case)
    for name in ("gamma x", "gamma h", "gamma c"):
        tensors[name] = (0.1 * tensors[name]).float().double()
    single = {name: v.float() for name, v in tensors.items()}
    grad_h = torch.randn(case.T, B, case.H).float()
    options: dict[str, Any] = {"eps": 1e-5}

    def by_loop(tensors: dict[str, Tensor]) -> list[Tensor]:
        leaves = {name: v.clone().requires_grad_() for name, v in tensors.items()}
        h = lstm_loop(**arguments_of(case, leaves) | options).h
        return [h.detach(), *torch.autograd.grad(h, [*leaves.values()], grad_h.to(h))]

    call = call_of(arguments_of(case, single) | options)
    states = recurrence.lstm(call)
    needed = [gradient_name(name) for name in tensors]
    found = recurrence.lstm_backward(LstmGradients(grad_h), states, call, needed)
    exact, loop = by_loop(tensors), by_loop(single)
    most = max(float(v.norm()) for v in exact)
    ours = [states.h, *map(found.get, needed)]
    for name, own, theirs, expected in zip(("h", *tensors), ours, loop, exact, strict=True):
        assert own is not None
        if B == 1 and name in ("x", "h0", "W"):
            assert not expected.any()
            assert not own.any(), f"∂{name} is {own.norm():.1g} instead of 0"
        error, accepted = (own - expected).norm(), (theirs - expected).norm()
        assert error <= 4 * accepted + 1e-6 * most, f"{name}: off by {error:.1g}"


def one_row(layout: str) -> tuple[Case, dict[str, Tensor], Tensor]:
    """A sequence that is alone, with an input of three numbers, and gradients of h and c."""
    case = Case(10, 1, 7, layout)
    sizes = {"x": (case.T, 1, 3), "U": (28, 3), "c": (28,)}
    tensors = tensors_of(case) | {name: torch.randn(*size) for name, size in sizes.items()}
    tensors = {name: v.float().double() for name, v in tensors.items()}
    return case, tensors, torch.randn(2, case.T, 1, case.H).float()


def gradients_of_one_row(
    case: Case, run: Callable, tensors: dict[str, Tensor], gradients: Tensor
) -> dict[str, Tensor]:
    leaves = {name: v.clone().requires_grad_() for name, v in tensors.items()}
    states = run(**arguments_of(case, leaves) | {"eps": 1e-5})
    of_states = [*gradients.to(states.h)]
    found = torch.autograd.grad([states.h, states.c], [*leaves.values()], of_states)
    return dict(zip(leaves, found, strict=True))


def compare_one_row(ours: dict[str, Tensor], exact: dict[str, Tensor]) -> None:
    """Of what is normalised nothing is left: no rounding either, which 1/√ε would make large."""
    assert {name for name, v in exact.items() if v.any()} == {"c0", "beta x", "beta h", "beta c"}
    for name, expected in exact.items():
        own = ours[name].double()
        if expected.any():
            assert (own - expected).norm() <= 4e-6 * expected.norm(), name
        else:
            assert not own.any(), f"∂{name} is {own.norm():.1g} instead of 0"


@on_cpu
@pytest.mark.parametrize("layout", ["one", "two", "team"])
def test_one_row_emulated(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, tensors, gradients = one_row(layout)
    use_layout(case, monkeypatch)
    single = {name: v.float() for name, v in tensors.items()}
    x, U, c = (single[name] for name in ("x", "U", "c"))
    contribution = project_by_features(x, U, c)
    call = call_of(arguments_of(case, single) | {"eps": 1e-5})._replace(x=x, U=U)
    states, references = batch.batch_lstm(call, contribution, derive=True)
    pairs = zip(NAMES, references, strict=True)
    sites: Any = {name: getattr(call, name)._replace(reference=own) for name, own in pairs}
    needed = {name: gradient_name(name) for name in tensors}
    found: dict[str, Any] = batch.batch_lstm_backward(
        *(LstmGradients(*gradients), states, call._replace(**sites), needed.values(), contribution)
    )
    ours = {name: found[own] for name, own in needed.items()}
    compare_one_row(ours, gradients_of_one_row(case, lstm_loop, tensors, gradients))


@gpu
@pytest.mark.parametrize("layout", ["", "one", "two", "team"])
def test_one_row(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a compiler fuses is rounded once: only here it can be seen that nothing is left."""
    case, tensors, gradients = one_row(layout)
    use_layout(case, monkeypatch)
    exact = gradients_of_one_row(case, lstm_loop, tensors, gradients)
    single = {name: v.float().cuda() for name, v in tensors.items()}
    with cayley.backend("cuda"):
        ours = gradients_of_one_row(case, lstm, single, gradients)
    compare_one_row({name: v.cpu() for name, v in ours.items()}, exact)


@on_cpu
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("T", [1, 4])
def test_derives_the_references_of_the_operator(
    T: int, window: int, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(T, 3, 5, "two", window=window, packed=packed)
    use_layout(case, monkeypatch)
    call = call_of(arguments_of(case, {name: v.float() for name, v in tensors_of(case).items()}))
    sites: dict[str, Site] = {name: getattr(call, name) for name in NAMES}
    plain: Any = {name: site._replace(reference=None) for name, site in sites.items()}
    states, found = batch.batch_lstm(call._replace(**plain), call.x, derive=True)
    for ours, site in zip(found, sites.values(), strict=True):
        theirs = torch.zeros_like(ours) if site.reference is None else site.reference
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(states, recurrence.lstm(call), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@on_cpu
def test_a_nan_of_any_bits_is_no_number_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a block waits for comes, whatever it is."""
    case = Case(3, 4, 5, "two")
    use_layout(case, monkeypatch)
    tensors = {name: v.float() for name, v in tensors_of(case).items()}
    tensors["x"].view(torch.int32)[1, 2] = -1
    ours = by_kernels(case, tensors)
    assert not ours["h"][0].isnan().any()
    assert ours["h"][1:].isnan().all()
    assert ours["∂x"].isnan().any()


@on_cpu
def test_rows_that_lie_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not ours need not begin where a vector does."""
    case = Case(3, 5, 4, "one")
    use_layout(case, monkeypatch)
    tensors = {name: v.float() for name, v in tensors_of(case).items()}
    expected = by_kernels(case, tensors)
    for name, tensor in tensors.items():
        room = torch.empty(tensor.numel() + 1, dtype=torch.float32)
        tensors[name] = room[1:].view(tensor.shape).copy_(tensor)
    ours = by_kernels(case, tensors)
    assert all(torch.equal(ours[name], value) for name, value in expected.items())


@on_cpu
@pytest.mark.parametrize("layout", ["two", "pair", "eight", "rows"])
@pytest.mark.parametrize("packed", [False, True])
def test_features_whose_rows_lie_side_by_side(
    packed: bool, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read and written in another order is the same to the last digit."""
    case = Case(4, 35, 6, layout, packed=packed)
    use_layout(case, monkeypatch)
    tensors = {name: v.float() for name, v in tensors_of(case).items()}
    call = call_of(arguments_of(case, tensors))
    grad_h, needed = torch.randn(tensors["x"][..., : case.H].shape).float(), ("x", "W")
    across = torch.empty_like(call.x.flatten(0, -2).mT.contiguous()).mT.view(call.x.shape)
    found = []
    for x in (call.x, across.copy_(call.x)):
        states, _ = batch.batch_lstm(call, x, derive=True)
        assert states.kept.stride() == x.stride()
        of_states = LstmGradients(grad_h)
        gradients = batch.batch_lstm_backward(of_states, states, call, needed, x)
        found.append([*states, *gradients.values()])
    for one, other in zip(*found, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "chip", lambda _: H200)
    monkeypatch.setattr(batch, "no_room", lambda what, _: f"{what} do not fit")
    h0, x, gamma = torch.zeros(2, 5), torch.zeros(3, 2, 20), torch.zeros(20)
    site = Site(gamma, gamma)
    call = LstmCall(x, h0, h0, torch.zeros(20, 5), recurrent=site, over_batch=True)
    assert batch.joins_rows(call)
    assert batch.refusal(call) is None
    assert not batch.joins_rows(call._replace(recurrent=None))
    assert not batch.joins_rows(call._replace(over_batch=False))
    given = call._replace(over_batch=False, recurrent=site._replace(given=torch.zeros(2, 3, 1, 20)))
    assert batch.joins_rows(given)
    assert batch.refusal(given) is None
    assert "or for none" in (batch.refusal(given._replace(input=site)) or "")
    going_on = call._replace(recurrent=site._replace(past=torch.zeros(2, 1, 1, 20)), window=2)
    assert "a past" in (batch.refusal(going_on) or "")
    assert "empty batch" in (batch.refusal(call._replace(h0=h0[:0])) or "")
    many = call._replace(h0=torch.zeros(2000, 5))
    assert batch.refusal(many) == "20 × 5 weights, 2000 rows do not fit"
    long = call._replace(x=torch.zeros(9000, 2, 20), window=9000)
    assert "and windows of 9000 steps" in (batch.refusal(long) or "")
