"""Run folders, written as files of the format that training leaves behind."""

import json
import math
from pathlib import Path
from typing import Any

from cayley.lab.recipes.schema import Recipe, read_recipe, write_recipe

MACHINE = {
    "accelerator": "cuda:0",
    "device": "NVIDIA H200",
    "precision": "32-true",
    "threads": 8,
    "host": "secret-host",
    "platform": "Linux-6.8-x86_64-with-glibc2.36",
    "cpu": "Intel(R) Xeon(R) Platinum 8468",
    "cores": 16,
}
VERSIONS = {"cayley": "0.1.0", "python": "3.11.9", "torch": "2.11.0", "numpy": "2.4.6"}
METRICS = {"accuracy": "higher"}


def make_recipe(name: str, table: str, model: dict[str, Any], **more: Any) -> Recipe:
    return read_recipe(
        {
            "name": name,
            "table": table,
            "model": model,
            "task": {"name": "mnist"},
            "optim": {"name": "RMSpropTF", "lr": 1e-3, "recurrent_lr": 1e-4},
            "training": {"batch": 50, "epochs": 20},
            "evaluation": {"select": "test"},
            **more,
        }
    )


def write_run(
    output: Path,
    recipe: Recipe,
    seed: int = 5544,
    *,
    scores: dict[str, float],
    start: dict[str, float],
    baseline: dict[str, float],
    rule: str = "the most frequent class of the training images: its share",
    parameters: int = 16415,
    overrides: tuple[str, ...] = (),
    finished: bool = True,
    tiny: bool = False,
    audio: dict[str, float] | None = None,
    machine: dict[str, Any] | None = None,
    suffix: str = "",
) -> Path:
    """Write the folder of a run whose curves lead from the start to the scores."""
    folder = output / recipe.name / f"{recipe.variant}-seed{seed}{suffix}"
    folder.mkdir(parents=True)
    splits = recipe.evaluation.splits
    metric = next(iter(scores))
    steps = 22000 if recipe.training.epochs else recipe.training.steps
    per_epoch = 1100 if recipe.training.epochs else 10 * steps
    description = {
        "format": 1,
        "recipe": recipe.name,
        "table": recipe.table,
        "variant": recipe.variant,
        "seed": seed,
        "overrides": list(overrides),
        "tiny": tiny,
        "parameters": parameters,
        "parameters_stored": parameters,
        "metric": {"name": metric, "better": METRICS.get(metric, "lower")},
        "metrics": [{"name": name, "better": METRICS.get(name, "lower")} for name in scores],
        "baseline": dict.fromkeys(("train", *splits), baseline),
        "baseline_rule": rule,
        "sizes": {"train": 55000, "valid": 5000, "test": 10000},
        "steps_per_epoch": per_epoch,
        "steps": steps,
        "started": "2026-11-15T06:00:00+00:00",
        "command": ["cayley", "train", recipe.name],
        "machine": MACHINE | (machine or {}),
        "versions": VERSIONS,
        "git": {"revision": "6319c40d2f" + 30 * "0", "modified": True},
        "data": {"folder": "/home/someone/data", "download": False},
    }
    (folder / "run.json").write_text(json.dumps(description, indent=1))
    (folder / "recipe.toml").write_text(write_recipe(recipe))
    lines: list[dict[str, Any]] = []
    count = 20 if finished else 6
    for index in range(count + 1):
        step = index * steps // 20
        # from the start to the end exactly, a little crooked in between
        way = 0.0 if index == 0 else 1.0 if index == 20 else 1 - math.exp(-0.25 * index)
        way -= 0.02 * math.sin(seed + 3 * index) if 0 < index < 20 else 0.0
        now = {name: start[name] + way * (scores[name] - start[name]) for name in scores}
        times = {"step": step, "epoch": step / per_epoch, "seconds": 0.05 * step}
        if index:
            rates = {"rest": 1e-3, "recurrent": 1e-4}
            lines.append({"kind": "train", **times, "loss": 2.3 / index, "lr": rates})
        lines.append(
            {
                "kind": "eval",
                **times,
                "evaluation_seconds": 1.5 * index,
                "scores": dict.fromkeys(splits, now),
                "train_loss": 2.3 / index if index else None,
            }
        )
    if not finished:
        what = {"event": "interrupted", "message": f"after step {lines[-1]['step']}"}
        time = {"time": "2026-11-15T07:00:00+00:00", "epoch": lines[-1]["epoch"]}
        lines.append({"kind": "event", "step": lines[-1]["step"], **what, **time})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    if finished:
        chosen = {
            "step": steps,
            "epoch": steps / per_epoch,
            "scores": scores,
            "chosen_by": recipe.evaluation.select,
        }
        result = {
            "status": "done",
            "step": steps,
            "epoch": steps / per_epoch,
            "seconds": 0.05 * steps,
            "evaluation_seconds": 30.0,
            "seconds_per_epoch": 55.0 if recipe.training.epochs else None,
            "select": recipe.evaluation.select,
            "selected": dict.fromkeys(splits, chosen),
            "best": {},
            "last": dict.fromkeys(splits, scores),
            "train_loss_best": 0.115,
            "audio": audio,
            "finished": "2026-11-15T08:00:00+00:00",
        }
        (folder / "result.json").write_text(json.dumps(result, indent=1))
    return folder
