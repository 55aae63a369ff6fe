"""The user's own classes that a recipe names, and the source of their modules."""

import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from cayley.lab.importing import import_class
from cayley.lab.recipes import Recipe
from cayley.lab.runs.seals import digest

__all__ = ["code_words", "compare_code", "find_code", "own_classes"]

# by module, its spec and the digest of its source
_read: dict[str, tuple[object, str]] = {}


def own_classes(recipe: Recipe) -> dict[str, tuple[str, str]]:
    """The classes outside cayley that a recipe names.

    Arguments:
        recipe: The recipe.

    Returns:
        The name, ``module:Class``, and the module, by key of the recipe.
    """
    found = {}
    for key, name in (("task.name", recipe.task.name), ("model.name", recipe.model.name)):
        module, colon, _ = name.partition(":")
        if colon and module.partition(".")[0] != "cayley":
            found[key] = name, module
    return found


def find_code(recipe: Recipe) -> dict[str, str]:
    """The digests of the source files of the user's own modules, which are imported.

    Only a module's own file counts, not what it imports.

    Arguments:
        recipe: The recipe that names them.

    Returns:
        The digests by module, without modules that are missing or have no file.
    """
    code = {}
    for name, module in own_classes(recipe).values():
        # what is missing is said by those who need it
        with suppress(ValueError):
            import_class(name)
        if module in sys.modules and (found := _digest(sys.modules[module])):
            code[module] = found
    return code


def _digest(module: ModuleType) -> str:
    # read once for each import: this process goes on with what it imported, also if the file is
    # edited while one of several seeds is trained
    name, spec = module.__name__, module.__spec__
    if name not in _read or _read[name][0] is not spec:
        try:
            _read[name] = spec, digest(Path(getattr(module, "__file__", None) or "").read_bytes())
        except OSError:
            return ""
    return _read[name][1]


def compare_code(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    """Which modules have another source, in words; those of older runs are not known.

    Example:
        >>> compare_code({"parity": "3fa91c2b07", "mine": "a"}, {"parity": "11d2e09f5a"})
        ['code of parity 3fa91c2b, not 11d2e09f']
    """
    return [
        f"{code_words(module, ours)}, not {theirs[module][:8]}"
        for module in ours
        if module in theirs and ours[module] != theirs[module]
    ]


def code_words(module: str, code: dict[str, str]) -> str:
    """The source of a module in words.

    Example:
        >>> code_words("parity", {})
        'code of parity unknown'
    """
    return f"code of {module} {code[module][:8] if module in code else 'unknown'}"
