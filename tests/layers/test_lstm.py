"""``LSTM`` without a norm is ``nn.LSTM``; with one it is the equations of the documents."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gradients import check_gradients, grad_of
from processes import call_in_processes, free_port
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.optim.swa_utils import AveragedModel
from torch.utils._pytree import tree_leaves

from cayley.layers.lstm import LSTM

T, B, I, H = 7, 4, 3, 5  # noqa: E741
LENGTHS = torch.tensor([5, 7, 1, 5])
NORMS: dict[str, dict] = {
    "layer": {"norm": "layer"},
    "atn": {"norm": "atn", "window": 3},
    "atn, wide": {"norm": "atn", "window": 20},
    "batch": {"norm": "batch"},
    "atn over batch": {"norm": "atn", "window": 3, "over": "batch"},
}
norms = pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
over_batch = pytest.mark.parametrize("norm", [NORMS["batch"], NORMS["atn over batch"]])
# in training, batches of sequences of different lengths end with a single one
end_alone = pytest.mark.filterwarnings("ignore:.*a step of a single sequence")


def layer_of(**options: Any) -> Any:
    layer = LSTM(I, H, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def as_tensors(result: tuple) -> list[Tensor]:
    output, state = result
    return [output.data if isinstance(output, PackedSequence) else output, *state]


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["batched", "batch_first", "unbatched", "packed", "sorted"])
@pytest.mark.parametrize("with_state", [False, True])
def test_returns_the_numbers_and_gradients_of_nn_lstm(
    num_layers: int, bidirectional: bool, bias: bool, kind: str, with_state: bool
) -> None:
    options = {
        "num_layers": num_layers,
        "bidirectional": bidirectional,
        "bias": bias,
        "batch_first": kind == "batch_first",
    }
    theirs, ours = nn.LSTM(I, H, **options), LSTM(I, H, **options)
    assert ours.load_state_dict(theirs.state_dict()).missing_keys == []
    x = torch.randn(T, I) if kind == "unbatched" else torch.randn(T, B, I)
    shape = (num_layers * (1 + bidirectional), *(() if kind == "unbatched" else (B,)), H)
    if kind == "batch_first":
        x = x.transpose(0, 1)
    hx = tuple(torch.randn(2, *shape)) if with_state else None
    leaves, results = [], []
    for layer in (theirs, ours):
        own_x = x.clone().requires_grad_()
        own_hx = None if hx is None else tuple(h.clone().requires_grad_() for h in hx)
        leaves.append([own_x, *(own_hx or ()), *layer.parameters()])
        inputs = own_x
        if kind in ("packed", "sorted"):
            lengths = LENGTHS if kind == "packed" else torch.tensor([7, 5, 5, 1])
            inputs = pack_padded_sequence(own_x, lengths, enforce_sorted=kind == "sorted")
        results.append(as_tensors(layer(inputs, own_hx)))
    torch.testing.assert_close(results[1], results[0])
    weights = [torch.randn_like(result) for result in results[0]]
    gradients = [
        torch.autograd.grad(result, leaf, weights)
        for result, leaf in zip(results, leaves, strict=True)
    ]
    torch.testing.assert_close(gradients[1], gradients[0])


def test_starts_with_the_numbers_of_nn_lstm() -> None:
    torch.manual_seed(0)
    theirs = nn.LSTM(I, H, num_layers=2, bidirectional=True)
    torch.manual_seed(0)
    ours = LSTM(I, H, num_layers=2, bidirectional=True)
    assert list(theirs.state_dict()) == list(ours.state_dict())
    for key, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[key], value)


class Window:
    """The definition: the last K raw values, of one row or of all of them."""

    def __init__(self, layer: LSTM, site: str) -> None:
        self.layer = layer
        self.gamma, self.beta = torch.ones(()), torch.zeros(())
        if layer.affine:
            self.gamma, self.beta = (getattr(layer, f"{n}_{site}_l0") for n in ("gamma", "beta"))
        self.values: list[Tensor] = []

    def __call__(self, a: Tensor) -> Tensor:
        self.values = [*self.values, a][-self.layer.window :]
        if self.layer.over == "layer":
            pool = torch.cat([value[: len(a)] for value in self.values], 1)
            mean, var = pool.mean(1, keepdim=True), pool.var(1, correction=0, keepdim=True)
        else:
            pool = torch.cat(self.values)
            mean, var = pool.mean(0), pool.var(0, correction=0)
        return self.gamma * (a - mean) / (var + self.layer.eps).sqrt() + self.beta


def defined(layer: LSTM, steps: list[Tensor], h: Tensor, c: Tensor) -> list[Tensor]:
    """The equations of the documents, for rows that leave with time."""
    N_x, N_h = Window(layer, "ih"), Window(layer, "hh")
    N_c = Window(layer, "cell") if layer.norm_cell else lambda c: c
    outputs = []
    for x_t in steps:
        h, c = h[: len(x_t)], c[: len(x_t)]
        ux, wh = x_t @ layer.weight_ih_l0.T, h @ layer.weight_hh_l0.T
        if not layer.bias:
            a = N_h(wh) + N_x(ux)
        elif layer.bias_inside:
            a = N_h(wh + layer.bias_hh_l0) + N_x(ux + layer.bias_ih_l0)
        else:
            a = N_h(wh) + N_x(ux) + layer.bias_l0
        i, f, g, o = a.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * N_c(c).tanh()
        outputs.append(h)
    return outputs


@norms
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm_cell": False},
        {"bias_inside": False},
        {"bias": False},
        {"eps": 1.0},
        {"affine": False},
        {"affine": False, "bias_inside": False},
    ],
)
def test_is_the_equations_of_the_documents(norm: dict, options: dict) -> None:
    layer = layer_of(**norm, **options)
    x, h, c = torch.randn(T, B, I), torch.randn(B, H), torch.randn(B, H)
    output, _ = layer(x, (h[None], c[None]))
    torch.testing.assert_close(output, torch.stack(defined(layer, list(x), h, c)))


@norms
@end_alone
def test_padding_never_enters(norm: dict) -> None:
    """Packed sequences, of which each step counts only the sequences that have it."""
    layer = layer_of(**norm)
    x = torch.randn(T, B, I)
    x[torch.arange(T)[:, None] >= LENGTHS] = torch.nan
    packed = pack_padded_sequence(x, LENGTHS, enforce_sorted=False)
    output, _ = layer(packed)
    assert output.data.isfinite().all()
    steps = list(packed.data.split(packed.batch_sizes.tolist()))
    expected = torch.cat(defined(layer, steps, torch.zeros(B, H), torch.zeros(B, H)))
    torch.testing.assert_close(output.data, expected)
    output.data.sum().backward()
    assert all(grad_of(p).isfinite().all() for p in layer.parameters())


@norms
@end_alone
def test_backward_direction_is_forward_on_reversed_sequences(norm: dict) -> None:
    """With different lengths too: every sequence starts with its own last step."""
    layer = layer_of(bidirectional=True, **norm)
    alone = LSTM(I, H, **norm)
    state = {k.replace("_reverse", ""): v for k, v in layer.state_dict().items() if "_rev" in k}
    alone.load_state_dict(state)
    x = torch.randn(T, B, I)
    backwards = torch.zeros_like(x)
    for b, length in enumerate(LENGTHS.tolist()):
        backwards[:length, b] = x[:length, b].flip(0)
    both, state = layer(pack_padded_sequence(x, LENGTHS, enforce_sorted=False))
    one, expected = alone(pack_padded_sequence(backwards, LENGTHS, enforce_sorted=False))
    both, one = pad_packed_sequence(both)[0], pad_packed_sequence(one)[0]
    for b, length in enumerate(LENGTHS.tolist()):
        torch.testing.assert_close(both[:length, b, H:], one[:length, b].flip(0))
    for tensor, wanted in zip(state, expected, strict=True):
        torch.testing.assert_close(tensor[1], wanted[0])


def test_window_of_one_step_is_layer_or_batch_normalisation() -> None:
    x = torch.randn(T, B, I)
    for over in ("layer", "batch"):
        layer = layer_of(norm=over)
        twin = LSTM(I, H, norm="atn", window=1, over=over)
        twin.load_state_dict(layer.state_dict())
        assert torch.equal(twin(x)[0], layer(x)[0])


@pytest.mark.parametrize("window", [2, 3, 20])
@pytest.mark.parametrize("cut", [1, 2, 4, 6])
def test_chunks_give_what_one_run_gives(window: int, cut: int) -> None:
    layer = layer_of(norm="atn", window=window, num_layers=2)
    x = torch.randn(T, B, I, requires_grad=True)
    output, last = layer(x)
    first, state = layer(x[:cut])
    second, end = layer(x[cut:], state)
    torch.testing.assert_close(torch.cat((first, second)), output)
    torch.testing.assert_close(end, last)
    leaves = (x, *layer.parameters())
    g = torch.randn_like(output)
    torch.testing.assert_close(  # gradients cross the cut, through the window too
        torch.autograd.grad(torch.cat((first, second)), leaves, g),
        torch.autograd.grad(output, leaves, g),
    )


def test_chunks_of_different_lengths_go_on_each_from_its_end() -> None:
    layer = layer_of(norm="atn", window=4)
    x, y = torch.randn(T, B, I), torch.randn(T, B, I)
    _, state = layer(pack_padded_sequence(x, LENGTHS, enforce_sorted=False))
    assert state[2][0, :, 0].tolist() == LENGTHS.tolist()
    output, _ = layer(y, state)
    for b, length in enumerate(LENGTHS.tolist()):
        whole, _ = layer(torch.cat((x[:length, b : b + 1], y[:, b : b + 1])))
        torch.testing.assert_close(output[:, b], whole[length:, 0])


@norms
def test_two_tensors_are_enough_and_clear_the_window(norm: dict) -> None:
    layer = layer_of(**norm)
    x = torch.randn(T, B, I)
    _, state = layer(x)
    expected, _ = layer(x, (*state[:2], *(torch.zeros_like(extra) for extra in state[2:])))
    for hx in (state[:2], list(state[:2])):
        torch.testing.assert_close(layer(x, hx)[0], expected)
    unbatched, _ = layer.eval()(x[:, 0], tuple(h[:, 0] for h in state[:2]))
    torch.testing.assert_close(unbatched, layer(x, state[:2])[0][:, 0])
    with pytest.raises(RuntimeError, match="tensor"):
        layer(x, state[:1])


@norms
@pytest.mark.parametrize("training", [True, False])
def test_step_is_forward_one_step_at_a_time(norm: dict, training: bool) -> None:
    layer = layer_of(**norm)
    layer(torch.randn(4, B, I) + 1)  # a population that differs from step to step
    layer.train(training)
    twin = copy.deepcopy(layer)
    x = torch.randn(T, B, I)
    output, last = layer(x)
    if training and norm.get("over") == "batch":
        return  # while training, a window over the batch starts with every call
    state = None
    for t, x_t in enumerate(x):
        y_t, state = twin.step(x_t, state)
        torch.testing.assert_close(y_t, output[t])
    torch.testing.assert_close(state, last)
    torch.testing.assert_close(twin.state_dict(), layer.state_dict())  # the population too


@over_batch
def test_population_of_each_step(norm: dict) -> None:
    layer = layer_of(norm_cell=False, **norm)
    batches = [torch.randn(5, B, I) for _ in range(3)]
    K = layer.window
    used: dict[str, list] = {"ih": [], "hh": []}
    for x in batches:
        before = torch.cat((torch.zeros(1, B, H), layer(x)[0][:-1]))
        used["ih"].append(x @ layer.weight_ih_l0.T + layer.bias_ih_l0)
        used["hh"].append(before @ layer.weight_hh_l0.T + layer.bias_hh_l0)
    for site, values in used.items():
        population = layer.population[f"{site}_l0"]
        assert population.batches[:6].tolist() == [3] * 5 + [0]
        for t in range(5):
            pools = [a[max(0, t + 1 - K) : t + 1].flatten(0, 1) for a in values]
            mean = torch.stack([pool.mean(0) for pool in pools]).mean(0)
            var = torch.stack([pool.var(0) for pool in pools]).mean(0)
            torch.testing.assert_close(population.mean[t], mean)
            torch.testing.assert_close(population.var[t], var)


def test_evaluation_uses_the_population_and_beyond_it_the_last_step() -> None:
    layer = layer_of(norm="batch", norm_cell=False)
    layer(torch.randn(3, 20, I) + 1)
    layer.eval()
    x = torch.randn(T, 1, I)
    output, _ = layer(x)
    h, c = torch.zeros(1, H), torch.zeros(1, H)
    for t in range(T):
        a: Any = 0
        for site, v in (("ih", x[t]), ("hh", h)):
            weight, bias, gamma, beta = (
                getattr(layer, f"{name}_{site}_l0") for name in ("weight", "bias", "gamma", "beta")
            )
            population = layer.population[f"{site}_l0"]
            mean, var = population.mean[min(t, 2)], population.var[min(t, 2)]
            a = a + gamma * (v @ weight.T + bias - mean) / (var + 1e-5).sqrt() + beta
        i, f, g, o = a.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        torch.testing.assert_close(output[t], h)
    many = torch.randn(9, 3, I)
    together = layer(many)[0]
    for b in range(3):  # examples do not depend on one another
        torch.testing.assert_close(layer(many[:, b])[0], together[:, b])


@over_batch
def test_a_single_sequence_does_not_enter_the_population(norm: dict) -> None:
    """Neither at the end of the longest one, nor in a batch of one."""
    layer = layer_of(**norm)
    x = torch.randn(T, B, I)
    with pytest.warns(UserWarning, match="single sequence has no variance"):
        layer(pack_padded_sequence(x, LENGTHS, enforce_sorted=False))
    expected = copy.deepcopy(layer.state_dict())
    layer(x[:, :1])
    torch.testing.assert_close(layer.state_dict(), expected)
    for population in layer.population.values():
        assert population.batches[:T].tolist() == [1] * 5 + [0] * 2
        assert (population(torch.arange(1, 50))[1] > 0).all()  # h0 = 0 has none
    layer.eval()
    assert layer(torch.randn(50, B, I))[0].isfinite().all()
    alone = layer_of(**norm)
    with pytest.warns(UserWarning, match="single sequence has no variance"):
        alone(x[:, 0])
    with pytest.raises(RuntimeError, match="no training step had two sequences"):
        alone.eval()(x)


@over_batch
def test_statistics_have_one_size_whatever_the_sequences(norm: dict) -> None:
    """So streams do not let them grow, averages of models exist and checkpoints load."""
    layer = layer_of(num_layers=2, max_steps=5, **norm)
    averaged = AveragedModel(layer, use_buffers=True)
    size = sum(buffer.numel() for buffer in layer.buffers())
    state = None
    for k in range(4):
        _, state = layer(torch.randn(T + k, B, I), state)
        averaged.update_parameters(layer)
    assert sum(buffer.numel() for buffer in layer.buffers()) == size
    layer(torch.randn(T, B, I))
    x = torch.randn(T + 2, B, I)
    assert averaged.eval()(x)[0].isfinite().all()
    new = LSTM(I, H, num_layers=2, max_steps=5, **norm)
    for name, value in layer.state_dict().items():  # as loaders do that know no modules
        if "population" in name:
            new.get_buffer(name).copy_(value)
    twin = LSTM(I, H, num_layers=2, **norm)
    twin.load_state_dict(layer.state_dict())
    layer.eval()
    twin.eval()
    assert torch.equal(twin(x[:4])[0], layer(x[:4])[0])
    torch.testing.assert_close(twin(x)[0], layer(x)[0])
    assert "max_steps=5" in repr(layer)
    layer.reset_parameters()
    assert not any(population.batches.any() for population in layer.population.values())


def work(rank: int, port: str, folder: str) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(0)
    layer = layer_of(norm="batch")
    model = DistributedDataParallel(layer)
    for k in range(3):
        x = torch.randn(9 + 3 * k if rank else 4, B, I)
        model(x)[0].square().mean().backward()
    model.eval()(torch.randn(2, B, I))  # the buffers are sent before a call
    torch.save((layer.state_dict(), layer(torch.randn(30, B, I))[0]), Path(folder) / str(rank))
    dist.destroy_process_group()


@pytest.mark.slow
def test_processes_may_have_sequences_of_different_lengths(tmp_path: Path) -> None:
    port = free_port()
    call_in_processes(__file__, "work", *((rank, port, str(tmp_path)) for rank in range(2)))
    (first, _), (second, y) = (torch.load(tmp_path / str(rank)) for rank in range(2))
    for key, value in first.items():
        assert torch.equal(value, second[key]), key
        if key.endswith(".var"):
            assert (value >= 0).all()
    assert y.isfinite().all()


@pytest.mark.slow
@over_batch
def test_training_over_the_batch_compiles_and_has_gradients(norm: dict) -> None:
    layer = layer_of(bidirectional=True, **norm)
    twin = copy.deepcopy(layer)
    x = torch.randn(3, B, I, requires_grad=True)
    torch.compiler.reset()
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager_default_partitioner")
    torch.testing.assert_close(compiled(x)[0], layer(x)[0])
    torch.testing.assert_close(twin.state_dict(), layer.state_dict())
    small = LSTM(2, 2, **norm)
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.copy_(torch.randn_like(parameter))
    names, parameters = zip(*small.named_parameters(), strict=True)

    def run(x: Tensor, *values: Tensor) -> Tensor:
        named = dict(zip(names, values, strict=True))
        return torch.func.functional_call(copy.deepcopy(small), named, x)[0]

    x = torch.randn(3, 3, 2, requires_grad=True)
    check_gradients(run, (x, *parameters))


@norms
def test_initial_values(norm: dict) -> None:
    layer = LSTM(I, H, num_layers=2, forget_bias=2.0, **norm)
    for k, size in enumerate((I, H)):
        p = {
            key.removesuffix(f"_l{k}"): v for key, v in layer.named_parameters() if f"_l{k}" in key
        }
        assert torch.equal(p["weight_hh"], torch.eye(H).repeat(4, 1))
        torch.testing.assert_close(p["weight_ih"].T @ p["weight_ih"], torch.eye(size))
        assert not p["bias_ih"].any()
        assert not p["bias_hh"].any()
        gamma = 0.1 if layer.over == "batch" else 1.0
        assert all((p[f"gamma_{site}"] == gamma).all() for site in ("ih", "hh", "cell"))
        assert not p["beta_ih"].any()
        assert not p["beta_cell"].any()
        assert p["beta_hh"].view(4, H)[:, 0].tolist() == [0, 2, 0, 0]


@norms
def test_without_gamma_and_beta(norm: dict) -> None:
    """It is the layer with γ = 1 and β = 0, and has 2 (4H + 4H + H) parameters fewer."""
    layer = layer_of(affine=False, **norm)
    twin: Any = LSTM(I, H, **norm)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            parameter.copy_(layer.state_dict().get(name, torch.tensor(1.0 * ("gamma" in name))))
    x = torch.randn(T, B, I)
    torch.testing.assert_close(layer(x)[0], twin(x)[0], rtol=0, atol=0)
    counts = [sum(p.numel() for p in each.parameters()) for each in (layer, twin)]
    assert counts[1] - counts[0] == 2 * 9 * H
    assert "affine=False" in repr(layer)
    (outside,) = LSTM(I, H, affine=False, bias_inside=False, forget_bias=2.0, **norm).bias_l0[None]
    assert outside.view(4, H)[:, 0].tolist() == [0, 2, 0, 0]


def test_gamma_and_beta_are_not_left_out_of_nothing() -> None:
    with pytest.raises(ValueError, match="affine=False needs a normalisation"):
        LSTM(I, H, affine=False)
    with pytest.raises(ValueError, match="expected affine=True or bias_inside=False"):
        LSTM(I, H, norm="layer", affine=False, forget_bias=1.0)
    with pytest.raises(ValueError, match="expected bias=True, got False"):
        LSTM(I, H, norm="layer", affine=False, bias_inside=False, bias=False, forget_bias=1.0)


def test_forget_bias_without_a_norm() -> None:
    layer = LSTM(I, H, forget_bias=-4.0, bidirectional=True)
    for end in ("", "_reverse"):
        b = (getattr(layer, f"bias_ih_l0{end}") + getattr(layer, f"bias_hh_l0{end}")).view(4, H)
        assert (b[1] == -4).all()
        assert (b[[0, 2, 3]] != 0).all()


# Rows of the documents: units, inputs, outputs, count by the formula
COUNTS = [
    (128, 1, 10, 67850),
    (256, 1, 10, 266762),
    (512, 1, 10, 1057802),
    (60, 2, 1, 15181),
    (68, 10, 9, 22109),
    (84, 129, 129, 82869),
    (120, 129, 129, 135609),
    (158, 129, 129, 202527),
    (468, 129, 129, 1179957),
]


@pytest.mark.parametrize(("n", "m", "p", "count"), COUNTS)
def test_parameter_counts(n: int, m: int, p: int, count: int) -> None:
    """The formula counts one bias; nn.LSTM, and so ours, has two, which act as one."""
    output = nn.Linear(n, p)
    found = [
        sum(x.numel() for x in (*layer.parameters(), *output.parameters()))
        for layer in (
            LSTM(m, n),
            LSTM(m, n, norm="layer"),
            LSTM(m, n, norm="atn", window=45, bias_inside=False),
            LSTM(m, n, norm="layer", norm_cell=False),
        )
    ]
    extra = 2 * (4 * n + 4 * n + n)
    assert found == [count + 4 * n, count + 4 * n + extra, count + extra, found[1] - 2 * n]


@pytest.mark.parametrize(("n", "count"), [(350, 1016450), (1030, 8594370)])
def test_parameter_counts_of_the_characters(n: int, count: int) -> None:
    """A linear embedding of 50 characters in n numbers goes before; two biases as above."""
    modules = (nn.Linear(50, n, bias=False), LSTM(n, n), nn.Linear(n, 50))
    assert sum(x.numel() for module in modules for x in module.parameters()) == count + 4 * n


def test_atn_lets_the_scale_of_a_step_through_and_layer_normalisation_does_not() -> None:
    """Without a bias and at a small ε; with ε = 1 layer normalisation lets it through too (E24)."""
    x = torch.randn(T, B, I)
    scaled = x.clone()
    scaled[3] *= 3
    change = {}
    cases: dict[str, dict[str, Any]] = {
        "layer": {"norm": "layer", "eps": 1e-10},
        "atn": {"norm": "atn", "window": 3, "eps": 1e-10},
        "layer, ε = 1": {"norm": "layer", "eps": 1.0},
    }
    for name, options in cases.items():
        layer = LSTM(I, H, bias=False, **options)
        change[name] = (layer(scaled)[0] - layer(x)[0]).abs().max()
    assert change["layer"] < 1e-7
    assert change["atn"] > 1e-2
    assert change["layer, ε = 1"] > 1e-2


def test_repr_tells_the_normalisation() -> None:
    layer = LSTM(3, 5, norm="atn", window=2, bias_inside=False, norm_cell=False, forget_bias=1.0)
    assert layer.extra_repr() == (
        "3, 5, norm='atn', window=2, over='layer', norm_cell=False, bias_inside=False, "
        "forget_bias=1.0"
    )
    assert LSTM(3, 5).extra_repr() == "3, 5"
    assert len(tree_leaves(layer(torch.randn(2, 1, 3))[1])) == 3


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one of \[None, 'layer', 'batch', 'atn'\], got 'group'"):
        LSTM(I, H, norm="group")  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ValueError, match="pass window=K"):
        LSTM(I, H, norm="atn")
    with pytest.raises(ValueError, match="window to be at least 1"):
        LSTM(I, H, norm="atn", window=0)
    with pytest.raises(ValueError, match="'layer' or 'batch', got 'time'"):
        LSTM(I, H, norm="atn", window=2, over="time")  # pyrefly: ignore[bad-argument-type]
    misplaced: tuple[dict[str, Any], ...] = (
        {"window": 3},
        {"norm": "layer", "window": 3},
        {"norm": "batch", "over": "batch"},
    )
    for options in misplaced:
        with pytest.raises(ValueError, match="settings of norm='atn'"):
            LSTM(I, H, **options)
    with pytest.raises(ValueError, match="expected bias=True"):
        LSTM(I, H, bias=False, forget_bias=1.0)
    for norm in (None, "layer", "batch"):
        for eps in (-1, float("nan")):
            with pytest.raises(ValueError, match=f"LSTM: expected a finite eps .* got {eps}"):
                LSTM(I, H, norm=norm, eps=eps)
        with pytest.raises(TypeError, match="LSTM: expected eps as a float, got '1e-5'"):
            LSTM(I, H, norm=norm, eps="1e-5")  # pyrefly: ignore[bad-argument-type]
        with pytest.raises(ValueError, match="max_steps to be at least 1, got 0"):
            LSTM(I, H, norm=norm, max_steps=0)
