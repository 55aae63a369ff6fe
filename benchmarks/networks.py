"""Time and memory of forward and backward of every network, beside its peers, in one run.

    python benchmarks/networks.py [--device cpu] [--threads 1] [--shapes A C] [-o FILE.json]

With a file, a picture lies beside it, as PNG.

The peers: torch's own layers of the same hidden size; the naive loop, which is what users write by
hand (a Python loop over the steps under autograd, W formed and the input multiplied once per
forward pass); with ``--compile`` also that loop under ``torch.compile``, which unrolls it: the
first call of a network takes a minute at T = 200 (``--shapes E``), and far longer at large T. The
floor is three products (T·B, n) × (n, n), the arithmetic of an Elman recurrence and of its
gradient, by torch's own library.

No speed is printed for a shape before outputs and all gradients of all our networks have been
compared with the naive loop at that shape. Gradients arrive at every step, given, and denormals are
flushed for everybody, since vanishing gradients would slow the LSTM down. W is formed in every
forward pass, as in training; "RNN(modrelu)" and "NCGRU(free)" are the recurrences of ScoRNN and
NCGRU with W given.
"""

import argparse
import copy
from collections.abc import Callable, Collection
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
from measure import GPU_SHAPES, SHAPES, distance, machine, peak_memory, rounds, summary, write
from pictures import draw_networks
from torch import Tensor, nn

import cayley
from cayley.layers.recurrent import Recurrent
from cayley.recurrences import elman_loop, gru_loop, lstm_loop

