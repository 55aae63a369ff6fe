"""What users bring: classes by the names of their modules."""

import importlib
import sys
from pathlib import Path
from typing import Any

__all__ = ["import_class"]


def import_class(name: str) -> Any:
    """What ``module:Class`` names; None if there is none of this name in the module.

    The current folder is looked into last, so that no file in it stands for an installed module.

    Example:
        >>> import_class("collections:Counter")
        <class 'collections.Counter'>
    """
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        return getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        # another one that is missing is what the module imports
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ValueError(
            f"expected a module that Python finds, got {module!r} in {name!r}: go to its folder, "
            "name that in PYTHONPATH, or install it"
        ) from error
