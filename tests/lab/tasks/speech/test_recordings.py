import zipfile
from pathlib import Path

import pytest
import torch

from cayley.lab.errors import DataError
from cayley.lab.tasks.sources import Source
from cayley.lab.tasks.speech.recordings import (
    FILES,
    Utterances,
    find_recordings,
    invent_recordings,
    read_recordings,
)


def test_frames_of_each_recording() -> None:
    waves = [torch.randn(n) for n in (300, 1000, 1)]
    utterances = Utterances.of(waves)
    data = utterances.frames.tensors
    # (N + 512 − 256) // 128 + 1 frames
    assert data["count"].tolist() == [5, 10, 3]
    assert data["first"].tolist() == [0, 5, 15]
    assert data["frames"].shape == (18, 129)
    assert utterances.longest == 10


def test_missing_recordings_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected a folder with the recordings of 'fsdd'"):
        find_recordings(Source(), "fsdd")
    with pytest.raises(DataError, match=r"got \{'train': 0, 'valid': 0, 'test': 0\}.*https://"):
        find_recordings(Source(tmp_path), "nltk")
    folder = tmp_path / "TIMIT" / "TRAIN" / "DR1" / "FAAA0"
    folder.mkdir(parents=True)
    (folder / "SX1.WAV").touch()
    with pytest.raises(DataError, match=r"'train': 3696.*got \{'train': 1.*LDC93S1"):
        find_recordings(Source(tmp_path), "timit")


def test_download_of_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published = tmp_path / "published.zip"
    with zipfile.ZipFile(published, "w") as archive:
        for take in (1, 7, 20):
            archive.writestr(f"recordings/0_ann_{take}.wav", b"")
    resource = type(FILES["fsdd"][0])("digits.zip", published.as_uri())
    monkeypatch.setitem(FILES, "fsdd", (resource,))
    folder = tmp_path / "data"
    found = find_recordings(Source(folder, download=True, check=False), "fsdd")
    assert {split: list(part) for split, part in found.items()} == {
        "train": ["recordings/0_ann_20.wav"],
        "valid": ["recordings/0_ann_7.wav"],
        "test": ["recordings/0_ann_1.wav"],
    }
    assert (folder / "digits.zip").exists()
    with pytest.raises(DataError, match=r"'train': 2400.*got \{'train': 1.*--unchecked"):
        find_recordings(Source(folder), "fsdd")


def test_invented_recordings_differ() -> None:
    waves = [x for split in ("train", "test") for x in invent_recordings(split)]
    assert len({x.numpy().tobytes() for x in waves}) == 12


def test_the_real_sample(source: Source) -> None:
    """160 recordings of 16 speakers, one of them in SPHERE; two sentences of each are SA."""
    pytest.importorskip("soundfile")
    found = find_recordings(source, "nltk")
    assert {split: len(part) for split, part in found.items()} == {
        "train": 96,
        "valid": 16,
        "test": 16,
    }
    every = {name: read for part in found.values() for name, read in part.items()}
    name = "timit/dr1-fvmh0/si836.wav"
    content = every[name]()
    assert content.startswith(b"NIST_1A")
    (x,) = read_recordings({name: every[name]}, 16_000)
    assert len(x) == 68_813
    # the header tells the extreme samples
    header = content[:1024].decode()
    for word, value in (("sample_min", x.min()), ("sample_max", x.max())):
        told = int(header.split(word)[1].split()[1])
        assert round(float(value) * 32768) == told
    assert len(read_recordings({name: every[name]}, 8_000)[0]) == 34_407


def test_the_real_digits(source: Source) -> None:
    found = find_recordings(source, "fsdd")
    assert {split: len(part) for split, part in found.items()} == {
        "train": 2400,
        "valid": 300,
        "test": 300,
    }
