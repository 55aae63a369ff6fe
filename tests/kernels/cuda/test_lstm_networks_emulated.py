"""LSTMs of several networks in one launch against the loop in double precision, also emulated."""

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from emulator import COMPILER, H200, Launches
from teams import fill_new_memory, force_team
from torch import Tensor
from torch.func import grad, vmap

from cayley.kernels import memory
from cayley.kernels.calls import LstmCall, LstmGradients, LstmStates, Site
from cayley.kernels.crowds import crowded
from cayley.kernels.cuda.lstm import kernels as lstm_kernels
from cayley.kernels.cuda.lstm import recurrence as cuda
from cayley.kernels.operator import Kernels
from cayley.recurrences import NormSite, lstm, lstm_loop
from cayley.recurrences.lstm import _lstm
from cayley.recurrences.lstm_forward import lstm_forward
from cayley.recurrences.lstm_gradient import with_references

slow, compiles = pytest.mark.slow, pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

# what networks may share; all others are weights, which each has of its own
DATA = ("x", "h0", "c0", "weights")
backward = with_references(cuda.lstm_backward)


def tensors_of(
    sizes: tuple[int, int, int, int],
    norms: str = "",
    window: int = 1,
    inputs: int = 0,
    own: str = "",
    past: bool = False,
    bias: bool = True,
) -> dict[str, Tensor]:
    """Those of a call of G networks, under the names of its values, as float32 holds them.

    Arguments:
        sizes: G, T, B and H.
        norms: Which normalisations there are: x, h and c are N_x, N_h and N_c.
        window: The number K of steps.
        inputs: The number of inputs; 0 for their contribution.
        own: Those of the data that each network has of its own.
        past: Whether there is a window before the first step.
        bias: Whether there is b.
    """
    G, T, B, H = sizes
    shapes: dict[str, tuple[int, ...]] = {"x": (T, B, inputs or 4 * H), "W": (4 * H, H)}
    shapes |= {"h0": (B, H), "c0": (B, H)}
    if inputs:
        shapes["U"] = (4 * H, inputs)
    if bias:
        shapes["b"] = (4 * H,)
    for name, site, F in zip("xhc", ("input", "recurrent", "cell"), (4 * H, 4 * H, H), strict=True):
        if name in norms:
            shapes |= {f"{site}_gamma": (F,), f"{site}_beta": (F,), f"{site}_reference": (B, 1)}
            if past:
                shapes[f"{site}_past"] = (2, window - 1, B, 1)
    named = {
        name: torch.randn(*(G,) * (name not in DATA or name in own.split()), *shape)
        for name, shape in shapes.items()
    }
    named["W"] /= H**0.5
    for name in named:
        if name.endswith("_past"):
            named[name][:, 1].abs_()  # the variances
    if past:
        # sequence b has a past of b steps less, but of one at least
        missing = torch.arange(B)[:, None].clamp(max=window - 2)
        there = (torch.arange(window - 1)[:, None, None] >= missing).float()
        named["weights"] = there.repeat(G, 1, 1, 1) if "weights" in own.split() else there
    return {name: value.float().double() for name, value in named.items()}


def call_of(named: dict[str, Any], window: int) -> LstmCall:
    values = {**named, "window": window, "over_batch": False, "eps": 1e-5}
    return _lstm.fields.unflatten([values.get(name) for name in _lstm.fields.names])


def assert_near(ours: Any, theirs: Tensor, what: str, most: float = 3e-6) -> None:
    assert ours.shape == theirs.shape, what
    error = (ours.double().cpu() - theirs).norm() / theirs.norm().clamp(min=1)
    assert error <= most, f"{what} is off by {error:.1g}"


