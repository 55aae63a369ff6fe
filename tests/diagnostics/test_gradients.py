"""∂L/∂h_t and Jacobians against loops that autograd follows step by step, and closed forms."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.checkpoint import checkpoint
from variants import NETWORKS, Make

import cayley
from cayley.diagnostics.gradients import (
    gradient_norms,
    run_gradients,
    state_gradients,
)
from cayley.diagnostics.runs import watched
from cayley.layers.recurrent import Recurrent
from cayley.norms.atn import assorted_time_norm
from cayley.norms.layouts import reversed_sequences

# what has no kernel says so once
pytestmark = pytest.mark.filterwarnings("ignore:.*it has no normalisation for an Elman recurrence")
every = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)

T, B, I, N = 6, 4, 3, 8  # noqa: E741
LENGTHS = [6, 4, 3, 1]


def layer_of(make: Make, **options: Any) -> Recurrent:
    layer = make(I, N, **options)
    with torch.no_grad():  # thresholds start at 0, where modReLU is the identity
        for parameter in layer.parameters(recurse=False):
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def first(state: Any) -> Tensor:
    return state if isinstance(state, Tensor) else state[0]


def stepped(layer: Recurrent, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """∂L/∂h_t and ∂L/∂h_0 of L = Σ w h³ by a loop over steps, each of which keeps its gradient."""
    _, state = layer(x[:1])
    h0 = 0.1 * torch.randn_like(first(state))
    h0.requires_grad_()
    # an empty window, and no cell
    state = (h0, torch.zeros_like(h0)) if isinstance(layer, cayley.LSTM) else h0
    loss, hs = h0.new_zeros(()), []
    for x_t, w_t in zip(x, weights, strict=True):
        _, state = layer.step(x_t, state)
        h = first(state)
        h.retain_grad()
        hs.append(h)
        loss = loss + (w_t * h[0] ** 3).sum()
    loss.backward()
    return torch.stack([h.grad[0] for h in hs]), h0


@every
def test_equals_the_hooks_of_a_loop(make: Make) -> None:
    layer = layer_of(make)
    x, weights = torch.randn(T, B, I), torch.randn(T, B, layer.state_sizes[0])
    expected, h0 = stepped(layer, x, weights)
    layer.zero_grad()

    def loss() -> Tensor:
        state: Any = (h0, torch.zeros_like(h0)) if isinstance(layer, cayley.LSTM) else h0
        return (weights * layer(x, state)[0] ** 3).sum()

    found = state_gradients(layer, loss)["l0"]
    torch.testing.assert_close(found.h, expected)
    assert h0.grad is not None
    torch.testing.assert_close(found.h0, h0.grad[0])
    assert all(p.grad is None for p in layer.parameters())
    norms = found.norms()
    assert norms.shape == (T + 1, B)
    torch.testing.assert_close(norms[1:], expected.norm(dim=-1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.filterwarnings("ignore:a recurrence runs as a loop")
@every
def test_a_gpu_gives_the_numbers_of_the_cpu(make: Make) -> None:
    layer = layer_of(make, num_layers=2, bidirectional=True)
    if getattr(layer, "is_complex", False):
        # for b > 0 the gain of modReLU at 0 is so large that float32 cannot follow float64
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if name.startswith("bias"):
                    parameter.copy_(-parameter.abs())
    x = torch.randn(T, B, I)
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS))

    def losses(x: Tensor, packed: PackedSequence) -> list[Any]:
        of_dense = state_gradients(layer, lambda: layer(x)[0].square().sum())
        of_packed = state_gradients(layer, lambda: layer(packed)[0].data.square().sum())
        return [*of_dense.values(), *of_packed.values()]

    expected = losses(x, packed)
    layer.to("cuda", torch.float32)
    found = losses(x.to("cuda", torch.float32), packed.to("cuda", torch.float32))
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in ((ours.h, theirs.h), (ours.h0, theirs.h0), (ours.c, theirs.c)):
            if b is not None:
                assert a.is_cuda
                assert (a.cpu().double() - b).norm() <= 1e-3 * max(b.norm(), 1)


def one_direction(layer: Recurrent, make: Make, suffix: str) -> Recurrent:
    """A layer of the weights of one recurrence of another."""
    single = make(I, N)
    own = {}
    for name, value in layer.state_dict().items():
        for part in (f"_{suffix}", f"_{suffix}."):
            if name.endswith(part) or (part.endswith(".") and part in name):
                own[name.replace(f"_{suffix}", "_l0")] = value
    single.load_state_dict(own)
    return single.train(layer.training)


@every
def test_packed_and_reversed(make: Make) -> None:
    layer = layer_of(make, bidirectional=True)
    H = layer.state_sizes[0]
    x, weights = torch.randn(T, B, I), torch.randn(T, B, 2 * H)
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS))
    sizes = packed.batch_sizes
    packed_weights = pack_padded_sequence(weights, torch.tensor(LENGTHS)).data

    def loss() -> Tensor:
        output, _ = layer(packed)
        assert isinstance(output, PackedSequence)
        return (packed_weights * output.data**3).sum()

    found = state_gradients(layer, loss)
    assert [*found] == ["l0", "l0_reverse"]
    for k, (suffix, one) in enumerate(found.items()):
        single = one_direction(layer, make, suffix)
        assert one.h.shape == (sum(LENGTHS), H)
        for b, length in enumerate(LENGTHS):
            own, w = x[:length, b : b + 1], weights[:length, b : b + 1, k * H : (k + 1) * H]
            if k == 1:
                own, w = own.flip(0), w.flip(0)
            # the layer's own initial state, which stepped() draws anew
            expected = of_loop(single, own, w)
            if k == 1:
                expected = expected.flip(0)
            starts = sizes.cumsum(0) - sizes
            torch.testing.assert_close(one.h[starts[:length] + b], expected[:, 0])
            norms = one.norms()[:, b]
            along = expected.flip(0) if k == 1 else expected
            torch.testing.assert_close(norms[1 : length + 1], along[:, 0].norm(dim=-1))
            assert norms[length + 1 :].isnan().all()


def test_norms_of_sequences_that_were_sorted_to_be_packed() -> None:
    layer = cayley.LSTM(I, N, num_layers=2)
    x, lengths, order = torch.randn(T, B, I), torch.tensor(LENGTHS), torch.tensor([2, 0, 3, 1])
    packed = pack_padded_sequence(x, lengths)
    unsorted = pack_padded_sequence(x[:, order], lengths[order], enforce_sorted=False)
    expected, found = (
        state_gradients(layer, lambda p=p: layer(p)[0].data.square().sum())
        for p in (packed, unsorted)
    )
    for name, one in found.items():
        for of in ("h", "c"):
            norms = expected[name].norms(of)[:, order]
            torch.testing.assert_close(one.norms(of), norms, equal_nan=True)


def of_loop(layer: Recurrent, x: Tensor, weights: Tensor) -> Tensor:
    """∂L/∂h_t of L = Σ w h³ by a loop from the layer's own initial state."""
    loss, hs, state = x.new_zeros(()), [], None
    for x_t, w_t in zip(x, weights, strict=True):
        _, state = layer.step(x_t, state)
        h = first(state)
        h.retain_grad()
        hs.append(h)
        loss = loss + (w_t * h[0] ** 3).sum()
    loss.backward()
    return torch.stack([h.grad[0] for h in hs])


