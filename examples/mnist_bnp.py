"""MNIST with a dense network: plain, with batch normalisation, and with BNP.

    python examples/mnist_bnp.py FOLDER [-o out/mnist_bnp.png]

FOLDER holds the four files of MNIST, such as train-images-idx3-ubyte.gz, compressed or not. Three
hidden layers of 100 units, SGD, batches of 60 and of 6. Each method takes the learning rate that
ends with the least error on the last 5000 training images; that is the error drawn, and the test
error printed is that of the same run.
"""

import argparse
import gzip
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import cayley

METHODS, TICKS = ("plain", "batch norm", "BNP"), [2, 5, 10, 20, 50]
Data = tuple[Tensor, Tensor]


def read(folder: Path, name: str, header: int) -> Tensor:
    """The bytes of one file behind its header."""
    for path, opener in ((folder / name, open), (folder / f"{name}.gz", gzip.open)):
        if path.exists():
            with opener(path, "rb") as file:
                return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)[header:]
    raise SystemExit(
        f"{folder}: expected {name} or {name}.gz, got neither. The four files of MNIST are at "
        "https://storage.googleapis.com/cvdf-datasets/mnist/"
    )


def load(folder: Path, part: str) -> Data:
    """Images (N, 784) from 0 to 1, and labels (N)."""
    images = read(folder, f"{part}-images-idx3-ubyte", 16).view(-1, 784) / 255.0
    return images, read(folder, f"{part}-labels-idx1-ubyte", 8).long()


def network(normalised: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in (784, 100, 100):
        layers.append(nn.Linear(size, 100))
        if normalised:
            layers.append(nn.BatchNorm1d(100))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(100, 10))


@torch.no_grad()
def error(model: nn.Module, data: Data) -> float:
    """Per cent of wrong answers."""
    wrong = model.eval()(data[0]).argmax(1) != data[1]
    model.train()
    return 100 * float(wrong.double().mean())


def train(
    method: str, batch: int, lr: float, sets: tuple[Data, Data, Data], options: argparse.Namespace
) -> tuple[list[float], float]:
    """The validation error at 20 times, and the test error at the end."""
    torch.manual_seed(options.seed)
    (x, y), validation, test = sets
    model = network(method == "batch norm")
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    if method == "BNP":
        cayley.BNP(model, eps=0.05, momentum=0.99).attach(optimizer)
    curve: list[float] = []
    for step in range(options.steps):
        chosen = torch.randint(len(x), (batch,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
        if (step + 1) * 20 // options.steps > len(curve):
            curve.append(error(model, validation))
    return curve, error(model, test)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the files of MNIST are")
    parser.add_argument("--steps", type=int, default=2000, help="of each run (%(default)s)")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.03, 0.1, 0.3])
    parser.add_argument("--seed", type=int, default=5544, help="(%(default)s)")
    # more threads gain little on steps this small, and lose much on a busy machine
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (%(default)s)")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/mnist_bnp.png"))
    options = parser.parse_args()
    if options.steps < 20:
        parser.error(f"--steps: expected at least 20, got {options.steps}")
    torch.set_num_threads(options.threads)
    (images, labels), test = load(options.folder, "train"), load(options.folder, "t10k")
    sets = (images[:-5000], labels[:-5000]), (images[-5000:], labels[-5000:]), test

    figure, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
    axes[0].set_ylabel("validation error, %")
    evaluated = [options.steps * (k + 1) / 20 for k in range(20)]
    print(f"{'batch':>5}  {'method':12}{'rate':>6}{'validation %':>14}{'test %':>8}")
    for batch, axis in zip((60, 6), axes, strict=True):
        for method in METHODS:
            runs = {lr: train(method, batch, lr, sets, options) for lr in options.rates}
            lr, (curve, test_error) = min(runs.items(), key=lambda run: run[1][0][-1])
            print(f"{batch:5}  {method:12}{lr:6}{curve[-1]:14.2f}{test_error:8.2f}", flush=True)
            axis.semilogy(evaluated, curve, label=f"{method}, rate {lr}")
        axis.set(title=f"batches of {batch}", xlabel="training step")
        axis.set_yticks(TICKS, TICKS)
        axis.grid(alpha=0.3)
        axis.minorticks_off()
        axis.legend()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output, dpi=150)
    print(f"curves: {options.output}")


if __name__ == "__main__":
    main()
