"""The rule for the recurrent layers of torch, with states computed step by step."""

import sys
from types import FrameType
from typing import Any

import pytest
import torch
from preconditioners.explicit import backward, gradients, preconditioned
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from cayley.preconditioners import BNP

EPS, INPUT, H = 0.05, 3, 4


def step(layer: nn.Module, suffix: str, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step of one sequence by the formulas of torch's documentation."""
    weights = dict(layer.named_parameters())
    zero = torch.zeros(len(weights[f"weight_ih_{suffix}"]))
    a = weights[f"weight_ih_{suffix}"] @ x + weights.get(f"bias_ih_{suffix}", zero)
    b = weights[f"weight_hh_{suffix}"] @ h + weights.get(f"bias_hh_{suffix}", zero)
    if isinstance(layer, nn.LSTM):
        i, f, g, o = (a + b).chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return (weights[f"weight_hr_{suffix}"] @ h if layer.proj_size else h), c
    if isinstance(layer, nn.GRU):
        (a_r, a_z, a_n), (b_r, b_z, b_n) = a.chunk(3), b.chunk(3)
        z = (a_z + b_z).sigmoid()
        return (1 - z) * (a_n + (a_r + b_r).sigmoid() * b_n).tanh() + z * h, c
    return ((a + b).tanh() if layer.nonlinearity == "tanh" else (a + b).relu()), c


@torch.no_grad()
def states_before(layer: nn.Module, suffix: str, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
    """The states before the steps of one sequence (T, INPUT), in the order of the input."""
    states = []
    steps = x.flip(0) if suffix.endswith("reverse") else x
    for x_t in steps:
        states.append(h)
        h, c = step(layer, suffix, x_t, h, c)
    result = torch.stack(states)
    return result.flip(0) if suffix.endswith("reverse") else result


def check(layer: nn.Module, before: dict[str, Tensor], x: Tensor, h: Tensor, suffix: str) -> None:
    """Compare all gradients of one direction with P Pᵀ of rows x and h."""

    def grad(source: dict[str, Tensor], kind: str, rows: slice) -> Any:
        g = source.get(f"{kind}_{suffix}")
        return None if g is None else g[rows]

    after = gradients(layer)
    joint, apart = slice(None), None
    if isinstance(layer, nn.GRU):
        joint, apart = slice(2 * H), slice(2 * H, 3 * H)
    b, Ws = preconditioned(
        grad(before, "bias_ih", joint),
        [grad(before, "weight_ih", joint), grad(before, "weight_hh", joint)],
        [x, h],
        EPS,
    )
    for kind, W in zip(("weight_ih", "weight_hh"), Ws, strict=True):
        torch.testing.assert_close(grad(after, kind, joint), W, rtol=1e-12, atol=1e-12)
    if layer.bias:
        total = grad(after, "bias_ih", joint) + grad(after, "bias_hh", joint)
        torch.testing.assert_close(total, b, rtol=1e-12, atol=1e-12)
    if apart is not None:
        for kind, rows in (("ih", x), ("hh", h)):
            G, g = grad(before, f"weight_{kind}", apart), grad(before, f"bias_{kind}", apart)
            b, (W,) = preconditioned(g, [G], [rows], EPS)
            torch.testing.assert_close(
                grad(after, f"weight_{kind}", apart), W, rtol=1e-12, atol=1e-12
            )
            if g is not None:
                torch.testing.assert_close(grad(after, f"bias_{kind}", apart), b)


LAYERS = {
    "RNN": lambda **options: nn.RNN(INPUT, H, **options),
    "RNN-relu": lambda **options: nn.RNN(INPUT, H, nonlinearity="relu", **options),
    "GRU": lambda **options: nn.GRU(INPUT, H, **options),
    "LSTM": lambda **options: nn.LSTM(INPUT, H, **options),
    "LSTM-projected": lambda **options: nn.LSTM(INPUT, H, proj_size=2, **options),
}


def suffixes(layer: nn.Module) -> list[str]:
    return ["l0", "l0_reverse"] if layer.bidirectional else ["l0"]


def size(layer: Any) -> int:
    return layer.proj_size or H


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"batch_first": True}, {"bidirectional": True}]
)
@pytest.mark.parametrize("name", LAYERS)
def test_equals_P_Pt(name: str, options: dict[str, bool], given: bool) -> None:
    T, B = 6, 5
    layer = LAYERS[name](**options)
    bnp = BNP(layer, eps=EPS)
    x = torch.randn(T, B, INPUT) + 1
    D = len(suffixes(layer))
    h0, c0 = torch.zeros(D, B, size(layer)), torch.zeros(D, B, H)
    if given:
        h0, c0 = torch.randn_like(h0), torch.randn_like(c0)
    hx = (h0, c0) if isinstance(layer, nn.LSTM) else h0
    input = x.transpose(0, 1) if layer.batch_first else x
    output, _ = layer(input, hx) if given else layer(input)
    backward(output)
    before = gradients(layer)
    bnp.step()
    for d, suffix in enumerate(suffixes(layer)):
        rows = [states_before(layer, suffix, x[:, b], h0[d, b], c0[d, b]) for b in range(B)]
        check(layer, before, x.transpose(0, 1).flatten(0, 1), torch.cat(rows), suffix)


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}])
@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_packed_sequences(name: str, enforce_sorted: bool, options: dict[str, bool]) -> None:
    layer = LAYERS[name](**options)
    lengths = [6, 4, 4, 1] if enforce_sorted else [4, 1, 6, 4]
    x = torch.randn(6, 4, INPUT) + 1
    D = len(suffixes(layer))
    h0, c0 = torch.randn(D, 4, size(layer)), torch.randn(D, 4, H)
    packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=enforce_sorted)
    bnp = BNP(layer, eps=EPS)
    output, _ = layer(packed, (h0, c0) if isinstance(layer, nn.LSTM) else h0)
    backward(output.data)
    before = gradients(layer)
    bnp.step()
    for d, suffix in enumerate(suffixes(layer)):
        rows = [
            states_before(layer, suffix, x[:n, b], h0[d, b], c0[d, b])
            for b, n in enumerate(lengths)
        ]
        inputs = torch.cat([x[:n, b] for b, n in enumerate(lengths)])
        check(layer, before, inputs, torch.cat(rows), suffix)


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}])
def test_padding_that_no_loss_sees_does_not_count(options: dict[str, bool]) -> None:
    layer = nn.GRU(INPUT, H, **options)
    lengths = torch.tensor([6, 2, 4, 1])
    x = torch.randn(6, 4, INPUT)
    there = torch.arange(6)[:, None] < lengths
    x[~there] = 50.0
    bnp = BNP(layer, eps=EPS)
    output, _ = layer(x)
    output[there].square().sum().backward()
    before = gradients(layer)
    bnp.step()
    # what a reverse direction reads first is padding, and it reaches the loss
    for suffix in suffixes(layer):
        rows = [states_before(layer, suffix, x[:, b], *torch.zeros(2, H)) for b in range(4)]
        counts = there.T if suffix == "l0" else torch.ones(4, 6, dtype=torch.bool)
        inputs = x.transpose(0, 1)[counts]
        check(layer, before, inputs, torch.stack(rows)[counts], suffix)