def naive(layer: cayley.LSTM, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """∂L/∂h and ∂L/∂c of L = Σ w h³ by a loop that normalises the whole past at every step."""
    H = layer.hidden_size
    h = c = x.new_zeros(x.shape[1], H)
    before: dict[str, list[Tensor]] = {"ih": [], "hh": [], "cell": []}

    def norm(site: str, a: Tensor) -> Tensor:
        if layer.norm is None:
            return a
        before[site].append(a)
        y, _ = assorted_time_norm(
            torch.stack(before[site]),
            getattr(layer, f"gamma_{site}_l0"),
            getattr(layer, f"beta_{site}_l0"),
            window=layer.window,
            over=layer.over,
            eps=layer.eps,
        )
        return y[-1]

    loss, hs, cs = x.new_zeros(()), [], []
    for x_t, w_t in zip(x, weights, strict=True):
        a = norm("ih", x_t @ layer.weight_ih_l0.T + layer.bias_ih_l0)
        a = a + norm("hh", h @ layer.weight_hh_l0.T + layer.bias_hh_l0)
        i, f, g, o = a.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * norm("cell", c).tanh()
        h.retain_grad()
        c.retain_grad()
        hs.append(h)
        cs.append(c)
        loss = loss + (w_t * h**3).sum()
    loss.backward()
    return torch.stack([h.grad for h in hs]), torch.stack([c.grad for c in cs])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "layer"},
        {"norm": "atn", "window": 3},
        {"norm": "batch"},
        {"norm": "atn", "window": 3, "over": "batch"},
    ],
    ids=str,
)
def test_cells_and_statistics_of_the_batch(options: dict) -> None:
    layer = layer_of(cayley.LSTM, **options)
    assert isinstance(layer, cayley.LSTM)
    assert layer.training
    x, weights = torch.randn(T, B, I), torch.randn(T, B, N)
    expected_h, expected_c = naive(layer, x, weights)
    found = state_gradients(layer, lambda: (weights * layer(x)[0] ** 3).sum())["l0"]
    torch.testing.assert_close(found.h, expected_h)
    assert found.c is not None
    torch.testing.assert_close(found.c, expected_c)
    torch.testing.assert_close(found.norms("c")[1:], expected_c.norm(dim=-1))


