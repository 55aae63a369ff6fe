"""A step of a frozen layer against a sequence of one step, by torch and by each kernel."""

from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from emulator import COMPILER, emulated
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import cayley
from cayley.kernels.cpu import native
from cayley.layers import frozen

B, I, N = 3, 5, 37  # noqa: E741
NETWORKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ScoRNN": (cayley.ScoRNN, {}),
    "ScoRNN-tanh": (cayley.ScoRNN, {"nonlinearity": "tanh"}),
    "ScuRNN": (cayley.ScuRNN, {}),
}
# before a step of modReLU: where z is 0 it jumps for b > 0
THRESHOLDS = {"b < 0": -0.3, "b = 0": 0.0, "b > 0": 0.3}
INPUTS = {"numbers": 1.0, "z = 0": 0.0, "inf": torch.inf, "nan": torch.nan}

C = pytest.mark.skipif(native._library() is None, reason="no C code")
CUDA = (pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux"), pytest.mark.slow)
WAYS = ["torch", pytest.param("C", marks=C), pytest.param("CUDA", marks=CUDA)]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What makes the step: torch, the kernel in C, or the CUDA kernel, emulated on the CPU."""
    with ExitStack() as contexts:
        if request.param == "torch":
            monkeypatch.setattr(frozen.cpu, "most_rows", lambda *_: 0)
        if request.param == "CUDA":
            contexts.enter_context(emulated())
            emulation = SimpleNamespace(**vars(frozen.cuda))
            emulation.step_refusal = lambda _, *weights: (
                None if all(weight.is_contiguous() for weight in weights) else "as on a GPU"
            )
            monkeypatch.setattr(frozen, "cpu", emulation)
        yield request.param


def made(name: str, dtype: torch.dtype, bias: float | None = None) -> Any:
    network, options = NETWORKS[name]
    layer = network(I, N, **options, dtype=dtype)
    with torch.no_grad():
        layer.weight_ih_l0.normal_()
        layer.bias_l0.normal_(0, 0.3) if bias is None else layer.bias_l0.fill_(bias)
    return layer.freeze()


def cell_of(layer: Any) -> Any:
    kind: Any = cayley.ScoRNNCell
    return kind.of(layer)


def states(layer: Any, kind: str) -> tuple[Tensor, Tensor]:
    """Inputs and a state; those that are not finite are in the first row."""
    dtype, value = layer.bias_l0.dtype, INPUTS[kind]
    x, h = torch.randn(B, I, dtype=dtype), torch.randn(1, B, *layer.state_sizes, dtype=dtype)
    x[0], h[:, 0] = value * x[0], (0.0 if value == 0 else 1.0) * h[:, 0]
    return x, h


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("bias", THRESHOLDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_is_a_sequence_of_one_step(name: str, bias: str, kind: str, way: str) -> None:
    for dtype in (torch.float32,) if way == "CUDA" else (torch.float32, torch.float64):
        layer = made(name, dtype, THRESHOLDS[bias])
        x, h = states(layer, kind)
        with torch.no_grad():
            with cayley.backend("reference"):
                expected, h_n = layer(x[None], h)
            y, state = layer.step(x, h)
            alone = layer.step(x[:1], h[:, :1])[0]
        torch.testing.assert_close((y, state), (expected[0], h_n), equal_nan=True)
        torch.testing.assert_close(alone, expected[0, :1], equal_nan=True)
        assert y.isfinite().all() == (kind in ("numbers", "z = 0"))
        assert y.data_ptr() != state.data_ptr()


def test_a_cell_is_a_step(way: str) -> None:
    layer = made("ScoRNN", torch.float32)
    cell = cell_of(layer)
    x, h = states(layer, "numbers")
    with torch.no_grad():
        assert torch.equal(cell(x, h[0]), layer.step(x, h)[0])
        # rows that do not follow one another in memory, and a sign that torch has not applied
        wide = torch.randn(B, 2, I).float()[:, 0]
        torch.testing.assert_close(cell(wide, h[0]), cell(wide.contiguous(), h[0]))
        negated = torch.complex(x, x).conj().imag
        assert negated.is_neg()
        torch.testing.assert_close(cell(negated, h[0]), cell(-x, h[0]))


def test_what_is_written_to_a_bias_or_an_input_matrix_counts(way: str) -> None:
    layer, other = made("ScoRNN", torch.float32), made("ScoRNN", torch.float32)
    x, h = states(layer, "numbers")
    with torch.no_grad():
        layer.step(x, h)
        for name in ("bias_l0", "weight_ih_l0"):
            getattr(layer, name).data.copy_(getattr(other, name))
        layer.load_state_dict(other.state_dict())
        assert torch.equal(layer.step(x, h)[0], other.step(x, h)[0])
        # another parameter, and one that kernels cannot read
        b = torch.linspace(-1, 1, 2 * N).float()
        for bias in (b[N:], b[::2]):
            layer.bias_l0 = torch.nn.Parameter(bias)
            with cayley.backend("reference"):
                expected, _ = layer(x[None], h)
            torch.testing.assert_close(layer.step(x, h)[0], expected[0])


def test_other_memory_of_an_input_matrix_counts(way: str) -> None:
    layer = made("ScoRNN", torch.float32)
    x, h = states(layer, "numbers")
    with torch.no_grad():
        layer.step(x, h)
        # the second one that kernels cannot read
        for U in (torch.randn(N, I), torch.randn(I, N).mT):
            layer.weight_ih_l0.data = U.float()
            with cayley.backend("reference"):
                expected, _ = layer(x[None], h)
            torch.testing.assert_close(layer.step(x, h)[0], expected[0])
            torch.testing.assert_close(layer.step(x[:1], h[:, :1])[0], expected[0, :1])


@pytest.mark.parametrize("ends", ["layer", "cell", "matrix"])
def test_what_shares_a_matrix_is_not_frozen_without_it(ends: str, way: str) -> None:
    layer = made("ScoRNN", torch.float32)
    cell = cell_of(layer)
    x, h = states(layer, "numbers")
    with torch.no_grad():
        cell(x, h[0])
        {"layer": layer, "cell": cell, "matrix": layer.structured}[ends].train()
        for _ in range(2):
            layer.structured["weight_hh_l0"].A.add_(torch.randn(N * (N - 1) // 2))
            with cayley.backend("reference"):
                expected, _ = layer(x[None], h)
            torch.testing.assert_close(cell(x, h[0]), expected[0])
            torch.testing.assert_close(layer.step(x, h)[0], expected[0])


def test_inputs_of_no_dimensions_are_said() -> None:
    layer = made("ScoRNN", torch.float32)
    with torch.no_grad(), pytest.raises(ValueError, match="got 0 dimensions"):
        layer.step(torch.ones(()).float(), torch.zeros(1, 1, N).float())


class Counted(TorchDispatchMode):
    """The names of the operations inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_a_step_of_torch_is_few_operations() -> None:
    layer = made("ScoRNN", torch.float32)
    cell = cell_of(layer)
    x, h = states(layer, "numbers")
    before = h[0]
    with torch.no_grad():
        cell(x, before)  # now the transposed matrices are there
        with Counted() as found:
            cell(x, before)
        expected = ["t", "mm", "addmm_", "sign", "addcmul", "relu_", "mul_"]
        assert found.names == expected
        with Counted() as found:
            layer.step(x, h)
        assert found.names == ["select", *expected, "stack"]


def test_kernels_run_where_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with another back end, not for many rows, not traced, and not for no rows."""
    calls: list[tuple[int, ...]] = []

    def found(nonlinearity: str, x: Tensor, state: Tensor, *weights: Tensor) -> Any:
        calls.append((*x.shape,))
        return state[0], state

    few = {"step_refusal": lambda *_: None, "elman_step": found, "most_rows": lambda *_: B}
    monkeypatch.setattr(frozen, "cpu", SimpleNamespace(**few))
    layer = made("ScoRNN", torch.float32)
    x, h = states(layer, "numbers")
    with torch.no_grad():
        layer.step(x, h)
        with cayley.backend("reference"):
            layer.step(x, h)
        torch.func.vmap(layer.step)(x[None], h[None])
        with Counted():
            layer.step(x, h)
        layer.step(x[:0], h[:, :0])
        layer.step(torch.cat((x, x)), torch.cat((h, h), 1))
    assert calls == [(B, I)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
class TestOnCuda:
    @pytest.mark.parametrize("name", NETWORKS)
    def test_a_step_is_one_kernel(self, name: str) -> None:
        layer = made(name, torch.float32)
        x, h = (v.cuda() for v in states(layer, "numbers"))
        layer.cuda()
        with torch.no_grad():
            layer.step(x, h)  # compiled now
            with cayley.backend("reference"):
                expected = layer.step(x, h)
            kinds = [torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=kinds, acc_events=True) as profile:
                y, state = layer.step(x, h)
                torch.cuda.synchronize()
        torch.testing.assert_close((y, state), expected, rtol=1e-5, atol=1e-5)
        events = [event for event in profile.events() or () if event.device_type.name == "CUDA"]
        assert ["elman_step" in event.name for event in events] == [True]

    def test_steps_can_be_a_graph(self) -> None:
        layer = made("ScoRNN", torch.float32)
        x, h = states(layer, "numbers")
        layer, x, h = layer.cuda(), x.cuda(), h.cuda()
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad():
            expected = layer.step(x, h)
            with torch.cuda.graph(graph):
                found = layer.step(x, h)
        graph.replay()
        torch.testing.assert_close(found, expected)

    def test_errors_and_other_precisions_are_left_to_torch(self) -> None:
        layer = made("ScoRNN", torch.float32).cuda()
        with torch.no_grad():
            x = torch.randn(B, I).float().cuda()
            _, state = layer.step(x)
            with pytest.raises(ValueError, match="expected input on cuda"):
                layer.step(x.cpu(), state)
            layer.double()
            _, state = layer.step(x.double())
            assert layer.step(x.double(), state)[0].dtype == torch.float64


@pytest.mark.parametrize("name", ["ScoRNN", "ScuRNN", "NCGRU"])
def test_a_frozen_cell_does_not_stop_the_training_of_its_layer(name: str) -> None:
    layer = getattr(cayley, name)(3, 8)
    cell = getattr(cayley, f"{name}Cell").of(layer).freeze()
    layer(torch.randn(5, 2, 3))[0].sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    with torch.no_grad():
        for p in layer.parameters():
            p.mul_(1.1)
    x = torch.randn(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(cell(x), layer(x[None])[0][0])


@pytest.mark.parametrize("name", ["ScoRNN", "ScuRNN", "FullURNN", "NCGRU"])
def test_other_free_tensors_count(name: str) -> None:
    """Those that :func:`torch.func.functional_call` puts in their place, and assigned ones."""
    make = getattr(cayley, name)
    layer, other, x = make(3, 8).freeze(), make(3, 8).eval(), torch.randn(5, 2, 3)
    with torch.no_grad():
        theirs, own = other(x)[0], layer(x)[0]
        given = {**dict(other.named_parameters()), **dict(other.named_buffers())}
        found = torch.func.functional_call(layer, given, (x,))[0]
        torch.testing.assert_close(found, theirs)
        torch.testing.assert_close(layer(x)[0], own)
        state = layer.step(x[0])[1]
        for key, module in other.named_modules():
            for part, parameter in module.named_parameters(recurse=False):
                setattr(layer.get_submodule(key), part, parameter)
            for part, buffer in module.named_buffers(recurse=False):
                setattr(layer.get_submodule(key), part, buffer)
        torch.testing.assert_close(layer(x)[0], theirs)
        ours = layer.step(x[1], state)[0]
        torch.testing.assert_close(ours, other.step(x[1], state)[0])
