"""``cayley.RNN`` without structure is ``nn.RNN``; with structure it takes and gives matrices."""

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import cayley
from cayley.activations import nonpositive
from cayley.layers import elman as layers
from cayley.parametrizations import GivensLayers, ScaledCayley
from cayley.recurrences import elman

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


@pytest.mark.parametrize(
    ("network", "is_complex"),
    [
        (cayley.ScuRNN, True),
        (cayley.URNN, True),
        (cayley.FullURNN, True),
        (cayley.EURNN, True),
        (cayley.ScoRNN, False),
    ],
)
def test_kernels_know_of_complex_weights(
    network: Callable[..., nn.Module], is_complex: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = []

    def observed(*tensors: Any, **options: Any) -> Tensor:
        known.append(options["is_complex"])
        return elman(*tensors, **options)

    monkeypatch.setattr(layers, "elman", observed)
    network(I, 4)(torch.randn(3, 2, I))
    assert known == [is_complex]


def many_units(monkeypatch: pytest.MonkeyPatch, many: int) -> list[str]:
    """Let so many units be many; the names of the recurrences that run are added to a list."""
    ran: list[str] = []
    monkeypatch.setattr(layers, "prefers_factors", lambda w: w.shape[-1] >= many)
    monkeypatch.setattr(layers, "prefers_rotations", lambda omega, _: omega.shape[-1] >= many)
    for name in ("composed", "rotated", "elman"):
        run = getattr(layers, name)

        def noted(*args: Any, run: Any = run, name: str = name, **options: Any) -> Tensor:
            ran.append(name)
            return run(*args, **options)

        monkeypatch.setattr(layers, name, noted)
    return ran


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("nonpositive_bias", [False, True])
@pytest.mark.parametrize("network", [cayley.EURNN, cayley.URNN])
def test_many_units_are_turned_by_the_factors_of_their_matrix(
    network: Any, packed: bool, nonpositive_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = network(
        2, 7, 2, bidirectional=True, nonpositive_bias=nonpositive_bias, dtype=torch.float64
    )
    by_factors = "composed" if network is cayley.URNN else "rotated"
    x: Any = torch.randn(5, 3, 2, dtype=torch.float64)
    if packed:
        x = pack_padded_sequence(x, torch.tensor([5, 2, 1]))
    hx = torch.randn(4, 3, 14, dtype=torch.float64)
    leaves = [p for name, p in layer.named_parameters() if not name.startswith("h0")]
    results = []
    for many, name in ((8, "elman"), (7, by_factors)):
        with monkeypatch.context() as patch:
            ran = many_units(patch, many)
            output, h_n = layer(x, hx)
            assert ran == [name] * 4
        y = output.data if packed else output
        loss = y.square().sum() + h_n.sum()
        results.append((y, h_n, *torch.autograd.grad(loss, leaves)))
    torch.testing.assert_close(*results)


class Slower(GivensLayers):
    """Rotations by a tenth of their angles."""

    def forward(self, theta: Tensor, phi: Tensor, omega: Tensor) -> Tensor:
        return super().forward(theta / 10, phi, omega)


def test_all_who_look_at_or_change_the_matrix_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = many_units(monkeypatch, 1)
    x = torch.randn(3, 2, 2)
    for network in (cayley.EURNN, cayley.URNN):
        layer = network(2, 4)
        with cayley.kernels.observation.observed(lambda _: None):
            layer(x)
        torch.func.functional_call(layer.freeze(), dict(layer.named_parameters()), (x,))
    for network, free in ((cayley.EURNN, "theta"), (cayley.URNN, "w")):
        layer = network(2, 4)
        prune.l1_unstructured(layer.structured["weight_hh_l0"], free, 0.5)
        layer(x)
        layer = network(2, 4)
        layer.structured["weight_hh_l0"].register_forward_hook(lambda *_: None)
        layer(x)
    cayley.RNN(2, 4, recurrent=Slower, nonlinearity="modrelu")(x)
    cayley.ScuRNN(2, 4)(x)
    cayley.RNN(2, 4, recurrent="composition", nonlinearity="identity")(x)
    cayley.RNN(2, 4)(x)
    assert ran == ["elman"] * 12


def test_tracers_do_not_follow_the_choice_of_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU it searches for a plan, in code that they cannot trace."""
    asked: list[Tensor] = []
    monkeypatch.setattr(layers, "prefers_factors", lambda w: bool(asked.append(w)))
    layer, x = cayley.URNN(1, 4), torch.randn(3, 2, 1)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x)[0], layer(x)[0])
    assert len(asked) == 1


def test_each_layer_and_direction_has_its_own_matrix() -> None:
    layer = cayley.RNN(I, H, 2, recurrent=ScaledCayley(H), bidirectional=True)
    matrices = [getattr(layer, name) for name in layer.structured]
    assert len(matrices) == 4
    assert not any(torch.equal(matrices[0], other) for other in matrices[1:])


def test_initializers_are_data() -> None:
    layer = cayley.RNN(I, H, nonlinearity="modrelu", initializers={"bias": nn.init.ones_})
    assert torch.equal(layer.bias_l0, torch.ones(H))


def test_initializers_have_names() -> None:
    """So that a file of settings can ask for them."""
    layer: Any = cayley.ScuRNN(2, 5, initializers={"bias": "zeros_", "h0": "unit_state_"})
    assert not layer.bias_l0.any()
    assert 0.1 < layer.h0_l0.abs().max() <= (3 / 10) ** 0.5
    layer.bias_l0.data.fill_(1.0)
    layer.reset_parameters()
    assert not layer.bias_l0.any()
    with pytest.raises(ValueError, match=r"'bias' to be a function or one of .* got 'zero'"):
        cayley.RNN(2, 5, initializers={"bias": "zero"})


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


NORMS: dict[str, dict[str, Any]] = {
    "layer": {"norm": "layer"},
    "layer, plain": {"norm": "layer", "affine": False, "eps": 0.1},
    "atn": {"norm": "atn", "window": 3},
    "atn, relu": {"norm": "atn", "window": 20, "nonlinearity": "relu"},
    "atn, modrelu": {"norm": "atn", "window": 2, "nonlinearity": "modrelu"},
    "atn, orthogonal": {"norm": "atn", "window": 3, "recurrent": "cayley", "bias": False},
}
norms = pytest.mark.parametrize("options", NORMS.values(), ids=NORMS)
slow = pytest.mark.filterwarnings("ignore:.*it has no normalisation for an Elman recurrence")


def normalized_of(**options: Any) -> Any:
    layer = cayley.RNN(I, H, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


@slow
@norms
def test_normalised_it_is_the_equation_of_the_documents(options: dict[str, Any]) -> None:
    """h = f(N(W h) + N(U x) + b), equation 3.3, with the raw values of each window."""
    layer = normalized_of(**options)
    x, h = torch.randn(T, B, I), torch.randn(B, H)
    output, _ = layer(x, h[None])
    past: dict[str, list[Tensor]] = {"ih": [], "hh": []}

    def norm(site: str, a: Tensor) -> Tensor:
        past[site] = [*past[site], a][-layer.window :]
        pool = torch.cat(past[site], 1)
        mean, var = pool.mean(1, keepdim=True), pool.var(1, correction=0, keepdim=True)
        a = (a - mean) / (var + layer.eps).sqrt()
        if not layer.affine:
            return a
        return getattr(layer, f"gamma_{site}_l0") * a + getattr(layer, f"beta_{site}_l0")

    b = layer.bias_l0 if layer.bias else torch.zeros(H)
    for t, x_t in enumerate(x):
        z = norm("hh", h @ layer.weight_hh_l0.T) + norm("ih", x_t @ layer.weight_ih_l0.T)
        if layer.nonlinearity == "modrelu":
            h = cayley.modrelu(z, b)
        else:
            h = getattr(torch, layer.nonlinearity)(z + b)
        torch.testing.assert_close(output[t], h)


@slow
def test_normalised_parameters_and_their_start() -> None:
    layer: Any = cayley.RNN(I, H, norm="atn", window=4)
    named = dict(layer.named_parameters())
    assert [*named] == [
        *("weight_ih_l0", "weight_hh_l0", "bias_l0"),
        *("gamma_ih_l0", "beta_ih_l0", "gamma_hh_l0", "beta_hh_l0"),
    ]
    assert all((p == 1).all() for name, p in named.items() if "gamma" in name)
    assert all((p == 0).all() for name, p in named.items() if "beta" in name)
    bare = cayley.RNN(I, H, norm="layer", affine=False, bias=False)
    assert [*dict(bare.named_parameters())] == ["weight_ih_l0", "weight_hh_l0"]
    assert "norm='atn', window=4" in repr(layer)
    assert "norm='layer', affine=False, eps=0.1" in repr(
        cayley.RNN(I, H, norm="layer", affine=False, eps=0.1)
    )


@slow
def test_normalised_window_of_one_is_layer_normalisation() -> None:
    layer = normalized_of(norm="layer")
    twin = cayley.RNN(I, H, norm="atn", window=1)
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(T, B, I)
    assert torch.equal(twin(x)[0], layer(x)[0])
    assert isinstance(layer(x)[1], Tensor)


@slow
@pytest.mark.parametrize("cut", [1, 2, 6])
def test_normalised_chunks_give_what_one_run_gives(cut: int) -> None:
    """With the windows; with h alone they start empty."""
    layer = normalized_of(norm="atn", window=4, num_layers=2)
    x = torch.randn(T, B, I, requires_grad=True)
    output, last = layer(x)
    first, state = layer(x[:cut])
    second, end = layer(x[cut:], state)
    torch.testing.assert_close(torch.cat((first, second)), output)
    torch.testing.assert_close(end, last)
    g = torch.randn_like(output)
    torch.testing.assert_close(  # gradients cross the cut, through the window too
        torch.autograd.grad(torch.cat((first, second)), (x, *layer.parameters()), g),
        torch.autograd.grad(output, (x, *layer.parameters()), g),
    )
    h, windows = state
    empty, _ = layer(x[cut:], (h, torch.zeros_like(windows)))
    for hx in (h, (h,), [h]):
        torch.testing.assert_close(layer(x[cut:], hx)[0], empty)
    assert not torch.allclose(empty, second)
    with pytest.raises(RuntimeError, match="2 tensor"):
        layer(x, (h, windows, windows))


@slow
def test_normalised_weights_have_no_scale() -> None:
    """Equation 3.10: positive factors of U and W change nothing, nor does one of all inputs."""
    layer: Any = normalized_of(norm="atn", window=3, eps=0.0)
    x = torch.randn(T, B, I)
    output = layer(x)[0]
    one_step = x * torch.tensor([1.0, 1.0, 5.0, *[1.0] * (T - 3)])[:, None, None]
    assert not torch.allclose(layer(one_step)[0], output)
    hx = torch.randn(1, B, H)
    expected = layer(x, hx)[0]
    with torch.no_grad():
        layer.weight_ih_l0.mul_(3.0)
        layer.weight_hh_l0.mul_(0.2)
    torch.testing.assert_close(layer(x, hx)[0], expected)
    torch.testing.assert_close(layer(7 * x, hx)[0], expected)


def test_normalisations_that_do_not_exist_are_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"norm": "batch"}, r"one of \[None, 'layer', 'atn'\], got 'batch'"),
        ({"norm": "atn"}, "pass window=K"),
        ({"norm": "layer", "window": 3}, "window is a setting of norm='atn'"),
        ({"window": 3}, "window is a setting of norm='atn'"),
        ({"affine": False}, "affine=False needs a normalisation"),
        ({"norm": "layer", "eps": -1.0}, "eps of at least 0"),
        ({"norm": "layer", "recurrent": "givens", "nonlinearity": "modrelu"}, "complex matrix"),
    ]
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            cayley.RNN(I, H, **options)


@pytest.mark.parametrize("make", [cayley.RNN, cayley.ScoRNN, cayley.ScuRNN, cayley.RNNCell])
def test_complex_dtypes_are_refused(make: Any) -> None:
    with pytest.raises(TypeError, match=r"expected a real dtype, got torch\.complex64: .*ScuRNN"):
        make(3, 4, dtype=torch.complex64)