def test_a_loss_of_the_cell_and_of_the_windows() -> None:
    """External gradients of c, and of the statistics that a stream carries on."""
    layer = layer_of(cayley.LSTM, norm="atn", window=3)
    x = torch.randn(T, B, I)

    def loss() -> Tensor:
        _, (_, c_n, windows) = layer(x)
        return c_n.square().sum() + windows.square().sum()

    found = state_gradients(layer, loss)["l0"]
    # the gradient of h_0 by the fused backward pass itself
    h0, c0 = torch.zeros(1, B, N, requires_grad=True), torch.zeros(1, B, N, requires_grad=True)
    _, (_, c_n, windows) = layer(x, (h0, c0))
    of_h0, of_c0 = torch.autograd.grad(c_n.square().sum() + windows.square().sum(), (h0, c0))
    torch.testing.assert_close(found.h0, of_h0[0])
    torch.testing.assert_close(found.c0, of_c0[0])


@every
def test_initial_gradients_of_a_stack_are_those_of_the_backward_pass(make: Make) -> None:
    layer = layer_of(make, num_layers=2, bidirectional=True)
    x = torch.randn(T, B, I)
    hx = [
        torch.zeros(4, B, size, requires_grad=True)
        for size in (layer.state_sizes if len(layer.state_sizes) == 1 else layer.state_sizes[:2])
    ]
    state: Any = hx[0] if len(hx) == 1 else tuple(hx)
    weights = torch.randn(T, B, layer.output_size)
    expected = torch.autograd.grad((weights * layer(x, state)[0]).sum(), hx)
    found = state_gradients(layer, lambda: (weights * layer(x, state)[0]).sum())
    assert [*found] == ["l0", "l0_reverse", "l1", "l1_reverse"]
    for k, one in enumerate(found.values()):
        torch.testing.assert_close(one.h0, expected[0][k])
        if one.c0 is not None:
            torch.testing.assert_close(one.c0, expected[1][k])


def test_rotation_keeps_every_norm() -> None:
    layer = cayley.RNN(1, 2, recurrent="cayley", nonlinearity="identity")
    x = torch.randn(50, 3, 1)
    norms = gradient_norms(layer, lambda: layer(x)[0][-1, :, 0].sum())["l0"]
    torch.testing.assert_close(norms, torch.ones(51, 3))


def test_a_contraction_lets_gradients_vanish_at_its_rate() -> None:
    layer = cayley.RNN(1, 2, nonlinearity="tanh")
    with torch.no_grad():
        layer.weight_hh_l0.copy_(0.5 * torch.eye(2))
        layer.weight_ih_l0.zero_()
        layer.bias_ih_l0.zero_()
        layer.bias_hh_l0.zero_()
    x = torch.randn(10, 1, 1)
    norms = gradient_norms(layer, lambda: layer(x)[0][-1, :, 0].sum())["l0"][:, 0]
    torch.testing.assert_close(norms, 0.5 ** torch.arange(10, -1, -1.0))


