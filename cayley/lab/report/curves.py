"""Curves of runs with different seeds, at the steps that they have in common."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from cayley.lab.report.quantities import Quantity, find_baseline, is_higher_better
from cayley.lab.report.reading import MeasuredRun
from cayley.lab.report.rows import Row, label_rows
from cayley.lab.wording import natural_key

__all__ = ["SeedCurves", "gather_curves", "read_curves", "shorten"]

# points of the curves that a reader of the page can choose from
POINTS = 100
SPLITS = ("test", "valid", "train")


@dataclass(frozen=True)
class SeedCurves:
    """A quantity of runs over time.

    Attributes:
        seeds: The seeds of the runs.
        finished: Whether the runs are finished; unfinished runs have what is there so far.
        step, epoch: The positions of the values.
        time: The same in minutes, averaged over runs that did not share them; None if all did.
        values: A curve for each seed.
    """

    seeds: tuple[int, ...]
    finished: bool
    step: tuple[int, ...]
    epoch: tuple[float, ...]
    time: tuple[float | None, ...]
    values: tuple[tuple[float, ...], ...]

    @property
    def words(self) -> str:
        """The seeds."""
        return ", ".join(map(str, self.seeds)) + ("" if self.finished else ", not finished")


def read_curves(runs: Sequence[MeasuredRun], quantity: Quantity, points: int) -> SeedCurves | None:
    """The curves of the finished runs, else of all runs; None if there are no values.

    Arguments:
        runs: The runs of a row.
        quantity: What to read.
        points: The largest number of points.
    """
    finished = [run for run in runs if run.result is not None]
    seeds: dict[int, dict[int, list[tuple[float, float | None, float]]]] = {}
    for run in finished or runs:
        found = seeds.setdefault(run.description.seed, {})
        for record in run.evaluations:
            value = record["scores"].get(quantity.split, {}).get(quantity.metric)
            if value is not None:
                alone = run.description.timed_alone
                minutes = record.get("seconds", 0.0) / 60 if alone else None
                found.setdefault(record["step"], []).append((record["epoch"], minutes, value))
    steps = sorted(set.intersection(*(set(found) for found in seeds.values())))
    if not steps:
        return None
    if len(steps) > points:
        steps = [steps[k * (len(steps) - 1) // (points - 1)] for k in range(points)]
    places = [[p for found in seeds.values() for p in found[step]] for step in steps]
    return SeedCurves(
        tuple(seeds),
        bool(finished),
        step=tuple(steps),
        epoch=tuple(shorten(some[0][0]) for some in places),
        time=tuple(_mean(minutes for _, minutes, _ in some) for some in places),
        # runs with the same seed count as one: they do not show the effect of seeds
        values=tuple(
            tuple(shorten(fmean(value for *_, value in found[step])) for step in steps)
            for found in seeds.values()
        ),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are there; None if none is."""
    known = [value for value in values if value is not None]
    return shorten(fmean(known)) if known else None


def shorten(value: float) -> float:
    """A number without the digits that no chart shows, to keep the page small.

    Example:
        >>> shorten(0.123456789)
        0.123457
    """
    return float(f"{value:.6g}")


def gather_curves(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The curves that a reader of the page can compare: the deciding metric on every split.

    Returns:
        For each row and split ``row``, ``quantity``, ``higher``, ``baseline``, the seeds and their
        curves.
    """
    found = []
    rows = sorted(rows, key=lambda row: natural_key(row.label))
    for label, row in zip(label_rows(rows), rows, strict=True):
        first = row.runs[0]
        splits = {split for run in row.runs for one in run.evaluations for split in one["scores"]}
        for split in (one for one in SPLITS if one in splits):
            quantity = Quantity(split, first.description.metric.name)
            curves = read_curves(row.runs, quantity, POINTS)
            if curves is not None:
                found.append(
                    {
                        "row": label,
                        "quantity": quantity.label,
                        "higher": is_higher_better(first, quantity),
                        "baseline": find_baseline(first, quantity),
                        "seeds": curves.seeds,
                        "step": curves.step,
                        "epoch": curves.epoch,
                        "time": curves.time,
                        "values": curves.values,
                    }
                )
    return found
