"""Samples: text and sound that runs have written to their folders."""

import base64
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Sample", "read_samples"]

# longer texts are cut and longer sounds left out, since the page contains them
MOST_CHARACTERS, MOST_BYTES = 2_000, 500_000


@dataclass(frozen=True)
class Sample:
    """A text, or a sound.

    Attributes:
        name: The name of the file, without its ending.
        text: The text; empty for a sound.
        sound: The file; empty for a text.
    """

    name: str
    text: str = ""
    sound: bytes = b""

    @property
    def address(self) -> str:
        """The sound itself as a ``data:`` address."""
        return "data:audio/wav;base64," + base64.b64encode(self.sound).decode()


def read_samples(folder: Path) -> tuple[Sample, ...]:
    """The samples of a run, ``sample*.txt`` and ``sample*.wav``, in order.

    Arguments:
        folder: The folder of the run.
    """
    texts = (
        Sample(path.stem, text=path.read_text(encoding="utf-8", errors="replace")[:MOST_CHARACTERS])
        for path in sorted(folder.glob("sample*.txt"))
    )
    sounds = (
        Sample(path.stem.removeprefix("sample-"), sound=path.read_bytes())
        for path in sorted(folder.glob("sample*.wav"))
        if path.stat().st_size <= MOST_BYTES
    )
    return (*(one for one in texts if one.text), *sounds)
