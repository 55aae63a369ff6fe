"""The command ``cayley new``."""

import re
from argparse import Namespace
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

from cayley.lab.commands.starters import STARTERS
from cayley.lab.errors import RecipeError, RunError

__all__ = ["new"]


def new(options: Namespace) -> int:
    """Write a task, a model or a recipe of your own to start from; it runs as it is.

    The file is written to the current folder, where module:Class is found.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9 _-]*", options.name) or iskeyword(options.name):
        raise RecipeError(
            "expected a name of letters (a to z) and digits, the first a letter, with - or _ "
            f"between words, and no word of Python's own, got {options.name!r}"
        )
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", options.name).lower())
    content, ending = STARTERS[options.kind]
    module, recipe = "_".join(words), "-".join(words)
    path = Path((recipe if ending == ".toml" else module) + ending)
    if path.exists():
        raise RunError(f"expected a new name, got {path}, which exists: choose another")
    if ending == ".py" and find_spec(module) is not None:
        raise RecipeError(
            f"expected a name that no module has, got {module}, which exists elsewhere: "
            f"choose another, such as my_{module}"
        )
    name = "".join(word.capitalize() for word in words)
    text = content.format(module=module, name=name, recipe=recipe, file=path)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"could not write {path}: {error.strerror}") from error
    first = next(line for line in text.splitlines() if "Try it out:" in line)
    print(f"{path}: try it out with {first.partition(':')[2].strip()}")
    return 0
