"""Time of forming W by the scaled Cayley transform or the exponential, and of finding it formed.

    python benchmarks/formation.py [--device cpu] [--threads 1] [-o FILE.json]

The measure is one inverse and four products of matrices of the same size, which is the arithmetic
of the transform and its gradient: the inverse and the step that makes it orthogonal to rounding,
then two products. The exponential, of a matrix whose norm is 3, is differentiated by autograd and
in closed form.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from measure import machine, rounds, summary, write

from cayley.parametrizations import (
    MatrixExponential,
    ScaledCayley,
    StructuredMatrix,
    matrix_exponential,
    scaled_cayley,
)

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

    exponential = MatrixExponential(n).to(device)
    K = 3 * (M - M.mT) / torch.linalg.matrix_norm(M - M.mT, 2)
    entries, leaf = exponential.skew.entries(K), K.clone().requires_grad_()

    def by_autograd() -> None:
        torch.autograd.grad(matrix_exponential(leaf, exponential.B), leaf, G)

    def in_closed_form() -> None:
        exponential.with_pullback(entries)[1](G)

    return {
        "inverse and four products": measure,
        "scaled_cayley, forward and backward": transform,
        "unchanged, gradient recorded": matrix,
        "unchanged, evaluation": evaluation,
        "exponential, by autograd": by_autograd,
        "exponential, in closed form": in_closed_form,
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
