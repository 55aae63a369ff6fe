"""The study of batch normalisation and BNP in feed-forward networks, on a slice of CIFAR-10."""

from dataclasses import replace
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

from cayley.lab.errors import NotFinite
from cayley.lab.studies.study import Measured, Number, Settings, Study, make_panels
from cayley.lab.studies.training import Subject
from cayley.lab.tasks.metrics import crossentropy
from cayley.lab.training import RunSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["CIFAR10_SLICE"]

NETWORKS = {
    "plain_60": "mlp/cifar10-60",
    "bn_60": "mlp/cifar10-60-bn",
    "plain_6": "mlp/cifar10-6",
    "bn_6": "mlp/cifar10-6-bn",
    "bnp_60": "mlp/cifar10-60-bnp",
}
# a few hundred test images tell one epoch from the next by chance only
SPAN = 5


class _Curves(NamedTuple):
    """The training loss and the test accuracy of a network after each epoch."""

    losses: list[float]
    accuracies: list[float]

    @property
    def smooth(self) -> list[float]:
        """Each accuracy averaged with those of the epochs before it."""
        return [
            mean(self.accuracies[max(0, end - SPAN) : end])
            for end in range(1, len(self.accuracies) + 1)
        ]

    @property
    def numbers(self) -> dict[str, float]:
        """The last loss; the best accuracy, its epoch, the first fifth's, the last, their fall."""
        smooth = self.smooth
        best = max(smooth)
        return {
            "loss": self.losses[-1],
            "best": best,
            "best_epoch": 1.0 + smooth.index(best),
            "early": mean(self.accuracies[: max(1, len(smooth) // 5)]),
            "end": smooth[-1],
            "fall": best - smooth[-1],
        }


def measure_slice(settings: Settings, seed: int, run: RunSettings) -> Measured:
    """Curves of five networks, each at the rate with which its test accuracy is best.

    That is how the paper tunes them: on the test set, with the same rates for all.
    """
    if settings["made_up"]:
        run = replace(run, tiny=True)
    numbers: dict[str, Number] = {}
    picture: dict[str, _Curves] = {}
    found: dict[str, dict[str, float]] = {}
    for name, recipe in NETWORKS.items():
        grid = {rate: _train(recipe, rate, settings, seed, run) for rate in settings["rates"]}
        # 0 for those that diverge
        bests = {rate: max(curves.smooth, default=0.0) for rate, curves in grid.items()}
        finite = [rate for rate, curves in grid.items() if curves.losses]
        if not finite:
            raise NotFinite(f"expected a rate at which {recipe} is finite, got {settings['rates']}")
        rate = max(finite, key=lambda rate, bests=bests: bests[rate])
        found[name] = {"rate": rate, **grid[rate].numbers}
        numbers |= {f"{name}_{key}": value for key, value in found[name].items()}
        numbers[f"{name}_best_by_rate"] = [*bests.values()]
        picture[f"{name.replace('_', ', ')}, rate {rate:g}"] = grid[rate]
    return Measured(numbers | _compare(found), picture)


def _train(recipe: str, rate: float, settings: Settings, seed: int, run: RunSettings) -> _Curves:
    """The curves of a recipe at a rate; empty if it diverges."""
    changes = [
        f"optim.lr={rate}",
        f"task.train={settings['train']}",
        f"task.test={settings['test']}",
    ]
    if recipe.endswith("-bn"):
        changes.append(f'model.inference="{settings["inference"]}"')
    subject = Subject(recipe, changes, seed, run)
    steps = subject.task.steps("train", subject.recipe.training.batch)
    curves = _Curves([], [])
    try:
        for _ in range(settings["epochs"]):
            subject.train(steps)
            curves.losses.append(subject.score("train", crossentropy))
            curves.accuracies.append(subject.score("test"))
    except NotFinite:
        return _Curves([], [])
    return curves


def _compare(found: dict[str, dict[str, float]]) -> dict[str, float]:
    """What the claims are about; leads are positive where the first named is higher."""
    plain, bn, plain_6, bn_6, bnp = found.values()
    others = (plain, plain_6, bn_6)
    return {
        "bn_60_loss_share": bn["loss"] / min(one["loss"] for one in others),
        "bn_60_epochs_before": min(one["best_epoch"] for one in others) - bn["best_epoch"],
        "bn_6_loss_ratio": bn_6["loss"] / plain_6["loss"],
        "bn_6_early_lead": bn_6["early"] - plain_6["early"],
        "bn_6_end_lead": bn_6["end"] - plain_6["end"],
        "bn_60_rate_ratio": bn["rate"] / plain["rate"],
        "bn_6_rate_ratio": bn_6["rate"] / plain_6["rate"],
        "bnp_60_loss_share": bnp["loss"] / min(bn["loss"], plain["loss"]),
        "bnp_60_early_lead_over_bn": bnp["early"] - bn["early"],
        "bnp_60_early_lead_over_plain": bnp["early"] - plain["early"],
        "bnp_60_fall_lead_over_bn": bnp["fall"] - bn["fall"],
    }


def draw_slice(picture: Any, settings: Settings) -> "Figure":
    """The training loss on the left, the test accuracy on the right."""
    figure, (left, right) = make_panels(2)
    for name, curves in picture.items():
        epochs = range(1, len(curves.losses) + 1)
        left.plot(epochs, curves.losses, label=name)
        right.plot(epochs, curves.smooth, label=name)
    left.set(xlabel="epoch", ylabel="training loss", yscale="log")
    left.set_title(f"{settings['train']} training images")
    right.set(xlabel="epoch", ylabel=f"test accuracy, mean of {SPAN} epochs")
    right.set_title(f"{settings['test']} test images")
    right.legend(fontsize="small")
    return figure


CIFAR10_SLICE = Study(
    "cifar10-slice",
    "batch normalisation and BNP on the first 1,000 images of CIFAR-10, each at its best rate",
    measure_slice,
    draw_slice,
    {
        "train": 1000,
        "test": 500,
        # the grid of helfrich2020-figure-3.1-rates
        "rates": [0.003, 0.01, 0.03, 0.1, 0.3, 1.0],
        # The document does not say how many. These take four to ten minutes of one core.
        "epochs": 30,
        # The document has running statistics with ρ = 0.99, which remember 100 steps: an eighth of
        # an epoch of 50,000 images in batches of 60, but six epochs of 1,000. Averages over the
        # epoch, its other choice (equations 3.3 and 3.4), do not lag behind the weights.
        "inference": "average",
        "made_up": False,
    },
    {"rates": [0.01, 0.1], "epochs": 2, "made_up": True},
)
