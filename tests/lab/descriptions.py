"""Descriptions of runs, as training writes them."""

from typing import Any

from cayley.lab.recipes import find_recipe, write_recipe
from cayley.lab.runs import RunDescription

CONTENT: dict[str, Any] = {
    "format": 2,
    "id": "0123456789abcdef",
    "recipe": "papers/row",
    "table": "papers",
    "variant": "code",
    "seed": 3,
    "overrides": [],
    "tiny": False,
    "parameters": 1234,
    "parameters_stored": 1234,
    "metric": {"name": "mse", "better": "lower"},
    "metrics": [{"name": "mse", "better": "lower"}],
    "baseline": {"train": {"mse": 0.3}, "valid": {"mse": 0.25}},
    "baseline_rule": "always 1",
    "sizes": {"train": 10, "valid": 5},
    "steps_per_epoch": 5,
    "steps": 100,
    "data": {"folder": None, "download": False, "check": True},
    "vocabulary": "",
    "started": "2026-11-15T06:00:00+00:00",
    "command": ["cayley", "train"],
    "machine": {
        "accelerator": "cpu",
        "device": "x86_64",
        "precision": "32-true",
        "threads": 2,
        "graph": False,
        "no_graph": "",
        "processes": 1,
        "host": "here",
        "platform": "Linux",
        "cpu": "a fast one",
        "cores": 2,
    },
    "together": 1,
    "versions": {"cayley": "0.1.0", "python": "3.11.9"},
    "git": None,
    "code": {},
    "settings": write_recipe(find_recipe("quickstart").recipe()),
    "changes": [],
    "trial": None,
}


def make_description(**changes: Any) -> RunDescription:
    return RunDescription.parse(CONTENT | changes)
