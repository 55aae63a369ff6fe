"""Importing the user's own classes, by the names of their modules."""

import importlib
import sys
from pathlib import Path
from typing import Any

__all__ = ["import_class"]


def import_class(name: str) -> Any:
    """The class that ``module:Class`` names; None if the module has no such name.

    The current folder is searched last, so that no file in it hides an installed module.

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
        # if another module is missing, it is one that this module imports
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ValueError(
            f"expected a module that Python finds, got {module!r} in {name!r}: change to its "
            "folder, add the folder to PYTHONPATH, or install it"
        ) from error