INPUTS = 2
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "nn.RNN(tanh)": lambda n: nn.RNN(INPUTS, n),
    "nn.RNN(relu)": lambda n: nn.RNN(INPUTS, n, nonlinearity="relu"),
    "nn.GRU": lambda n: nn.GRU(INPUTS, n),
    "nn.LSTM": lambda n: nn.LSTM(INPUTS, n),
    "RNN(modrelu)": lambda n: cayley.RNN(INPUTS, n, nonlinearity="modrelu"),
    "RNN(tanh)": lambda n: cayley.RNN(INPUTS, n),
    "ScoRNN": lambda n: cayley.ScoRNN(INPUTS, n),
    "ScuRNN": lambda n: cayley.ScuRNN(INPUTS, n // 2),
    "URNN": lambda n: cayley.URNN(INPUTS, n // 2),
    "FullURNN": lambda n: cayley.FullURNN(INPUTS, n // 2),
    "EURNN": lambda n: cayley.EURNN(INPUTS, n // 2),
    "ORNN": lambda n: cayley.ORNN(INPUTS, n),
    "ExpRNN": lambda n: cayley.ExpRNN(INPUTS, n),
    "SpectralRNN": lambda n: cayley.SpectralRNN(INPUTS, n),
    "ENRNN": lambda n: cayley.ENRNN(INPUTS, n - n // 3, n // 3),
    "NCGRU(free)": lambda n: cayley.NCGRU(INPUTS, n, orthogonal=()),
    "NCGRU": lambda n: cayley.NCGRU(INPUTS, n),
    "LSTM": lambda n: cayley.LSTM(INPUTS, n),
    "LSTM(layer)": lambda n: cayley.LSTM(INPUTS, n, norm="layer"),
    "LSTM(atn, 2)": lambda n: cayley.LSTM(INPUTS, n, norm="atn", window=2),
    "LSTM(atn, 25)": lambda n: cayley.LSTM(INPUTS, n, norm="atn", window=25),
    "LSTM(atn, 500)": lambda n: cayley.LSTM(INPUTS, n, norm="atn", window=500),
}


def naive(layer: nn.Module, x: Tensor) -> Tensor:
    """The layer with the recurrence as a Python loop."""
    with (
        patch("cayley.layers.elman.elman", elman_loop),
        patch("cayley.layers.elman.RNN._by_factors", return_value=None),
        patch("cayley.layers.gru.gru", gru_loop),
        patch("cayley.layers.lstm.lstm", lstm_loop),
    ):
        return layer(x)[0]


def fused(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)[0]


def check(name: str, layer: Recurrent, x: Tensor) -> None:
    """Raise unless the layer and its naive loop agree in output and all gradients.

    In double precision. The kernels of a GPU know float32 only: there the layer may be four times
    as far from the loop in double precision as the loop in float32 is, or by 1e-4.
    """
    layer = calm(layer)
    double = copy.deepcopy(layer).double()
    exact = results(naive, double, x.double())
    if x.is_cuda:
        ours, loop = (distance(results(run, layer, x), exact) for run in (fused, naive))
        allowed = max(1e-4, 4 * loop)
    else:
        ours, allowed = distance(results(fused, double, x.double()), exact), 1e-6
    if not ours <= allowed:
        raise SystemExit(f"{name} is {ours:.1e} off its loop: no speed is reported")


def calm(layer: Recurrent) -> Recurrent:
    """A copy in which the γ that scales the normalised W h, if there is one, is 0.1.

    With γ = 1 a normalised LSTM is chaotic: over hundreds of steps, rounding to float32 changes
    gradients by up to 1e-3, whichever way they are computed.
    """
    layer = copy.deepcopy(layer)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.startswith("gamma_hh"):
                parameter.fill_(0.1)
    return layer


def results(run: Callable[..., Tensor], layer: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    output = run(layer, x)
    return output.detach(), *torch.autograd.grad(output.sum(), tuple(layer.parameters()))


def training(
    run: Callable[[nn.Module, Tensor], Tensor], layer: nn.Module, x: Tensor
) -> Callable[[], None]:
    """Forward and backward, with parameters that are new to the layer, as after every step.

    Arguments:
        run: The layer, or its naive loop.
        layer: The layer.
        x: The input.

    Returns:
        The step. It finds parameters and the gradient of the output at hand, as layers do that have
        an optimizer and a loss.
    """
    parameters: list[Tensor] = list(layer.parameters())
    with torch.no_grad():
        gradient = torch.ones_like(run(layer, x))

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        with torch.no_grad():
            torch._foreach_mul_(parameters, 1.0000001)
        run(layer, x).backward(gradient)

    return step


def three_products(shape: tuple[int, int, int], device: str) -> Callable[[], None]:
    B, n, T = shape
    a, W = torch.randn(T * B, n, device=device), torch.randn(n, n, device=device)
    y, gradient = torch.empty_like(a), torch.empty_like(W)

    def run() -> None:
        torch.mm(a, W, out=y)
        torch.mm(a, W.mT, out=y)
        torch.mm(a.mT, y, out=gradient)

    return run


def measure(
    shape: tuple[int, int, int],
    names: Collection[str],
    *,
    device: str,
    repeat: int,
    loops: Collection[str] = NETWORKS,
    compiled: bool = False,
) -> list[dict]:
    """Times of networks and peers at a shape; ``loops`` says whose loop is timed too."""
    B, n, T = shape
    x = torch.randn(T, B, INPUTS, device=device)
    layers = {name: NETWORKS[name](n).to(device) for name in names}
    runs: dict[str, Callable[[], object]] = {"floor": three_products(shape, device)}
    for name, layer in layers.items():
        if isinstance(layer, Recurrent):
            check(name, layer, x)
            # the loop of a normalised LSTM takes a hundred times as long: once is enough
            if name in loops and getattr(layer, "norm", None) is None:
                runs[f"{name}, naive loop"] = training(naive, layer, x)
            if compiled:
                runs[f"{name}, compiled loop"] = training(torch.compile(naive), layer, x)
        runs[name] = training(fused, layer, x)
    times = rounds(runs, repeat, device)
    rows = []
    for name, seconds in times.items():
        row: dict[str, object] = {"network": name, "B": B, "n": n, "T": T, **summary(seconds)}
        row["over floor"] = median(seconds) / median(times["floor"])
        for peer in ("nn.LSTM", "nn.GRU", "nn.RNN(relu)", f"{name}, naive loop"):
            if peer in times:
                label = "naive loop" if peer.endswith("loop") else peer
                row[f"speed over {label}"] = median(times[peer]) / median(seconds)
        if name in layers:
            peak = peak_memory(runs[name], device)
            # of float32 numbers, as many as h has
            row["peak memory over h"] = None if peak is None else peak / (4 * B * n * T)
        rows.append(row)
    return rows


COLUMNS = {
    "ms": "milliseconds",
    "spread": "spread",
    "× floor": "over floor",
    "by naive": "speed over naive loop",
    "by LSTM": "speed over nn.LSTM",
    "by GRU": "speed over nn.GRU",
    "by RNN": "speed over nn.RNN(relu)",
    "memory/h": "peak memory over h",
}


def show(rows: list[dict]) -> None:
    print(f"{'network':28}" + "".join(f"{label:>10}" for label in COLUMNS))
    for row in rows:
        numbers = [row.get(key) for key in COLUMNS.values()]
        print(
            f"{row['network']:28}"
            + "".join(f"{'' if value is None else f'{value:.2f}':>10}" for value in numbers)
        )
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--shapes", nargs="+", help="names, or B,n,T")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, metavar="NAME")
    parser.add_argument("--compile", action="store_true", help="torch.compile of the loop too")
    parser.add_argument("-o", "--output", type=Path, help="write the numbers as JSON too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    torch.manual_seed(5544)
    named = GPU_SHAPES if options.device == "cuda" else SHAPES
    rows = []
    for name in options.shapes or named:
        B, n, T = named[name] if name in named else map(int, name.split(","))
        print(f"{name}: B = {B}, n = {n}, T = {T}", flush=True)
        found = measure(
            (B, n, T),
            options.networks or NETWORKS,
            device=options.device,
            repeat=options.repeat,
            compiled=options.compile,
        )
        show(found)
        rows += found
    settings = {"precision": "float32", "repeat": options.repeat}
    if options.device == "cuda":
        settings["cuDNN's TF32"] = torch.backends.cudnn.allow_tf32
    print("Medians of forward and backward. 'by LSTM' 4 means a quarter of nn.LSTM's time.")
    print("Complex networks have n/2 complex units, hence n real features.")
    about = machine(options.device, **settings)
    write(options.output, about, rows)
    if options.output is not None:
        draw_networks(rows, about, options.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
