"""What programs do with ``nn.LSTM``, ``nn.RNN`` and their parameters, done with our layers."""

import copy
import io
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.fx
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from variants import NETWORKS, Make

import cayley
from cayley.layers.recurrent import Recurrent
from cayley.preconditioners.callbacks import huggingface_callback, lightning_callback

every = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
pytestmark = pytest.mark.filterwarnings("ignore:.*it has no normalisation for an Elman recurrence")

T, B, I, N = 6, 4, 3, 8  # noqa: E741
PLAIN = {
    "LSTM-atn": lambda **options: cayley.LSTM(I, N, norm="atn", window=3, **options),
    "LSTM-batch": lambda **options: cayley.LSTM(I, N, norm="batch", **options),
    "RNN-atn": lambda **options: cayley.RNN(I, N, norm="atn", window=3, **options),
}


@pytest.mark.parametrize("name", cayley.layers.NETWORKS)
def test_arguments_may_be_positional_in_the_order_of_torch(name: str) -> None:
    network: Any = cayley.layers.NETWORKS[name]
    sizes = (I, N, N) if name == "ENRNN" else (I, N)
    between = ("relu",) if name == "RNN" else ()  # the order of nn.RNN
    layer = network(*sizes, 2, *between, False, True, 0.5, True)
    found = (layer.num_layers, layer.bias, layer.batch_first, layer.dropout, layer.bidirectional)
    assert found == (2, False, True, 0.5, True)
    assert layer(torch.randn(B, T, I))[0].shape == (B, T, layer.output_size)


@pytest.mark.parametrize("name", cayley.layers.NETWORKS)
def test_every_network_takes_initializers(name: str) -> None:
    network: Any = cayley.layers.NETWORKS[name]
    sizes = (I, N, N) if name == "ENRNN" else (I, N)
    layer = network(*sizes, initializers={"weight_ih": nn.init.ones_, "bias": "ones_"})
    for key, parameter in layer.named_parameters(recurse=False):
        if key.startswith(("weight_ih", "bias")):
            assert (parameter == 1).all()
    with pytest.raises(ValueError, match="unknown initializers"):
        network(*sizes, initializers={"weights": nn.init.ones_})


def test_initializers_of_a_free_matrix() -> None:
    layers: list[Any] = [
        cayley.LSTM(I, N, norm="layer", initializers={"weight_hh": "zeros_"}),
        cayley.NCGRU(I, N, orthogonal=(), initializers={"weight_hh": "zeros_"}),
    ]
    assert not any(layer.weight_hh_l0.any() for layer in layers)
    with pytest.raises(ValueError, match="unknown initializers"):
        cayley.NCGRU(I, N, initializers={"weight_hh": "zeros_"})


@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_a_plain_state_goes_on_as_the_whole_one_does(make: Callable[..., Any]) -> None:
    whole = make()
    with torch.no_grad():  # a population to evaluate by
        whole(torch.randn(3 * T, B, I))
    plain = make(plain_state=True)
    plain.load_state_dict(whole.state_dict())
    whole.eval()
    plain.eval()
    x = torch.randn(3, T, B, I)
    count = len(whole.state_sizes) - 1
    for repackage in (lambda h: h, Tensor.detach, Tensor.clone):
        a: Any = None
        b: Any = None
        for chunk in x:
            y, a = whole(chunk, a)
            z, b = plain(chunk, b)
            assert len([b] if isinstance(b, Tensor) else b) == count
            torch.testing.assert_close(z, y)
            b = repackage(b) if count == 1 else tuple(repackage(h) for h in b)
    # any other state starts an empty window, as two tensors do
    zeros = tuple(torch.zeros_like(h) for h in (a[:count]))
    state = zeros[0] if count == 1 else zeros
    torch.testing.assert_close(plain(x[0], state)[0], whole(x[0], state)[0])
    y, a = whole.step(x[0, 0])
    z, b = plain.step(x[0, 0])
    torch.testing.assert_close(plain.step(x[0, 1], b)[0], whole.step(x[0, 1], a)[0])
    b = tree_leaves(b)
    b[0].add_(1)  # written to: it is another state
    alone = b[0] if count == 1 else tuple(b)
    torch.testing.assert_close(plain.step(x[0, 1], alone)[0], whole.step(x[0, 1], alone)[0])


@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("way", ["in place", "through data", "through numpy", "in inference mode"])
def test_a_plain_state_that_is_written_to_is_another(make: Callable[..., Any], way: str) -> None:
    """Also where a caller has a copy of it."""
    layer = make(plain_state=True)
    with torch.no_grad():  # a population to evaluate by
        layer(torch.randn(3 * T, B, I))
    layer.eval()
    x = torch.randn(2, T, B, I)
    for copied in (False, True):
        with torch.inference_mode(way == "in inference mode"):
            state = tree_leaves(layer(x[0])[1])
        with torch.inference_mode(way == "in inference mode"), torch.no_grad():
            for h in state:
                {"through data": h.data, "through numpy": h.detach().numpy()}.get(way, h)[:, 0] = 0
            state = [h.clone() if copied else h for h in state]
            given = state[0] if len(state) == 1 else tuple(state)
            expected = copy.deepcopy(layer)(x[1], given)[0]  # it has seen no state
            torch.testing.assert_close(layer(x[1], given)[0], expected)


