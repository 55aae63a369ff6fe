"""The CUDA kernels of the recurrences beside cuDNN, in one run.

    python benchmarks/gpu.py [--shapes A50 C] [--repeat 20] [-o FILE.json]

Shapes A to G are those of the Elman recurrence. Ours is modReLU, with W given and b = 0 as at the
start of training, in float32: the kernel forward, the kernel backward and the product over all
steps that is the gradient of W. ScoRNN is the layer, which forms W too. cuDNN's RNN (tanh) and LSTM
have the same hidden size and, as the layer, read two inputs; they compute in TF32, which is their
default. No speed is printed for a shape before outputs and gradients have been compared with the
loop in double precision, without sequences in which a candidate is rounded to 0, at modReLU's kink.
The product is that of all steps at once, (T·B, n) × (n, n) in float32 by
torch's library: what one direction would take if no step had to wait for the one before it. Steps
of ScoRNN and of cuDNN's RNN are also measured as CUDA graphs, and from Python with backward passes
in the thread that asks for them, not in one that autograd has for a GPU.

Shapes H to R are those of the gated recurrences: NC-GRU with modReLU, W given and b = 0, and LSTMs
without normalisation, with that of the layer, and with windows of 10 steps. They run as operators
under autograd, and give the gradients of all their parameters, of which that of b is not compared:
a candidate that rounding takes to the other side of a kink changes it. cuDNN's GRU and LSTM have
the same hidden size and the same two inputs. For how much of the time the GPU computes is written
beside it.

Shapes E1n128 to E512n1024, and E32n1030, are a grid of the Elman recurrence, and B1n128 to
B512n1024 one of the gated recurrences. There cuDNN computes in float32, as ours does.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measure import GPU_SHAPES as SHAPES
from measure import distance, machine, rounds, write
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import cayley
from cayley.kernels.calls import ElmanCall, ElmanGradients, ElmanStates, GruCall
from cayley.kernels.cuda.elman import elman, elman_backward
from cayley.kernels.cuda.gru import gru as gru_kernel
from cayley.kernels.cuda.runtime.chip import chip
from cayley.kernels.cuda.runtime.clusters import best_plan
from cayley.recurrences import NormSite, elman_loop, gru, lstm

GATED_SHAPES = {
    "H": (20, 60, 100),
    "I": (128, 60, 200),
    "J": (50, 68, 100),
    "K": (20, 100, 100),
    "L": (128, 100, 200),
    "M": (50, 128, 200),
    "N": (20, 100, 1000),
    "O": (32, 350, 50),
    "P": (50, 512, 784),
    "Q": (32, 1000, 220),
    "R": (20, 1150, 70),
}
GRID = {f"{B}n{n}": (B, n, 100) for B in (1, 32, 128, 512) for n in (128, 512, 1024)}
GRID_SHAPES = {f"B{name}": shape for name, shape in GRID.items()}
ELMAN_GRID_SHAPES = {f"E{name}": shape for name, shape in GRID.items()}
ELMAN_GRID_SHAPES["E32n1030"] = (32, 1030, 50)
ALL_SHAPES = SHAPES | GATED_SHAPES | ELMAN_GRID_SHAPES | GRID_SHAPES
PROFILED = 10  # runs
PEERS = ("cuDNN RNN, ms", "cuDNN LSTM, ms")
TIMES = ("forward, ms", "product, ms", "both, ms", "ScoRNN, ms", *PEERS)
WAYS = ("one thread", "graphs")  # in which steps of these are measured, too
IN_OTHER_WAYS = ("ScoRNN", "cuDNN RNN")
OVER_RNN = ("ScoRNN over RNN", *(f"ScoRNN over RNN, {way}" for way in WAYS))
COLUMNS = (*TIMES, "over RNN", "over LSTM", *OVER_RNN)
# ours, and the peer of each
COMPARED = {"NC-GRU": "GRU", "LSTM": "LSTM", "LN-LSTM": "LSTM", "ATN-LSTM": "LSTM"}
KINDS = (*COMPARED, "cuDNN GRU", "cuDNN LSTM")
GATED_COLUMNS = (
    *(f"{kind}, ms" for kind in KINDS),
    *(f"{kind} over cuDNN" for kind in COMPARED),
)


def forward(x: Tensor, h0: Tensor, W: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return elman(ElmanCall(x, h0, W, b, nonlinearity="modrelu"))


def backward(
    g: Tensor, h: Tensor, z: Tensor, h0: Tensor, W: Tensor, b: Tensor
) -> tuple[Tensor, ...]:
    call, needed = ElmanCall(h, h0, W, b, nonlinearity="modrelu"), ("x", "h0", "W", "b")
    found = elman_backward(ElmanGradients(g), ElmanStates(h, z), call, needed)
    return tuple(v for v in map(found.get, needed) if v is not None)


def away_from_kinks(candidates: Tensor) -> Tensor:
    """1 for each of B sequences, (T, B, n), none of whose candidates is exactly 0, else 0.

    At 0 we take the derivative of modReLU to be 0, but next to it, where the candidate is in double
    precision, it is 1. At B = 512 and n = 1024 there are 5·10⁷ candidates, and one that is rounded
    to 0 changes the gradients by 1e-4 or more.
    """
    return (candidates != 0).all(-1).all(0).to(candidates.dtype)


def relative_error(tensors: list[Tensor], g: Tensor) -> float:
    """The largest of h and the gradients of x, h0 and W, against the loop in double precision.

    That of b adds up the signs of all h, which rounding can turn where h is nearly 0.
    """
    h, z = forward(*tensors)
    g = g * away_from_kinks(h)[:, None]  # with b = 0, h is 0 where the candidate is
    ours = (h, *backward(g, h, z, *tensors[1:])[:3])
    leaves = [tensor.double().requires_grad_() for tensor in tensors]
    exact = elman_loop(*leaves, nonlinearity="modrelu")
    theirs = (exact.detach(), *torch.autograd.grad(exact, leaves[:3], g.double()))
    return distance(ours, theirs)


def train_step(layer: nn.Module, x: Tensor, g: Tensor) -> None:
    layer.zero_grad()
    layer(x)[0].backward(g)


def recorded(run: Callable[[], object]) -> Callable[[], object]:
    """The same run as a CUDA graph, for which the GPU does not wait for Python."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def in_one_thread(run: Callable[[], object]) -> None:
    """The same run without the thread that autograd has for a GPU."""
    with torch.autograd.set_multithreading_enabled(False):
        run()


