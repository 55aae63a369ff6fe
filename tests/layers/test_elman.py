"""``cayley.RNN`` without structure is ``nn.RNN``; with structure it takes and gives matrices."""

import pickle
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import cayley
from cayley.activations import nonpositive
from cayley.parametrizations import ScaledCayley

T, B, I, H = 7, 4, 3, 5  # noqa: E741


def pair(**options: Any) -> tuple[nn.RNN, cayley.RNN]:
    theirs, ours = nn.RNN(I, H, **options), cayley.RNN(I, H, **options)
    assert ours.load_state_dict(theirs.state_dict()).missing_keys == []
    return theirs, ours


def as_tensors(result: tuple[Tensor | PackedSequence, Tensor]) -> tuple[Tensor, Tensor]:
    output, h_n = result
    return output.data if isinstance(output, PackedSequence) else output, h_n


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["batched", "batch_first", "unbatched", "packed", "sorted"])
@pytest.mark.parametrize("with_state", [False, True])
def test_returns_the_numbers_and_gradients_of_nn_rnn(
    nonlinearity: str,
    num_layers: int,
    bidirectional: bool,
    bias: bool,
    kind: str,
    with_state: bool,
) -> None:
    theirs, ours = pair(
        nonlinearity=nonlinearity,
        num_layers=num_layers,
        bidirectional=bidirectional,
        bias=bias,
        batch_first=kind == "batch_first",
    )
    x = torch.randn(T, I) if kind == "unbatched" else torch.randn(T, B, I)
    h_shape = (num_layers * (1 + bidirectional), *(() if kind == "unbatched" else (B,)), H)
    if kind == "batch_first":
        x = x.transpose(0, 1)
    hx = torch.randn(h_shape) if with_state else None
    leaves = []
    results = []
    for layer in (theirs, ours):
        own_x = x.clone().requires_grad_()
        own_hx = None if hx is None else hx.clone().requires_grad_()
        leaves.append([own_x, *([] if own_hx is None else [own_hx]), *layer.parameters()])
        inputs = own_x
        if kind in ("packed", "sorted"):
            lengths = torch.tensor([5, 7, 1, 5] if kind == "packed" else [7, 5, 5, 1])
            inputs = pack_padded_sequence(own_x, lengths, enforce_sorted=kind == "sorted")
        results.append(as_tensors(layer(inputs, own_hx)))
    torch.testing.assert_close(results[1], results[0])
    weights = [torch.randn_like(result) for result in results[0]]
    gradients = [
        torch.autograd.grad(result, leaf, weights)
        for result, leaf in zip(results, leaves, strict=True)
    ]
    torch.testing.assert_close(gradients[1], gradients[0])


def test_starts_with_the_numbers_of_nn_rnn() -> None:
    torch.manual_seed(0)
    theirs = nn.RNN(I, H, num_layers=2, bidirectional=True)
    torch.manual_seed(0)
    ours = cayley.RNN(I, H, num_layers=2, bidirectional=True)
    assert list(theirs.state_dict()) == list(ours.state_dict())
    for key, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[key], value)


def test_errors_have_the_types_of_nn_rnn() -> None:
    theirs, ours = pair()
    x = torch.randn(T, B, I)
    calls = [
        (torch.randn(T, B, I + 1),),
        (torch.randn(2, T, B, I),),
        (x, torch.zeros(1, B + 1, H)),
        (x, torch.zeros(2, B, H)),
        (x.float(),),
        (x.long(),),
        (torch.randn(0, B, I),),
    ]
    for arguments in calls:
        with pytest.raises((RuntimeError, ValueError)) as expected:
            theirs(*arguments)
        with pytest.raises(expected.type):
            ours(*arguments)


def test_assigned_matrix_is_read_back_and_used() -> None:
    layer: Any = cayley.ScoRNN(I, H, num_layers=2)
    W = torch.linalg.qr(torch.randn(H, H))[0]
    layer.weight_hh_l1 = W
    torch.testing.assert_close(layer.weight_hh_l1, W)
    assert layer.structured["weight_hh_l1"].A.abs().max() <= 1
    assert not torch.allclose(layer.weight_hh_l0, W)
    layer.weight_hh_l0 = -torch.eye(H)  # no Cayley transform without signs
    torch.testing.assert_close(layer.weight_hh_l0, -torch.eye(H))
    with pytest.raises(ValueError, match="expected an orthogonal matrix"):
        layer.weight_hh_l0 = torch.randn(H, H)
    torch.testing.assert_close(layer.weight_hh_l0, -torch.eye(H))
    with pytest.raises(AttributeError, match="weight_hh_l2"):
        _ = layer.weight_hh_l2


