"""Runs for judges, made up from their curves."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.descriptions import make_description

from cayley.lab.recipes import find_recipe
from cayley.lab.report import MeasuredRun
from cayley.lab.runs import MachineFacts, RunResult, SeedRecord, StudyRecord
from cayley.lab.runs.result import SelectedScores
from cayley.lab.verdicts import Evidence

BETTER = {"accuracy": "higher", "rocauc": "higher", "cross_entropy": "lower", "mse": "lower"}


def make_run(
    recipe: str,
    seed: int,
    values: Sequence[float],
    *,
    metric: str = "mse",
    split: str = "test",
    baseline: float = 1.0,
    minutes: float | None = None,
) -> MeasuredRun:
    """A finished run with one evaluation an epoch; the last gives its number."""
    evaluations = tuple(
        {"kind": "eval", "step": 10 * k, "epoch": float(k), "scores": {split: {metric: value}}}
        for k, value in enumerate(values, 1)
    )
    chosen = SelectedScores(10 * len(values), float(len(values)), {metric: values[-1]}, "last")
    return MeasuredRun(
        Path(recipe) / f"seed{seed}",
        find_recipe(recipe).recipe(),
        make_description(
            recipe=recipe,
            variant="paper",
            seed=seed,
            metric={"name": metric, "better": BETTER[metric]},
            metrics=[{"name": metric, "better": BETTER[metric]}],
            baseline={split: {metric: baseline}},
        ),
        evaluations,
        10 * len(values),
        RunResult(
            status="done",
            step=10 * len(values),
            epoch=float(len(values)),
            seconds=1.0,
            seconds_per_epoch=None if minutes is None else 60 * minutes,
            selected={split: chosen},
        ),
    )


def make_evidence(curves: Mapping[str, Sequence[Sequence[float]]], metric: str = "mse") -> Evidence:
    """One curve a seed, by recipe."""
    return Evidence(
        make_run(recipe, seed, values, metric=metric)
        for recipe, several in curves.items()
        for seed, values in enumerate(several)
    )


def make_study(
    study: str, values: Sequence[Mapping[str, float]], *, random: bool = True, **changed: int
) -> StudyRecord:
    """The numbers of one seed after another."""
    machine = MachineFacts(accelerator="cpu", precision="32-true", threads=1)
    seeds = {
        str(seed): SeedRecord(
            numbers=dict(numbers), seconds=1.0, finished="", machine=machine, versions={}
        )
        for seed, numbers in enumerate(values)
    }
    return StudyRecord(
        format=1,
        study=study,
        title="",
        claims=(),
        random=random,
        settings=changed,
        changed=changed,
        seeds=seeds,
    )
