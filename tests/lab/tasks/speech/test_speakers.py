import pytest

from cayley.lab.errors import DataError
from cayley.lab.tasks.speech.speakers import CORE_TEST, DEVELOPMENT, assign_splits

SENTENCES = ["SA1", "SA2", *(f"SI{n}" for n in range(3)), *(f"SX{n}" for n in range(5))]


def timit() -> list[str]:
    """The names of TIMIT: 462 speakers train, 168 test, ten sentences each."""
    training = [f"M{n:03d}0" for n in range(455)] + [f"FSA{n}0" for n in range(7)]
    testing = [s.upper() for s in sorted(CORE_TEST | DEVELOPMENT)] + [
        f"F{n:03d}0" for n in range(94)
    ]
    return [
        f"TIMIT/{part}/DR{n % 8 + 1}/{speaker}/{sentence}.WAV"
        for part, speakers in (("TRAIN", training), ("TEST", testing))
        for n, speaker in enumerate(speakers)
        for sentence in SENTENCES
    ]


def test_speakers_of_timit() -> None:
    assert (len(CORE_TEST), len(DEVELOPMENT)) == (24, 50)
    assert not CORE_TEST & DEVELOPMENT
    # two men and a woman of each of the eight regions
    assert sum(speaker[0] == "m" for speaker in CORE_TEST) == 16


def test_timit_has_the_published_sizes() -> None:
    """Also seven speakers whose names hold "SA", whom the published code lost."""
    names = timit()
    parts = assign_splits(names, "timit")
    assert {split: len(part) for split, part in parts.items()} == {
        "train": 3696,
        "valid": 400,
        "test": 192,
    }
    assert not any("/SA" in name for part in parts.values() for name in part)
    # copies that a converter left beside the originals do not count
    assert assign_splits([*names, *(f"{name}.wav" for name in names)], "timit") == parts
    assert assign_splits([name.lower() for name in names], "timit")["train"] == [
        name.lower() for name in parts["train"]
    ]


def test_sample_is_divided_by_speakers() -> None:
    names = [
        f"timit/dr{n % 8 + 1}-{s}{n:03d}0/{t}.wav"
        for n in range(8)
        for s in "fm"
        for t in ("sa1", "si2", "sx3")
    ]
    parts = assign_splits(names, "nltk")
    speakers = {split: {name.split("/")[1] for name in part} for split, part in parts.items()}
    assert {split: len(s) for split, s in speakers.items()} == {"train": 12, "valid": 2, "test": 2}
    assert len(set.union(*speakers.values())) == 16
    assert sum(map(len, parts.values())) == 32


def test_own_folders() -> None:
    named = assign_splits(
        [f"{split}/{n}.wav" for split in ("train", "valid", "test") for n in "ab"], "own"
    )
    assert named["valid"] == ["valid/a.wav", "valid/b.wav"]
    grouped = assign_splits(
        [f"{speaker}/{n}.wav" for speaker in "abcdefgh" for n in range(3)], "own"
    )
    assert {s: len(part) for s, part in grouped.items()} == {"train": 18, "valid": 3, "test": 3}
    assert len({name[0] for name in grouped["test"]}) == 1
    flat = assign_splits([f"{n}.wav" for n in range(24)], "own")
    assert {s: len(part) for s, part in flat.items()} == {"train": 18, "valid": 3, "test": 3}
    with pytest.raises(DataError, match="at least three groups"):
        assign_splits(["a.wav", "b.wav"], "own")
    assert not any(assign_splits([], "own").values())
