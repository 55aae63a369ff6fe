"""Every network as an ONNX model, run by onnxruntime."""

import functools
import importlib
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from variants import NETWORKS

import cayley
from cayley.recurrences import decomposed

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")  # of the exporter, which warns of its own code

T, B, I, N = 5, 4, 3, 8  # noqa: E741
QUICK = "ScoRNN"
DIM = torch.export.Dim
SHAPES = ({0: DIM("T", min=2, max=99), 1: DIM("B", min=2, max=99)},)
# those that differ, once frozen, from another in the values of their constants alone: what is
# exported is the same graph
SAME = {
    "ENRNN": "ExpRNN",
    "ScoRNN-banded": "ExpRNN",
    "ScuRNN": "URNN",
    "FullURNN": "URNN",
    "EURNN-fft": "EURNN",
    "ENRNN-uncoupled": "RNN-cayley-relu",
    "NCGRU-exact-candidate": "NCGRU",
}
# one for each scan, and each kind of normalisation in it: the exported program is looked at, too
SCANS = ("URNN", "NCGRU", "LSTM-atn", "LSTM-batch", "RNN-atn")
OTHERS = [name for name in NETWORKS if name != QUICK and name not in SAME]


@pytest.fixture(scope="module", autouse=True)
def one_registry() -> Iterator[None]:
    """Let all exports read one table of operators: to make it takes as long as a small export."""
    registry = importlib.import_module("torch.onnx._internal.exporter._registration").ONNXRegistry
    make = functools.cache(registry.from_torchlib)
    # nor are operators of torch added between two exports
    utils = importlib.import_module("torch._export.utils")
    composite = functools.cache(utils._collect_all_valid_cia_ops_for_namespace)
    with pytest.MonkeyPatch.context() as patch:
        # its method of the class, called on an instance too
        patch.setattr(registry, "from_torchlib", staticmethod(make))
        patch.setattr(utils, "_collect_all_valid_cia_ops_for_namespace", composite)
        yield


def frozen(name: str, dtype: torch.dtype = torch.float32) -> Any:
    layer: Any = NETWORKS[name](I, N, dtype=dtype, bidirectional=name == QUICK)
    if "batch" in name:  # a population to evaluate by
        layer.train()(torch.randn(T, B, I, dtype=dtype))
    with torch.no_grad():
        for parameter in layer.parameters(recurse=False):
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer.freeze()


def scan_of(layer: nn.Module, x: torch.Tensor) -> torch.export.ExportedProgram:
    """The program of a layer, which knows nothing of this package, with its numbers."""
    with decomposed():
        program = torch.export.export(layer, (x,), dynamic_shapes=SHAPES)
    assert "cayley" not in str(program.graph)
    y = torch.randn(T + 2, B - 1, I, dtype=x.dtype)
    torch.testing.assert_close(program.module()(y), layer(y))
    return program


def exported(
    model: nn.Module | torch.export.ExportedProgram, x: torch.Tensor, shapes: Any = SHAPES
) -> Any:
    program: Any = torch.onnx.export(
        model, (x,), dynamo=True, dynamic_shapes=shapes, verbose=False, optimize=True
    )
    assert program is not None
    buffer = io.BytesIO()
    program.save(buffer)
    return onnxruntime.InferenceSession(buffer.getvalue())


@pytest.mark.parametrize(
    "name", [QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_onnxruntime_gives_the_numbers_of_the_layer(name: str) -> None:
    dtype = torch.float64 if name in (QUICK, "LSTM") else torch.float32
    layer, x = frozen(name, dtype), torch.randn(T, B, I, dtype=dtype)
    session = exported(scan_of(layer, x) if name in SCANS else layer, x)
    for shape in ((T, B, I), (T + 2, B - 1, I), (1, 1, I)):
        x = torch.randn(shape, dtype=dtype)
        found = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        with torch.no_grad():
            expected = tree_leaves(layer(x))
        for y, z in zip(found, expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(y), z, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "B"), [("LSTM-atn", 1), ("RNN-atn", 2), ("LSTM-batch", 2)])
def test_normalised_layers_for_one_length_and_batch(name: str, B: int) -> None:
    layer, x = frozen(name), torch.randn(T, B, I, dtype=torch.float32)
    session = exported(layer, x, shapes=None)
    (y, *_) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(y), layer(x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "other"), SAME.items())
def test_networks_of_the_same_graph(name: str, other: str) -> None:
    assert graph_of(name) == graph_of(other)


def graph_of(name: str) -> tuple[str, dict[str, str]]:
    """What a frozen network computes, and from which constants, whatever their values."""
    x = torch.randn(T, B, I, dtype=torch.float32)
    program = torch.export.export(frozen(name), (x,), dynamic_shapes=SHAPES)
    read = [node for node in program.graph.nodes if node.op == "placeholder" and node.users]
    # after the names of all parameters, also of those that the matrix was formed from
    _, _, body = program.graph_module.code.partition("\n    ")
    return body, {node.name: str(node.meta["val"]) for node in read}


@pytest.mark.slow
def test_what_is_not_frozen_says_what_to_do() -> None:
    """torch.onnx tries several ways, and raises the error of the last: so it is a warning."""
    with (
        pytest.warns(UserWarning, match=r"cayley\.freeze\(model\), before the export"),
        pytest.raises(torch.onnx.OnnxExporterError),
    ):
        torch.onnx.export(cayley.ScoRNN(I, N), (torch.randn(T, B, I),), dynamo=True, verbose=False)
