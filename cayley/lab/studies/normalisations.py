"""The study of the states of an LSTM before and after normalisation."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cayley.diagnostics import Moments, hidden_statistics
from cayley.lab.studies.study import Measured, Number, Settings, Study, make_panels
from cayley.lab.studies.training import Subject
from cayley.lab.training import RunSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["POSTNORM"]

SITES = {"hidden": "recurrent", "input": "input", "cell": "cell"}


def measure_postnorm(settings: Settings, seed: int, run: RunSettings) -> Measured:
    """Mean and variance over the units at each step of the first iteration, before γ and β.

    How much they change over t is measured by the standard deviation over all steps but the first,
    whose state is 0, averaged over a mini-batch. For the cell, the mean over the mini-batch is
    taken first, with the sign that makes its largest value positive.
    """
    found: dict[str, dict[str, Moments]] = {site: {} for site in SITES}
    for k in (0, *settings["windows"]):
        recipe = "atn-lstm/adding-100" if k else "ln-lstm/adding-100"
        changes = [f"task.T={settings['T']}", *([f"model.window={k}"] if k else [])]
        subject = Subject(recipe, changes, seed, run)
        batch = next(subject.batches)
        moments = hidden_statistics(subject.model, lambda s=subject, b=batch: s.model(b.input))
        for site, name in SITES.items():
            (one,) = (value for key, value in moments.items() if key.endswith(f".{name}.after"))
            found[site][f"k = {k}" if k else "LN"] = Moments(*(part.double().cpu() for part in one))
    numbers: dict[str, Number] = {}
    for site, by_norm in found.items():
        layer, *windows = by_norm.values()
        for what in ("mean", "variance"):
            own = _change(getattr(layer, what))
            others = [_change(getattr(one, what)) for one in windows]
            numbers[f"{site}_{what}_change_ln"] = own
            numbers[f"{site}_{what}_change_atn"] = min(others)
            # the means of LN are rounding errors only
            numbers[f"{site}_{what}_change_ratio"] = min(others) / max(own, 1e-6)
        levels = [float(one.variance[1:].mean() / layer.variance[1:].mean()) for one in windows]
        numbers |= {f"{site}_level_least": min(levels), f"{site}_level_greatest": max(levels)}
    spikes = [_spike(one.mean.mean(1)) for name, one in found["cell"].items() if name != "LN"]
    peaks, lengths, ends = zip(*spikes, strict=True)
    numbers |= {
        "cell_peaks": list(peaks),
        "cell_lengths": list(lengths),
        "cell_ends": list(ends),
        "cell_first_peak_lead": peaks[0] - max(peaks[1:]),
        "cell_first_end": ends[0],
        "cell_first_end_share": ends[0] / peaks[0],
        "cell_least_lengthening": min(b - a for a, b in pairwise(lengths)),
    }
    return Measured(numbers, found)


def _change(values: Tensor) -> float:
    """How much moments (T, B) change over t."""
    return float(values[1:].std(0, correction=0).mean())


def _spike(mean: Tensor) -> tuple[float, float, float]:
    """The height of a curve (T), for how many steps it is above half of it, and where it ends."""
    mean = mean * mean[mean.abs().argmax()].sign()
    return float(mean.max()), float((mean > mean.max() / 2).sum()), float(mean[-10:].mean())


def draw_postnorm(picture: Any, settings: Settings) -> "Figure":
    """A panel for each site: means, each in a band of one standard deviation."""
    from cayley.diagnostics.plots import plot_moments

    figure, axes = make_panels(3)
    for one, (site, by_norm) in zip(axes, picture.items(), strict=True):
        # one example: what differs between steps would be averaged away
        first = {
            name: Moments(*(part[:, :1] for part in moments)) for name, moments in by_norm.items()
        }
        plot_moments(first, one)
        one.set_title({"hidden": "$W_h h$", "input": "$W_x x$", "cell": "$c$"}[site])
    return figure


POSTNORM = Study(
    "postnorm",
    "mean and variance after normalisation, LN and ATN in an LSTM on adding",
    measure_postnorm,
    draw_postnorm,
    {"T": 75, "windows": [5, 25, 55]},
    {"T": 14, "windows": [2, 4]},
)
