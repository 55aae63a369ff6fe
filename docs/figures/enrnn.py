"""‖∂h_τ/∂x_t‖ of the long-term and of the short-term state, as they are drawn."""

import torch
from _style import figure
from matplotlib.figure import Figure

import cayley
from cayley.diagnostics import jacobian_heatmap

T, LONG, SHORT = 40, 24, 16


def draw() -> Figure:
    picture, pair = figure(2, size=(8, 3.4))
    torch.manual_seed(0)
    layer = cayley.ENRNN(2, LONG, SHORT)
    x = torch.rand(T, 4, 2)
    parts = (("long-term", slice(LONG)), ("short-term", slice(LONG, LONG + SHORT)))
    for axes, (name, units) in zip(pair, parts, strict=True):
        norms = jacobian_heatmap(layer, x, units=units).detach()
        image = axes.imshow(norms.clamp(min=1e-6).log10().numpy(), vmin=-5, vmax=-1, cmap="viridis")
        axes.set(title=f"{name} state", xlabel="t, of the input")
    pair[0].set_ylabel("τ, of the state")
    picture.colorbar(image, ax=pair, label="log₁₀ ‖∂h_τ/∂x_t‖", shrink=0.9)
    return picture