@pytest.mark.parametrize("name", LAYERS)
def test_an_output_reaches_the_steps_before_it(name: str) -> None:
    layer, x, t = LAYERS[name](bidirectional=True), torch.randn(6, 5, INPUT), 3
    bnp = BNP(layer, eps=EPS)
    backward(layer(x)[0][t])
    before = gradients(layer)
    bnp.step()
    for suffix, steps in (("l0", slice(t + 1)), ("l0_reverse", slice(t, None))):
        start = torch.zeros(size(layer)), torch.zeros(H)
        rows = [states_before(layer, suffix, x[:, b], *start)[steps] for b in range(5)]
        inputs = x.transpose(0, 1)[:, steps].flatten(0, 1)
        check(layer, before, inputs, torch.cat(rows), suffix)


def test_the_last_state_reaches_all_steps_of_its_sequence() -> None:
    layer, x = nn.LSTM(INPUT, H), torch.randn(5, 3, INPUT)
    bnp = BNP(layer, eps=EPS)
    _, (h_n, c_n) = layer(x)
    (h_n[:, 0].sum() + c_n[:, 2].sum()).backward()
    before = gradients(layer)
    bnp.step()
    rows = [states_before(layer, "l0", x[:, b], *torch.zeros(2, H)) for b in (0, 2)]
    check(layer, before, torch.cat((x[:, 0], x[:, 2])), torch.cat(rows), "l0")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
