"""The quantities that published numbers are about, and their values in runs."""

from dataclasses import dataclass

from cayley.lab.report.reading import MeasuredRun

__all__ = ["AUDIO", "Quantity", "chosen_by", "find_baseline", "is_higher_better", "measure"]

SPLITS = ("train", "valid", "test")
MINUTES = "minutes_per_epoch"
AUDIO = ("segsnr_db", "stoi", "pesq")
WORDS = {
    "bpc": "BPC",
    "mse": "MSE",
    "minutes_per_epoch": "minutes an epoch",
    "pesq": "PESQ",
    "segsnr_db": "SegSNR, dB",
    "stoi": "STOI",
}


@dataclass(frozen=True)
class Quantity:
    """A metric on a split, in units of its own.

    Attributes:
        split: Empty for a time.
        metric: As runs name it.
        scale: The factor from the unit of a run to this one.

    Example:
        >>> Quantity.parse("permuted_test_accuracy_percent")
        Quantity(split='test', metric='accuracy', scale=100.0)
        >>> Quantity.parse("valid_loss").label
        'valid cross entropy'
    """

    split: str
    metric: str
    scale: float = 1.0

    @classmethod
    def parse(cls, name: str) -> "Quantity":
        """The quantity of a published metric: the split is ``test`` unless it is named."""
        name = name.removeprefix("permuted_")
        if name == MINUTES:
            return cls("", name)
        scale = 100.0 if name.endswith("_percent") else 1.0
        name = name.removesuffix("_percent")
        first, _, rest = name.partition("_")
        split, metric = (first, rest) if first in SPLITS else ("test", name)
        return cls(split, "cross_entropy" if metric == "loss" else metric, scale)

    @property
    def label(self) -> str:
        """In words."""
        words = WORDS.get(self.metric, self.metric.replace("_", " "))
        return f"{self.split} {words}".strip() + (", %" if self.scale == 100.0 else "")


def measure(run: MeasuredRun, quantity: Quantity) -> float | None:
    """The value of a finished run; None if it has none."""
    result = run.result
    if result is None:
        return None
    if quantity.metric == MINUTES:
        seconds = result.seconds_per_epoch
        return None if seconds is None or not run.description.timed_alone else seconds / 60
    if quantity.metric in AUDIO:
        scores = result.audio or {}
    else:
        chosen = result.selected.get(quantity.split)
        scores = {} if chosen is None else chosen.scores
    value = scores.get(quantity.metric)
    return None if value is None else value * quantity.scale


def find_baseline(run: MeasuredRun, quantity: Quantity) -> float | None:
    """The score of the naive predictor; None if it is not known."""
    value = run.description.baseline.get(quantity.split, {}).get(quantity.metric)
    return None if value is None else value * quantity.scale


def chosen_by(run: MeasuredRun, quantity: Quantity) -> str:
    """The split that selected the evaluation, ``"last"``, or empty if there was no choice."""
    if run.result is None or quantity.metric == MINUTES:
        return ""
    chosen = run.result.selected.get(quantity.split)
    return "" if chosen is None else chosen.chosen_by


def is_higher_better(run: MeasuredRun, quantity: Quantity) -> bool:
    """Whether higher is better: runs say so for their metrics; for sound it is, for time not."""
    better = {metric.name: metric.better for metric in run.description.metrics}
    return (
        better.get(quantity.metric, "higher" if quantity.metric in AUDIO else "lower") == "higher"
    )
