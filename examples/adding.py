"""The adding problem: ScoRNN and nn.LSTM side by side, and a picture of both curves.

A sequence has two numbers in each step: one uniform in [0, 1), and a marker that is 1 at two steps,
one in each half. The answer is the sum of the two marked numbers. Whoever always answers 1 has a
mean squared error of 1/6.
"""

import argparse
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

import cayley

BASELINE = 1 / 6


def batch(T: int, B: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Input (T, B, 2) and answers (B)."""
    values = torch.rand(T, B, generator=generator)
    markers = torch.zeros(T, B)
    for first, last in ((0, T // 2), (T // 2, T)):
        steps = torch.randint(first, last, (1, B), generator=generator)
        markers.scatter_(0, steps, 1.0)
    return torch.stack((values, markers), -1), (values * markers).sum(0)


class Adder(nn.Module):
    """A recurrent layer and a linear map on its last output."""

    def __init__(self, recurrent: nn.Module, features: int) -> None:
        super().__init__()
        self.recurrent = recurrent
        self.answer = nn.Linear(features, 1)

    def forward(self, x: Tensor) -> Tensor:
        output, _ = self.recurrent(x)
        return self.answer(output[-1]).squeeze(-1)


def train(
    name: str, model: Adder, optimizer: torch.optim.Optimizer, options: argparse.Namespace
) -> list[float]:
    """The loss of every step."""
    generator = torch.Generator().manual_seed(options.seed)
    losses: list[float] = []
    columns = (
        TextColumn("{task.description:8}"),
        BarColumn(bar_width=14),
        TextColumn("{task.completed}/{task.total}, {task.fields[rate]:.0f}/s, left"),
        TimeRemainingColumn(compact=True),
        TextColumn("error {task.fields[error]:.4f}, to beat " + f"{BASELINE:.4f}"),
    )
    with Progress(*columns) as progress:
        task = progress.add_task(name, total=options.steps, rate=0.0, error=float("nan"))
        start = time.perf_counter()
        for step in range(1, options.steps + 1):
            x, y = batch(options.length, options.batch, generator)
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            progress.update(
                task,
                advance=1,
                rate=step / (time.perf_counter() - start),
                error=mean_of_last(losses),
            )
    return losses


def mean_of_last(losses: list[float], window: int = 50) -> float:
    recent = losses[-window:]
    return sum(recent) / len(recent)


def draw(curves: dict[str, list[float]], options: argparse.Namespace) -> None:
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, losses in curves.items():
        smooth = [mean_of_last(losses[: step + 1]) for step in range(len(losses))]
        axes.plot(smooth, label=name)
    axes.axhline(BASELINE, color="grey", linestyle="--", label="always 1: 1/6")
    axes.set_yscale("log")
    axes.set_xlabel("training step")
    axes.set_ylabel("mean squared error, last 50 steps")
    axes.set_title(f"Adding problem, T = {options.length}")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--length", type=int, default=100, help="steps T of a sequence (%(default)s)"
    )
    parser.add_argument("--steps", type=int, default=1500, help="training steps (%(default)s)")
    parser.add_argument("--batch", type=int, default=50, help="sequences a step (%(default)s)")
    # more threads gain little on steps this small, and lose much on a busy machine
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (%(default)s)")
    parser.add_argument("--seed", type=int, default=5544, help="(%(default)s)")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/adding.png"))
    options = parser.parse_args()
    for name in ("length", "steps", "batch", "threads"):
        if getattr(options, name) < (2 if name == "length" else 1):
            parser.error(f"--{name}: expected a larger number, got {getattr(options, name)}")

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    # about 15,000 parameters each, as in the papers
    orthogonal = cayley.ScoRNN(2, 170, negative_ones=85)
    scornn = Adder(orthogonal, 170)
    lstm = Adder(nn.LSTM(2, 60), 60)
    curves = {
        "ScoRNN": train(
            "ScoRNN",
            scornn,
            torch.optim.Adam(cayley.parameter_groups(scornn, lr=1e-2, recurrent_lr=1e-3)),
            options,
        ),
        "nn.LSTM": train("nn.LSTM", lstm, torch.optim.Adam(lstm.parameters(), lr=1e-2), options),
    }
    draw(curves, options)
    W = orthogonal.weight_hh_l0.detach().double()
    defect = torch.linalg.matrix_norm(W.T @ W - torch.eye(len(W), dtype=W.dtype))
    for name, losses in curves.items():
        print(f"{name:8} mean squared error of the last 50 steps: {mean_of_last(losses):.5f}")
    print(f"ScoRNN's matrix after training: ‖WᵀW − I‖ = {float(defect):.1e}")
    print(f"curves: {options.output}")


if __name__ == "__main__":
    main()
