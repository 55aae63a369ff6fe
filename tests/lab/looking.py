"""What a run looks up when it begins, once for all runs of a process."""

import functools
import importlib.metadata

import pytest

from cayley.lab.runs import machine
from cayley.lab.training import setup

__all__ = ["look_once"]


def look_once(patch: pytest.MonkeyPatch) -> None:
    """Remember what each run would look up again: packages, the processor, the repository.

    Lightning looks through all installed packages for each of them; the others start processes.
    """
    for module, name in (
        (importlib.metadata, "entry_points"),
        (machine, "find_cpu"),
        (setup, "find_git_state"),
    ):
        patch.setattr(module, name, functools.cache(getattr(module, name)))
