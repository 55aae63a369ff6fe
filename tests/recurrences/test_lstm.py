"""The operator against the loop that defines it: outputs and every gradient."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradients import check_gradients, check_second_gradients
from torch import Tensor

import cayley
from cayley.kernels.calls import LstmCall, LstmStates
from cayley.norms.atn import Over
from cayley.norms.windows import TimeWindow
from cayley.recurrences.lstm import States, lstm, lstm_loop
from cayley.recurrences.lstm_call import NormSite

SIZES = torch.tensor([3, 3, 2, 1, 1])  # of a packed sequence: the number of sequences at each step

# what is normalised, over what, the window, whether steps went before, statistics that are given
CASES: dict[str, dict] = {
    "none": {"norm": ""},
    "layer": {"norm": "xhc"},
    "layer, no cell": {"norm": "xh"},
    "atn": {"norm": "xhc", "window": 2},
    "atn, wide": {"norm": "hc", "window": 30},
    "atn, going on": {"norm": "xhc", "window": 3, "past": True},
    "atn, wide, going on": {"norm": "hc", "window": 9, "past": True},
    "batch": {"norm": "xhc", "over": "batch"},
    "atn over batch": {"norm": "xhc", "over": "batch", "window": 3},
    "given": {"norm": "xhc", "over": "batch", "given": True},
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
packs = pytest.mark.parametrize("packed", [False, True])


class Problem:
    """A recurrence with random arguments, and the ones to differentiate by."""

    def __init__(
        self,
        T: int,
        B: int,
        H: int,
        *,
        norm: str,
        packed: bool = False,
        window: int = 1,
        over: str = "layer",
        past: bool = False,
        given: bool = False,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        if packed:
            T, B = len(SIZES), 3
        self.options: dict[str, Any] = {"window": window, "over": over, "eps": 1e-3}
        self.options["batch_sizes"] = SIZES if packed else None
        sizes = {"x": 4 * H, "h": 4 * H, "c": H}
        leaves = {
            "x": torch.randn((int(SIZES.sum()), 4 * H) if packed else (T, B, 4 * H)),
            "h0": torch.randn(B, H),
            "c0": torch.randn(B, H),
            "W": torch.randn(4 * H, H) / H**0.5,
            "b": torch.randn(4 * H),
        }
        self.given: dict[str, Any] = {}
        self.past = past
        for site in norm:
            F = sizes[site]
            leaves |= {f"gamma_{site}": torch.randn(F), f"beta_{site}": torch.randn(F)}
            if past:
                leaves |= {
                    f"reference_{site}": torch.randn(B, 1),
                    f"means_{site}": torch.randn(window - 1, B, 1),
                    f"variances_{site}": torch.rand(window - 1, B, 1) + 0.1,
                }
            if given:
                self.given[site] = torch.randn(T, 1, F).to(dtype), torch.rand(T, 1, F).to(dtype)
        # of the first sequence all steps are known, of the others the last one, and none
        self.weights = torch.zeros(window - 1, B, 1, dtype=dtype)
        self.weights[:, :1] = 1
        self.weights[-1:, 1:2] = 1
        self.names = list(leaves)
        self.norm = norm
        self.tensors = [leaf.to(dtype).requires_grad_() for leaf in leaves.values()]

    def run(self, function: Callable[..., States], *tensors: Tensor) -> tuple[Tensor, ...]:
        """h, c, and means and variances of all steps."""
        t = dict(zip(self.names, tensors, strict=True))
        sites = {}
        for site in self.norm:
            past = None
            if self.past:
                tables: Any = (t[f"{name}_{site}"] for name in ("reference", "means", "variances"))
                past = TimeWindow(*tables, weights=self.weights.to(t["x"]))
            given = self.given.get(site)
            if given is not None:
                given = tuple(table.to(t["x"]) for table in given)
            sites[site] = NormSite(t[f"gamma_{site}"], t[f"beta_{site}"], past, given)
        states = function(
            *(t[name] for name in ("x", "h0", "c0", "W", "b")),
            input=sites.get("x"),
            recurrent=sites.get("h"),
            cell=sites.get("c"),
            **self.options,
        )
        found = (states.input, states.recurrent, states.cell)
        return states.h, states.c, *(site[1][:2].clone() for site in found if site is not None)


def check_against_loop(problem: Problem) -> None:
    tensors = problem.tensors
    out = problem.run(lstm, *tensors)
    reference = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected = problem.run(lstm_loop, *reference)
    tolerance: dict[str, Any] = (
        {"rtol": 1e-3, "atol": 1e-3} if out[0].dtype == torch.float32 else {}
    )
    gs = [torch.randn_like(y) for y in expected]
    grads = torch.autograd.grad(out, tensors, [g.to(y.dtype) for g, y in zip(gs, out, strict=True)])
    wanted = torch.autograd.grad(expected, reference, gs)
    for one, other in zip((*out, *grads), (*expected, *wanted), strict=True):
        torch.testing.assert_close(one.double(), other, **tolerance)


@pytest.mark.parametrize("norm_cell", [False, True])
def test_loop_is_the_recurrence_written_out(norm_cell: bool) -> None:
    problem = Problem(4, 2, 3, norm="hc" if norm_cell else "h")
    x, h, c, W, b, gamma, beta, *cell = problem.tensors
    states = problem.run(lstm_loop, *problem.tensors)
    for t, x_t in enumerate(x):
        product = torch.nn.functional.layer_norm(h @ W.T + b, (12,), gamma, beta, 1e-3)
        i, f, g, o = (x_t + product).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        normalized = torch.nn.functional.layer_norm(c, (3,), *cell, eps=1e-3) if norm_cell else c
        h = o.sigmoid() * normalized.tanh()
        torch.testing.assert_close(states[0][t], h)
        torch.testing.assert_close(states[1][t], c)


def test_cell_is_copied_when_nothing_is_forgotten_or_added() -> None:
    H = 3
    x = torch.zeros(50, 2, 4 * H)
    x[..., :H] = -1e3  # input gate 0
    x[..., H : 2 * H] = 1e3  # forget gate 1
    c0 = torch.randn(2, H)
    c = lstm(x, torch.randn(2, H), c0, torch.randn(4 * H, H)).c
    assert (c == c0).all()


@cases
@pytest.mark.parametrize(
    ("T", "B", "H", "dtype"),
    [
        (1, 3, 4, torch.float64),
        (7, 3, 1, torch.float64),
        (13, 4, 5, torch.float64),
        (13, 4, 5, torch.float32),
    ],
)
def test_dense(case: dict, T: int, B: int, H: int, dtype: torch.dtype) -> None:
    check_against_loop(Problem(T, B, H, dtype=dtype, **case))


@cases
def test_packed(case: dict) -> None:
    check_against_loop(Problem(0, 0, 4, packed=True, **case))


@cases
def test_packed_is_each_sequence_alone(case: dict) -> None:
    if case.get("over") == "batch" and not case.get("given"):
        return  # sequences are normalised together
    problem = Problem(0, 0, 4, packed=True, **case)
    tensors = [tensor.detach() for tensor in problem.tensors]
    together = problem.run(lstm, *tensors)[0].split(SIZES.tolist())
    steps = tensors[0].split(SIZES.tolist())
    weights, problem.options["batch_sizes"] = problem.weights, None
    for row, length in enumerate([5, 3, 2]):
        own = slice(row, row + 1)
        alone = list(tensors)
        alone[0] = torch.stack([steps[t][own] for t in range(length)])
        for k, name in enumerate(problem.names):
            if name in ("h0", "c0") or name.startswith("reference"):
                alone[k] = tensors[k][own]
            elif name.startswith(("means", "variances")):
                alone[k] = tensors[k][:, own]
        problem.weights = weights[:, own]
        h = problem.run(lstm_loop, *alone)[0]
        for t in range(length):
            torch.testing.assert_close(together[t][row], h[t, 0])


def test_packed_over_the_batch_counts_only_who_is_there() -> None:
    """At each step the statistics are those of the sequences that have it."""
    problem = Problem(0, 0, 2, packed=True, norm="h", over="batch")
    x, h, c, W, b, gamma, beta = problem.tensors
    states = problem.run(lstm, *problem.tensors)[0].split(SIZES.tolist())
    for t, x_t in enumerate(x.split(SIZES.tolist())):
        B = len(x_t)
        a = h[:B] @ W.T + b
        a = (a - a.mean(0)) / (a.var(0, correction=0) + 1e-3).sqrt()
        i, f, g, o = (x_t + gamma * a + beta).chunk(4, -1)
        c = f.sigmoid() * c[:B] + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        torch.testing.assert_close(states[t], h)


@cases
@packs
def test_first_derivatives(case: dict, packed: bool) -> None:
    problem = Problem(3, 2, 2, packed=packed, **case)
    check_gradients(lambda *tensors: problem.run(lstm, *tensors), problem.tensors)


@cases
def test_second_derivatives(case: dict) -> None:
    problem = Problem(3, 2, 1 if case["norm"] == "" else 2, **case)
    check_second_gradients(lambda *tensors: problem.run(lstm, *tensors)[:2], problem.tensors)


@cases
def test_some_inputs_need_no_gradient(case: dict) -> None:
    problem = Problem(4, 3, 2, **case)
    g = torch.randn(4, 3, 2)
    expected = torch.autograd.grad(
        problem.run(lstm, *problem.tensors)[0], problem.tensors, g, allow_unused=True
    )
    for wanted, tensor in zip(expected, problem.tensors, strict=True):
        others = [t if t is tensor else t.detach() for t in problem.tensors]
        h = problem.run(lstm, *others)[0]
        (grad,) = torch.autograd.grad(h, tensor, g, allow_unused=True)
        torch.testing.assert_close(grad, wanted)


def test_inputs_with_strides() -> None:
    problem = Problem(4, 2, 3, **CASES["atn"])
    x, h0, c0, W, *rest = (tensor.detach() for tensor in problem.tensors)
    strided = (
        x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
        h0.T.contiguous().T,
        c0.T.contiguous().T,
        W.T.contiguous().T,
    )
    assert not strided[0].is_contiguous()
    torch.testing.assert_close(
        problem.run(lstm, *strided, *rest), problem.run(lstm, x, h0, c0, W, *rest)
    )


@cases
@packs
def test_operator_is_registered_soundly(
    case: dict, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(3, 3, 2, packed=packed, **case)
    module, caught = sys.modules["cayley.recurrences.lstm"], []
    operator = module._lstm

    def catch(call: LstmCall) -> LstmStates:
        caught.append((*operator.fields.flatten(call), "auto"))
        return operator(call)

    monkeypatch.setattr(module, "_lstm", catch)
    problem.run(lstm, *problem.tensors)
    # a packed sequence's sizes are data, which no tracer can read
    checks = ["test_schema", "test_autograd_registration"]
    if not packed:
        checks += ["test_faketensor", "test_aot_dispatch_dynamic"]
    (arguments,) = caught
    arguments = [
        a.detach().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a
        for a in arguments
    ]
    torch.library.opcheck(torch.ops.cayley.lstm.default, tuple(arguments), test_utils=checks)


def test_compiles_with_inductor_in_one_graph() -> None:
    problem = Problem(5, 3, 4, **CASES["atn"])

    def loss(*tensors: Tensor) -> Tensor:
        return problem.run(lstm, *tensors)[0].square().sum()

    compiled = torch.compile(loss, fullgraph=True)(*problem.tensors)
    torch.testing.assert_close(compiled, loss(*problem.tensors))
    torch.testing.assert_close(
        torch.autograd.grad(compiled, problem.tensors),
        torch.autograd.grad(loss(*problem.tensors), problem.tensors),
    )


def test_float32_follows_float64_with_a_large_bias() -> None:
    """A product with mean 1000 and standard deviation of about 0.1, normalised over 45 steps."""
    problem = Problem(500, 2, 16, norm="h", window=45, dtype=torch.float32)
    x, h0, c0, W, b, *rest = (tensor.detach() for tensor in problem.tensors)
    W, b = 0.1 * W, 1000 + 0.1 * b
    out = problem.run(lstm, x, h0, c0, W, b, *rest)[0]
    exact = problem.run(lstm_loop, *(t.double() for t in (x, h0, c0, W, b, *rest)))[0]
    assert (out - exact).abs().max() < 1e-3


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("over", ["layer", "batch"])
@pytest.mark.parametrize("window", [1, 3])
def test_a_large_first_step_does_not_act_on_later_ones(
    window: int, over: Over, backend: str
) -> None:
    """In single precision: 10⁶ in the input, and in the state, at the first step."""
    T, B, H = 12, 3, 8
    x, h0, c0 = torch.randn(T, B, 4 * H), 1e6 * torch.randn(B, H), torch.randn(B, H)
    x[0] = 1e6 * (1 + torch.rand(B, 4 * H))
    W, b = torch.randn(4 * H, H), torch.randn(4 * H)
    norms: dict[str, Any] = {
        name: torch.rand(2, F) for name, F in (("input", 4 * H), ("recurrent", 4 * H), ("cell", H))
    }
    results = []
    for dtype, function in ((torch.float32, lstm), (torch.float64, lstm_loop)):
        tensors = [v.float().to(dtype) for v in (x, h0, c0, W, b)]
        sites: dict[str, Any] = {
            name: NormSite(*pair.float().to(dtype)) for name, pair in norms.items()
        }
        with cayley.backend(backend):
            results.append(function(*tensors, **sites, window=window, over=over).h.double())
    torch.testing.assert_close(results[0][window:], results[1][window:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("create_graph", [False, True])
def test_statistics_for_reading_have_no_gradient(create_graph: bool) -> None:
    """Mean of the window and scale have none, and those of the input do not depend on W."""
    x, h0 = torch.randn(4, 2, 12), torch.randn(2, 3)
    W = torch.randn(12, 3, requires_grad=True)
    site = NormSite(torch.rand(12), torch.rand(12))
    states = lstm(x, h0, h0, W, input=site, recurrent=site, window=3)
    assert states.input is not None
    assert states.recurrent is not None

    def gradient(loss: Tensor) -> Tensor:
        return torch.autograd.grad(loss, W, retain_graph=True, create_graph=create_graph)[0]

    expected = gradient(states.h.sum())
    for statistics in (states.recurrent[1][2:], states.input[1]):
        torch.testing.assert_close(gradient(states.h.sum() + statistics.sum()), expected)
    assert not torch.allclose(gradient(states.h.sum() + states.recurrent[1].sum()), expected)


def test_arguments_that_do_not_fit_are_refused() -> None:
    x, h0, W = torch.randn(3, 2, 8), torch.randn(2, 2), torch.randn(8, 2)
    site = NormSite(torch.ones(8), torch.zeros(8))
    for function in (lstm, lstm_loop):
        for arguments in (
            (x[..., :6], h0, h0, W),
            (x, h0, h0[:1], W),
            (x, h0, h0, W[:6]),
        ):
            with pytest.raises(ValueError, match=r"expected x \(\.\.\., 4H\)"):
                function(*arguments)
        for wrong in (x[0], x[:0]):
            with pytest.raises(ValueError, match="at least one step"):
                function(wrong, h0, h0, W)
        with pytest.raises(ValueError, match="expected h0 of 2 rows, one per sequence, got 1"):
            function(x, h0[:1], h0[:1], W)
        with pytest.raises(ValueError, match="gamma and beta of 2 features"):
            function(x, h0, h0, W, cell=site)
        with pytest.raises(ValueError, match="b of 8 numbers"):
            function(x, h0, h0, W, W[0])
        given = torch.zeros(3, 1, 2)
        with pytest.raises(ValueError, match=r"given statistics \(3, 1 or 2, 8\)"):
            function(x, h0, h0, W, input=site._replace(given=(given, given)))
        past = TimeWindow(h0[:, :1], *torch.zeros(3, 1, 2, 1))
        with pytest.raises(ValueError, match=r"means and variances \(3, 2, 1\)"):
            function(x, h0, h0, W, recurrent=site._replace(past=past), window=4)