def checked(shape: tuple[int, int, int]) -> tuple[list[Tensor], Tensor, float]:
    """Tensors of an Elman recurrence, a gradient, and how far the kernels are off."""
    B, n, T = shape
    x, g, h0 = (torch.randn(*size, device="cuda") for size in ((T, B, n), (T, B, n), (B, n)))
    W, b = torch.linalg.qr(torch.randn(n, n, device="cuda"))[0], torch.zeros(n, device="cuda")
    error = relative_error([x, h0, W, b], g)
    if not error <= 1e-4:
        raise SystemExit(f"the kernels are off by {error:.1e} at {shape}: no speed is reported")
    return [x, h0, W, b], g, error


def measure(shape: tuple[int, int, int], repeat: int) -> dict[str, object]:
    B, n, T = shape
    (x, h0, W, b), g, error = checked(shape)
    runs: dict[str, Callable[[], object]] = {
        "forward": lambda: forward(x, h0, W, b),
        "both": lambda: backward(g, *forward(x, h0, W, b), h0, W, b),
        "product": lambda: x.flatten(0, 1) @ W,
    }
    inputs = torch.randn(T, B, 2, device="cuda")
    runs["ScoRNN"] = partial(train_step, cayley.ScoRNN(2, n).cuda(), inputs, g)
    for name, make in (("RNN", nn.RNN), ("LSTM", nn.LSTM)):
        layer = make(2, n).cuda()
        runs[f"cuDNN {name} forward"] = partial(layer, inputs)
        runs[f"cuDNN {name}"] = partial(train_step, layer, inputs, g)
    runs |= {f"{name}, one thread": partial(in_one_thread, runs[name]) for name in IN_OTHER_WAYS}
    runs |= {f"{name}, graphs": recorded(runs[name]) for name in IN_OTHER_WAYS}
    times = {name: 1e3 * median(seconds) for name, seconds in rounds(runs, repeat, "cuda").items()}
    plan = best_plan(n, B, chip(0))
    return {
        **{"B": B, "n": n, "T": T, "error": error, "plan": str(plan)},
        **{f"{name}, ms": time for name, time in times.items()},
        "microseconds a step forward": 1e3 * times["forward"] / T,
        "over RNN": times["cuDNN RNN"] / times["both"],
        "over LSTM": times["cuDNN LSTM"] / times["both"],
        "ScoRNN over RNN": times["cuDNN RNN"] / times["ScoRNN"],
        **{
            f"ScoRNN over RNN, {way}": times[f"cuDNN RNN, {way}"] / times[f"ScoRNN, {way}"]
            for way in WAYS
        },
    }


