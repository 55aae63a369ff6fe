"""The contract of ``nn.RNN``, held by every network."""

import copy
import importlib
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gradients import check_gradients, check_second_gradients
from processes import call_in_processes
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
)
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint
from variants import NETWORKS, Make

import cayley
from cayley.kernels.rotations import Layer
from cayley.layers.recurrent import Recurrent, State

every = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)

# what has no kernel says so once
pytestmark = pytest.mark.filterwarnings("ignore:.*it has no normalisation for an Elman recurrence")

T, B, I, N = 6, 4, 3, 8  # noqa: E741
LENGTHS = [4, 6, 1, 3]
# those whose loop is that of cayley.RNN; the others have a test of it in their own file
ELMAN = {
    name: make
    for name, make in NETWORKS.items()
    if isinstance(layer := make(I, N), cayley.RNN) and layer.norm is None
}
# those that can train their initial state
TRAINED_H0 = {name: make for name, make in NETWORKS.items() if not name.startswith("LSTM")}
STACKED = {"num_layers": 2, "bidirectional": True}


def layer_of(make: Make, n: int = N, **options: Any) -> Recurrent:
    layer = make(I, n, **options)
    with torch.no_grad():  # thresholds start at 0, where modReLU is the identity
        for parameter in layer.parameters(recurse=False):
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def state_of(layer: Recurrent, batch: int = B) -> State:
    """The state that some sequence leaves; a window is not just any tensor."""
    shape = (batch, 3, I) if layer.batch_first else (3, batch, I)
    with torch.no_grad():
        return tree_map(torch.clone, layer(torch.randn(shape))[1])


def part(state: State | None, *index: object) -> State | None:
    """The same part of every tensor of a state."""
    return None if state is None else tree_map(lambda h: h[index], state)


@every
@pytest.mark.parametrize("options", [{}, {"batch_first": True}, STACKED])
def test_shapes_are_those_of_nn_rnn(make: Make, options: dict) -> None:
    layer = layer_of(make, **options)
    peer = nn.RNN(I, layer.state_sizes[0], **options)
    x = torch.randn(T, B, I)
    for arguments in ((x,), (x[0],), (x, None)):
        output, h_n = layer(*arguments)
        expected, expected_h_n = peer(*arguments)
        assert output.shape == expected.shape
        assert tree_leaves(h_n)[0].shape == expected_h_n.shape
    assert layer.output_size == peer(x)[0].shape[-1]


@pytest.mark.parametrize("make", ELMAN.values(), ids=ELMAN)
def test_is_the_loop_in_its_docstring(make: Make) -> None:
    layer = layer_of(make)
    x = torch.randn(T, B, I)
    h = state_of(layer)
    output, h_n = layer(x, h)
    W, h = layer.weight_hh_l0, h[0]
    if layer.is_complex:
        h = torch.complex(*h.chunk(2, -1))
    for t, x_t in enumerate(x):
        z = x_t @ layer.weight_ih_l0.T
        if layer.is_complex:
            z = torch.complex(*z.chunk(2, -1))
        z = z + h @ W.T
        if layer.nonlinearity == "modrelu":
            h = cayley.modrelu(z, layer.bias_l0)
        else:
            names = [name for name in layer._parameters if name.startswith("bias")]
            z = z + sum(getattr(layer, name) for name in names)
            h = getattr(nn.functional, layer.nonlinearity)(z)
        state = torch.cat((h.real, h.imag), -1) if layer.is_complex else h
        torch.testing.assert_close(output[t], state)
    torch.testing.assert_close(h_n[0], state)


@every
def test_batch_first_moves_the_axes_only(make: Make) -> None:
    layer = layer_of(make, **STACKED)
    twin = make(I, N, batch_first=True, **STACKED)
    twin.load_state_dict(layer.state_dict())
    x, hx = torch.randn(T, B, I), state_of(layer)
    output, h_n = layer(x, hx)
    twin_output, twin_h_n = twin(x.transpose(0, 1), hx)
    torch.testing.assert_close(twin_output.transpose(0, 1), output)
    torch.testing.assert_close(twin_h_n, h_n)