def check(
    sizes: tuple[int, int, int, int],
    norms: str = "",
    window: int = 1,
    own: str = "",
    device: str = "cpu",
    given: bool = False,
    only_h: bool = False,
    **options: Any,
) -> None:
    """All results and gradients of each network.

    Arguments:
        sizes: G, T, B and H.
        norms: As for :func:`tensors_of`.
        window: The number K of steps.
        own: As for :func:`tensors_of`.
        device: The device.
        given: Whether the results are written where the caller says.
        only_h: Whether only h has a gradient.
        **options: Others for :func:`tensors_of`.
    """
    G, T, B, H = sizes
    named = tensors_of(sizes, norms, window, own=own, **options)
    is_own = {name: name not in DATA or name in own.split() for name in named}
    stacked = {name: value.float().to(device) for name, value in named.items()}
    call = call_of(
        {n: v if is_own[n] else v.expand(G, *v.shape) for n, v in stacked.items()}, window
    )
    first = {n: v[0] if is_own[n] else v for n, v in stacked.items()}
    assert cuda.takes_networks(call_of(first, window), G)
    out = None
    if given:
        shapes = [(T, B, H), (T, B, H), (T, B, 4 * H)]
        shapes += [(4, T, B, 1) if name in norms else (0,) for name in "xhc"]
        out = LstmStates(*(stacked["W"].new_full((G, *shape), torch.nan) for shape in shapes))
    states = cuda.lstm(call, out)
    statistics = [torch.randn(G, 4, T, B, 1) if n in norms else None for n in "xhc"]
    used: list[Any] = [torch.randn(G, T, B, H), torch.randn(G, T, B, H), None, *statistics]
    if only_h:
        used[1:] = [None] * 5
    for k, g in enumerate(used):
        if g is not None and k > 2:
            g[:, 2:] = 0  # for information
        used[k] = None if g is None else g.float().to(device)
    needed = [name for name in named if name != "weights"]
    # dividing by a standard deviation enlarges errors
    most = 1e-5 if norms else 3e-6
    found = backward(LstmGradients(*used), states, call, needed)
    for g in range(G):
        leaves: dict[str, Any] = {
            name: (value[g] if is_own[name] else value).clone().requires_grad_(name != "weights")
            for name, value in named.items()
        }
        theirs = lstm_forward(call_of(leaves, window), by_definition=True)
        pairs = [(a, b[g]) for a, b in zip(theirs, used, strict=True) if b is not None]
        for name, a, b in zip(LstmStates._fields, states, theirs, strict=True):
            if name != "kept":
                assert_near(a[g], b.detach(), name, most)
        gradients = torch.autograd.grad(
            [a for a, _ in pairs],
            [leaves[name] for name in needed],
            [b.double().cpu() for _, b in pairs],
            materialize_grads=True,
        )
        for name, gradient in zip(needed, gradients, strict=True):
            value: Any = found[name]
            assert_near(value[g], gradient, f"the gradient of {name}", most)


@slow
@compiles
@pytest.mark.parametrize("own", ["", "x h0 c0"], ids=["shared", "own"])
@pytest.mark.parametrize("inputs", [0, 1, 3, 17])
@pytest.mark.parametrize(
    ("B", "crowd", "forward", "backward"),
    [
        (5, 1, "lstm", "lstm"),
        (5, 40, "lstm_pair", "lstm_pair"),
        (5, 100, "lstm_eight", "lstm_pair"),
        (90, 1, "lstm_eight", "lstm_eight"),
    ],
)
def test_without_normalisations(
    B: int, crowd: int, forward: str, backward: str, inputs: int, own: str, launches: Launches
) -> None:
    """By blocks of one row, of two, and of eight."""
    with crowded(crowd):
        check((3, 4, B, 21), inputs=inputs, own=own, bias=inputs != 3, only_h=inputs == 17)
    # several rows a block read a single input themselves
    multiplied = inputs == 3 or (inputs == 1 and forward == "lstm")
    expected = {f"{forward}_forward": 1, f"{backward}_backward": 1, "row_products": 1}
    expected |= {"project": 1} if multiplied else {}
    assert launches == expected
    assert launches.networks == dict.fromkeys(expected, 3)


@slow
@compiles
@pytest.mark.parametrize("spare", [0, 200, 250], ids=["registers", "both", "shared"])
@pytest.mark.parametrize(("T", "B", "H"), [(1, 1, 5), (3, 8, 16), (3, 9, 40), (2, 19, 33)])
def test_eight_rows_a_block(
    T: int, B: int, H: int, spare: int, monkeypatch: pytest.MonkeyPatch, launches: Launches
) -> None:
    """Wherever weights are, and with rows and units that do not fill a block or a tile."""
    fill_new_memory(monkeypatch)
    monkeypatch.setattr(lstm_kernels, "EIGHT_SPARE", (spare, spare))
    monkeypatch.setattr(lstm_kernels, "_kernels", lstm_kernels._kernels.__wrapped__)
    monkeypatch.setattr(lstm_kernels, "chip", lambda _: dataclasses.replace(H200, processors=0))
    check((2, T, B, H), inputs=H % 2, own="x", given=True)
    assert launches["lstm_eight_forward"] == launches["lstm_eight_backward"] == 1


