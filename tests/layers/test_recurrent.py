"""Streams: steps one at a time, with W as a constant or held for a loop."""

import copy
import gc
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn
from torch.utils._pytree import tree_leaves, tree_map
from variants import NETWORKS, Make

import cayley
from cayley.layers.recurrent import Recurrent

every = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
pytestmark = pytest.mark.filterwarnings("ignore:.*it has no normalisation for an Elman recurrence")

T, B, I, N = 5, 4, 3, 8  # noqa: E741


def shifted(layer: Any) -> Any:
    """Thresholds start at 0, where modReLU is the identity."""
    with torch.no_grad():
        for parameter in layer.parameters(recurse=False):
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def stepped(layer: Recurrent, x: Tensor) -> tuple[Tensor, Any]:
    state: Any = None
    outputs: list[Tensor] = []
    for x_t in x:
        y_t, state = layer.step(x_t, state)
        outputs.append(y_t)
    return torch.stack(outputs), state


def formed(layer: Recurrent, calls: int = 1) -> int:
    """How often maps make a matrix while a layer makes steps."""
    maps = [matrix.map for matrix in layer.matrices()]
    ways = [
        patch.object(map, name, wraps=getattr(map, name))
        for map in maps
        for name in ("forward", "with_pullback")
    ]
    mocks = [way.start() for way in ways]
    for _ in range(calls):
        stepped(layer, torch.randn(T, B, I))
    for way in ways:
        way.stop()
    return sum(mock.call_count for mock in mocks)


@every
@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_frozen_layer_gives_what_it_gave(make: Make, num_layers: int) -> None:
    layer = shifted(make(I, N, num_layers)).eval()
    x = torch.randn(T, B, I)
    with torch.no_grad():
        expected, h_n = layer(x)
        assert layer.freeze() is layer
        torch.testing.assert_close(layer(x), (expected, h_n))
        torch.testing.assert_close(stepped(layer, x), (expected, h_n))
        torch.testing.assert_close(stepped(layer, x[:, 0]), (expected[:, 0], part(h_n, 0)))
    torch.testing.assert_close(stepped(layer, x)[0], expected)  # with gradients, too


def part(state: Any, k: int) -> Any:
    return tree_map(lambda h: h[:, k], state)


@every
def test_a_frozen_matrix_is_a_constant(make: Make) -> None:
    layer = shifted(make(I, N))
    if not layer.structured:
        return
    x, W = torch.randn(T, B, I), layer.weight_hh_l0.detach().clone()
    layer.freeze()
    assert formed(layer) == 0
    with patch.object(torch, "equal") as compared, torch.no_grad():
        stepped(layer, x)
        layer(x)
    assert not compared.called
    before = stepped(layer, x)[0].detach()
    with torch.no_grad():
        for parameter in layer.structured.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    torch.testing.assert_close(stepped(layer, x)[0], before)
    torch.testing.assert_close(layer.weight_hh_l0, W)
    layer.weight_hh_l0.zero_()  # a copy
    stepped(layer, x)[0].sum().backward()
    assert all(p.grad is None for p in layer.structured.parameters())
    assert layer.weight_ih_l0.grad is not None
    layer.unfreeze()
    assert not torch.equal(layer.weight_hh_l0, W)


@pytest.mark.parametrize("network", [cayley.ScoRNN, cayley.ScuRNN, cayley.NCGRU])
def test_what_replaces_the_free_tensors_replaces_the_constant(network: Make) -> None:
    layer, other, x = network(I, N).freeze(), shifted(network(I, N)).eval(), torch.randn(T, B, I)
    with torch.no_grad():
        stepped(layer, x)
        layer.load_state_dict(other.state_dict())
        torch.testing.assert_close(stepped(layer, x)[0], other(x)[0])
        torch.testing.assert_close(copy.deepcopy(layer)(x)[0], other(x)[0])
        layer.float()
        assert all(matrix.kept is not None for matrix in layer.matrices())  # formed at once
        assert stepped(layer, x.float())[0].dtype == torch.float32
        layer.double()
        if network is cayley.ScoRNN:
            W = torch.linalg.qr(torch.randn(N, N))[0]
            layer.weight_hh_l0 = other.weight_hh_l0 = W
            torch.testing.assert_close(stepped(layer, x)[0], other(x)[0])
        layer.reset_parameters()
        other.load_state_dict(layer.state_dict())
        torch.testing.assert_close(stepped(layer, x)[0], other(x)[0])
    assert layer.state_dict().keys() == other.state_dict().keys()


def test_training_ends_the_freezing() -> None:
    layer: Any = cayley.ScoRNN(I, N).freeze().train()
    layer(torch.randn(T, B, I))[0].sum().backward()
    assert layer.structured["weight_hh_l0"].A.grad.abs().sum() > 0
    model: Any = nn.Sequential(cayley.ScoRNN(I, N).freeze())
    assert not model.train()[0].structured["weight_hh_l0"].is_frozen


