"""Forecasting the spikes of a nerve cell: a recording that comes with matplotlib.

    python examples/forecasting.py [--steps 200]

The voltage of a cell that fires fourteen times a second, 2000 samples a second. A ScoRNN reads
every fourth sample and predicts the voltage 20 ms ahead, which needs the time since the last spike.
The first three quarters of the regular firing are for training, the rest for the test. Two
forecasts to beat: the voltage stays as it is, and a linear one from the last 64 samples read.
"""

import argparse

import numpy as np
import torch
from matplotlib.cbook import get_sample_data
from torch import Tensor, nn

import cayley

AHEAD, LENGTH, WARM = 10, 150, 50


def read_voltage() -> Tensor:
    """Samples of the time in which the cell fires regularly, with mean 0 and variance 1."""
    path = str(get_sample_data("membrane.dat", asfileobj=False))
    voltage = torch.from_numpy(np.fromfile(path, dtype=np.float32))[1500:7000:4]
    return (voltage - voltage.mean()) / voltage.std()


def linear_forecast(train: Tensor, test: Tensor, order: int = 64) -> float:
    """The error of the best linear forecast from the last samples."""

    def rows(data: Tensor) -> tuple[Tensor, Tensor]:
        x = data.unfold(0, order, 1)[:-AHEAD]
        return torch.cat((x, torch.ones(len(x), 1)), 1).double(), data[order - 1 + AHEAD :].double()

    x, y = rows(train)
    # a little regularisation, since neighbours are much alike
    weights = torch.linalg.solve(x.T @ x + 0.1 * torch.eye(x.shape[1]), x.T @ y)
    x, y = rows(test)
    return float((x @ weights - y)[WARM + LENGTH - order :].square().mean())


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200, help="(%(default)s)")
    parser.add_argument("--hidden", type=int, default=48, help="units (%(default)s)")
    options = parser.parse_args(arguments)
    torch.manual_seed(5544)

    voltage = read_voltage()
    cut = 3 * len(voltage) // 4
    train, test = voltage[:cut], voltage[cut - LENGTH - WARM :]
    # pieces that overlap, as one batch: (LENGTH, B, 1), and the voltage later
    pieces = train.unfold(0, LENGTH + AHEAD, 5).T.unsqueeze(-1)
    rnn, head = cayley.ScoRNN(1, options.hidden), nn.Linear(options.hidden, 1)
    model = nn.ModuleList([rnn, head])
    optimizer = torch.optim.Adam(cayley.parameter_groups(model, lr=5e-3, recurrent_lr=1e-3))

    def forecast(x: Tensor) -> Tensor:
        """What comes after each sample: the sample, and a change that is learnt."""
        return x + head(rnn(x)[0])

    for step in range(options.steps):
        x, y = pieces[:LENGTH] + 0.02 * torch.randn(LENGTH, pieces.shape[1], 1), pieces[AHEAD:]
        # the first steps have seen too little
        loss = nn.functional.mse_loss(forecast(x)[WARM:], y[WARM:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}: training error {loss.item():.4f}", flush=True)
    with torch.no_grad():
        # a network that never forgets gets in use what it had in training: as many samples
        seen = test[: len(test) - AHEAD].unfold(0, LENGTH, 1).T.unsqueeze(-1)[:, WARM + 1 :]
        later = test[WARM + LENGTH + AHEAD :]
        error = (forecast(seen)[-1, :, 0] - later).square().mean()
    found = {
        "ScoRNN": float(error),
        "unchanged": float((seen[-1, :, 0] - later).square().mean()),
        "linear": linear_forecast(train, test),
    }
    for name, value in found.items():
        print(f"{name:>10}: mean squared error 20 ms ahead {value:.3f}")
    return found


if __name__ == "__main__":
    main()