@every
def test_unbatched_input_is_a_batch_of_one(make: Make) -> None:
    for options in (STACKED, {"batch_first": True}):
        layer = layer_of(make, **options)
        x, hx = torch.randn(T, I), state_of(layer, 1)
        output, h_n = layer(x, part(hx, slice(None), 0))
        batch_axis = 0 if layer.batch_first else 1
        batched, batched_h_n = layer(x.unsqueeze(batch_axis), hx)
        torch.testing.assert_close(output, batched.squeeze(batch_axis))
        torch.testing.assert_close(h_n, part(batched_h_n, slice(None), 0))


@every
def test_state_carries_over(make: Make) -> None:
    layer = layer_of(make, num_layers=2)
    x = torch.randn(T, B, I)
    output, h_n = layer(x)
    first, state = layer(x[:2])
    second, last = layer(x[2:], state)
    torch.testing.assert_close(torch.cat((first, second)), output)
    torch.testing.assert_close(last, h_n)


@every
def test_layers_and_directions_are_single_layers_put_together(make: Make) -> None:
    layer = layer_of(make, **STACKED)
    x, hx = torch.randn(T, B, I), state_of(layer)
    output, h_n = layer(x, hx)
    for depth in range(2):
        size = I if depth == 0 else layer.output_size
        outputs = []
        for direction, end in enumerate(("", "_reverse")):
            alone = make(size, N)
            own = f"_l{depth}{end}"
            alone.load_state_dict(
                {
                    key.replace(own, "_l0"): value
                    for key, value in layer.state_dict().items()
                    if (own in key and key.endswith(own)) or f"{own}." in key
                }
            )
            steps = x.flip(0) if direction else x
            own_state = slice(2 * depth + direction, 2 * depth + direction + 1)
            y, h = alone(steps, part(hx, own_state))
            outputs.append(y.flip(0) if direction else y)
            torch.testing.assert_close(part(h_n, own_state), h)
        x = torch.cat(outputs, -1)
    torch.testing.assert_close(output, x)


@every
@pytest.mark.parametrize("given", [True, False])
def test_packed_sequences_are_each_sequence_alone(make: Make, given: bool) -> None:
    layer = layer_of(make, **STACKED)
    x = torch.randn(T, B, I)
    hx = state_of(layer) if given else None
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), enforce_sorted=False)
    output, h_n = layer(packed, hx)
    assert isinstance(output, PackedSequence)
    padded, lengths = pad_packed_sequence(output)
    assert lengths.tolist() == LENGTHS
    for b, length in enumerate(LENGTHS):
        own = slice(None), slice(b, b + 1)
        alone, h = layer(x[:length, b : b + 1], part(hx, *own))
        torch.testing.assert_close(padded[:length, b], alone[:, 0])
        torch.testing.assert_close(part(h_n, *own), h)


@every
def test_default_device_makes_no_difference(make: Make) -> None:
    """Everything is where the layer and its input are, whatever torch.set_default_device says."""
    layer = layer_of(make, **STACKED)
    twin = copy.deepcopy(layer)
    x = torch.randn(T, B, I)
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), enforce_sorted=False)
    for input in (x, packed):
        results = []
        networks: tuple[tuple[Any, str], ...] = ((layer, "cpu"), (twin, "meta"))
        for network, device in networks:
            with torch.device(device):
                output = tree_leaves(tuple(network(input)))
                total: Any = sum(y.square().sum() for y in floats(output))
                total.backward()
                W = network.weight_hh_l0
                with torch.no_grad():
                    if len(network.structured) and network.structured["weight_hh_l0"].map.onto:
                        network.weight_hh_l0 = W.clone()
                    silent = tree_leaves(tuple(network(input)))
            gradients = [p.grad for p in network.parameters()]
            results.append([*floats(output), W, *floats(silent), *gradients, *network.buffers()])
        torch.testing.assert_close(results[1], results[0])


@every
def test_a_device_asked_for_goes_over_the_default(make: Make) -> None:
    with torch.device("meta"):
        layer = make(I, N, device="cpu", **STACKED)
    assert {t.device.type for t in layer.state_dict().values()} == {"cpu"}
    assert layer(torch.randn(T, B, I))[0].isfinite().all()


def floats(leaves: list[Tensor]) -> list[Tensor]:
    """The tensors of a result that are no indices."""
    return [y for y in leaves if isinstance(y, Tensor) and y.is_floating_point()]