def test_unitary_layers_read_a_complex_matrix() -> None:
    layer = cayley.ScuRNN(I, H)
    W = torch.linalg.qr(torch.randn(H, H, dtype=torch.complex128))[0]
    layer.weight_hh_l0 = W
    torch.testing.assert_close(layer.weight_hh_l0, W)
    # complex arithmetic and its real form agree over one step without bias or input
    h = torch.randn(1, 1, 2 * H)
    with torch.no_grad():
        layer.bias_l0.zero_()
    _, h_n = layer(torch.zeros(1, 1, I), h)
    expected = torch.complex(*h[0].chunk(2, -1)) @ W.T
    torch.testing.assert_close(torch.complex(*h_n[0].chunk(2, -1)), expected, rtol=0, atol=1e-2)


def test_each_layer_and_direction_has_its_own_matrix() -> None:
    layer = cayley.RNN(I, H, 2, recurrent=ScaledCayley(H), bidirectional=True)
    matrices = [getattr(layer, name) for name in layer.structured]
    assert len(matrices) == 4
    assert not any(torch.equal(matrices[0], other) for other in matrices[1:])


def test_initializers_are_data() -> None:
    layer = cayley.RNN(I, H, nonlinearity="modrelu", initializers={"bias": nn.init.ones_})
    assert torch.equal(layer.bias_l0, torch.ones(H))


def test_a_map_is_made_from_its_size() -> None:
    for make in (ScaledCayley, partial(ScaledCayley, negative_ones=3), lambda n: ScaledCayley(n)):
        layer = cayley.RNN(I, H, 2, recurrent=make)
        map: Any = layer.structured["weight_hh_l1"].map
        assert (map.n, map.negative_ones) == (H, make(H).negative_ones)
        # nothing of the function stays behind, which might not be pickled
        twin = pickle.loads(pickle.dumps(layer))
        assert torch.equal(twin.weight_hh_l1, layer.weight_hh_l1)
    with pytest.raises(ValueError, match="expected hidden_size to be at least 1, got 0"):
        cayley.RNN(I, 0, recurrent=ScaledCayley)
    with pytest.raises(TypeError, match=r"a function that makes one from its size.*got None"):
        cayley.RNN(I, H, recurrent=lambda n: None)  # pyrefly: ignore[bad-argument-type]


def test_wrong_recurrences_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one of the maps \['cayley'.*got 'nonsense'"):
        cayley.RNN(I, H, recurrent="nonsense")
    with pytest.raises(ValueError, match="expected a map of size 5, got one of size 4"):
        cayley.RNN(I, H, recurrent=ScaledCayley(4))
    with pytest.raises(ValueError, match=r"real recurrence.*got 'modrelu_stacked'"):
        cayley.RNN(I, H, nonlinearity="modrelu_stacked")
    with pytest.raises(ValueError, match=r"complex recurrence.*\['identity', 'modrelu'\]"):
        cayley.RNN(I, H, recurrent="cayley_complex", nonlinearity="tanh")
    with pytest.raises(ValueError, match="unknown initializers"):
        cayley.RNN(I, H, initializers={"wieght_ih": nn.init.zeros_})


@pytest.mark.parametrize("make", [cayley.ScoRNN, cayley.ScuRNN, cayley.URNN])
def test_thresholds_stay_at_zero_or_below(make: Any) -> None:
    """Where the loss asks for larger ones; none of them stops for want of a gradient."""
    layer = make(2, 6, nonpositive_bias=True)
    free = make(2, 6)
    x = torch.randn(9, 4, 2)
    for network in (layer, free):
        optimizer = torch.optim.Adam(cayley.parameter_groups(network, 1e-2))
        for _ in range(30):
            optimizer.zero_grad()
            (-network(x)[0].square().mean()).backward()
            optimizer.step()
    assert (free.bias_l0 > 0).any()
    assert (nonpositive(layer.bias_l0) <= 0).all()
    (gradient,) = torch.autograd.grad(layer(x)[0].square().sum(), layer.bias_l0)
    assert (gradient != 0).all()
    assert "nonpositive_bias=True" in repr(layer)
    with pytest.raises(ValueError, match="expected nonlinearity='modrelu', got 'tanh'"):
        cayley.RNN(2, 6, nonpositive_bias=True)