def test_inference_mode_leaves_a_constant_that_gradients_may_pass() -> None:
    layer = cayley.ScoRNN(I, N)
    with torch.inference_mode():
        stepped(layer.freeze(), torch.randn(T, B, I))
    x = torch.randn(T, B, I, requires_grad=True)
    stepped(layer, x)[0].sum().backward()
    assert x.grad is not None


@every
def test_the_output_of_a_step_may_be_written_to(make: Make) -> None:
    layer, x = shifted(make(I, N)).freeze(), torch.randn(2, B, I)
    with torch.no_grad():
        expected = stepped(layer, x)[0]
        y, state = layer.step(x[0], layer.step(x[0])[1])
        y, state = layer.step(x[0])
        y.zero_()
        torch.testing.assert_close(layer.step(x[1], state)[0], expected[1])


def test_a_million_steps_would_take_no_memory() -> None:
    layer, x = cayley.ScoRNN(I, N).freeze(), torch.randn(B, I)
    state: Any
    with torch.no_grad():
        y, state = layer.step(x)

        def objects() -> int:
            gc.collect()
            return len(gc.get_objects())

        for _ in range(10):
            y, state = layer.step(x, state)
        before = objects()
        for _ in range(1000):
            y, state = layer.step(x, state)
        assert objects() <= before + 10
    assert isinstance(state, Tensor)
    assert state.untyped_storage().nbytes() == y.untyped_storage().nbytes() == y.nbytes


def gradients(layer: Recurrent, loss: Tensor) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(loss, [*layer.parameters()], allow_unused=True)


@every
@pytest.mark.parametrize("cached", [False, True], ids=["held", "parametrize.cached"])
def test_a_loop_of_steps_has_one_matrix_and_one_backward_pass(make: Make, cached: bool) -> None:
    layer = shifted(make(I, N)).train()
    if "batch" in (getattr(layer, "norm", None), getattr(layer, "over", None)):
        layer.eval()
    twin = copy.deepcopy(layer)
    x = torch.randn(T, B, I)
    expected = gradients(twin, twin(x)[0].square().sum())
    backward = 0

    def count(G: Tensor) -> None:
        nonlocal backward
        backward += 1

    with parametrize.cached() if cached else layer.held():
        output, _ = stepped(layer, x)
        if layer.structured and not isinstance(layer, cayley.FullURNN):
            assert formed(layer, 2) == 0
            W = layer.weight_hh_l0
            assert W is layer.weight_hh_l0
            W.grad_fn.register_prehook(lambda gradients: count(gradients[0]))
        found = gradients(layer, output.square().sum())
    torch.testing.assert_close(found, expected)
    assert backward == (1 if layer.structured and not isinstance(layer, cayley.FullURNN) else 0)
    with torch.no_grad():  # nothing is held outside
        for parameter in layer.structured.parameters():
            parameter.mul_(0.9)
        twin.load_state_dict(layer.state_dict())
        torch.testing.assert_close(layer(x)[0], twin(x)[0])


def test_what_is_held_is_held_for_each_mode_of_gradients() -> None:
    layer: Any = cayley.ScoRNN(I, N)
    x = torch.randn(T, B, I)
    with layer.held():
        with torch.no_grad():
            layer(x)
        layer(x)[0].sum().backward()
        with layer.held():  # one inside of another begins anew
            layer(x)[0].sum().backward()
    assert layer.structured["weight_hh_l0"].A.grad is not None


def test_hooks_and_autocast_see_steps() -> None:
    layer, x = cayley.ScoRNN(I, N, dtype=torch.float32).freeze(), torch.randn(B, I).float()
    seen: list[int] = []
    handle = layer.register_forward_hook(lambda module, args, output: seen.append(1))
    with torch.no_grad():
        _, state = layer.step(x)
        layer.step(x, state)
        handle.remove()
        with torch.autocast("cpu"):
            y, _ = layer.step(x.bfloat16(), state)
    assert len(seen) == 2
    assert y.dtype == torch.float32


@every
def test_errors_of_frozen_steps_are_those_of_others(make: Make) -> None:
    layer = make(I, N).freeze()
    with torch.no_grad():
        _, state = layer.step(torch.randn(B, I))
        with pytest.raises(RuntimeError, match="expected hidden size"):
            layer.step(torch.randn(B + 1, I), state)
        with pytest.raises(RuntimeError, match="must be equal to input_size"):
            layer.step(torch.randn(B, I + 1), state)
        with pytest.raises(ValueError, match="does not match weight"):
            layer.step(torch.randn(B, I).float(), state)
        with pytest.raises(ValueError, match="expected the input of one step"):
            layer.step(torch.randn(T, B, I), state)
        assert all(h.isfinite().all() for h in tree_leaves(state))


def test_what_is_held_in_inference_mode_serves_training() -> None:
    layer, x = cayley.ScoRNN(3, 8), torch.randn(5, 2, 3)
    layer.structured["weight_hh_l0"].requires_grad_(False)
    with layer.held():
        with torch.inference_mode():
            expected = layer(x)[0]
        y = layer(x)[0]
        y.sum().backward()
    torch.testing.assert_close(y.detach(), expected)
    assert layer.weight_ih_l0.grad is not None


