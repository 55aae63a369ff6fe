"""The file ``sweep.json``: what a sweep searches, its metric, and whether that is optimistic."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from cayley.lab.errors import RecipeError, RunError
from cayley.lab.recipes import from_table
from cayley.lab.runs.reading import parse_json

__all__ = [
    "SWEEP_FILE",
    "SearchedKey",
    "SweepRecord",
    "find_optimism",
    "find_sweeps",
    "read_sweep",
]

SWEEP_FILE = "sweep.json"


@dataclass(frozen=True)
class SearchedKey:
    """A key of a recipe that is searched: a list of values, or a range.

    Attributes:
        key: The key, such as ``optim.lr``.
        values: The list; empty for a range.
        low, high: The ends of the range, both included.
        log: Whether the range is logarithmic.
        step: The step between values; None for any value.
        conditional: Whether only some trials have the key.
    """

    key: str
    values: tuple[Any, ...] = ()
    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    step: int | float | None = None
    conditional: bool = False


@dataclass(frozen=True, kw_only=True)
class SweepRecord:
    """The content of ``sweep.json``, in the folder above the runs of a sweep.

    Attributes:
        study: The name of the study.
        title: A short title.
        recipe: The name of the recipe.
        metric: Split and metric, such as ``valid_mse``.
        direction: Which values are better.
        keys: The searched keys.
    """

    study: str
    title: str = ""
    recipe: str
    metric: str
    direction: Literal["minimize", "maximize"]
    keys: tuple[SearchedKey, ...]

    def to_json(self) -> dict[str, Any]:
        """The content of the file, which :func:`read_sweep` reads."""
        return asdict(self)


def read_sweep(folder: Path) -> SweepRecord:
    """Read what a sweep searches.

    Arguments:
        folder: The folder of the sweep.
    """
    path = folder / SWEEP_FILE
    try:
        return from_table(SweepRecord, parse_json(path.read_bytes()), strict=False)
    except (OSError, ValueError, RecipeError) as error:
        raise RunError(
            f"could not use {path}, which is damaged or of another version of cayley ({error}): "
            "delete it, and the same cayley sweep writes it again"
        ) from error


def find_optimism(metric: str, select: str) -> str:
    """What the test set decides in a sweep, in words; empty if it decides nothing.

    Arguments:
        metric: Split and metric of the sweep.
        select: Which evaluation gives the numbers of its runs, from their recipe.

    Example:
        >>> find_optimism("test_mse", "valid")
        'the test set chooses the settings, which is optimistic'
        >>> find_optimism("valid_mse", "test")
        'the test set chooses the evaluations, which is optimistic'
        >>> find_optimism("valid_mse", "each")
        ''
    """
    if metric.startswith("test_"):
        return "the test set chooses the settings, which is optimistic"
    if select == "test":
        return "the test set chooses the evaluations, which is optimistic"
    return ""


def find_sweeps(folders: Iterable[Path]) -> list[Path]:
    """The folders of all sweeps below some folders, in order, each once."""
    found = {
        path.parent.resolve(): path.parent for top in folders for path in top.rglob(SWEEP_FILE)
    }
    return sorted(found.values())
