"""What all workers of a study must agree on, as it is stored."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal

from cayley.lab.recipes import from_table
from cayley.lab.runs import Precision
from cayley.lab.sweeps.engine import decode
from cayley.lab.sweeps.space import Parameter, Space

__all__ = ["SPACE", "Direction", "find_differences", "make_identity", "read_choice"]

Direction = Literal["minimize", "maximize"]
# the attribute of a study that contains it
SPACE = "space"


def make_identity(
    space: Space, base: str, direction: Direction, tiny: bool, precision: Precision
) -> dict[str, Any]:
    """What all workers of a study must agree on, as JSON."""
    content = {
        "recipe": base,
        "metric": space.metric,
        "direction": direction,
        "parameters": [
            {key: value for key, value in asdict(one).items() if value is not None}
            for one in space.parameters
        ],
        "sampler": asdict(space.sampler),
        "pruner": asdict(space.pruner),
        "tiny": tiny,
        "precision": precision,
    }
    return json.loads(json.dumps(content))


def find_differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """The keys in which two spaces differ."""
    differ = [key for key in wanted if key != "parameters" and found.get(key) != wanted[key]]
    ours, theirs = (
        {one["key"]: one for one in space.get("parameters", ())} for space in (wanted, found)
    )
    differ += [f"parameters.{key}" for key in ours if ours[key] != theirs.get(key)]
    return differ + [f"parameters.{key}" for key in theirs if key not in ours]


def read_choice(space: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a trial, as they are in its recipe."""
    known: dict[str, Parameter] = {
        one["key"]: from_table(Parameter, one) for one in space["parameters"]
    }
    return {key: decode(known[key], value) for key, value in params.items()}
