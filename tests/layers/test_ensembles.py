"""Ensembles as torch.func makes them: G stacked networks equal G single ones, on the kernels."""

import importlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves
from variants import NETWORKS, Make

import cayley
from cayley.kernels.calls import ElmanCall, GruCall, LstmCall
from cayley.kernels.operator import Operator
from cayley.layers.recurrent import Recurrent

pytestmark = [
    # what has no kernel says so once
    pytest.mark.filterwarnings("ignore:.*it has no normalisation for an Elman recurrence"),
    # on a GPU double precision has none, and statistics over the batch neither
    pytest.mark.filterwarnings("ignore:.*not on the cuda kernel"),
]

G, T, B, I, N = 3, 6, 4, 3, 8  # noqa: E741

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]
OPERATORS: list[Operator] = [
    getattr(importlib.import_module(f"cayley.recurrences.{name}"), f"_{name}")
    for name in ("elman", "gru", "lstm")
]
every = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many networks kernels have run, forward and backward."""
    seen: Counter[str] = Counter()

    def counting(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            (call,) = (a for a in arguments if isinstance(a, ElmanCall | GruCall | LstmCall))
            # a call may be that of several networks
            seen[name] += call.h0.shape[:-2].numel()
            return run(*arguments)

        return counted

    for operator in OPERATORS:
        for device, kernels in operator.kernels.items():
            own = kernels._replace(
                forward=counting("forward", kernels.forward),
                backward=counting("backward", kernels.backward),
            )
            # pyrefly: ignore[bad-argument-type]
            monkeypatch.setitem(operator.kernels, device, own)
    return seen


def networks(make: Make, **options: Any) -> list[Recurrent]:
    """Those of different weights; thresholds start at 0, where modReLU is the identity."""
    layers = [make(I, N, **options) for _ in range(G)]
    with torch.no_grad():
        for layer in layers:
            for parameter in layer.parameters(recurse=False):
                parameter.add_(0.1 * torch.randn_like(parameter))
    return layers


def sequences(shared: bool, device: str, dtype: torch.dtype) -> Tensor:
    shape = (T, B, I) if shared else (G, T, B, I)
    return torch.randn(shape, device=device, dtype=dtype)


def assert_close(found: Tensor, expected: Tensor) -> None:
    """Within rounding of the largest entry: small ones of a gradient are sums of large ones."""
    tolerance = 1e-9 if expected.dtype.to_real() == torch.float64 else 1e-3
    assert found.shape == expected.shape
    found, expected = found.detach(), expected.detach()
    assert (found - expected).norm() <= tolerance * max(float(expected.norm()), 1.0)


def check_ensemble(
    layers: list[Recurrent], x: Tensor, shared: bool, hx: Any = None, **options: Any
) -> None:
    """Outputs, last states and gradients of all parameters and of x."""
    parameters, buffers = stack_module_state(layers)
    parameters = {name: p.detach() for name, p in parameters.items()}

    def loss(p: dict[str, Tensor], x: Tensor, b: dict[str, Tensor]) -> tuple[Tensor, Any]:
        output, state = functional_call(layers[0], (p, b), (x, hx))
        leaves = [output, *tree_leaves(state)]
        return torch.stack([leaf.square().sum() for leaf in leaves]).sum(), leaves

    dims = (0, None if shared else 0, 0)
    (of_p, of_x), found = vmap(grad(loss, (0, 1), has_aux=True), dims, **options)(
        parameters, x, buffers
    )
    for g, layer in enumerate(layers):
        own = (x if shared else x[g]).clone().requires_grad_()
        output, state = layer(own, hx)
        leaves = [output, *tree_leaves(state)]
        for ours, theirs in zip(found, leaves, strict=True):
            assert_close(ours[g], theirs)
        total = torch.stack([leaf.square().sum() for leaf in leaves]).sum()
        named = dict(layer.named_parameters())
        gradients = torch.autograd.grad(total, [own, *named.values()], materialize_grads=True)
        for ours, theirs in zip(
            [of_x[g], *(of_p[name][g] for name in named)], gradients, strict=True
        ):
            assert_close(ours, theirs)


@every
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shared", [False, True], ids=["inputs", "shared"])
def test_networks_equal_single_ones(
    make: Make, device: str, dtype: torch.dtype, shared: bool
) -> None:
    layers = networks(make, device=device, dtype=dtype)
    check_ensemble(layers, sequences(shared, device, dtype), shared)


@every
def test_stacked_layers_in_two_directions_from_a_state(make: Make) -> None:
    layers = networks(make, num_layers=2, bidirectional=True)
    x = sequences(True, "cpu", torch.float64)
    with torch.no_grad():
        _, hx = layers[0](x)
    check_ensemble(layers, x, True, hx)


@every
@pytest.mark.parametrize("device", DEVICES)
def test_kernels_run_all_of_them(make: Make, device: str, launched: Counter[str]) -> None:
    layers = networks(make, device=device, dtype=torch.float32)
    if isinstance(layers[0], cayley.RNN) and layers[0].norm is not None:
        pytest.skip("there is no kernel for one network either")
    if device == "cuda" and getattr(layers[0], "over", "layer") == "batch":
        pytest.skip("there is no kernel for one network either")
    parameters, buffers = stack_module_state(layers)
    x = sequences(True, device, torch.float32)

    def loss(p: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
        return functional_call(layers[0], (p, b), (x,))[0].square().sum()

    vmap(grad(loss))({name: p.detach() for name, p in parameters.items()}, buffers)
    assert launched == {"forward": G, "backward": G}
    # the other way: autograd of what vmap gives
    launched.clear()
    vmap(loss)(parameters, buffers).sum().backward()
    assert launched == {"forward": G, "backward": G}


def test_examples_of_one_network_run_as_one_loop(launched: Counter[str]) -> None:
    """A call for every example would be slower than one loop for all of them."""
    layer, x = cayley.ScoRNN(I, N), torch.randn(T, B, I)
    output, _ = vmap(layer, in_dims=1, out_dims=1)(x)
    assert not launched
    torch.testing.assert_close(output, layer(x)[0])


@pytest.mark.parametrize("options", [{"norm": "batch"}, {"norm": "atn", "window": 3}])
@pytest.mark.parametrize("differentiate", [False, True])
def test_statistics_over_the_batch_follow_the_training(
    options: dict[str, Any], differentiate: bool
) -> None:
    """Those of every network, whose buffers are stacked as its parameters are."""
    layers = [cayley.LSTM(I, N, **options) for _ in range(G)]
    if options["norm"] == "atn":
        layers = [cayley.LSTM(I, N, **options, over="batch") for _ in range(G)]
    parameters, buffers = stack_module_state(layers)
    parameters = {name: p.detach() for name, p in parameters.items()}
    buffers = {name: buffer.clone() for name, buffer in buffers.items()}
    x = torch.randn(G, T, B, I)

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(layers[0], (p, b), (x,))[0].square().sum()

    for _ in range(2):
        vmap(grad(loss) if differentiate else loss)(parameters, buffers, x)
    for g, layer in enumerate(layers):
        for _ in range(2):
            layer(x[g])
        for name, buffer in layer.named_buffers():
            torch.testing.assert_close(buffers[name][g], buffer)


def test_packed_sequences_have_the_same_lengths_for_all() -> None:
    layers = networks(cayley.ScoRNN)
    parameters, buffers = stack_module_state(layers)
    batch_sizes = torch.tensor([3, 2, 2, 1])
    data = torch.randn(G, 8, I)

    def run(p: Any, b: Any, data: Tensor, sizes: Tensor) -> Tensor:
        packed = PackedSequence(data, sizes)
        return functional_call(layers[0], (p, b), (packed,))[0].data

    output = vmap(run, (0, 0, 0, None))(parameters, buffers, data, batch_sizes)
    for g, layer in enumerate(layers):
        assert_close(output[g], layer(PackedSequence(data[g], batch_sizes))[0].data)
    with pytest.raises(ValueError, match="the same lengths for all networks"):
        vmap(run)(parameters, buffers, data, batch_sizes.expand(G, -1))
