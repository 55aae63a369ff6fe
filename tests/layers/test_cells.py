"""The contract of ``nn.RNNCell`` and ``nn.LSTMCell``, held by the cell of every network."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils._pytree import tree_leaves, tree_map
from variants import VARIANTS

import cayley
from cayley.layers import CELLS, NETWORKS
from cayley.preconditioners.layers import LayerRule

pytestmark = pytest.mark.filterwarnings("ignore:.*it has no normalisation for an Elman recurrence")

B, I, N = 4, 3, 8  # noqa: E741
SETTINGS = {**{name: {} for name in NETWORKS}, **VARIANTS}
every = pytest.mark.parametrize("name", SETTINGS)


def pair(name: str, **more: Any) -> tuple[Any, Any]:
    """A cell and the layer with the same numbers, in evaluation."""
    kind, options = name.partition("-")[0], {**SETTINGS[name], **more}
    sizes = (I, N // 2, N // 2) if kind == "ENRNN" else (I, N)
    layer, cell = NETWORKS[kind](*sizes, **options), CELLS[f"{kind}Cell"](*sizes, **options)
    with torch.no_grad():
        for parameter in layer.parameters(recurse=False):
            parameter.add_(0.1 * torch.randn_like(parameter))
    cell.load_state_dict(layer.state_dict())
    return cell.eval(), layer.eval()


def batch_statistics(name: str) -> bool:
    return "batch" in (SETTINGS[name].get("norm"), SETTINGS[name].get("over"))


@every
def test_a_call_is_a_step_of_the_layer(name: str) -> None:
    cell, layer = pair(name)
    if batch_statistics(name):  # evaluation needs a population
        layer.train()(torch.randn(3, B, I))
        cell.load_state_dict(layer.eval().state_dict())
    x = torch.randn(3, B, I)
    output, h_n = layer(x)
    state = None
    for t, x_t in enumerate(x):
        state = cell(x_t, state)
        torch.testing.assert_close(tree_leaves(state)[0], output[t])
    torch.testing.assert_close(state, tree_map(lambda h: h[0], h_n))
    alone = cell(x[0, 1], tree_map(lambda h: h[1], state))
    torch.testing.assert_close(alone, tree_map(lambda h: h[1], cell(x[0], state)))
    torch.testing.assert_close(cell(x[0, 1]), tree_map(lambda h: h[1], cell(x[0])))
    cell.freeze()
    with torch.no_grad():
        _, after = layer.step(x[0], tree_map(lambda h: h[None], state))
        torch.testing.assert_close(cell(x[0], state), tree_map(lambda h: h[0], after))


@pytest.mark.parametrize(
    ("ours", "theirs"), [(cayley.RNNCell, nn.RNNCell), (cayley.LSTMCell, nn.LSTMCell)]
)
def test_without_structure_it_is_the_cell_of_torch(ours: Any, theirs: Any) -> None:
    cell, peer = ours(I, N), theirs(I, N)
    cell.load_state_dict({f"{key}_l0": value for key, value in peer.state_dict().items()})
    x = torch.randn(B, I, requires_grad=True)
    state = tree_map(torch.randn_like, peer(x))
    for arguments in (
        (x,),
        (x, None),
        (x, state),
        (x[0],),
        (x[0], tree_map(lambda h: h[0], state)),
    ):
        torch.testing.assert_close(cell(*arguments), peer(*arguments))
    found, expected = (
        torch.autograd.grad(torch.stack(tree_leaves(c(x, state))).sum(), [x, *c.parameters()])
        for c in (cell, peer)
    )
    torch.testing.assert_close(found, expected)
    assert ours(I, N, False).bias is False


@every
def test_has_the_parameters_of_the_layer(name: str) -> None:
    cell, layer = pair(name)
    assert cell.state_dict().keys() == layer.state_dict().keys()
    assert [*dict(cell.named_parameters())] == [*dict(layer.named_parameters())]
    layer.load_state_dict(cell.state_dict())
    shared = type(cell).of(layer)
    assert all(p is q for p, q in zip(shared.parameters(), layer.parameters(), strict=True))
    if not batch_statistics(name):
        x = torch.randn(B, I)
        torch.testing.assert_close(tree_leaves(shared(x))[0], layer.step(x)[0])


@every
def test_copies_and_pickles(name: str) -> None:
    cell, _ = pair(name)
    if batch_statistics(name):
        return
    x, buffer = torch.randn(B, I), io.BytesIO()
    torch.save(cell, buffer)
    buffer.seek(0)
    for twin in (
        copy.deepcopy(cell),
        pickle.loads(pickle.dumps(cell)),
        torch.load(buffer, weights_only=False),
    ):
        torch.testing.assert_close(twin(x), cell(x))


def test_all_networks_have_one() -> None:
    assert [*CELLS] == sorted(f"{name}Cell" for name in NETWORKS)
    for name in CELLS:
        cell: Any = getattr(cayley, name)
        assert cell is CELLS[name]
        make: Any = cell
        assert cell.__name__ in repr(make(I, N, *([2] if "ENRNN" in name else [])))
        assert f"cayley.{name.removesuffix('Cell')}" in str(cell.__doc__)


def test_held_in_training() -> None:
    cell, layer = pair("ScoRNN")
    x, h = torch.randn(5, B, I), torch.zeros(B, N)
    with cell.held():
        for x_t in x:
            h = cell(x_t, h)
        found = torch.autograd.grad(h.square().sum(), [*cell.parameters()])
    expected = torch.autograd.grad(layer(x)[1].square().sum(), [*layer.parameters()])
    torch.testing.assert_close(found, expected)


def test_bad_arguments_are_refused() -> None:
    options: list[Any] = [{"num_layers": 2}, {"batch_first": True}, {"dropout": 0.1}]
    for option in options:
        with pytest.raises(TypeError, match=r"one step of one layer.*use cayley.ScoRNN"):
            cayley.ScoRNNCell(I, N, **option)
    make: Any = cayley.ScoRNNCell
    with pytest.raises(TypeError, match="input_size, hidden_size, then bias"):
        make(I, N, True, bias=False)
    cell = make(I, N)
    with pytest.raises(ValueError, match="Expected input to be 1D or 2D"):
        cell(torch.randn(2, B, I))
    with pytest.raises(ValueError, match="a state of 2 dimensions"):
        cell(torch.randn(B, I), torch.randn(1, B, N))
    with pytest.raises(RuntimeError, match="expected hidden size"):
        cell(torch.randn(B, I), torch.randn(B, N + 1))
    with pytest.raises(TypeError, match=r"expected a cayley\.ScoRNN of one layer"):
        type(cell).of(cayley.ScoRNN(I, N, 2))


def test_statistics_of_bnp_are_those_of_sequences() -> None:
    assert not LayerRule().serves(cayley.ScoRNNCell(I, N))
    assert LayerRule().serves(cayley.ScoRNN(I, N))


def test_autocast_rounds_only_the_input() -> None:
    cell: Any = cayley.ScoRNNCell(I, N, dtype=torch.float32)
    with torch.autocast("cpu"):
        h: Tensor = cell(torch.randn(B, I).bfloat16())
    assert h.dtype == torch.float32


def test_hooks_of_a_layer_are_not_those_of_its_cell() -> None:
    layer, seen = cayley.ScoRNN(3, 8), []
    layer.register_forward_hook(lambda _, x, y: seen.append(len(y)))
    bnp = cayley.BNP(layer)
    kind: Any = cayley.ScoRNNCell
    cell = kind.of(layer)
    assert cell(torch.randn(5, 3), torch.zeros(5, 8)).shape == (5, 8)
    assert seen == []
    layer(torch.randn(4, 5, 3))[0].sum().backward()
    bnp.step()
    assert seen == [2]


def test_states_of_another_size_are_told_as_they_were_given() -> None:
    cell = cayley.ScoRNNCell(3, 4)
    with pytest.raises(RuntimeError, match=r"expected hidden size \(2, 4\), got \(3, 4\)"):
        cell(torch.zeros(2, 3), torch.zeros(3, 4))
    with pytest.raises(RuntimeError, match=r"expected hidden size \(4,\), got \(5,\)"):
        cell(torch.zeros(3), torch.zeros(5))


def test_a_cell_of_pruned_weights_is_refused() -> None:
    layer = cayley.ScoRNN(I, N)
    cell: Any = CELLS["ScoRNNCell"]
    prune.random_unstructured(layer, "weight_ih_l0", 0.3)
    with pytest.raises(TypeError, match=r"\['weight_ih_l0_orig'\].*prune.remove"):
        cell.of(layer)
    prune.remove(layer, "weight_ih_l0")
    x = torch.randn(B, I)
    torch.testing.assert_close(cell.of(layer)(x), layer(x[None])[0][0])