@every
def test_packed_sorted_sequences_keep_their_order(make: Make) -> None:
    layer = layer_of(make)
    sequences = [torch.randn(length, I) for length in (5, 3, 3, 1)]
    output, h_n = layer(pack_sequence(sequences))
    assert output.unsorted_indices is None
    for b, sequence in enumerate(sequences):
        torch.testing.assert_close(part(h_n, 0, b), part(layer(sequence)[1], 0))


@every
def test_gradients_of_every_parameter(make: Make) -> None:
    layer = layer_of(make, 4)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    x, hx = torch.randn(3, 2, I, requires_grad=True), state_of(layer, 2)
    leaves = [h.requires_grad_() for h in tree_leaves(hx)]

    def run(x: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        state = values[0] if len(leaves) == 1 else values[: len(leaves)]
        named = dict(zip(names, values[len(leaves) :], strict=True))
        return tuple(tree_leaves(torch.func.functional_call(layer, named, (x, state))))

    # an inverse of first order that is not refined moves a little with the differences
    check_gradients(run, (x, *leaves, *parameters), rtol=1e-5)


@every
def test_functional_call_takes_any_tensors(make: Make) -> None:
    layer = layer_of(make)
    x = torch.randn(T, B, I)
    halves = {name: 0.5 * p.detach() for name, p in layer.named_parameters()}
    output, _ = torch.func.functional_call(layer, halves, (x,))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(0.5)
    torch.testing.assert_close(output, layer(x)[0])


@pytest.mark.parametrize("make", TRAINED_H0.values(), ids=TRAINED_H0)
def test_initial_state_has_a_gradient_if_trained(make: Make) -> None:
    layer = layer_of(make, trainable_h0=True)
    layer(torch.randn(T, B, I))[0].sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())
    assert layer.h0_l0.shape == layer.state_sizes[:1]


@every
def test_step_is_forward_one_step_at_a_time(make: Make) -> None:
    for batch_first in (False, True):
        layer = layer_of(make, num_layers=2, batch_first=batch_first)
        x = torch.randn(T, B, I)
        output, h_n = layer(x.transpose(0, 1) if batch_first else x)
        output = output.transpose(0, 1) if batch_first else output
        state = None
        for t, x_t in enumerate(x):
            y_t, state = layer.step(x_t, state)
            torch.testing.assert_close(y_t, output[t])
        torch.testing.assert_close(state, h_n)
        y, state = layer.step(x[0, 0])
        torch.testing.assert_close(y, output[0, 0])
        assert [h.shape for h in tree_leaves(state)] == [h[:, 0].shape for h in tree_leaves(h_n)]


@every
def test_dropout_acts_between_layers_while_training(make: Make) -> None:
    layer = layer_of(make, num_layers=3, dropout=0.5).train()
    x = torch.randn(T, B, I)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])
    layer.train()
    layer.dropout = 1.0  # nothing reaches the last layer, and nothing is dropped after it
    silent = torch.zeros(T, B, layer.output_size)
    top = make(layer.output_size, N).train()
    top.load_state_dict(
        {k.replace("_l2", "_l0"): v for k, v in layer.state_dict().items() if "_l2" in k}
    )
    torch.testing.assert_close(layer(x)[0], top(silent)[0])