def test_an_output_that_is_changed_in_place_is_an_error(name: str, packed: bool) -> None:
    layer, x = getattr(nn, name)(INPUT, H), torch.randn(5, 2, INPUT)
    input: Any = pack_padded_sequence(x, torch.tensor([5, 3])) if packed else x
    bnp = BNP(layer, eps=EPS)

    def run() -> Tensor:
        y, _ = layer(input)
        return y.data if packed else y

    y = run()
    y += 3
    with pytest.raises(RuntimeError, match=rf"got one of {name} that was changed in place"):
        y.square().sum().backward()
    results = []
    for fresh in (False, True):
        if fresh:
            bnp.remove()
            bnp = BNP(layer, eps=EPS)
        layer.zero_grad()
        y = run()
        (y + 3).square().sum().backward()
        # the states have been read by now
        with torch.no_grad():
            y += 3
        bnp.step()
        results.append(gradients(layer))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_unbatched_sequences() -> None:
    layer, x = nn.LSTM(INPUT, H, batch_first=True), torch.randn(5, INPUT)
    bnp = BNP(layer, eps=EPS)
    output, (h_n, _) = layer(x)
    (output.square().sum() + h_n.sum()).backward()
    before = gradients(layer)
    bnp.step()
    check(layer, before, x, states_before(layer, "l0", x, *torch.zeros(2, H)), "l0")


def test_one_step_is_that_of_the_recurrence_with_normalised_rows() -> None:
    """nn.RNN with two biases takes the step of one bias, on rows that are normalised inside."""
    layer: Any = nn.RNN(INPUT, H)
    x, lr = torch.randn(6, 5, INPUT) * 2 + 1, 0.1
    rows = torch.cat([states_before(layer, "l0", x[:, b], *torch.zeros(2, H)) for b in range(5)])
    mu_x, mu_h = x.mean((0, 1)), rows.mean(0)
    s_x, s_h = ((v.var(0, correction=0) + EPS).sqrt() for v in (x.flatten(0, 1), rows))
    U = (layer.weight_ih_l0 * s_x).detach().requires_grad_()
    W = (layer.weight_hh_l0 * s_h).detach().requires_grad_()
    b = layer.bias_ih_l0 + layer.bias_hh_l0
    c = (b + layer.weight_ih_l0 @ mu_x + layer.weight_hh_l0 @ mu_h).detach().requires_grad_()

    def run() -> Tensor:
        h, outputs = torch.zeros(5, H), []
        for x_t in x:
            h = (c + (x_t - mu_x) / s_x @ U.T + (h - mu_h) / s_h @ W.T).tanh()
            outputs.append(h)
        return torch.stack(outputs)

    bnp = BNP(layer, eps=EPS)
    layer(x)[0].square().sum().backward()
    run().square().sum().backward()
    bnp.step()
    torch.optim.SGD(layer.parameters(), lr=lr).step()
    torch.optim.SGD([U, W, c], lr=lr).step()
    torch.testing.assert_close(layer(x)[0], run(), rtol=1e-12, atol=1e-12)


def test_stacked_layers_are_refused_with_advice() -> None:
    with pytest.raises(ValueError, match=r"num_layers=1, got 2.*exclude=LSTM"):
        BNP(nn.Sequential(nn.Linear(2, 2), nn.LSTM(INPUT, H, num_layers=2)))
    model = nn.Sequential(nn.Linear(2, 2), nn.LSTM(INPUT, H, num_layers=2))
    assert BNP(model, exclude=nn.LSTM).report()["1.weight_hh_l1"] == "excluded"


def test_projection_is_reported() -> None:
    assert "before its projection" in BNP(nn.LSTM(INPUT, H, proj_size=2)).report()["weight_hr_l0"]


@pytest.mark.parametrize("packed", [False, True])
def test_work_in_python_does_not_grow_with_the_sequence(packed: bool) -> None:
    def calls(T: int) -> int:
        layer, x = nn.LSTM(INPUT, H, bidirectional=True), torch.randn(T, 3, INPUT)
        bnp = BNP(layer)
        input = pack_padded_sequence(x, torch.tensor([T, T - 1, T - 2])) if packed else x
        events: list[str] = []

        def note(frame: FrameType, event: str, argument: object) -> None:
            # ours alone: the collector of garbage comes when it likes
            if "preconditioners" in frame.f_code.co_filename:
                events.append(event)

        sys.setprofile(note)
        try:
            output, _ = layer(input)
            backward(output.data if packed else output)
            bnp.step()
        finally:
            sys.setprofile(None)
        return len(events)

    assert 0 < calls(4) == calls(64)