def test_nothing_of_a_training_step_changes() -> None:
    def step(watch: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.ModuleDict({"rnn": cayley.NCGRU(I, N), "head": nn.Linear(N, 1)})
        x = torch.randn(T, B, I)
        if watch:
            with watched(model) as runs:
                model["head"](model["rnn"](x)[0]).sum().backward()
            run_gradients(runs[0])
        else:
            model["head"](model["rnn"](x)[0]).sum().backward()
        assert not model["rnn"]._forward_hooks
        assert not model["rnn"]._forward_pre_hooks
        return [p.grad for p in model.parameters() if p.grad is not None]

    for with_watch, without in zip(step(True), step(False), strict=True):
        assert torch.equal(with_watch, without)


def test_an_optimizer_that_steps_before_the_reading_changes_nothing() -> None:
    layer = cayley.RNN(I, N)
    x = torch.randn(T, B, I)
    expected = state_gradients(layer, lambda: layer(x)[0].square().sum())["l0"].h
    with watched(layer) as runs:
        layer(x)[0].square().sum().backward()
    torch.optim.SGD(layer.parameters(), lr=1.0).step()
    torch.testing.assert_close(run_gradients(runs[0]).h, expected)


@pytest.mark.parametrize("name", ["ScoRNN", "NCGRU", "LSTM-atn"])
def test_activation_checkpointing_and_autocast(name: str) -> None:
    layer, x = layer_of(NETWORKS[name]), torch.randn(T, B, I)
    expected = state_gradients(layer, lambda: layer(x)[0].square().sum())["l0"].h

    def again() -> Tensor:
        return checkpoint(lambda x: layer(x)[0], x, use_reentrant=False).square().sum()

    torch.testing.assert_close(state_gradients(layer, again)["l0"].h, expected)
    layer.float()
    with torch.autocast("cpu"):
        found = state_gradients(layer, lambda: layer(x.float())[0].square().sum())["l0"].h
    assert found.dtype == torch.float32
    assert (found.double() - expected).norm() < 0.1 * expected.norm()


def test_what_cannot_be_served_is_said() -> None:
    with pytest.raises(TypeError, match=r"ScoRNN.*got none, but LSTM; cayley.RNN and cayley.LSTM"):
        state_gradients(nn.LSTM(I, N), lambda: torch.zeros(()))
    layer, x = cayley.ScoRNN(I, N), torch.randn(T, B, I)
    with pytest.raises(ValueError, match="call the model itself"):
        state_gradients(layer, lambda: layer.weight_ih_l0.sum())
    with pytest.raises(ValueError, match="a loss with a gradient"):
        state_gradients(layer, lambda: layer(x)[0].sum().detach())
    with pytest.raises(ValueError, match="one forward pass of each layer, got 2 of 'l0'"):
        state_gradients(layer, lambda: layer(x)[0].sum() + layer(x)[0].sum())
    with watched(layer) as runs:
        layer(x)
    with pytest.raises(ValueError, match="after its backward pass"):
        run_gradients(runs[0])
    with pytest.raises(ValueError, match="without cells"):
        state_gradients(layer, lambda: layer(x)[0].sum())["l0"].norms("c")
    with pytest.raises(RuntimeError, match="eager"), watched(layer):
        torch.func.vmap(lambda x: layer(x)[0])(torch.randn(2, T, B, I))


def test_reversed_norms_follow_the_recurrence() -> None:
    layer = layer_of(cayley.ScoRNN, bidirectional=True)
    x = torch.randn(T, B, I)
    one = state_gradients(layer, lambda: layer(x)[0].square().sum())["l0_reverse"]
    norms = one.norms()
    torch.testing.assert_close(norms[0], one.h0.norm(dim=-1))
    torch.testing.assert_close(norms[1:], reversed_sequences(one.h, None).norm(dim=-1))