def test_a_plain_state_trains_by_chunks() -> None:
    layer = cayley.LSTM(I, N, norm="atn", window=3, plain_state=True)
    state = None
    for chunk in torch.randn(3, T, B, I):
        output, (h, c) = layer(chunk, state)
        output.sum().backward()
        state = h.detach(), c.detach()
    assert "plain_state=True" in repr(layer)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_plain_state_under_checkpointing(use_reentrant: bool) -> None:
    """The window of a call is gone when it is computed again; without one there is none to lose."""
    layer = cayley.LSTM(I, N, norm="atn", window=3, plain_state=True)
    whole = cayley.LSTM(I, N, norm="atn", window=3)
    whole.load_state_dict(layer.state_dict())
    a, b = torch.randn(2, T, B, I)
    zeros = torch.zeros(1, B, N), torch.zeros(1, B, N)
    for state in (None, zeros):
        for one in (layer, whole):
            x = b.clone().requires_grad_()
            checkpoint(one, x, state, use_reentrant=use_reentrant)[0].square().sum().backward()
    for p, q in zip(layer.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    h, c = layer(a)[1]
    output, _ = checkpoint(layer, b.requires_grad_(), (h, c), use_reentrant=use_reentrant)
    with pytest.raises(RuntimeError, match="expected no plain_state=True with activation"):
        output.sum().backward()


def test_a_plain_state_is_carried_with_its_window() -> None:
    plain = cayley.LSTM(I, N, norm="atn", window=3, plain_state=True)
    whole = cayley.LSTM(I, N, norm="atn", window=3)
    whole.load_state_dict(plain.state_dict())
    a: Any = None
    b: Any = None
    for chunk in torch.randn(4, T, B, I):
        y, a = whole(chunk, a)
        z, b = plain(chunk, b)
        torch.testing.assert_close(z, y)
        a, b = (layer.carry(h, decay=0.9, max_norm=0.5) for layer, h in ((whole, a), (plain, b)))


@every
@pytest.mark.parametrize("cell", [False, True])
def test_a_saved_module_loads_with_weights_only(make: Make, cell: bool) -> None:
    module: Any = make(I, N)
    if cell:
        module = getattr(cayley, f"{type(module).__name__}Cell").of(module)
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    twin = torch.load(buffer, weights_only=True)
    x = torch.randn(B, I) if cell else torch.randn(T, B, I)
    torch.testing.assert_close(twin(x), module(x))


def test_other_modules_and_those_with_bnp_load_with_weights_only() -> None:
    layer = cayley.LSTM(I, N)
    bnp = cayley.BNP(layer)
    for module in (layer, cayley.ModReLU(N), cayley.AssortedTimeNorm(N, window=2)):
        buffer = io.BytesIO()
        torch.save(module, buffer)
        buffer.seek(0)
        twin = torch.load(buffer, weights_only=True)
        x = torch.randn(T, B, I if module is layer else N)
        torch.testing.assert_close(twin(x), module(x))
    bnp.remove()


def test_the_usual_recipe_for_recurrent_weights() -> None:
    """``orthogonal_`` of the free entries means nothing; of W itself it is one line."""
    layer = cayley.ScoRNN(I, N)
    layer.weight_hh_l0 = nn.init.orthogonal_(torch.empty(N, N))
    for name, parameter in layer.named_parameters():
        if name.startswith("weight_hh"):  # those that are matrices
            nn.init.orthogonal_(parameter)
    groups = cayley.parameter_groups(layer, lr=1e-3, weight_decay=0.1)
    assert {group["name"]: group["weight_decay"] for group in groups} == {
        "rest": 0.1,
        "recurrent": 0.0,
    }


def test_pruning() -> None:
    layer = cayley.ScoRNN(I, N)
    with pytest.raises(TypeError, match=r"cannot prune weight_hh_l0.*Prune weight_ih"):
        prune.l1_unstructured(layer, "weight_hh_l0", 0.3)
    prune.l1_unstructured(layer, "weight_ih_l0", 0.5)
    layer(torch.randn(T, B, I))[0].sum().backward()
    with torch.no_grad():
        _, state = layer.freeze().step(torch.randn(B, I))
        layer.step(torch.randn(B, I), state)
    assert (layer.weight_ih_l0 == 0).sum() == I * N // 2


def test_gradients_of_every_example() -> None:
    """As opacus takes them."""
    for make in (cayley.ScoRNN, cayley.LSTM):
        layer = make(I, N)
        parameters = {name: p.detach() for name, p in layer.named_parameters()}

        def loss(parameters: dict, x: Tensor, layer: Recurrent = layer) -> Tensor:
            return torch.func.functional_call(layer, parameters, (x[:, None],))[0].square().sum()

        x = torch.randn(B, T, I)
        found = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
        layer(x.transpose(0, 1))[0].square().sum().backward()
        for name, p in layer.named_parameters():
            torch.testing.assert_close(found[name].sum(0), p.grad)


def test_transforms_of_statistics_say_what_to_do() -> None:
    layer = cayley.LSTM(I, N, norm="batch")
    parameters = dict(layer.named_parameters())

    def loss(parameters: dict, x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, parameters, (x,))[0].sum()

    with pytest.raises(RuntimeError, match=r"call layer.eval\(\), or normalise over the layer"):
        torch.func.grad(loss)(parameters, torch.randn(T, B, I))
    torch.func.grad(loss)(parameters, torch.randn(T, B, I)) if layer.eval() else None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compilers_of_yesterday_say_what_to_use() -> None:
    model: Any = nn.Sequential(cayley.ScoRNN(I, N))
    with pytest.raises(NotImplementedError, match=r"torch\.jit\.script.*torch\.export"):
        torch.jit.script(model)
    with pytest.raises(TypeError, match=r"symbolic_trace cannot look into ScoRNN.*torch\.export"):
        torch.fx.symbolic_trace(model)

    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            is_ours = isinstance(m, Recurrent)
            return is_ours or super().is_leaf_module(m, module_qualified_name)

    graph = torch.fx.GraphModule(model, Tracer().trace(model))
    x = torch.randn(T, B, I)
    torch.testing.assert_close(graph(x), model(x))


def test_a_bound_of_any_size_holds_for_states_of_any_size() -> None:
    layer = cayley.ScoRNN(I, N)
    h = torch.randn(1, B, N)
    norms = [0.0, 1e-30, 1.0, 1e20, 3e38]
    for size in norms:
        state = (h / h.norm(dim=-1, keepdim=True) * size).float()
        for most in norms:
            found = layer.carry(state, max_norm=most)
            assert isinstance(found, Tensor)
            expected = state.double() * (min(1.0, most / size) if size else 1.0)
            torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("remedy", [{"decay": 0.5}, {"max_norm": 0.1}])
def test_a_carried_state_stays_bounded(remedy: dict) -> None:
    """With b = 0 modReLU is the identity, and an orthogonal W forgets nothing."""

    def norm(carry: dict | None) -> float:
        torch.manual_seed(0)
        layer = cayley.ScoRNN(I, N)
        state: Any = None
        for chunk in 1 + torch.randn(200, T, B, I):
            with torch.no_grad():
                _, state = layer(chunk, state)
            if carry is not None:
                state = layer.carry(state, **carry)
        assert isinstance(state, Tensor)
        return float(state.norm(dim=-1).mean())

    assert norm(None) > 4 * norm(remedy)


def test_carry_changes_h_and_c_and_leaves_windows() -> None:
    layer = cayley.LSTM(I, N, norm="atn", window=3)
    _, (h, c, windows) = layer(torch.randn(T, B, I))
    carried = layer.carry((h, c, windows), decay=0.5, max_norm=1e-3)
    assert not any(part.requires_grad for part in carried)
    assert torch.equal(carried[2], windows)
    for part in carried[:2]:
        torch.testing.assert_close(part.norm(dim=-1), torch.full((1, B), 1e-3))
    torch.testing.assert_close(layer.carry((h, c), decay=0.5)[1], 0.5 * c)


@pytest.mark.parametrize("package", ["lightning.pytorch", "transformers"])
def test_callbacks_precondition(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins for the packages: what they call, and when, is what their guides say."""
    module = ModuleType(package)
    module.Callback = module.TrainerCallback = object  # type: ignore
    monkeypatch.setitem(sys.modules, package, module)
    monkeypatch.setitem(sys.modules, package.partition(".")[0], module)
    model: Any = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = ModuleType("trainer")
    trainer.optimizers = [optimizer]  # type: ignore
    callbacks = cayley.preconditioners.callbacks
    if package == "transformers":
        callback = callbacks.huggingface_callback(eps=1e-2)
        for _ in range(2):  # the first is interrupted, and its end is not told
            callback.on_train_begin(None, None, None, model=model, optimizer=optimizer, others=1)
    else:
        callback = callbacks.lightning_callback(eps=1e-2, momentum=0.9)
        callback.on_train_start(trainer, model)
        assert callback.state_dict().keys() == {""}
    x = torch.randn(12, 4)
    model(x).square().sum().backward()
    before = model.weight.grad.clone()
    optimizer.step()
    assert not torch.equal(model.weight.grad, before)
    if package != "transformers":
        seen = callback.state_dict()
        callback.on_train_end(None, None)
        # those of a checkpoint are for the training that it continues, not for one after it
        callback.load_state_dict(seen)
        for weight in (seen[""]["input"]["weight"], torch.tensor(0.0)):
            callback.on_train_start(trainer, model)
            assert callback.state_dict()[""]["input"]["weight"] == weight
            callback.on_train_end(None, None)
    else:
        callback.on_train_end(None, None, None)
    model(x).square().sum().backward()
    before = model.weight.grad.clone()
    optimizer.step()
    assert torch.equal(model.weight.grad, before)


def test_callbacks_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "pytorch_lightning", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match="pip install lightning"):
        lightning_callback()
    with pytest.raises(ModuleNotFoundError, match="pip install transformers"):
        huggingface_callback()
