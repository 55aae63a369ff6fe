"""The CUDA kernels of the Elman recurrence beside cuDNN, in one run.

    python benchmarks/gpu.py [--shapes A50 C] [--repeat 20] [-o FILE.json]

Ours is modReLU, with W given and b = 0 as at the start of training, in float32: the kernel forward,
the kernel backward and the product over all steps that is the gradient of W. cuDNN's RNN (tanh) and
LSTM have the same hidden size and read two inputs; they compute in TF32, which is their default. No
speed is printed for a shape before outputs and gradients have been compared with the loop in double
precision. The product is that of all steps at once, (T·B, n) × (n, n) in float32 by torch's
library: what one direction would take if no step had to wait for the one before it.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from measure import machine, rounds, write
from torch import Tensor, nn

from cayley.recurrences import elman_loop
from cayley.recurrences.cuda.elman import elman, elman_backward
from cayley.recurrences.cuda.plans import best_plan, chip

SHAPES = {
    "A": (128, 170, 784),
    "A50": (50, 170, 784),
    "B": (128, 512, 784),
    "B50": (50, 512, 784),
    "C": (20, 190, 2020),
    "D": (32, 1030, 50),
    "E": (50, 60, 200),
    "F": (28, 425, 300),
    "G": (50, 360, 784),
}


def forward(x: Tensor, h0: Tensor, W: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return elman(x, h0, W, b, None, False, "modrelu")


def backward(
    g: Tensor, h: Tensor, z: Tensor, h0: Tensor, W: Tensor, b: Tensor
) -> tuple[Tensor, ...]:
    delta, grad_h0, grad_b = elman_backward(g, None, h, z, h0, W, b, None, False, "modrelu")
    before = torch.cat((h0[None], h[:-1]))
    return delta, grad_h0, delta.flatten(0, 1).mT @ before.flatten(0, 1), grad_b


def relative_error(tensors: list[Tensor], g: Tensor) -> float:
    """The largest of h and the gradients of x, h0 and W, against the loop in double precision.

    That of b adds up the signs of all h, which rounding can turn where h is nearly 0.
    """
    h, z = forward(*tensors)
    ours = (h, *backward(g, h, z, *tensors[1:])[:3])
    leaves = [tensor.double().requires_grad_() for tensor in tensors]
    exact = elman_loop(*leaves, nonlinearity="modrelu")
    theirs = (exact.detach(), *torch.autograd.grad(exact, leaves[:3], g.double()))
    pairs = zip(ours, theirs, strict=True)
    return max(float((one - other).norm() / other.norm()) for one, other in pairs)


def train_step(layer: nn.Module, x: Tensor, g: Tensor) -> None:
    layer(x)[0].backward(g)


def measure(shape: tuple[int, int, int], repeat: int) -> dict[str, object]:
    B, n, T = shape
    x, g, h0 = (torch.randn(*size, device="cuda") for size in ((T, B, n), (T, B, n), (B, n)))
    W, b = torch.linalg.qr(torch.randn(n, n, device="cuda"))[0], torch.zeros(n, device="cuda")
    error = relative_error([x, h0, W, b], g)
    if not error <= 1e-4:
        raise SystemExit(f"the kernels are off by {error:.1e} at {shape}: no speed is reported")
    runs: dict[str, Callable[[], object]] = {
        "forward": lambda: forward(x, h0, W, b),
        "both": lambda: backward(g, *forward(x, h0, W, b), h0, W, b),
        "product": lambda: x.flatten(0, 1) @ W,
    }
    inputs = torch.randn(T, B, 2, device="cuda")
    for name, make in (("RNN", nn.RNN), ("LSTM", nn.LSTM)):
        layer = make(2, n).cuda()
        runs[f"cuDNN {name} forward"] = lambda layer=layer: layer(inputs)
        runs[f"cuDNN {name}"] = lambda layer=layer: train_step(layer, inputs, g)
    times = {name: 1e3 * median(seconds) for name, seconds in rounds(runs, repeat, "cuda").items()}
    plan = best_plan(n, B, chip(0))
    return {
        **{"B": B, "n": n, "T": T, "error": error, "plan": str(plan)},
        **{f"{name}, ms": time for name, time in times.items()},
        "microseconds a step forward": 1e3 * times["forward"] / T,
        "speed over cuDNN RNN": times["cuDNN RNN"] / times["both"],
        "speed over cuDNN LSTM": times["cuDNN LSTM"] / times["both"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("-o", "--output", type=Path, help="write the numbers as JSON too")
    options = parser.parse_args()
    torch.manual_seed(5544)
    columns = ("forward, ms", "product, ms", "both, ms", "cuDNN RNN, ms", "cuDNN LSTM, ms")
    print(
        f"{'B':>4}{'n':>6}{'T':>6}{'error':>9}"
        + "".join(f"{name:>16}" for name in columns)
        + "   speed over both"
    )
    rows = []
    for name in options.shapes:
        row = measure(SHAPES[name], options.repeat)
        print(
            f"{row['B']:4}{row['n']:6}{row['T']:6}{row['error']:9.0e}"
            + "".join(f"{row[column]:16.3f}" for column in columns)
            + "".join(f"{row[f'speed over cuDNN {peer}']:8.1f}" for peer in ("RNN", "LSTM")),
            flush=True,
        )
        rows.append(row)
    write(options.output, machine("cuda", repeat=options.repeat), rows)


if __name__ == "__main__":
    main()
