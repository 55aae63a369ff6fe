"""Forecasting an EEG: four channels, ten seconds at 80 Hz, which come with matplotlib.

    python examples/forecasting.py [--steps 300]

A ScoRNN reads the first eight seconds and learns to predict each next sample; the last two seconds
are the test. Two forecasts to beat: the value stays as it is, and a linear one from the last
sixteen samples, fitted by least squares.
"""

import argparse

import numpy as np
import torch
from matplotlib.cbook import get_sample_data
from torch import Tensor, nn

import cayley


def read_eeg() -> Tensor:
    """Samples by channels, (800, 4), each channel with mean 0 and variance 1."""
    with get_sample_data("eeg.dat") as file:
        data = torch.from_numpy(np.fromfile(file, dtype=float).reshape(800, 4)).float()
    return (data - data.mean(0)) / data.std(0)


def linear_forecast(train: Tensor, test: Tensor, order: int = 16) -> float:
    """The error of the best linear forecast from the last samples of all channels."""

    def rows(data: Tensor) -> tuple[Tensor, Tensor]:
        x = data.unfold(0, order, 1)[:-1].flatten(1)
        return torch.cat((x, torch.ones(len(x), 1)), 1), data[order:]

    x, y = rows(train)
    # a little regularisation, since there are few samples
    weights = torch.linalg.solve(x.T @ x + torch.eye(x.shape[1]), x.T @ y)
    x, y = rows(torch.cat((train[-order:], test)))
    return float((x @ weights - y).square().mean())


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300, help="(%(default)s)")
    parser.add_argument("--hidden", type=int, default=48, help="units (%(default)s)")
    options = parser.parse_args(arguments)
    torch.manual_seed(5544)

    data = read_eeg()
    train, test = data[:640], data[640:]
    # pieces of 80 samples that overlap, as one batch
    pieces = train.unfold(0, 81, 20).permute(2, 0, 1)
    rnn, head = cayley.ScoRNN(4, options.hidden), nn.Linear(options.hidden, 4)
    model = nn.ModuleList([rnn, head])
    groups = cayley.parameter_groups(model, lr=3e-3, recurrent_lr=1e-3, weight_decay=1e-2)
    optimizer = torch.optim.AdamW(groups)

    def forecast(x: Tensor) -> Tensor:
        """What comes after each sample: the sample, and a change that is learnt."""
        return x + head(rnn(x)[0])

    for step in range(options.steps):
        noisy = pieces[:-1] + 0.1 * torch.randn_like(pieces[:-1])
        loss = nn.functional.mse_loss(forecast(noisy), pieces[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}: training error {loss.item():.4f}", flush=True)
    with torch.no_grad():
        # the state has seen all that came before
        errors = (forecast(data[:-1])[639:] - data[640:]).square().mean(1)
    found = {
        "ScoRNN": float(errors.mean()),
        "unchanged": float((data[639:-1] - test).square().mean()),
        "linear": linear_forecast(train, test),
    }
    for name, error in found.items():
        print(f"{name:>10}: mean squared error of the next sample {error:.4f}")
    return found


if __name__ == "__main__":
    main()