def test_threads_that_hold_leave_nothing_behind() -> None:
    layer, other, x = cayley.ScoRNN(I, N), cayley.ScoRNN(I, N), torch.randn(T, B, I)
    turns = [Event() for _ in range(3)]

    def held(begin: Event | None, done: Event, end: Event | None) -> None:
        if begin is not None:
            begin.wait()
        with torch.no_grad(), layer.held():
            layer(x)
            done.set()
            if end is not None:
                end.wait()

    def first() -> None:
        held(None, turns[0], turns[1])
        turns[2].set()

    with ThreadPoolExecutor(2) as pool:
        for running in [pool.submit(first), pool.submit(held, turns[0], turns[1], turns[2])]:
            running.result(timeout=60)
    layer.load_state_dict(other.state_dict())
    torch.testing.assert_close(layer(x)[0], other(x)[0])


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("frozen", ["average", "model"])
@every
def test_a_frozen_model_and_its_average(make: Make, frozen: str, use_buffers: bool) -> None:
    layer, x = shifted(make(I, N)), torch.randn(T, B, I)
    layer(x)  # statistics over the batch, if it has any
    average = AveragedModel(layer, avg_fn=get_ema_avg_fn(0.5), use_buffers=use_buffers)
    average.update_parameters(layer)
    cayley.freeze(average if frozen == "average" else layer)
    before = [model.eval()(x)[0].detach() for model in (average, layer)]
    average.update_parameters(layer)
    for model, output in zip((average, layer), before, strict=True):
        torch.testing.assert_close(model(x)[0], output)


class Doubled(cayley.ScoRNN):
    """Another ``forward``."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        y, h_n = super().forward(input, hx)
        return 2 * y, h_n


class Shifted(cayley.NCGRU):
    """Another ``run``."""

    # pyrefly: ignore[bad-override]
    def run(self, *arguments: Any) -> Any:
        y, state = super().run(*arguments)
        return y + 1, state


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("change", ["forward", "run", "wrapper"])
def test_a_step_does_what_a_changed_layer_does(change: str, frozen: bool) -> None:
    layer: Any = {"forward": Doubled, "run": Shifted, "wrapper": cayley.ScoRNN}[change](I, N)
    if change == "wrapper":
        layer.forward = lambda x, hx=None: tree_map(torch.exp, type(layer).forward(layer, x, hx))
    layer.freeze() if frozen else layer.eval()
    x = torch.randn(1, B, I)
    with torch.no_grad():
        y, _ = layer(x)
        after, _ = layer.step(x[0])
        torch.testing.assert_close(after, y[0])


@every
def test_what_is_pruned_is_frozen_as_it_is_now(make: Make) -> None:
    layer: Any = make(I, N)
    x = torch.randn(T, B, I)
    pruned: list[tuple[Any, str]] = [
        (matrix, name)
        for matrix in layer.matrices()
        for name in matrix.map.names
        if not matrix._parameters[name].is_complex()
    ]
    for matrix, name in pruned:
        prune.random_unstructured(matrix, name, 0.3)
    layer(x)
    with torch.no_grad():
        for matrix, name in pruned:
            matrix._parameters[f"{name}_orig"].mul_(0.5)
    found = layer.freeze()(x)[0]
    torch.testing.assert_close(found, layer.train().eval()(x)[0])


def test_what_is_computed_is_not_written_to() -> None:
    layer, moved = cayley.ScoRNN(I, N), cayley.ExpRNN(I, N)
    prune.random_unstructured(layer.structured["weight_hh_l0"], "A", 1)
    parametrize.register_parametrization(moved.structured["weight_hh_l0"], "K", nn.Identity())
    W = torch.linalg.qr(torch.randn(N, N))[0]

    def assign() -> None:
        layer.weight_hh_l0 = W

    writers = (assign, layer.reset_parameters, lambda: cayley.optim.rebase_(layer), moved.rebase_)
    for model in (layer, moved):
        before = copy.deepcopy(model.structured.state_dict())
        for write in writers:
            with pytest.raises(RuntimeError, match="computed, by pruning or a parametrisation"):
                write()
        torch.testing.assert_close(model.structured.state_dict(), before)


@every
def test_what_is_written_before_a_backward_pass_is_noticed_or_without_effect(make: Make) -> None:
    layer, x = shifted(make(I, N)), torch.randn(T, B, I)
    free = [*layer.structured.parameters()]
    if not free:
        return
    expected = torch.autograd.grad(layer(x)[0].square().sum(), free)
    loss = layer(x)[0].square().sum()
    with torch.no_grad():
        for X in free:
            X.add_(0.3)
    found = gradients_unless_written_to(loss, free)
    if found is not None:
        torch.testing.assert_close(found, expected)


def gradients_unless_written_to(loss: Tensor, X: list[Tensor]) -> tuple[Tensor, ...] | None:
    try:
        return torch.autograd.grad(loss, X)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return None
