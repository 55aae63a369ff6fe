"""Recurrences as scans of torch: exported programs that know nothing of this package."""

import pytest
import torch

import cayley
from cayley.kernels.calls import ElmanCall, GruCall
from cayley.recurrences import decomposed
from cayley.recurrences.scans import elman_scan, gru_scan

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*it has no normalisation for an Elman recurrence",
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
)

T, B, I, N = 5, 4, 3, 8  # noqa: E741


def test_an_exported_scan_is_the_layer_for_any_length_and_batch() -> None:
    """Those of other networks are in ``clients/test_onnx.py``."""
    layer, dim = cayley.ScoRNN(I, N, num_layers=2).freeze(), torch.export.Dim
    shapes = ({0: dim("T", min=2, max=99), 1: dim("B", min=2, max=99)},)
    with decomposed():
        program = torch.export.export(layer, (torch.randn(T, B, I),), dynamic_shapes=shapes)
    assert "cayley" not in str(program.graph)
    x = torch.randn(T + 2, B - 1, I)
    torch.testing.assert_close(program.module()(x), layer(x))


def test_the_operator_is_exported_otherwise() -> None:
    layer = cayley.ScoRNN(I, N).freeze()
    program = torch.export.export(layer, (torch.randn(T, B, I),))
    assert "cayley.elman" in str(program.graph)


def test_matrices_that_are_functions_are_refused() -> None:
    warns = pytest.warns(UserWarning, match="exported as a constant")
    with warns, decomposed(), pytest.raises(RuntimeError, match=r"call layer\.freeze\(\)"):
        torch.export.export(cayley.ScoRNN(I, N), (torch.randn(T, B, I),))


def test_packed_sequences_are_refused() -> None:
    x, h0, sizes = torch.randn(3, N), torch.zeros(2, N), torch.tensor([2, 1])
    with pytest.raises(NotImplementedError, match=r"expected dense sequences.*pad them"):
        elman_scan(ElmanCall(x, h0, torch.eye(N), batch_sizes=sizes))
    with pytest.raises(NotImplementedError, match=r"expected dense sequences.*pad them"):
        gru_scan(GruCall(x, h0, torch.zeros(3 * N, N), batch_sizes=sizes))


def test_statistics_of_the_batch_are_those_of_evaluation() -> None:
    layer = cayley.LSTM(I, N, norm="batch")
    with decomposed(), pytest.raises(NotImplementedError, match=r"call layer\.eval\(\)"):
        torch.export.export(layer, (torch.randn(T, B, I),))
