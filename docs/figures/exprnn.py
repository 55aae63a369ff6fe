"""Error of a plane rotation exp(K) in float32: torch.matrix_exp, and the series of ExpRNN."""

import torch
from _style import BLUE, RED, figure, tidy
from matplotlib.figure import Figure

from cayley.parametrizations import MatrixExponential, Skew

N = 2


def draw() -> Figure:
    picture, axes = figure()
    torch.manual_seed(0)
    skew, map = Skew(N), MatrixExponential(N)
    entries = torch.randn(N * (N - 1) // 2, dtype=torch.float64)
    entries /= torch.linalg.matrix_norm(skew(entries), 1)
    norms = torch.logspace(-2, 1, 80, dtype=torch.float64)
    errors: dict[str, list[float]] = {"torch.matrix_exp": [], "ExpRNN": []}
    for norm in norms:
        exact = torch.matrix_exp(skew(norm * entries))
        K = (norm * entries).float()
        found = {"torch.matrix_exp": torch.matrix_exp(skew(K)), "ExpRNN": map.with_pullback(K)[0]}
        for name, W in found.items():
            errors[name].append(float((W.double() - exact).abs().max()))
    for (name, values), color in zip(errors.items(), (RED, BLUE), strict=True):
        axes.loglog(norms, values, color=color, label=name)
    tidy(axes, xlabel="1-norm of K", ylabel="largest error of an entry")
    axes.legend(frameon=False)
    return picture
