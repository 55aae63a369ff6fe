"""Recordings of speech: found, divided into splits, and cut into frames."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cayley.lab.errors import DataError
from cayley.lab.tasks.batch import Split
from cayley.lab.tasks.counter import integers, key, uniform
from cayley.lab.tasks.resident import Resident
from cayley.lab.tasks.sources import Resource, Source, find_files
from cayley.lab.tasks.speech.audio import log_power, read_sound, resample, spectrum
from cayley.lab.tasks.speech.speakers import Corpus, assign_splits

__all__ = ["FILES", "Utterances", "find_recordings", "invent_recordings", "read_recordings"]

SIZES: dict[Corpus, dict[Split, int]] = {
    "timit": {"train": 3696, "valid": 400, "test": 192},
    "nltk": {"train": 96, "valid": 16, "test": 16},
    "fsdd": {"train": 2400, "valid": 300, "test": 300},
}
FILES: dict[Corpus, tuple[Resource, ...]] = {
    "timit": (Resource("TIMIT", hint="TIMIT is LDC93S1: https://catalog.ldc.upenn.edu/LDC93S1"),),
    "nltk": (
        Resource(
            "timit.zip",
            "https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora/timit.zip",
        ),
    ),
    "fsdd": (
        Resource(
            "free-spoken-digit-dataset.zip",
            "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/heads/master.zip",
        ),
    ),
    "own": (),
}


@dataclass(frozen=True)
class Utterances:
    """The recordings of a split.

    Attributes:
        waves: The samples of each, (N).
        frames: ``frames`` (F, 129) of all recordings; ``first`` and ``count`` of each, (n).
        longest: The number of frames of the longest.
    """

    waves: list[Tensor]
    frames: Resident
    longest: int

    @classmethod
    def of(cls, waves: list[Tensor]) -> "Utterances":
        """Cut recordings into frames."""
        frames = [log_power(spectrum(x)) for x in waves]
        count = torch.tensor([len(x) for x in frames])
        resident = Resident(frames=torch.cat(frames), count=count, first=count.cumsum(0) - count)
        return cls(waves, resident, int(count.max()))


def find_recordings(source: Source, corpus: Corpus) -> dict[Split, dict[str, Callable[[], bytes]]]:
    """The recordings of each split by name, as functions that read them.

    They may be in folders or in zip archives. The archive of a free corpus is downloaded if it is
    missing and the source allows it.
    """
    if source.folder is None:
        raise DataError(
            f"expected a folder with the recordings of {corpus!r}, got none: give one with "
            "Source(folder) or on the command line with --data"
        )
    missing = source.download and not source.folder.exists()
    found = {} if missing else find_files(source.folder, (".wav", ".flac"))
    parts = assign_splits(found, corpus)
    if not any(parts.values()) and source.download and any(file.url for file in FILES[corpus]):
        paths = [source.path(file) for file in FILES[corpus]]
        found = {name: read for path in paths for name, read in find_files(path, (".wav",)).items()}
        parts = assign_splits(found, corpus)
    sizes = {split: len(part) for split, part in parts.items()}
    complete = SIZES.get(corpus) if source.check else None
    if 0 in sizes.values() or (complete is not None and sizes != complete):
        remedy = " ".join(f"{file.hint or 'Get it from ' + file.url}." for file in FILES[corpus])
        raise DataError(
            f"expected recordings of {corpus!r} for every split in {source.folder}"
            f"{'' if complete is None else f', {complete}'}, got {sizes}. {remedy} To use the "
            "files as they are, if there are some for every split: check=False or --unchecked"
        )
    return {split: {name: found[name] for name in part} for split, part in parts.items()}


def read_recordings(recordings: dict[str, Callable[[], bytes]], rate: int) -> list[Tensor]:
    """The samples of recordings at a rate in Hz, (N) each."""
    sounds = [read_sound(read(), name) for name, read in recordings.items()]
    return [resample(x, own, rate) for x, own in sounds]


def invent_recordings(split: Split, n: int = 6) -> list[Tensor]:
    """Recordings of three sines each, with random lengths, frequencies and loudness.

    Example:
        >>> len(invent_recordings("test", 2))
        2
    """
    waves = []
    for number in range(n):
        place = torch.arange(3) + 3 * number
        length = 4000 + int(integers(key("speech", split, "length"), place[0], 2000))
        omega = 2 * uniform(key("speech", split, "frequency"), place, dtype=torch.float32)
        loud = uniform(key("speech", split, "loudness"), place, dtype=torch.float32)
        t = torch.arange(length).unsqueeze(1)
        waves.append((loud * torch.sin(omega * t)).mean(1))
    return waves
