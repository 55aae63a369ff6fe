"""Time of one step of a stream beside the cells of torch, and of training by steps.

    python benchmarks/streams.py [--device cpu] [--threads 1] [-o FILE.json]

Each row is a median over rounds in which all take turns; ``× RNNCell`` is the ratio to the
``nn.RNNCell`` of the same size in the same run. The goal for a frozen ScoRNN is 1.5 at n = 170.
"""

import argparse
from pathlib import Path
from statistics import median

import torch
from measure import Run, clocked, machine, rounds, summary, write
from torch import Tensor, nn

import cayley

SIZES = (32, 170, 512)
STEPS = 100  # of one run


@torch.no_grad()
def step_times(steps: dict[str, Run], repeat: int, device: str) -> dict[str, list[float]]:
    """Seconds of single steps; all take turns, a hundred steps each.

    Of a loop as a whole, a moment in which the machine did something else would be a part.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(repeat + 1):
        for name, step in steps.items():
            seconds = [clocked(step, device) for _ in range(STEPS)]
            times[name] += seconds if turn else []
    return times


def streams(n: int, device: str) -> dict[str, Run]:
    x = torch.randn(1, 3, device=device)
    found: dict[str, Run] = {}
    for name, cell in {"nn.RNNCell": nn.RNNCell, "nn.LSTMCell": nn.LSTMCell}.items():
        peer = cell(3, n, device=device)
        state = peer(x)
        found[name] = lambda peer=peer, state=state: peer(x, state)
    for name in ("ScoRNN", "ScuRNN", "NCGRU", "LSTM"):
        network, make_cell = getattr(cayley, name), getattr(cayley, f"{name}Cell")
        layer, frozen = (network(3, n, device=device).eval() for _ in range(2))
        cell = make_cell(3, n, device=device).freeze()
        frozen.freeze()
        with torch.no_grad():
            (_, state), h = layer.step(x), cell(x)
        found[f"{name}.step"] = lambda layer=layer, state=state: layer.step(x, state)
        found[f"{name}.step, frozen"] = lambda layer=frozen, s=state: layer.step(x, s)
        found[f"{name}Cell, frozen"] = lambda cell=cell, h=h: cell(x, h)
    return found


def training(n: int, device: str) -> dict[str, Run]:
    layer, x = cayley.ScoRNN(3, n, device=device), torch.randn(STEPS, 16, 3, device=device)

    def stepped() -> Tensor:
        y, state = layer.step(x[0])
        for x_t in x[1:]:
            y, state = layer.step(x_t, state)
        return y

    def held() -> None:
        with layer.held():
            stepped().sum().backward()

    return {
        "ScoRNN, trained by steps": lambda: stepped().sum().backward(),
        "ScoRNN, trained by steps, held": held,
        "ScoRNN, trained as a sequence": lambda: layer(x)[1].sum().backward(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    results = []
    for n in SIZES:
        times = step_times(streams(n, options.device), options.repeat, options.device)
        loops = rounds(training(n, options.device), options.repeat, options.device)
        times |= {name: [s / STEPS for s in seconds] for name, seconds in loops.items()}
        measure = median(times["nn.RNNCell"])
        for name, seconds in times.items():
            ratio = median(seconds) / measure
            results.append({"n": n, "run": name, "ratio": ratio, **summary(seconds)})
            micro = 1e6 * median(seconds)
            print(f"n={n:4}  {name:32} {micro:8.1f} µs a step {ratio:6.2f} × RNNCell", flush=True)
    write(options.output, machine(options.device), results)


if __name__ == "__main__":
    main()
