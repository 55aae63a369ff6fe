"""Studies of recurrent matrices: orthogonality, eigenvalues, series and costs."""

from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

import cayley
from cayley.diagnostics import (
    Record,
    eigenvalue_normalisation,
    formation_seconds,
    neumann_errors,
    orthogonality_errors,
)
from cayley.diagnostics.costs import median_seconds
from cayley.lab.recipes import ModelSettings
from cayley.lab.studies.study import Measured, Number, Settings, Study, make_panels
from cayley.lab.studies.training import Subject
from cayley.lab.training import RunSettings
from cayley.parametrizations import Skew, StructuredMatrix
from cayley.parametrizations.eigenvalue.dominant import Event

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COST_ORDER", "MULTIPLE_EIGENVALUES", "NEUMANN_ORDER", "UNITARITY"]


def measure_neumann(settings: Settings, seed: int, run: RunSettings) -> Measured:
    """Series of order 1, 2 and 3 along the path of A in training NC-GRU, and the losses with them.

    The paper only describes them in words; the path and the losses here are those of the denoise
    problem with the sizes and the period of the published code.
    """
    n, steps = settings["n"], settings["steps"]
    losses, paths = {}, {}
    for order in (1, 2):
        # within a period the inverse is only updated by the series
        options = {"order": order, "tolerance": 1e6, "refresh_every": settings["period"]}
        model = ModelSettings("NCGRU", n, output_init="torch", options=options)
        changes = [f"task.T={settings['T']}", f"training.batch={settings['batch']}"]
        changes += [f"optim.lr={settings['lr']}"]
        subject = Subject("lstm/denoise-100", changes, seed, run, model)
        points, values = [_candidate(subject)], []
        for _ in range(steps):
            values += subject.train(1)
            # the beginning, where steps are largest
            if len(points) <= settings["path"]:
                points.append(_candidate(subject))
        losses[order], paths[order] = fmean(values[-settings["last"] :]), torch.stack(points)
    path = paths[2]
    study = neumann_errors(path, repeat=settings["repeat"])
    # a whole step and half a step: the error of the latter is smaller by 2^(order + 1)
    whole = neumann_errors(path[:2], (1, 2), repeat=1).errors[:, -1]
    half = neumann_errors(torch.stack((path[0], path[:2].mean(0))), (1, 2), repeat=1)
    orders = (whole / half.errors[:, -1]).log2()
    return Measured(
        {
            "error_order_first": float(orders[0]),
            "error_order_second": float(orders[1]),
            "end_error_first": float(study.errors[0, -1]),
            "end_error_second": float(study.errors[1, -1]),
            "greatest_contraction": float(study.contractions.max()),
            "time_ratio": float(study.seconds[1] / study.seconds[0]),
            "loss_first": losses[1],
            "loss_second": losses[2],
            "loss_gain": losses[1] - losses[2],
        },
        study,
    )


def _candidate(subject: Subject) -> Tensor:
    """A of the candidate's matrix, in double precision."""
    layer = cast(cayley.NCGRU, subject.model.get_submodule("layers.0"))
    (matrix,) = cast("list[StructuredMatrix]", [*layer.matrices()])
    free = dict(zip(matrix.map.names, matrix.free, strict=True))["candidate_A"]
    return Skew(layer.hidden_size)(free.detach().double().cpu())


def draw_neumann(picture: Any, settings: Settings) -> "Figure":
    """The errors of the three orders."""
    from cayley.diagnostics.plots import plot_neumann

    figure, (axes,) = make_panels()
    plot_neumann(picture, axes=axes)
    return figure