@pytest.mark.slow
def test_training_resumes_bit_for_bit_in_a_new_process(tmp_path: Path) -> None:
    """Save in the middle, load where nothing is shared, go on: the same numbers."""
    results = {}
    for name in NETWORKS:
        layer, optimizer = network_and_optimizer(name)
        train(layer, optimizer, range(3))
        saved = {"layer": layer.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(saved, tmp_path / f"{name}.before")
        train(layer, optimizer, range(3, 6))
        results[name] = layer.state_dict()
    call_in_processes(__file__, "resume", (str(tmp_path),))
    for name, state in results.items():
        resumed = torch.load(tmp_path / f"{name}.after", weights_only=True)
        for key, value in state.items():
            assert torch.equal(resumed[key], value), f"{name}: {key}"


def resume(folder: str) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    for name in NETWORKS:
        layer, optimizer = network_and_optimizer(name)
        saved = torch.load(Path(folder) / f"{name}.before", weights_only=True)
        layer.load_state_dict(saved["layer"])
        optimizer.load_state_dict(saved["optimizer"])
        train(layer, optimizer, range(3, 6))
        torch.save(layer.state_dict(), Path(folder) / f"{name}.after")


def network_and_optimizer(name: str) -> tuple[Recurrent, torch.optim.Optimizer]:
    layer = NETWORKS[name](I, N, **STACKED)
    groups = cayley.parameter_groups(layer, 1e-2, recurrent_lr=1e-3)
    on_manifold = any(matrix.map.on_manifold for matrix in layer.matrices())
    kind = cayley.optim.StiefelRMSprop if on_manifold else torch.optim.Adam
    return layer, kind(groups)


def train(layer: Recurrent, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        x = torch.randn(T, B, I, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        layer(x)[0].square().mean().backward()
        optimizer.step()


@every
@pytest.mark.parametrize("n", [N, 200])
def test_reading_a_matrix_changes_nothing(make: Make, n: int) -> None:
    """In training, with gradients and without; what is read is what the next pass uses."""
    if n > N and not isinstance(make(I, N), cayley.ENRNN | cayley.NCGRU):
        return  # nothing there depends on the size
    layer = layer_of(make, n).train()
    if not layer.structured:
        return
    optimizer = torch.optim.SGD(layer.structured.parameters(), lr=1e-3)
    for _ in range(3):
        before = copy.deepcopy(layer.state_dict())
        read = [layer.weight_hh_l0, layer.weight_hh_l0]
        with torch.no_grad():
            read += [layer.weight_hh_l0, copy.deepcopy(layer).weight_hh_l0]
        for key, value in layer.state_dict().items():
            assert torch.equal(value, before[key]), key
        used: list[Any] = []
        matrix = layer.structured["weight_hh_l0"]
        with matrix.register_forward_hook(lambda *args, used=used: used.append(args[-1])):
            layer(torch.randn(2, 1, I))[0].square().sum().backward()
        assert len(used) == 1
        for W in read:
            assert torch.equal(W, used[0])
        optimizer.step()
        optimizer.zero_grad()


@every
def test_matrices_are_listed(make: Make) -> None:
    layer = make(I, N, **STACKED)
    names = {"weight_hh_l0", "weight_hh_l0_reverse", "weight_hh_l1", "weight_hh_l1_reverse"}
    assert names <= set(dir(layer))
    assert all(getattr(layer, name).shape[-1] == N for name in names)


@every
def test_no_buffer_is_empty(make: Make) -> None:
    """Two empty tensors share a storage, as far as safetensors can tell, and it refuses them."""
    for n in (1, 2, N):
        if n == 1 and make is NETWORKS["EURNN-fft"]:
            continue
        for name, buffer in make(I, n).named_buffers():
            assert buffer.numel(), name


@every
def test_an_average_of_a_model_and_its_buffers_stays_on_the_set(make: Make) -> None:
    """Integers are rounded down: those of equal permutations, to others."""
    layer = layer_of(make)
    if not layer.structured or isinstance(layer, cayley.FullURNN):
        return  # a mean of unitary matrices is none
    optimizer = torch.optim.SGD(layer.structured.parameters(), lr=0.1)
    averages: Any = (
        AveragedModel(layer, use_buffers=True, multi_avg_fn=get_ema_multi_avg_fn(0.5)),
        AveragedModel(layer, use_buffers=True, avg_fn=get_ema_avg_fn(0.9)),
    )
    for step in range(5):
        train(layer, optimizer, range(step, step + 1))
        for mean in averages:
            mean.update_parameters(layer)
    for mean in averages:
        for matrix in mean.eval().module.matrices():
            assert matrix.map.defect(matrix()) <= 1e-12


@every
def test_what_is_no_matrix_is_not_assigned(make: Make) -> None:
    layer = make(I, N)
    if not layer.structured:
        return
    W = layer.weight_hh_l0.detach()
    for value in (1, None, W.tolist(), W.numpy(), torch.ones(W.shape, dtype=torch.int64)):
        with pytest.raises(TypeError, match="expected a tensor of floating-point numbers, got"):
            layer.weight_hh_l0 = value
    assert torch.equal(layer.weight_hh_l0, W)


@every
def test_a_matrix_is_checked_in_the_precision_of_the_layer(make: Make) -> None:
    layer = make(I, N, dtype=torch.float32)
    if not layer.structured:
        return
    W = layer.weight_hh_l0.detach()
    try:
        layer.weight_hh_l0 = W
    except NotImplementedError:
        return  # the map has no inverse
    layer.weight_hh_l0 = W.to(torch.promote_types(W.dtype, torch.float64))
    torch.testing.assert_close(layer.weight_hh_l0, W)
    for dtype in (W.dtype,) if W.is_complex() else (torch.bfloat16, torch.float16, W.dtype):
        with pytest.raises(ValueError, match="expected"):
            layer.weight_hh_l0 = (3 * torch.randn(W.shape, dtype=W.dtype)).to(dtype)
    torch.testing.assert_close(layer.weight_hh_l0, W)


@every
def test_copies_are_equal_and_independent(make: Make) -> None:
    layer = layer_of(make, **STACKED)
    x = torch.randn(T, B, I)
    with torch.no_grad():
        expected = layer(x)[0]
        buffer = io.BytesIO()
        torch.save(layer, buffer)
        buffer.seek(0)
        copies = (
            copy.deepcopy(layer),
            pickle.loads(pickle.dumps(layer)),
            torch.load(buffer, weights_only=False),
        )
        for twin in copies:
            assert torch.equal(twin(x)[0], expected)
            for parameter in twin.parameters():
                parameter.mul_(0.5)
            assert not torch.equal(twin(x)[0], expected)
        assert torch.equal(layer(x)[0], expected)


@every
def test_saved_layers_hold_classes_and_plain_functions_only(make: Make, tmp_path: Path) -> None:
    """So that ``torch.load(weights_only=True)`` takes them, once it is told which."""
    layer = layer_of(make, **STACKED)
    torch.save(layer, tmp_path / "layer.pt")
    names = torch.serialization.get_unsafe_globals_in_checkpoint(tmp_path / "layer.pt")
    known = []
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert module.startswith(("cayley.", "torch.nn.")), name
        known.append(getattr(importlib.import_module(module), attribute))
    with torch.serialization.safe_globals(known):
        twin = torch.load(tmp_path / "layer.pt", weights_only=True)
    x = torch.randn(T, B, I)
    torch.testing.assert_close(twin(x), layer(x))


def test_files_from_before_a_class_moved_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = cayley.EURNN(I, N)
    with monkeypatch.context() as before:
        before.setattr(Layer, "__module__", "cayley.parametrizations.givens")
        torch.save(layer, tmp_path / "layer.pt")
    twin = torch.load(tmp_path / "layer.pt", weights_only=True)
    x = torch.randn(T, B, I)
    torch.testing.assert_close(twin(x), layer(x))


@every
def test_meta_device(make: Make) -> None:
    layer = make(I, N, device="meta", **STACKED)
    output, _ = layer(torch.empty(T, B, I, device="meta"))
    assert output.shape == (T, B, layer.output_size)
    layer.to_empty(device="cpu")
    torch.manual_seed(0)
    layer.reset_parameters()
    twin = make(I, N, **STACKED)
    torch.manual_seed(0)
    twin.reset_parameters()
    x = torch.randn(T, B, I)
    assert torch.equal(layer(x)[0], twin(x)[0])


@every
def test_autocast_rounds_only_the_input(make: Make) -> None:
    layer = make(I, N).float()
    nn.init.normal_(layer.weight_ih_l0)
    x = torch.randn(T, B, I, dtype=torch.float32)
    W = layer.weight_hh_l0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, h_n = layer(x)
        assert torch.equal(layer.weight_hh_l0, W)
        half, _ = layer(x.bfloat16(), tree_map(Tensor.bfloat16, h_n))
    assert all(y.dtype == torch.float32 for y in (output, half, *tree_leaves(h_n)))
    exact = layer(x)[0]
    assert exact.abs().max() > 0.1
    error = torch.linalg.norm(output - exact) / torch.linalg.norm(exact)
    assert 0 < error < 0.02
    # a backward pass inside of autocast is no less precise
    parameters = tuple(layer.parameters())
    wanted = torch.autograd.grad(output.sum(), parameters, retain_graph=True, allow_unused=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = torch.autograd.grad(output.sum(), parameters, allow_unused=True)
    for gradient, outside in zip(inside, wanted, strict=True):
        if outside is not None:
            assert gradient.dtype.to_real() == torch.float32
            error = torch.linalg.norm(gradient - outside)
            assert error <= 0.02 * torch.linalg.norm(outside) + 1e-6


@every
def test_dtype_changes_take_the_whole_layer(make: Make) -> None:
    layer = make(I, N, dtype=torch.float32)
    x = torch.randn(T, B, I)
    output = layer.double()(x)[0]
    torch.testing.assert_close(layer.float()(x.float())[0].double(), output, rtol=1e-3, atol=1e-3)


@every
def test_half_precision_is_for_layers_without_structure(make: Make) -> None:
    layer, x = make(I, N, dtype=torch.float32), torch.randn(T, B, I, dtype=torch.float32)
    expected = layer(x)[0]
    if len(layer.structured) or getattr(layer, "norm", None) is not None:
        for convert in (layer.bfloat16, lambda: make(I, N, dtype=torch.bfloat16)):
            with pytest.raises(TypeError, match=r"float32 or float64.*bfloat16: keep .*autocast"):
                convert()(x.bfloat16())
        return
    with cayley.backend("reference"):
        output = layer.bfloat16()(x.bfloat16())[0]
    output.float().sum().backward()
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, rtol=0.05, atol=0.05)


@every
def test_compiles_in_one_graph(make: Make) -> None:
    torch.compiler.reset()  # the networks share their code, and the graphs of one code are limited
    layer = layer_of(make)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager_default_partitioner")
    x = torch.randn(4, B, I)
    output, h_n = compiled(x)
    torch.testing.assert_close((output, h_n), layer(x))
    parameters = tuple(layer.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(output.sum(), parameters),
        torch.autograd.grad(layer(x)[0].sum(), parameters),
    )


# layers on top of one another, and both directions, are the same loop for all networks: here for
# one of each kind
EXPORTED = {name: (make, {}) for name, make in NETWORKS.items()} | {
    f"{name}-stacked": (NETWORKS[name], STACKED) for name in ("ScoRNN", "NCGRU", "LSTM-atn")
}


@pytest.mark.parametrize(("make", "options"), EXPORTED.values(), ids=EXPORTED)
def test_exports_for_any_length_and_batch(make: Make, options: dict) -> None:
    layer = layer_of(make, batch_first=True, **options).eval()
    sizes = {0: torch.export.Dim("B", max=64), 1: torch.export.Dim("T", max=4096)}
    program = torch.export.export(layer, (torch.randn(B, T, I),), dynamic_shapes=(sizes,))
    x = torch.randn(B + 3, T + 9, I)
    torch.testing.assert_close(program.module()(x), layer(x))


@every
def test_gradients_of_gradients(make: Make) -> None:
    layer = layer_of(make)
    x = torch.randn(3, 2, I, requires_grad=True)
    check_second_gradients(lambda x: layer(x)[0], (x,))


@every
def test_many_gradients_at_a_time(make: Make) -> None:
    """Both ways of torch to a Jacobian in one call, see ``torch.vmap``."""
    layer = layer_of(make)
    x = torch.randn(2, 1, I, requires_grad=True)
    y, leaves = layer(x)[0], [x, *layer.parameters()]
    G = torch.randn(2, *y.shape)

    def gradients(g: Tensor, **options: Any) -> tuple[Tensor, ...]:
        return torch.autograd.grad(y, leaves, g, retain_graph=True, **options)

    expected = [torch.stack(pair) for pair in zip(*map(gradients, G), strict=True)]
    torch.testing.assert_close([*torch.vmap(gradients)(G)], expected)
    torch.testing.assert_close([*gradients(G, is_grads_batched=True)], expected)


@every
def test_matrix_is_formed_anew_when_something_changed(make: Make) -> None:
    layer = make(I, N).eval()
    if not layer.structured:
        return
    with torch.no_grad():
        W = layer.weight_hh_l0
        assert torch.equal(layer.weight_hh_l0, W)
        next(layer.structured.parameters()).data.add_(0.1)
        assert not torch.equal(layer.weight_hh_l0, W)


@every
def test_transforms_of_torch_func(make: Make) -> None:
    layer = layer_of(make).eval()
    x = torch.randn(4, 2, I)

    def loss(x: Tensor) -> Tensor:
        return layer(x)[0].square().sum()

    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(x), gradient)
    v = torch.randn_like(x)
    value, tangent, *_ = torch.func.jvp(loss, (x,), (v,))
    torch.testing.assert_close(value, loss(x))
    torch.testing.assert_close(tangent, (gradient * v).sum())
    alone = torch.func.vmap(layer, in_dims=1, out_dims=1)(x)[0]
    torch.testing.assert_close(alone, layer(x)[0])


@every
def test_derivatives_in_forward_mode(make: Make) -> None:
    """Plain dual numbers, in the input, the state or a parameter."""
    layer = layer_of(make, num_layers=2).eval()
    x, hx = torch.randn(3, 2, I), state_of(layer, 2)
    first, *others = tree_leaves(hx)
    # what a parameter changes in its layer reaches the layer above as the input does
    single = layer_of(make).eval()

    def of_state(h: Tensor) -> Tensor:
        return layer(x, (h, *others) if others else h)[0]

    def of_parameter(name: str) -> Callable[[Tensor], Tensor]:
        return lambda p: torch.func.functional_call(single, {name: p}, (x,))[0]

    parameters = {name: p.detach() for name, p in single.named_parameters()}
    functions = [(lambda x: layer(x)[0], x), (of_state, first)]
    functions += [(of_parameter(name), p) for name, p in parameters.items()]
    for function, v in functions:
        t = torch.randn_like(v)
        expected = torch.func.jvp(function, (v,), (t,))
        with forward_ad.dual_level():
            found = forward_ad.unpack_dual(function(forward_ad.make_dual(v.clone(), t)))
            torch.testing.assert_close((found.primal, found.tangent), expected)


# torch warns that it is deprecated, and of values that become constants
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@every
@pytest.mark.parametrize("recorded", [True, False])
def test_traces_of_torch_jit(make: Make, recorded: bool) -> None:
    """A trace computes what the layer does, or is refused; it never records other numbers."""
    layer = layer_of(make).eval()
    x = torch.randn(T, B, I)
    with torch.set_grad_enabled(recorded):
        trace: Any = torch.jit.trace(layer, (x,), check_trace=False)
        for parameter in layer.parameters():
            parameter.data.mul_(0.9)
        x = torch.randn(T, B, I)
        torch.testing.assert_close(trace(x), layer(x))


@every
def test_activation_checkpointing(make: Make) -> None:
    layer = layer_of(make)
    x = torch.randn(T, B, I, requires_grad=True)
    leaves = (x, *(p for name, p in layer.named_parameters() if not name.startswith("h0")))
    output, _ = checkpoint(layer, x, use_reentrant=False)
    expected = torch.autograd.grad(layer(x)[0].square().sum(), leaves)
    torch.testing.assert_close(torch.autograd.grad(output.square().sum(), leaves), expected)


@every
def test_output_changed_in_place_harms_nothing(make: Make) -> None:
    layer = layer_of(make)
    for batch_first in (False, True):
        layer.batch_first = batch_first
        with torch.no_grad():
            output, h_n = layer(torch.randn(T, B, I))
            before = tree_map(torch.clone, h_n)
            output.zero_()
            torch.testing.assert_close(h_n, before, rtol=0, atol=0)
    # with gradients the output is kept for the backward pass, and torch says so
    with pytest.raises(RuntimeError, match=r"out-of-place|modified by an inplace operation"):
        layer(torch.randn(T, B, I))[0].mul_(2).sum().backward()


@every
def test_empty_batch_gives_an_empty_result(make: Make) -> None:
    layer = layer_of(make, **STACKED)
    output, h_n = layer(torch.randn(T, 0, I))
    assert output.shape == (T, 0, layer.output_size)
    assert [h.shape for h in tree_leaves(h_n)] == [(4, 0, size) for size in layer.state_sizes]


@every
def test_nan_in_a_parameter_reaches_the_output(make: Make) -> None:
    layer = make(I, N)
    with torch.no_grad():
        next(layer.structured.parameters(), layer.weight_ih_l0).fill_(torch.nan)
    assert layer(torch.randn(T, B, I))[0][-1].isnan().any()


@every
def test_bad_input_is_refused_as_nn_rnn_does(make: Make) -> None:
    layer = make(I, N)
    H, count = layer.state_sizes[0], len(layer.state_sizes)
    x = torch.randn(T, B, I)

    def state(*shape: int, dtype: torch.dtype = torch.float64) -> State:
        zeros = tuple(torch.zeros(*shape, size, dtype=dtype) for size in layer.state_sizes)
        return zeros[0] if count == 1 else zeros

    with pytest.raises(RuntimeError, match=r"input\.size\(-1\) must be equal to input_size.* 3, "):
        layer(torch.randn(T, B, I + 1))
    for shape in ((I,), (1, T, B, I)):
        with pytest.raises(ValueError, match=f"got {len(shape)}"):
            layer(torch.randn(shape))
    with pytest.raises(RuntimeError, match=rf"expected hidden size \(1, 4, {H}\), got \(1, 3, {H}"):
        layer(x, state(1, 3))
    with pytest.raises(RuntimeError, match=r"expected hidden size \(1, "):
        layer(x[:, 0], state(1, B))
    with pytest.raises(RuntimeError, match=f"{count} tensor"):
        layer(x, (torch.zeros(1, B, H),) * (count + 1))
    with pytest.raises(ValueError, match=r"hx dtype \(torch.float32\).*torch.float64"):
        layer(x, state(1, B, dtype=torch.float32))
    for dtype in (torch.int64, torch.complex128, torch.float32):
        with pytest.raises(ValueError, match=rf"input dtype \({dtype}\) does not match"):
            layer(x.to(dtype) if dtype != torch.int64 else x.long())
    with pytest.raises(ValueError, match="expected input on cpu, where the weights are, got meta"):
        layer(x.to("meta"))
    with pytest.raises(ValueError, match="expected hx on cpu, where the weights are, got meta"):
        layer(x, tuple(torch.zeros(1, B, size, device="meta") for size in layer.state_sizes))
    with pytest.raises(ValueError, match="expected input on meta, where the weights are, got cpu"):
        make(I, N, device="meta")(x)
    with pytest.raises(RuntimeError, match="at least one step"):
        layer(torch.randn(0, B, I))
    empty = PackedSequence(torch.randn(0, I), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="at least one step"):
        layer(empty)
    with pytest.raises(RuntimeError, match="packed data of 2 dimensions"):
        layer(PackedSequence(torch.randn(2, 1, I), torch.ones(2, dtype=torch.int64)))
    with pytest.raises(ValueError, match="one step"):
        layer.step(x)
    with pytest.raises(ValueError, match="call forward"):
        make(I, N, bidirectional=True).step(x[0])


@every
def test_bad_arguments_are_refused(make: Make) -> None:
    hidden = "hidden_size|long_size"
    wrong = ((0, N), "input_size"), ((I, 0), hidden), ((I, -3), hidden), ((I, N, 0), "num_layers")
    for sizes, name in wrong:
        with pytest.raises(ValueError, match=f"expected ({name}).* at least 1, got"):
            make(*sizes)
    with pytest.raises((TypeError, ValueError), match="int"):
        make(I, 8.0)
    with pytest.raises(ValueError, match=r"from 0 to 1, got 1\.5"):
        make(I, N, num_layers=2, dropout=1.5)
    with pytest.warns(UserWarning, match="no effect with num_layers=1"):
        make(I, N, dropout=0.5)
    with pytest.raises(TypeError, match="nonsense"):
        make(I, N, nonsense=1)
    for flag in ("bias", "batch_first"):
        for value in ("relu", 1, None):
            with pytest.raises(TypeError, match=f"expected {flag} to be True or False, got"):
                make(I, N, **{flag: value})


@every
def test_state_dict_errors_name_the_key(make: Make) -> None:
    layer = make(I, N)
    state = layer.state_dict()
    with pytest.raises(RuntimeError, match=r"weight_ih_l0.*\[\d+, 4\].*\[\d+, 3\]"):
        layer.load_state_dict(make(I + 1, N).state_dict())
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\).*"weight_ih_l1"'):
        layer.load_state_dict(make(I, N, num_layers=2).state_dict())
    if layer.structured:
        state["weight_hh_l0"] = torch.eye(N)
        with pytest.raises(RuntimeError, match=r"structured\.weight_hh_l0\..*got the matrix"):
            layer.load_state_dict(state)


@every
def test_flatten_parameters_and_repr(make: Make) -> None:
    layer = make(I, N, num_layers=2, batch_first=True, bidirectional=True, bias=False)
    layer.flatten_parameters()
    assert "3, 8, num_layers=2, bias=False, batch_first=True, bidirectional=True" in repr(layer)
    assert not any("bias" in name for name, _ in layer.named_parameters())
    assert layer(torch.randn(T, B, I).transpose(0, 1))[0].shape == (B, T, layer.output_size)
