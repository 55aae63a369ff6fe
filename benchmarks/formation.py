"""Time of forming W by the scaled Cayley transform, and of finding it formed.

    python benchmarks/formation.py [--device cpu] [--threads 1] [-o FILE.json]

The measure is one inverse and four products of matrices of the same size, which is the arithmetic
of the transform and its gradient: the inverse and the step that makes it orthogonal to rounding,
then two products.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from measure import machine, rounds, summary, write

from cayley.parametrizations import ScaledCayley, StructuredMatrix, scaled_cayley

SIZES = (170, 512, 1030)


def runs(n: int, device: str) -> dict[str, Callable[[], object]]:
    M = torch.randn(n, n, device=device) / n**0.5
    A, D = (M - M.mT).requires_grad_(), torch.ones(n, device=device)
    G, matrix = torch.randn(n, n, device=device), StructuredMatrix(ScaledCayley(n)).to(device)

    def measure() -> None:
        torch.linalg.inv_ex(M)
        for _ in range(4):
            M @ M

    def transform() -> None:
        torch.autograd.grad(scaled_cayley(A, D), A, G)

    @torch.no_grad()
    def evaluation() -> None:
        matrix()

    return {
        "inverse and four products": measure,
        "scaled_cayley, forward and backward": transform,
        "unchanged, gradient recorded": matrix,
        "unchanged, evaluation": evaluation,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("-o", "--output", type=Path, help="write the numbers as JSON too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(5544)
    rows = []
    print(f"{'':38}{'n':>6}{'ms':>9}{'spread':>9}{'ratio':>8}")
    for n in SIZES:
        times = rounds(runs(n, options.device), options.repeat, options.device)
        measure = median(times["inverse and four products"])
        for name, seconds in times.items():
            row = {"what": name, "n": n, **summary(seconds), "ratio": median(seconds) / measure}
            rows.append(row)
            print(
                f"{name:38}{n:6}{row['milliseconds']:9.2f}{row['spread']:9.2f}{row['ratio']:8.3f}",
                flush=True,
            )
    write(options.output, machine(options.device, precision="float32"), rows)


if __name__ == "__main__":
    main()
