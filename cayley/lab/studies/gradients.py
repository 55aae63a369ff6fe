"""Studies of gradients: of a loss with respect to states, of states with respect to inputs."""

import math
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from cayley.diagnostics import gradient_norms, jacobian_heatmap
from cayley.lab.studies.study import Measured, Number, Settings, Study, make_panels
from cayley.lab.studies.training import Subject
from cayley.lab.training import RunSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["GRADIENT_STABILITY", "HEATMAPS"]

# the smallest number of float32
LEAST = 1e-38


def measure_stability(settings: Settings, seed: int, run: RunSettings) -> Measured:
    """‖∂L/∂h_t‖ at the start and after some steps, averaged over a mini-batch.

    L is the mean over the mini-batch, so each example's gradient has a factor 1/B. The paper does
    not print the settings of the figure: these are those of T = 400, the nearest length for which
    it does.
    """
    numbers: dict[str, Number] = {}
    curves: dict[str, Tensor] = {}
    for name, recipe in (("scornn", "scornn/adding-400"), ("lstm", "lstm/adding-400")):
        changes = [f"task.T={settings['T']}", f"training.batch={settings['batch']}"]
        subject = Subject(recipe, changes, seed, run)
        for moment, steps in (("start", 0), ("later", settings["steps"])):
            subject.train(steps)
            batch = next(subject.batches)
            (norms,) = gradient_norms(subject.model, lambda s=subject, b=batch: s.loss(b)).values()
            logs = norms.mean(1).clamp_min(LEAST).log10().double().cpu()
            curves[f"{name}, {moment}"] = 10**logs
            numbers |= {
                f"{name}_{moment}_first_log10": float(logs[0]),
                f"{name}_{moment}_last_log10": float(logs[-1]),
                f"{name}_{moment}_mean_log10": float(logs.mean()),
                f"{name}_{moment}_range_log10": float(logs.max() - logs.min()),
                f"{name}_{moment}_fall_log10": float(logs[-1] - logs[0]),
            }
    falls = [cast(float, numbers[f"lstm_{moment}_fall_log10"]) for moment in ("later", "start")]
    return Measured(numbers | {"lstm_fall_gain_log10": falls[0] - falls[1]}, curves)


def draw_stability(picture: Any, settings: Settings) -> "Figure":
    """A panel for each moment."""
    from cayley.diagnostics.plots import plot_gradient_norms

    figure, axes = make_panels(2, share=True)
    titles = {"start": "at the start", "later": f"after {settings['steps']} iterations"}
    for one, (moment, title) in zip(axes, titles.items(), strict=True):
        plot_gradient_norms(
            {
                name.partition(",")[0]: curve
                for name, curve in picture.items()
                if name.endswith(moment)
            },
            one,
        )
        one.set_title(title)
    return figure


def measure_heatmaps(settings: Settings, seed: int, run: RunSettings) -> Measured:
    """‖∂h_τ/∂x_t‖ of the two states of ENRNN after some steps, averaged over a mini-batch."""
    q, s, T, lag = (settings[key] for key in ("long", "short", "T", "lag"))
    changes = [
        f"task.T={T}",
        f"model.hidden=[{q}, {s}]",
        # three tenths, as in Figure 2.12
        f"model.negative_ones={round(0.3 * q)}",
    ]
    subject = Subject("enrnn/adding-750", changes, seed, run)
    losses = subject.train(settings["steps"])
    layer = cast(nn.Module, subject.model.get_submodule("layers.0"))
    x = cast(Tensor, next(subject.batches).input)[:, : settings["batch"]]
    maps = {
        "short": jacobian_heatmap(layer, x, units=slice(q, q + s)).double().cpu(),
        "long": jacobian_heatmap(layer, x, units=slice(0, q)).double().cpu(),
    }
    numbers: dict[str, Number] = {"last_loss": math.fsum(losses[-100:]) / len(losses[-100:])}
    for name, heatmap in maps.items():
        now, later = heatmap.diagonal()[: T - lag], heatmap.diagonal(-lag)
        numbers[f"{name}_mean_share"] = float(later.mean() / now.mean())
        numbers[f"{name}_greatest_share"] = float((later / now.clamp_min(LEAST)).max())
    return Measured(numbers, maps)


def draw_heatmaps(picture: Any, settings: Settings) -> "Figure":
    """The short state on the left, the long one on the right."""
    from cayley.diagnostics.plots import plot_heatmap

    figure, axes = make_panels(2)
    for one, (name, heatmap) in zip(axes, picture.items(), strict=True):
        plot_heatmap(heatmap.where(torch.ones_like(heatmap).tril() > 0, torch.nan), one)
        one.set_title(f"{name} state")
    return figure


GRADIENT_STABILITY = Study(
    "gradient-stability",
    "norms of the gradient of each state, scoRNN and LSTM on adding",
    measure_stability,
    draw_stability,
    {"T": 500, "steps": 300, "batch": 50},
    {"T": 12, "steps": 2, "batch": 4},
)
HEATMAPS = Study(
    "heatmaps",
    "the derivative of each state of ENRNN by each input, on adding",
    measure_heatmaps,
    draw_heatmaps,
    # five epochs of 100,000 examples in batches of 50
    {"T": 50, "long": 24, "short": 16, "steps": 10000, "batch": 50, "lag": 20},
    {"T": 8, "long": 4, "short": 2, "steps": 2, "batch": 2, "lag": 3},
)
