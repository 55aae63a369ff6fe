"""The study of D: the best of several fixed ones, against one that is chosen again."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cayley.lab.studies.study import Measured, Number, Settings, Study, make_panels
from cayley.lab.studies.training import Subject
from cayley.lab.training import RunSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["REBASE"]


class _Scores(NamedTuple):
    """Scores of one recipe: one for each share of −1 in D, and one for a D chosen again."""

    metric: str
    higher: bool
    fixed: list[float]
    rebased: float


def measure_rebase(settings: Settings, seed: int, run: RunSettings) -> Measured:
    """Scores on the validation set with ρ = share · n entries of −1 in D, and with ``rebase``.

    All have the same number of steps. One D that is chosen again is compared with the best of all
    fixed ones, which the validation set selects: an advantage for the fixed ones.
    """
    if settings["made_up"]:
        run = replace(run, tiny=True)
    numbers: dict[str, Number] = {}
    picture: dict[str, _Scores] = {}
    for recipe in settings["recipes"]:
        found = _measure(recipe, settings, seed, run)
        sign = 1.0 if found.higher else -1.0
        best = max(found.fixed, key=lambda score, sign=sign: sign * score)
        worst = min(found.fixed, key=lambda score, sign=sign: sign * score)
        name = recipe.rpartition("/")[2].replace("-", "_")
        numbers |= {
            f"{name}_fixed": found.fixed,
            f"{name}_rebased": found.rebased,
            f"{name}_best": best,
            f"{name}_best_share": settings["shares"][found.fixed.index(best)],
            # positive if rebasing is better
            f"{name}_lead": sign * (found.rebased - best),
            f"{name}_lead_over_worst": sign * (found.rebased - worst),
        }
        picture[recipe] = found
    return Measured(numbers, picture)


def _measure(recipe: str, settings: Settings, seed: int, run: RunSettings) -> _Scores:
    n = settings["n"]
    rows = [(share, "") for share in settings["shares"]]
    scores = []
    # the initial share matters for the initial W only
    for share, rebase in (*rows, (0.5, "auto")):
        changes = [f"model.hidden={n}", f"model.negative_ones={round(share * n)}"]
        subject = Subject(recipe, [*changes, f'optim.rebase="{rebase}"'], seed, run)
        subject.train(settings["steps"])
        scores.append(subject.score("valid"))
    metric = subject.task.metrics[0]
    *fixed, rebased = scores
    return _Scores(metric.name, metric.better == "higher", fixed, rebased)


def draw_rebase(picture: Any, settings: Settings) -> "Figure":
    """A panel for each recipe: scores over ρ/n, and a line for the D that is chosen again."""
    figure, axes = make_panels(len(picture))
    for one, (recipe, found) in zip(axes, picture.items(), strict=True):
        one.plot(settings["shares"], found.fixed, "o-", label="D stays")
        one.axhline(found.rebased, color="C1", label='rebase="auto"')
        one.set(xlabel="ρ / n", ylabel=f"valid {found.metric}", title=recipe)
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