def measure_costs(settings: Settings, seed: int, run: RunSettings) -> Measured:
    """Times to form W and its gradient, and times of a plain RNN's recurrence and its gradient."""
    torch.manual_seed(seed)
    sizes, T, repeat = settings["sizes"], settings["T"], settings["repeat"]
    forming = formation_seconds(["cayley"], sizes, repeat=repeat)[0]
    recurring = torch.tensor([_recurrence(n, T, n // T, repeat) for n in sizes])
    again = torch.tensor([_recurrence(n, T, settings["batch"], repeat) for n in sizes])
    ratios = forming / recurring
    A = cayley.ScoRNN(1, sizes[0]).get_parameter("structured.weight_hh_l0.A")
    return Measured(
        {
            "forming_exponent": _exponent(sizes, forming),
            "recurrence_exponent": _exponent(sizes, again),
            "ratio_least": float(ratios[-3:].min()),
            "ratio_greatest": float(ratios[-3:].max()),
            "surplus_storage": float(A.numel() - sizes[0] * (sizes[0] - 1) // 2),
            "forming_seconds": forming.tolist(),
            "recurrence_seconds": recurring.tolist(),
        },
        torch.stack((forming, recurring)),
    )


def _recurrence(n: int, T: int, B: int, repeat: int) -> float:
    """Seconds of a plain RNN, forwards and backwards."""
    layer, x = cayley.RNN(1, n), torch.randn(T, B, 1)

    def run() -> Tensor:
        output = layer(x)[0]
        return torch.autograd.grad(output.sum(), [*layer.parameters()])[0]

    return median_seconds(run, repeat)


def _exponent(sizes: list[int], seconds: Tensor) -> float:
    """The exponent of n in the times, by least squares over the three largest sizes."""
    x = torch.tensor(sizes[-3:], dtype=torch.float64).log()
    y = seconds[-3:].double().log()
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def draw_costs(picture: Any, settings: Settings) -> "Figure":
    """Times over n."""
    from cayley.diagnostics.plots import plot_formation_seconds

    figure, (axes,) = make_panels()
    names = ["forming W", "recurrence, B·T = n"]
    plot_formation_seconds(picture, names, settings["sizes"], axes)
    return figure


def measure_unitarity(settings: Settings, seed: int, run: RunSettings) -> Measured:
    """‖W*W − I‖_F at the end of each epoch; the paper does not print the number of epochs."""
    n, epochs = settings["n"], settings["epochs"]
    run = replace(run, tiny=settings["made_up"])
    curves: dict[str, list[float]] = {}
    for name, negative in (("scornn", [f"model.negative_ones={n // 10}"]), ("full_urnn", [])):
        recipe = f"{name.replace('_', '-')}/mnist-512"
        subject = Subject(recipe, [f"model.hidden={n}", *negative], seed, run)
        epoch = subject.task.steps("train", subject.recipe.training.batch)
        curves[name] = []
        for _ in range(epochs):
            subject.train(settings["steps"] or epoch)
            (error,) = orthogonality_errors(subject.model).values()
            curves[name].append(float(error))
    numbers: dict[str, Number] = {f"{name}_errors": values for name, values in curves.items()}
    numbers["scornn_greatest"] = max(curves["scornn"])
    numbers["full_urnn_growth"] = curves["full_urnn"][-1] / curves["full_urnn"][0]
    steps = torch.arange(1, epochs + 1)
    return Measured(
        numbers, {name: Record(steps, torch.tensor(values)) for name, values in curves.items()}
    )


def draw_unitarity(picture: Any, settings: Settings) -> "Figure":
    """A line for each network."""
    from cayley.diagnostics.plots import plot_records

    figure, (axes,) = make_panels()
    plot_records(picture, axes, log=True)
    axes.set(xlabel="epoch", ylabel="‖W*W − I‖_F")
    return figure


def measure_eigenvalues(settings: Settings, seed: int, run: RunSettings) -> Measured:
    """How often the dominant eigenvalue of T of ENRNN was (nearly) multiple, and ρ(T)."""
    changes = [f"task.T={settings['T']}", f"training.batch={settings['batch']}"]
    subject = Subject("enrnn/adding-750", changes, seed, run)
    radii = []
    for _ in range(settings["parts"]):
        subject.train(settings["steps"] // settings["parts"])
        (found,) = eigenvalue_normalisation(subject.model).values()
        radii.append(float(found.radius))
    steps = torch.arange(1, len(radii) + 1) * (settings["steps"] // settings["parts"])
    return Measured(
        {
            "multiple": float(found.events[Event.MULTIPLE]),
            "looked_at": float(found.events.sum()),
            "latched": float(found.latched),
            "radii": radii,
        },
        {"ρ(T)": Record(steps, torch.tensor(radii))},
    )


def draw_eigenvalues(picture: Any, settings: Settings) -> "Figure":
    """The spectral radius over the steps."""
    from cayley.diagnostics.plots import plot_records

    figure, (axes,) = make_panels()
    plot_records(picture, axes)
    return figure


NEUMANN_ORDER = Study(
    "neumann-order",
    "the Neumann series of NC-GRU by its order, in error, time and loss",
    measure_neumann,
    draw_neumann,
    {
        "n": 118,
        "T": 100,
        "batch": 32,
        "lr": 1e-3,
        "steps": 200,
        "last": 50,
        "path": 49,
        "period": 49,
        "repeat": 50,
    },
    {"n": 6, "T": 12, "batch": 2, "steps": 3, "last": 2, "path": 2, "period": 2, "repeat": 1},
)
COST_ORDER = Study(
    "cost-order",
    "time for forming W over n, and of the recurrence with B·T = n",
    measure_costs,
    draw_costs,
    {"sizes": [128, 256, 512, 1024], "T": 32, "batch": 16, "repeat": 9},
    {"sizes": [8, 16, 24], "T": 4, "batch": 2, "repeat": 1},
)
UNITARITY = Study(
    "unitarity",
    "distance of W from the unitary matrices over the epochs, row-order MNIST",
    measure_unitarity,
    draw_unitarity,
    # steps: of an epoch, 0 for all
    {"n": 512, "epochs": 20, "steps": 0, "made_up": False},
    {"n": 6, "epochs": 2, "steps": 1, "made_up": True},
)
MULTIPLE_EIGENVALUES = Study(
    "multiple-eigenvalues",
    "how often the dominant eigenvalue of T of ENRNN was a multiple one",
    measure_eigenvalues,
    draw_eigenvalues,
    # six epochs, as in Figure 2.12
    {"T": 750, "batch": 50, "steps": 12000, "parts": 40},
    {"T": 8, "batch": 2, "steps": 4, "parts": 2},
)
