"""What goes on inside the network of a run: the diagnostics that are possible for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cayley.diagnostics import (
    DIAGNOSTICS,
    Moments,
    Spectrum,
    eigenvalue_normalisation,
    gradient_norms,
    hidden_statistics,
    jacobian_heatmap,
    nonfinite_counts,
    orthogonality_errors,
    scaling_angles,
    spectra,
)
from cayley.diagnostics.runs import recurrent_layers
from cayley.lab.errors import RecipeError
from cayley.lab.studies.study import make_panels
from cayley.lab.tasks import Batch
from cayley.lab.training import RestoredRun
from cayley.parametrizations.eigenvalue.dominant import Event

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MEASURES", "Diagnosis", "Probe", "diagnose"]

# limited, since a Jacobian has a row for each step and unit
HEAT_STEPS = 30


class Probe:
    """The network of a run, and a batch of its training data to run it on.

    Arguments:
        run: With its weights.
    """

    def __init__(self, run: RestoredRun) -> None:
        machine = run.settings.machine
        device = machine.engine().device
        self.task = run.task
        self.model: nn.Module = run.model.to(device).train()
        self.batch: Batch = next(
            run.task.batches(
                "train",
                run.recipe.training.batch,
                seed=run.description.seed,
                device=device,
                dtype=machine.dtype,
            )
        )

    def loss(self) -> Tensor:
        """The loss of the batch."""
        output, _ = self.model(self.batch.input, None)
        return self.task.loss(output, self.batch)


@dataclass(frozen=True)
class Diagnosis:
    """The result of one diagnostic.

    Attributes:
        name: The name of the diagnostic.
        numbers: Its main numbers, by name.
        draw: Its picture.
        refusal: Why it is not possible for the network, and for which layers it is; else empty.
    """

    name: str
    numbers: Mapping[str, float]
    draw: Callable[[], "Figure"] | None = None
    refusal: str = ""


Found = tuple[dict[str, float], Callable[[], "Figure"]]


def diagnose(probe: Probe, names: Sequence[str] = ()) -> list[Diagnosis]:
    """Run diagnostics on a network.

    Arguments:
        probe: The network and a batch.
        names: Keys of :data:`MEASURES`, which must be possible; none for all that are.
    """
    unknown = [name for name in names if name not in MEASURES]
    if unknown:
        raise RecipeError(
            f"expected a diagnostic of {', '.join(MEASURES)}, got {unknown[0]!r}: change --only"
        )
    found = []
    for name in names or MEASURES:
        check = DIAGNOSTICS[name].check if name in DIAGNOSTICS else recurrent_layers
        try:
            check(probe.model)
        except TypeError as error:
            if names:
                raise RecipeError(f"{name}: {error}") from error
            found.append(Diagnosis(name, {}, refusal=str(error)))
            continue
        numbers, draw = MEASURES[name](probe)
        found.append(Diagnosis(name, numbers, draw))
    return found


def _orthogonality(probe: Probe) -> Found:
    errors = orthogonality_errors(probe.model)
    numbers = {f"{name} ‖W*W − I‖": float(error) for name, error in errors.items()}
    return numbers, lambda: _draw("plot_orthogonality", errors)


def _spectrum(probe: Probe) -> Found:
    found = spectra(probe.model)
    numbers = {}
    for name, one in found.items():
        numbers[f"{name} ρ(W)"] = float(one.radius)
        numbers[f"{name} greatest σ"] = float(one.singular_values[0])
        numbers[f"{name} least σ"] = float(one.singular_values[-1])
    return numbers, lambda: _draw_spectra(found)


def _draw_spectra(found: Mapping[str, Spectrum]) -> "Figure":
    """A panel of eigenvalues for each matrix, and one of all singular values."""
    from cayley.diagnostics import plots

    figure, axes = make_panels(len(found) + 1)
    for one, (name, spectrum) in zip(axes, found.items(), strict=False):
        plots.plot_spectrum(spectrum, one)
        one.set_title(name)
    plots.plot_singular_values(found, axes[-1])
    return figure


def _angles(probe: Probe) -> Found:
    found = scaling_angles(probe.model)
    # for a real D the angles are 0 and π
    numbers = {
        f"{name} share of D with Re < 0": float((angles.cos() < 0).double().mean())
        for name, angles in found.items()
    }
    return numbers, lambda: _draw_each("plot_angles", found, "polar")


def _normalisation(probe: Probe) -> Found:
    found = eigenvalue_normalisation(probe.model)
    numbers = {}
    for name, one in found.items():
        numbers[f"{name} ρ(T)"] = float(one.radius)
        numbers[f"{name} normalised"] = float(one.latched)
        for event, count in zip(Event, one.events.tolist(), strict=True):
            if count:
                numbers[f"{name} {event.name.lower()}"] = float(count)
    return numbers, lambda: _draw_each("plot_normalisation", found)


def _gradient_norms(probe: Probe) -> Found:
    found = gradient_norms(probe.model, probe.loss)
    numbers = {}
    for name, norms in found.items():
        mean = norms.nanmean(1)
        numbers[f"{name} ‖∂L/∂h_0‖"] = float(mean[0])
        numbers[f"{name} ‖∂L/∂h_T‖"] = float(mean[-1])
        if mean[-1]:
            numbers[f"{name} first to last"] = float(mean[0] / mean[-1])
    return numbers, lambda: _draw("plot_gradient_norms", found)


def _states(probe: Probe) -> Found:
    found = hidden_statistics(probe.model, probe.loss)
    numbers = {}
    for name, one in found.items():
        numbers[f"{name} mean"] = float(one.mean.nanmean())
        numbers[f"{name} deviation"] = float(one.variance.nanmean().sqrt())
        numbers[f"{name} norm"] = float(one.norm.nanmean())
    return numbers, lambda: _draw_states(found)


def _draw_states(found: Mapping[str, Moments]) -> "Figure":
    from cayley.diagnostics import plots

    figure, (left, right) = make_panels(2)
    plots.plot_moments(found, left)
    plots.plot_norms(found, right)
    # inside, the names of all sites of a normalised LSTM hide the lines
    for axes in (left, right):
        if (legend := axes.get_legend()) is not None:
            legend.remove()
    figure.set_size_inches(11, 3.6)
    figure.legend(*right.get_legend_handles_labels(), loc="outside right upper")
    return figure


def _heatmap(probe: Probe) -> Found:
    """The heat map of the first recurrent layer, for the first steps of one example."""
    name, layer = next(iter(recurrent_layers(probe.model).items()))
    inputs: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda layer, args: inputs.append(args[0]))
    with handle, torch.no_grad():
        probe.loss()
    heat = jacobian_heatmap(layer, inputs[0][:HEAT_STEPS, :1].detach())
    later = heat.diagonal(-(len(heat) // 2))
    numbers = {
        f"{name} ‖∂h_τ/∂x_τ‖": float(heat.diagonal().mean()),
        f"{name} {len(heat) // 2} steps later": float(later.mean()),
    }
    return numbers, lambda: _draw("plot_heatmap", heat)


def _nonfinite(probe: Probe) -> Found:
    probe.model.zero_grad()
    probe.loss().backward()
    counts = nonfinite_counts(probe.model)
    numbers = {f"{name} not finite": float(count) for name, count in counts.items() if count}
    numbers["values that are not finite"] = float(sum(map(int, counts.values())))
    return numbers, lambda: _draw("plot_nonfinite", counts)


MEASURES: dict[str, Callable[[Probe], Found]] = {
    "orthogonality": _orthogonality,
    "spectrum": _spectrum,
    "angles": _angles,
    "normalisation": _normalisation,
    "gradient_norms": _gradient_norms,
    "states": _states,
    "heatmap": _heatmap,
    "nonfinite": _nonfinite,
}


def _draw(plot: str, found: Any) -> "Figure":
    from cayley.diagnostics import plots

    figure, (axes,) = make_panels()
    getattr(plots, plot)(found, axes)
    return figure


def _draw_each(plot: str, found: Mapping[str, Any], projection: str | None = None) -> "Figure":
    from cayley.diagnostics import plots

    figure, axes = make_panels(len(found), projection)
    for one, (name, value) in zip(axes, found.items(), strict=True):
        getattr(plots, plot)(value, one)
        one.set_title(f"{name} {one.get_title()}".strip())
    return figure
