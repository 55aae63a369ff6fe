"""The study of D: the best of several fixed ones, against one that is chosen again."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cayley.lab.studies.study import Measured, Number, Settings, Study, make_panels
from cayley.lab.studies.training import Subject
from cayley.lab.tasks import Metric
from cayley.lab.training import RunSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["REBASE"]


class _Scores(NamedTuple):
    """Scores of one recipe on one part of its data: one for each ρ, and one for ``rebase``."""

    fixed: list[float]
    rebased: float


def measure_rebase(settings: Settings, seed: int, run: RunSettings) -> Measured:
    """Scores with ρ = share · n entries of −1 in D, and with a D that is chosen again.

    All have the same number of steps. The validation set selects the best of the fixed ones, whose
    score there is the greatest of eleven; on the test set neither has this advantage.
    """
    if settings["made_up"]:
        run = replace(run, tiny=True)
    numbers: dict[str, Number] = {}
    picture: dict[str, tuple[str, _Scores]] = {}
    for recipe in settings["recipes"]:
        metric, valid, test = _measure(recipe, settings, seed, run)
        sign = 1.0 if metric.better == "higher" else -1.0
        places = range(len(valid.fixed))
        best = max(places, key=lambda k: sign * valid.fixed[k])
        worst = min(places, key=lambda k: sign * valid.fixed[k])
        name = recipe.rpartition("/")[2].replace("-", "_")
        numbers |= {
            f"{name}_fixed": valid.fixed,
            f"{name}_rebased": valid.rebased,
            f"{name}_best": valid.fixed[best],
            f"{name}_best_share": settings["shares"][best],
            # positive if rebasing is better
            f"{name}_lead": sign * (valid.rebased - valid.fixed[best]),
            f"{name}_lead_over_worst": sign * (valid.rebased - valid.fixed[worst]),
            f"{name}_test_fixed": test.fixed,
            f"{name}_test_rebased": test.rebased,
            f"{name}_test_lead": sign * (test.rebased - test.fixed[best]),
        }
        picture[recipe] = metric.name, test
    return Measured(numbers, picture)


def _measure(
    recipe: str, settings: Settings, seed: int, run: RunSettings
) -> tuple[Metric, _Scores, _Scores]:
    n = settings["n"]
    rows = [(share, "") for share in settings["shares"]]
    valid, test = [], []
    # a D that is chosen again starts as I, as in layers with the option
    for share, rebase in (*rows, (0.0, "auto")):
        changes = [f"model.hidden={n}", f"model.negative_ones={round(share * n)}"]
        subject = Subject(recipe, [*changes, f'optim.rebase="{rebase}"'], seed, run)
        subject.train(settings["steps"])
        valid.append(subject.score("valid"))
        test.append(subject.score("test"))
    metric = subject.task.metrics[0]
    return metric, _Scores(valid[:-1], valid[-1]), _Scores(test[:-1], test[-1])


def draw_rebase(picture: Any, settings: Settings) -> "Figure":
    """A panel for each recipe: scores over ρ/n, and a line for the D that is chosen again."""
    figure, axes = make_panels(len(picture))
    for one, (recipe, (metric, found)) in zip(axes, picture.items(), strict=True):
        one.plot(settings["shares"], found.fixed, "o-", label="D stays")
        one.axhline(found.rebased, color="C1", label='rebase="auto"')
        one.set(xlabel="ρ / n", ylabel=f"test {metric}", title=recipe)
        one.legend()
    return figure


REBASE = Study(
    "rebase",
    "the best of 11 fixed numbers of −1 in D, against a D that is chosen again",
    measure_rebase,
    draw_rebase,
    {
        "recipes": ["scornn/mnist-170", "scornn/pmnist-170"],
        "n": 170,
        "shares": [k / 10 for k in range(11)],
        # five epochs
        "steps": 5500,
        "made_up": False,
    },
    {"recipes": ["scornn/mnist-170"], "n": 6, "shares": [0.0, 0.5], "steps": 2, "made_up": True},
)
