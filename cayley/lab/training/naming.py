"""Names of run folders, made from the changes to a recipe."""

import hashlib
import json
import re
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any

from cayley.lab.recipes import ModelSettings, Recipe, flatten
from cayley.lab.runs import Precision

__all__ = ["run_folder"]

# the longest text for all changes together; longer ones are cut
LONGEST = 60
# parts of a recipe that a key need not name, since no other part has the same keys
PLAIN = ("task", "model", "optim", "training")
# keys of a model that are no arguments of its class
MODEL = tuple(field.name for field in fields(ModelSettings))
PRECISIONS: dict[Precision, str] = {
    "32-true": "",
    "64-true": "float64",
    "bf16-mixed": "bfloat16",
}


def run_folder(
    output: Path,
    recipe: Recipe,
    seed: int,
    base: Recipe | None = None,
    *,
    tiny: bool = False,
    precision: Precision = "32-true",
) -> Path:
    """The run folder for a recipe, the changes to it, and a seed.

    Two sets of overrides that make the same recipe give the same folder.

    Arguments:
        output: The folder of all runs.
        recipe: The recipe to run.
        seed: The seed of the run.
        base: The recipe without changes; None if there are none.
        tiny: Whether a few made-up examples replace the data.
        precision: The precision of the computation.

    Example:
        >>> from cayley.lab.recipes import find_recipe
        >>> entry, output = find_recipe("quickstart"), Path("runs")
        >>> base = entry.recipe()
        >>> run_folder(output, base, 1).as_posix()
        'runs/quickstart/paper-seed1'
        >>> changed = entry.recipe(overrides=["model.hidden=64", "optim.lr=0.0003"])
        >>> run_folder(output, changed, 1, base, tiny=True).as_posix()
        'runs/quickstart/hidden-64-lr-3e-4-tiny-seed1'
    """
    words = [] if base is None else _changes(recipe, base)
    words += ["tiny"] if tiny else []
    words += [PRECISIONS[precision]] if PRECISIONS[precision] else []
    if recipe.variant != "paper" or not words:
        words.insert(0, recipe.variant)
    return output / recipe.name / "-".join([*words, f"seed{seed}"])


def _changes(recipe: Recipe, base: Recipe) -> list[str]:
    """A word for each changed setting; also a digest if the words are ambiguous or too long."""
    ours, theirs = flatten(recipe), flatten(base)
    changed = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    if "task.name" in changed:
        # settings of another task have nothing to do with those of this one
        others = [key for key in changed if not key.startswith("task.")]
        changed = [*(key for key in ours if key.startswith("task.")), *others]
    if "model.name" in changed:
        # nor have arguments of another network
        others = [key for key in changed if not _is_argument(key)]
        changed = [*others, *filter(_is_argument, ours)]
    pairs = [(_short(key), _value(ours.get(key))) for key in changed]
    words = [f"{_safe(key)}-{_safe(value)}" for key, value in pairs]
    kept: list[str] = []
    for word in words:
        if len("-".join([*kept, word])) > LONGEST:
            break
        kept.append(word)
    clear = all(_safe(word) == word for pair in pairs for word in pair)
    if len(kept) < len(words) or not clear:
        content = json.dumps(ours, sort_keys=True)
        kept.append(hashlib.sha256(content.encode()).hexdigest()[:8])
    return kept


def _is_argument(key: str) -> bool:
    """Whether a key is an argument of the class of the network."""
    first, _, rest = key.partition(".")
    return first == "model" and rest.partition(".")[0] not in MODEL


def _short(key: str) -> str:
    """A key in few words.

    Example:
        >>> _short("optim.recurrent_lr"), _short("model.name"), _short("evaluation.batch")
        ('recurrent-lr', 'model', 'evaluation-batch')
        >>> _short("optim.options.momentum"), _short("optim.schedule.name")
        ('options-momentum', 'schedule')
    """
    parts = key.split(".")
    if len(parts) > 2 or (parts[0] in PLAIN and parts[-1] != "name"):
        parts = parts[1:]
    if len(parts) > 1 and parts[-1] == "name":
        parts = parts[:-1]
    return "-".join(parts).replace("_", "-")


def _value(value: Any) -> str:
    """A value in few letters, without losing information.

    Example:
        >>> _value(3e-4), _value(0.9), _value(64.0), _value([5, 4]), _value("mine:Task")
        ('3e-4', '0.9', '64', '5-4', 'mine.Task')
    """
    if isinstance(value, list):
        return "-".join(map(_value, value)) or "none"
    if isinstance(value, float) and value == value and abs(value) != float("inf"):
        sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
        assert isinstance(exponent, int)
        if value and not 1e-2 <= abs(value) < 1e6:
            first, rest = str(digits[0]), "".join(map(str, digits[1:]))
            number = f"{first}.{rest}" if rest else first
            return f"{'-' if sign else ''}{number}e{exponent + len(rest)}"
        return f"{Decimal(repr(value)).normalize():f}"
    if isinstance(value, str):
        return value.replace(":", ".") or "none"
    return "none" if value is None else json.dumps(value)


def _safe(text: str) -> str:
    """Text that may be part of a file name on any system."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-.")