@slow
@compiles
@pytest.mark.usefixtures("launches")
@pytest.mark.parametrize("power", [-60, 0, 60], ids="2^{}".format)
def test_numbers_of_any_size(power: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves have a small range, but gradients, the first state and weights any."""
    monkeypatch.setattr(lstm_kernels, "chip", lambda _: dataclasses.replace(H200, processors=0))
    T, B, H = 3, 9, 20
    named = tensors_of((1, T, B, H), own="x h0 c0")
    x, h0, c0, W, b = (named[name][0] for name in ("x", "h0", "c0", "W", "b"))
    # rows of very different sizes, with gates that are not all 0 or 1
    sizes = 2.0 ** torch.linspace(0, -24, B, dtype=torch.float64)[:, None]
    g = torch.randn(T, B, H).float().double() * sizes * 2.0**power
    h0, W = h0 * sizes * 2.0**20, W * 2.0**-20
    leaves = [v.float().double().requires_grad_() for v in (x, h0, c0, W, b)]
    theirs = lstm_loop(*leaves)
    exact = torch.autograd.grad(theirs.h, leaves, g)
    x, h0, c0, W, b = (v.detach().float() for v in leaves)
    call = LstmCall(x, h0, c0, W, b)
    ours = cuda.lstm(call)
    assert_near(ours.h, theirs.h.detach(), "h")
    found = cuda.lstm_backward(LstmGradients(g.float()), ours, call, ("x", "h0", "c0", "W", "b"))
    for name, gradient in zip(("x", "h0", "c0", "W", "b"), exact, strict=True):
        value: Any = found[name]
        # each row of the batch for itself
        of_rows = name in ("x", "h0", "c0")
        parts = [v.movedim(-2, 0).flatten(1) if of_rows else v.flatten() for v in (value, gradient)]
        error = (parts[0].double() - parts[1]).norm(dim=-1)
        assert (error <= 3e-6 * parts[1].norm(dim=-1)).all(), name


CASES = [("xhc", 1, False), ("xhc", 3, False), ("xhc", 3, True), ("hc", 1, False), ("c", 1, False)]
CASES += [("x", 2, True), ("h", 4, True), ("xh", 9, False)]


@slow
@compiles
@pytest.mark.parametrize("own", ["", "x h0 c0 weights"], ids=["shared", "own"])
@pytest.mark.parametrize(("norms", "window", "past"), CASES)
def test_normalisations(norms: str, window: int, past: bool, own: str, launches: Launches) -> None:
    """That of the cell alone may have U."""
    check((3, 5, 2, 10), norms, window, own, past=past, inputs=2 * (norms == "c"))
    of_input = {"lstm_input_forward"} if "x" in norms else set()
    of_input |= {"lstm_input_backward"} if norms != "c" else {"project"}
    sources = {"lstm_forward", "lstm_backward", "row_products", *of_input}
    assert launches == dict.fromkeys(sources, 1)
    assert launches.networks == dict.fromkeys(sources, 3)


@slow
@compiles
@pytest.mark.usefixtures("launches")
@pytest.mark.parametrize("norms", ["", "xhc"])
@pytest.mark.parametrize(
    "sizes", [(1, 4, 3, 6), (3, 1, 1, 6), (2, 1, 3, 6), (2, 70, 1, 6)], ids=str
)
def test_odd_sizes(
    norms: str, sizes: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one network with a dimension of its own, and more steps than a block of N_x has."""
    fill_new_memory(monkeypatch)
    few = sizes[0] == 2
    check(sizes, norms, 3 if norms else 1, "h0", given=few, only_h=not few)


@slow
@compiles
@pytest.mark.usefixtures("launches")
@pytest.mark.parametrize(("norms", "inputs"), [("", 0), ("", 2), ("xhc", 0)])
def test_products_of_many_rows(norms: str, inputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those by torch."""
    monkeypatch.setattr(cuda, "LITTLE", 0)
    check((2, 3, 2, 6), norms, inputs=inputs, own="x")


@slow
@compiles
@pytest.mark.usefixtures("launches")
def test_who_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    H, batch_sizes = 6, torch.tensor([5, 4])
    x, h0, W = torch.zeros(4, 5, 4 * H), torch.zeros(5, H), torch.zeros(4 * H, H)
    call = LstmCall(x, h0, h0, W)
    site = Site(torch.ones(H), torch.zeros(H))
    assert cuda.takes_networks(call, 3)
    assert cuda.takes_networks(call._replace(cell=site, window=3), 3)
    assert not cuda.takes_networks(call, 65536)
    assert not cuda.takes_networks(
        call._replace(x=x[0, :, :].repeat(2, 1)[:9], batch_sizes=batch_sizes), 3
    )
    assert not cuda.takes_networks(call._replace(cell=site, over_batch=True), 3)
    given = site._replace(given=torch.ones(2, 4, 1, H))
    assert not cuda.takes_networks(call._replace(cell=given), 3)
    force_team(monkeypatch, (2, 1, 64, 4))
    cuda.fits_blocks.cache_clear()
    assert not cuda.takes_networks(call, 3)


@pytest.fixture
def on_kernels(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator runs on the emulated kernels."""
    monkeypatch.setattr(cuda, "tensor_refusal", lambda *tensors: memory.memory_refusal(*tensors))
    kernels = Kernels(cuda.refusal, cuda.lstm, backward, cuda.takes_networks)
    # pyrefly: ignore[bad-argument-type]
    monkeypatch.setitem(_lstm.kernels, "cpu", kernels)


def outcome(named: dict[str, Any], window: int, run: Any) -> Tensor:
    """A number that depends on all results."""
    sites = {
        name: NormSite(named[f"{name}_gamma"], named[f"{name}_beta"])
        for name in ("input", "recurrent", "cell")
        if f"{name}_gamma" in named
    }
    arguments = [named.get(name) for name in ("x", "h0", "c0", "W", "b")]
    states = run(*arguments, U=named.get("U"), c=named.get("c"), **sites, window=window)
    return states.h.square().sum() + states.c.sum()


@slow
@compiles
@pytest.mark.usefixtures("on_kernels")
@pytest.mark.parametrize("own", ["", "x h0 c0"], ids=["shared", "own"])
@pytest.mark.parametrize(("norms", "window"), [("", 1), ("xhc", 1), ("xhc", 3)])
def test_transforms(norms: str, window: int, own: str, launches: Launches) -> None:
    """By vmap of grad, and by autograd of vmap, in fewer launches than networks."""
    G, _, _, H = sizes = 5, 4, 3, 6
    named = tensors_of(sizes, norms, window, 2, own)
    named = {name: value for name, value in named.items() if not name.endswith("reference")}
    named["c"] = torch.randn(G, 4 * H).float().double()
    dims = {name: 0 if name not in DATA or name in own.split() else None for name in named}
    single: dict[str, Any] = {name: value.float().requires_grad_() for name, value in named.items()}
    loss = partial(outcome, window=window, run=lstm)
    found = vmap(grad(loss), (dims,))({name: v.detach() for name, v in single.items()})
    for name in ("lstm_forward", "lstm_backward"):
        assert launches.networks[name] == G
        assert launches[name] < G
    vmap(loss, (dims,))(single).sum().backward()
    assert launches.networks["lstm_backward"] == 2 * G
    totals: dict[str, Any] = {
        name: value.sum(0) if dims[name] is None else value for name, value in found.items()
    }
    for g in range(G):
        leaves: dict[str, Any] = {
            name: (value if dims[name] is None else value[g]).clone().requires_grad_()
            for name, value in named.items()
        }
        number = outcome(leaves, window, lstm_loop)
        gradients = torch.autograd.grad(number, [*leaves.values()])
        for name, gradient in zip(leaves, gradients, strict=True):
            assert_near(found[name][g], gradient, f"the gradient of {name}")
    for name, value in single.items():
        torch.testing.assert_close(value.grad, totals[name], rtol=1e-5, atol=1e-4)


@gpu
@pytest.mark.parametrize("own", ["", "x h0 c0"], ids=["shared", "own"])
@pytest.mark.parametrize("H", [33, 128])
@pytest.mark.parametrize(("norms", "window"), [("", 1), ("xhc", 1), ("xhc", 5), ("c", 1)])
def test_on_a_gpu(norms: str, window: int, H: int, own: str) -> None:
    """Rows for one a block, two and eight; and more steps than a block of N_x has."""
    for B in (7, 60, 101):
        for inputs in (0,) if norms else (0, 1, 2):
            check((3, 70 if norms else 9, B, H), norms, window, own, "cuda", inputs=inputs)