def nc_gru(x: Tensor, U: Tensor, c: Tensor, W: Tensor, b: Tensor) -> Tensor:
    return gru(x, x.new_zeros(x.shape[1], W.shape[1]), W, b, U=U, c=c)


def nc_gru_candidates(x: Tensor, U: Tensor, c: Tensor, W: Tensor, b: Tensor) -> Tensor:
    call = GruCall(x, x.new_zeros(x.shape[1], W.shape[1]), W, b, U, c)
    return gru_kernel(call).gates[..., -W.shape[1] :]


def normalised_lstm(
    window: int, x: Tensor, U: Tensor, c: Tensor, W: Tensor, *norms: Tensor
) -> Tensor:
    pairs = [NormSite(gamma, beta) for gamma, beta in zip(norms[::2], norms[1::2], strict=True)]
    sites: dict[str, Any] = dict(zip(("input", "recurrent", "cell"), pairs, strict=False))
    h0 = x.new_zeros(x.shape[1], W.shape[1])
    return lstm(x, h0, h0, W, U=U, c=c, **sites, window=window).h


def gated(n: int) -> dict[str, tuple[Callable[..., Tensor], list[Tensor]]]:
    """Each recurrence of two inputs, with its parameters."""
    W = torch.cat([torch.linalg.qr(torch.randn(n, n, device="cuda"))[0] for _ in range(4)])
    U, c = torch.randn(4 * n, 2, device="cuda"), torch.randn(4 * n, device="cuda")
    threshold = torch.zeros(n, device="cuda")
    norms = []
    # a small γ: with 1 a normalised LSTM is chaotic, and no gradient in float32 is right
    for features in (4 * n, 4 * n, n):
        norms += [
            torch.full((features,), 0.1, device="cuda"),
            torch.zeros(features, device="cuda"),
        ]
    return {
        "NC-GRU": (nc_gru, [U[: 3 * n], c[: 3 * n], W[: 3 * n], threshold]),
        "LSTM": (partial(normalised_lstm, 1), [U, c, W]),
        "LN-LSTM": (partial(normalised_lstm, 1), [U, c, W, *norms]),
        "ATN-LSTM": (partial(normalised_lstm, 10), [U, c, W, *norms]),
    }


def parameters(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.clone().requires_grad_() for tensor in tensors]


def gradients(
    function: Callable[..., Tensor], x: Tensor, tensors: list[Tensor], g: Tensor, backend: str
) -> tuple[Tensor, ...]:
    leaves = parameters(tensors)
    with cayley.backend(backend):
        h = function(x, *leaves)
        return h.detach(), *torch.autograd.grad(h, leaves, g)


