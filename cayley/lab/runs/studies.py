"""The content of ``study.json``: the numbers of each seed of a study."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cayley.lab.errors import RunError
from cayley.lab.recipes import from_table
from cayley.lab.runs.machine import GitState, MachineFacts
from cayley.lab.runs.reading import parse_json

__all__ = [
    "STUDY_FILE",
    "STUDY_FORMAT",
    "STUDY_PICTURE",
    "SeedRecord",
    "StudyRecord",
    "find_studies",
    "read_study",
]

STUDY_FILE, STUDY_PICTURE = "study.json", "picture.png"
STUDY_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class SeedRecord:
    """The numbers of a seed, and what they were computed on.

    Attributes:
        numbers: By name.
        seconds: How long it took.
        finished: When.
        machine, versions, git: The machine, the versions of packages, and the source.
    """

    numbers: dict[str, Any]
    seconds: float
    finished: str
    machine: MachineFacts
    versions: dict[str, str]
    git: GitState | None = None


@dataclass(frozen=True, kw_only=True)
class StudyRecord:
    """The content of ``study.json``; keys and attributes have the same names.

    Attributes:
        format: The format of the file.
        study: The name.
        title: In a few words.
        claims: The claims that it decides.
        random: Whether seeds make a difference.
        settings: All settings.
        changed: The settings that differ from the study's own.
        seeds: The record of each seed; the picture is that of the first.
    """

    format: int
    study: str
    title: str
    claims: tuple[str, ...]
    random: bool
    settings: dict[str, Any]
    changed: dict[str, Any]
    seeds: dict[str, SeedRecord] = field(default_factory=dict)

    def values(self, number: str) -> list[float]:
        """A number of each seed that has it."""
        found = (one.numbers.get(number) for one in self.seeds.values())
        return [float(value) for value in found if isinstance(value, (int, float))]


def read_study(folder: Path) -> StudyRecord:
    """The record in a folder.

    Arguments:
        folder: The folder of the study.
    """
    path = folder / STUDY_FILE
    try:
        content = parse_json(path.read_bytes())
        if content.get("format") != STUDY_FORMAT:
            raise ValueError(f"expected format {STUDY_FORMAT}, got {content.get('format')!r}")
        return from_table(StudyRecord, content, strict=False)
    except OSError as error:
        raise RunError(f"expected {STUDY_FILE} in {folder}, got none: {error.strerror}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise RunError(
            f"could not use {path}, which is damaged or of another version of cayley ({error}): "
            "delete it, and run the study again"
        ) from error


def find_studies(folders: Iterable[Path]) -> list[Path]:
    """The folders of all studies below some folders, in order, each once."""
    found = {
        path.parent.resolve(): path.parent for top in folders for path in top.rglob(STUDY_FILE)
    }
    return sorted(found.values())
