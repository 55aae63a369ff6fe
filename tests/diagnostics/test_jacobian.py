"""Jacobians against autograd's own, and closed forms."""

import pytest
import torch
from torch import Tensor, nn

import cayley
from cayley.diagnostics.jacobian import jacobian_heatmap, jacobians

T, B, I, N = 6, 4, 3, 8  # noqa: E741


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("rows", [5, 4096])
def test_jacobians_equal_those_of_autograd(batch_first: bool, rows: int) -> None:
    layer = cayley.ENRNN(I, 5, 3, batch_first=batch_first)
    x = torch.randn(T, 2, I)
    given = x.transpose(0, 1) if batch_first else x
    found = jacobians(layer, given, units=[1, 5], steps=[0, 4], rows=rows)
    assert found.shape == (2, T, 2, 2, I)

    def output(x: Tensor) -> Tensor:
        y = layer(x.transpose(0, 1) if batch_first else x)[0]
        return y.transpose(0, 1) if batch_first else y

    full = torch.autograd.functional.jacobian(output, x)  # (T, B, H, T, B, I)
    for s, tau in enumerate([0, 4]):
        for u, unit in enumerate([1, 5]):
            for b in range(2):
                torch.testing.assert_close(found[s, :, b, u], full[tau, b, unit, :, b])
    heat = jacobian_heatmap(layer, given, units=[1, 5], steps=[0, 4], rows=rows)
    torch.testing.assert_close(heat, torch.linalg.matrix_norm(found, 2).mean(-1))


def test_heat_map_of_a_rotation_is_flat() -> None:
    layer = cayley.RNN(2, 2, recurrent="cayley", nonlinearity="identity", dropout=0.0)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(3 * torch.eye(2))
    heat = jacobian_heatmap(layer, torch.randn(7, 2, 2))
    torch.testing.assert_close(heat, 3 * torch.ones(7, 7).tril())
    assert layer.training


@pytest.mark.parametrize("batch_first", [False, True])
def test_heat_map_of_a_layer_of_torch_and_without_a_batch(batch_first: bool) -> None:
    peer = nn.LSTM(I, N, num_layers=2, dropout=0.5, batch_first=batch_first)
    ours = cayley.LSTM(I, N, num_layers=2, dropout=0.5, batch_first=batch_first)
    ours.load_state_dict(peer.state_dict())
    x = torch.randn(4, I)
    heat = jacobian_heatmap(peer, x)
    torch.testing.assert_close(jacobian_heatmap(ours, x), heat)
    assert not heat.triu(1).any()
    peer.eval()
    full = torch.autograd.functional.jacobian(lambda x: peer(x)[0], x)  # (T, H, T, I)
    torch.testing.assert_close(heat, torch.linalg.matrix_norm(full.transpose(1, 2), 2))


def test_heat_map_errors() -> None:
    with pytest.raises(ValueError, match="sequences of one length"):
        jacobian_heatmap(cayley.ScoRNN(I, N), torch.randn(T))
    with pytest.raises(TypeError, match=r"maps \(T, B, I\) to \(T, B, H\).*got Flatten"):
        jacobian_heatmap(nn.Flatten(), torch.randn(T, B, I))