def gated_step(function: Callable[..., Tensor], x: Tensor, leaves: list[Tensor], g: Tensor) -> None:
    for leaf in leaves:
        leaf.grad = None
    function(x, *leaves).backward(g)


def busy(run: Callable[[], object]) -> float:
    """Milliseconds for which the GPU computes in a run."""
    run()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(PROFILED):
            run()
        torch.cuda.synchronize()
    return 1e-3 * sum(event.self_device_time_total for event in found.key_averages()) / PROFILED


def measure_gated(shape: tuple[int, int, int], repeat: int) -> dict[str, object]:
    B, n, T = shape
    x, g = torch.randn(T, B, 2, device="cuda"), torch.randn(T, B, n, device="cuda")
    runs: dict[str, Callable[[], object]] = {}
    _, _, error = checked(shape)
    for name, (function, tensors) in gated(n).items():
        double = [v.double() for v in tensors]
        compared_g = g
        if name == "NC-GRU":
            compared_g = g * away_from_kinks(nc_gru_candidates(x, *tensors))[:, None]
        exact = gradients(function, x.double(), double, compared_g.double(), "reference")
        # that of a threshold adds up signs, which rounding can turn where a candidate is nearly 0
        compared = len(exact) - (name == "NC-GRU")
        ours, loop = (
            distance(
                gradients(function, x, tensors, compared_g, backend)[:compared], exact[:compared]
            )
            for backend in ("cuda", "reference")
        )
        # rounding grows with the steps
        if not ours <= max(1e-4, 4 * loop):
            raise SystemExit(
                f"{name} is off by {ours:.1e} at {shape}, and the loop in float32 by {loop:.1e}: "
                "no speed is reported"
            )
        error = max(error, ours)
        runs[name] = partial(gated_step, function, x, parameters(tensors), g)
    for name, make in (("GRU", nn.GRU), ("LSTM", nn.LSTM)):
        runs[f"cuDNN {name}"] = partial(train_step, make(2, n).cuda(), x, g)
    timed = rounds(runs, repeat, "cuda")
    times = {name: 1e3 * median(seconds) for name, seconds in timed.items()}
    return {
        **{"B": B, "n": n, "T": T, "error": error},
        **{f"{name}, ms": time for name, time in times.items()},
        **{f"{name} on the GPU, ms": busy(run) for name, run in runs.items()},
        **{f"{k} over cuDNN": times[f"cuDNN {peer}"] / times[k] for k, peer in COMPARED.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=ALL_SHAPES, default=[*ALL_SHAPES])
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("-o", "--output", type=Path, help="write the numbers as JSON too")
    options = parser.parse_args()
    torch.manual_seed(5544)
    rows: list[dict[str, Any]] = []
    try:
        measure_all(options.shapes, options.repeat, rows)
    finally:
        # what is measured stays if the rest is interrupted
        write(options.output, machine("cuda", repeat=options.repeat), rows)


def measure_all(names: list[str], repeat: int, rows: list[dict[str, Any]]) -> None:
    """Measure shapes, print each, and append it to ``rows``."""
    printed: tuple[str, ...] = ()
    for name in names:
        gated = name in GATED_SHAPES or name in GRID_SHAPES
        columns, run = (GATED_COLUMNS, measure_gated) if gated else (COLUMNS, measure)
        torch.backends.cudnn.allow_tf32 = name in SHAPES or name in GATED_SHAPES
        row = run(ALL_SHAPES[name], repeat)
        if columns is not printed:
            titles = "".join(f"  {c:>14}" for c in columns)
            print(f"{'B':>4}{'n':>6}{'T':>6}{'error':>9}" + titles)
            printed = columns
        print(
            f"{row['B']:4}{row['n']:6}{row['T']:6}{row['error']:9.0e}"
            + "".join(f"  {row[c]:{max(14, len(c))}.3f}" for c in columns),
            flush=True,
        )
        rows.append(row)


if __name__ == "__main__":
    main()
