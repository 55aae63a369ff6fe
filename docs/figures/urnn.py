"""Dimension of what 7n phases and reflections reach, beside n², that of all unitary matrices."""

import numpy as np
import torch
from _style import BLUE, GREY, ORANGE, figure, tidy
from matplotlib.figure import Figure

from cayley.parametrizations import UnitaryComposition


def dimension(n: int) -> int:
    """The rank of the derivative of W at a random point."""
    torch.manual_seed(n)
    map = UnitaryComposition(n).double()
    X = [x.double() for x in map.sample()]
    columns = []
    for k, x in enumerate(X):

        def part(value: torch.Tensor, k: int = k) -> torch.Tensor:
            return torch.view_as_real(map(*X[:k], value, *X[k + 1 :])).flatten()

        columns.append(torch.autograd.functional.jacobian(part, x).reshape(2 * n * n, -1))
    return int(torch.linalg.matrix_rank(torch.cat(columns, 1), rtol=1e-9))


def draw() -> Figure:
    picture, axes = figure()
    sizes = np.arange(2, 13)
    axes.plot(sizes, sizes**2, color=GREY, label="n², all unitary matrices")
    axes.plot(sizes, 7 * sizes, "--", color=ORANGE, label="7n, the parameters")
    axes.plot(sizes, [dimension(int(n)) for n in sizes], "o", color=BLUE, label="reached by URNN")
    tidy(axes, xlabel="n", ylabel="dimension")
    axes.legend(frameon=False)
    return picture
