"""Sweeps: their trials from the run folders, what is best, and which settings matter."""

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from cayley.lab.report.quantities import Quantity, measure
from cayley.lab.report.reading import MeasuredRun, Problem
from cayley.lab.report.tables import Table
from cayley.lab.runs import SearchedKey, SweepRecord, find_optimism, find_sweeps, read_sweep
from cayley.lab.wording import counted, number

__all__ = [
    "SweepResult",
    "Trial",
    "explain_absence",
    "find_importances",
    "leave_out",
    "read_sweeps",
    "sweep_table",
]

# of a table; CSV has all of them
BEST = 10
# fewer trials say nothing about which settings matter
FEWEST = 8


@dataclass(frozen=True)
class Trial:
    """A trial of a sweep.

    Attributes:
        number: From 0.
        state: ``"unfinished"`` may still be running.
        value: The value of the finished run; None for others.
        params: Its settings.
        folder: The folder of its run.
        select: Which evaluation gives its value, from its recipe.
    """

    number: int
    state: Literal["complete", "pruned", "diverged", "unfinished"]
    value: float | None
    params: Mapping[str, Any]
    folder: Path
    select: str = "valid"


@dataclass(frozen=True)
class SweepResult:
    """A sweep with its trials, in their order."""

    record: SweepRecord
    trials: tuple[Trial, ...]

    @property
    def name(self) -> str:
        """For files, and for places on the page."""
        return f"sweep-{self.record.study}"

    @property
    def title(self) -> str:
        """What is searched."""
        return self.record.title or f"Sweep {self.record.study} of {self.record.recipe}"

    @property
    def label(self) -> str:
        """Of the values."""
        return _quantity(self.record).label

    @property
    def complete(self) -> list[Trial]:
        """Those that have a value, the best first."""
        sign = 1 if self.record.direction == "minimize" else -1
        done = [one for one in self.trials if one.value is not None]
        return sorted(done, key=lambda one: (sign * _value(one), one.number))

    @property
    def sentence(self) -> str:
        """How many trials there are, the best, and whether the test set chose it."""
        states = Counter(one.state for one in self.trials)
        words = ", ".join(f"{count} {state}" for state, count in states.items())
        text = f"{counted(len(self.trials), 'trial')} of {self.record.recipe}: {words}."
        if self.complete:
            best = self.complete[0]
            settings = ", ".join(f"{key} = {_words(best.params[key])}" for key in best.params)
            text += f" The best {self.label} is {number(_value(best))}, of trial {best.number}: "
            text += f"{settings}."
            if optimism := find_optimism(self.record.metric, best.select):
                text += f" {optimism[0].upper()}{optimism[1:]}."
        return text


def read_sweeps(folders: Iterable[Path], runs: Sequence[MeasuredRun]) -> list[SweepResult]:
    """The sweeps below some folders that have trials.

    Arguments:
        folders: Where to look.
        runs: All runs there.
    """
    groups: dict[tuple[Path, str], list[MeasuredRun]] = {}
    for run in runs:
        if run.description.trial is not None:
            key = (run.folder.resolve().parent, run.description.trial.study)
            groups.setdefault(key, []).append(run)
    found = []
    for folder in find_sweeps(folders):
        record = read_sweep(folder)
        own = groups.get((folder.resolve(), record.study), [])
        trials = sorted((_trial(run, record) for run in own), key=lambda one: one.number)
        if trials:
            found.append(SweepResult(record, tuple(trials)))
    return found


def _trial(run: MeasuredRun, record: SweepRecord) -> Trial:
    info = run.description.trial
    assert info is not None
    value = measure(run, _quantity(record))
    state = "complete"
    if value is None:
        state = "diverged" if run.diverged else "unfinished"
        if any("pruned: " in fault for fault in run.faults):
            state = "pruned"
    select = run.recipe.evaluation.select
    return Trial(info.number, state, value, info.params, run.folder, select)


def _quantity(record: SweepRecord) -> Quantity:
    # not parsed: what is shorthand in published names may be a metric of the user's own
    split, _, metric = record.metric.partition("_")
    return Quantity(split, metric)


def leave_out(
    sweeps: Iterable[SweepResult], runs: Iterable[MeasuredRun], problems: Iterable[Problem]
) -> tuple[list[MeasuredRun], list[Problem]]:
    """The runs that are no trials, and what is wrong with them: tables would have a row a trial."""
    own = {trial.folder for sweep in sweeps for trial in sweep.trials}
    rest = [run for run in runs if run.folder not in own]
    # sweeps say how many of their trials are not finished
    left = [
        one
        for one in problems
        if one.folder not in own or not one.reason.startswith("not finished")
    ]
    return rest, left


def explain_absence(sweep: SweepResult) -> str:
    """Why a sweep has no importances; empty if it has them."""
    if len(sweep.complete) < FEWEST:
        return f"Importances need {FEWEST} finished trials."
    if find_spec("optuna") is None:
        return "Importances need Optuna: pip install 'cayley[sweep]'."
    return ""


def find_importances(sweep: SweepResult) -> dict[str, float]:
    """The share of each setting in what makes trials good, by Optuna's PED-ANOVA, largest first.

    There must be no reason for their absence, see :func:`explain_absence`.

    References:
        *PED-ANOVA: efficiently quantifying hyperparameter importance in arbitrary subspaces*,
        Watanabe, Bansal, Hutter 2023.
    """
    import optuna

    trials = sweep.complete

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kinds = {one.key: _distribution(one) for one in sweep.record.keys}
    study = optuna.create_study(direction=sweep.record.direction)
    study.add_trials(
        [
            optuna.create_trial(
                value=_value(one),
                params={key: _plain(value) for key, value in one.params.items()},
                distributions={key: kinds[key] for key in one.params},
            )
            for one in trials
        ]
    )
    try:
        with warnings.catch_warnings():
            # a setting that all of the best trials share, or a study with few of them
            warnings.simplefilter("ignore")
            # the best tenth of few trials is one or two of them, which is chance
            quantile = max(0.1, min(0.5, 5 / len(trials)))
            evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=quantile)
            found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    finally:
        optuna.logging.set_verbosity(verbosity)
    return dict(found)


def sweep_table(sweep: SweepResult) -> Table:
    """The best trials in words; the records are all of them."""
    keys = [one.key for one in sweep.record.keys]
    rows = tuple(
        (
            str(one.number),
            number(_value(one)),
            *(_words(one.params[key]) if key in one.params else "–" for key in keys),
        )
        for one in sweep.complete[:BEST]
    )
    records = tuple(
        {"trial": one.number, "state": one.state, sweep.record.metric: one.value}
        | {key: one.params.get(key) for key in keys}
        for one in sweep.trials
    )
    heads = ("trial", sweep.label, *keys)
    return Table(sweep.name, sweep.title, heads, rows, records, frozenset({0, 1}))


def _distribution(one: SearchedKey) -> Any:
    from optuna import distributions

    if one.low is None or one.high is None:
        return distributions.CategoricalDistribution([_plain(value) for value in one.values])
    whole = (one.low, one.high, 1 if one.step is None else one.step)
    if all(isinstance(end, int) for end in whole):
        low, high, step = map(int, whole)
        return distributions.IntDistribution(low, high, log=one.log, step=step)
    return distributions.FloatDistribution(one.low, one.high, log=one.log, step=one.step)


def _plain(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)


def _value(one: Trial) -> float:
    assert one.value is not None
    return one.value


def _words(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(_plain(value))
