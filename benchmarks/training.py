"""Time of a whole training step of the papers' networks, and the share of forming W in it.

    python benchmarks/training.py [--device cuda] [--threads 1] [--repeat 20] [-o FILE.json]

A step is everything that a user's loop does with a batch that is already on the device: forward,
output layer, loss, backward, optimizer. Forming W is timed alone, forward and backward. An epoch is
that of the papers: 55,000 images in batches of 50.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from measure import machine, rounds, summary, write
from torch import Tensor, nn

import cayley
from cayley.parametrizations import StructuredMatrix

STEPS = 1100  # of an epoch on MNIST


class Setting:
    """A network that classifies sequences, and one batch."""

    def __init__(
        self, layer: nn.Module, B: int, T: int, inputs: int, classes: int, device: str
    ) -> None:
        self.layer = layer.to(device)
        self.x = torch.rand(T, B, inputs, device=device)
        self.y = torch.randint(classes, (B,), device=device)
        features = layer(self.x[:1])[0].shape[-1]
        self.output = nn.Linear(features, classes, device=device)
        groups = cayley.parameter_groups(
            nn.ModuleList((self.layer, self.output)), lr=1e-3, recurrent_lr=1e-4
        )
        self.optimizer = torch.optim.RMSprop(groups)

    def step(self) -> None:
        self.optimizer.zero_grad()
        h, _ = self.layer(self.x)
        nn.functional.cross_entropy(self.output(h[-1]), self.y).backward()
        self.optimizer.step()


def forming(matrix: StructuredMatrix, parameter: Tensor) -> Callable[[], None]:
    """Forward and backward of a structured matrix that has changed."""
    G = torch.randn_like(matrix())

    def run() -> None:
        # on a GPU it is computed anew in any case
        if not parameter.is_cuda:
            with torch.no_grad():
                parameter.mul_(1.0000001)
        matrix(update=True).backward(G)

    return run


def settings(device: str) -> dict[str, Setting]:
    """The papers' networks on MNIST, its peer, and the characters' network of ENRNN."""
    made = {
        f"ScoRNN {n}, B50 T784": Setting(cayley.ScoRNN(1, n), 50, 784, 1, 10, device)
        for n in (170, 512)
    }
    made["nn.LSTM 170, B50 T784"] = Setting(nn.LSTM(1, 170), 50, 784, 1, 10, device)
    made["ENRNN 310 + 720, B32 T50"] = Setting(
        cayley.ENRNN(50, 310, 720, eps=0.0), 32, 50, 50, 50, device
    )
    # the eigenvalues are waited for until the training has become calm
    for _ in range(100):
        made["ENRNN 310 + 720, B32 T50"].step()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("-o", "--output", type=Path, help="write the numbers as JSON too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(5544)
    rows = []
    print(f"{'':28}{'ms':>9}{'spread':>9}{'epoch, s':>10}{'forming W, ms':>15}{'share':>8}")
    for name, setting in settings(options.device).items():
        runs: dict[str, Callable[[], object]] = {"step": setting.step}
        structured = getattr(setting.layer, "structured", {})
        for key, matrix in structured.items():
            runs[key] = forming(matrix, matrix.free[0])
        times = rounds(runs, options.repeat, options.device)
        step = median(times["step"])
        formation = sum(median(times[key]) for key in structured) if structured else None
        row = {
            "network": name,
            **summary(times["step"]),
            "seconds of an epoch": STEPS * step if "T784" in name else None,
            "milliseconds of forming W": None if formation is None else 1e3 * formation,
            "share of forming W": None if formation is None else formation / step,
        }
        rows.append(row)
        epoch, forms, share = (
            "" if row[key] is None else f"{row[key]:.2f}" for key in list(row)[3:]
        )
        print(
            f"{name:28}{row['milliseconds']:9.2f}{row['spread']:9.2f}{epoch:>10}{forms:>15}"
            f"{share:>8}",
            flush=True,
        )
    write(options.output, machine(options.device, precision="float32"), rows)


if __name__ == "__main__":
    main()
