"""A short version of ``time_sequence_prediction`` of pytorch/examples: cells and L-BFGS."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cayley

HIDDEN = 12


class Sequence(nn.Module):
    """Two cells, the second over the first, that go on with their own predictions."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.first, self.second = cell(1, HIDDEN), cell(HIDDEN, HIDDEN)
        self.linear = nn.Linear(HIDDEN, 1)

    def forward(self, input: Tensor, future: int = 0) -> Tensor:
        a, b, outputs = None, None, []
        output = input[:, :1]
        for k in range(input.shape[1] + future):
            a = self.first(input[:, k : k + 1] if k < input.shape[1] else output, a)
            b = self.second(a[0] if isinstance(a, tuple) else a, b)
            output = self.linear(b[0] if isinstance(b, tuple) else b)
            outputs.append(output)
        return torch.cat(outputs, 1)


@pytest.mark.parametrize("cell", [cayley.LSTMCell, cayley.ScoRNNCell, cayley.NCGRUCell])
def test_sine_waves_are_learnt_with_cells(cell: Any) -> None:
    time = torch.arange(16.0) + torch.arange(4)[:, None]
    waves = (time / 3).sin()
    model = Sequence(cell)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=4)
    losses = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        with model.first.held(), model.second.held():
            loss = nn.functional.mse_loss(model(waves[:, :-1]), waves[:, 1:])
            loss.backward()
        losses.append(loss.item())
        return loss.detach()

    for _ in range(3):
        optimizer.step(closure)
    assert losses[-1] < 0.5 * losses[0]
    with torch.no_grad():
        assert cayley.freeze(model)(waves, future=5).shape == (4, 21)
