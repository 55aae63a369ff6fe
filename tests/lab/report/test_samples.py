import base64
from pathlib import Path

from cayley.lab.report.samples import MOST_BYTES, read_samples


def test_text_and_sound_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "sample.txt").write_text("the the the")
    (tmp_path / "sample-true.wav").write_bytes(b"RIFF")
    (tmp_path / "sample-long.wav").write_bytes(bytes(MOST_BYTES + 1))
    (tmp_path / "other.txt").write_text("no sample")
    text, sound = read_samples(tmp_path)
    assert (text.name, text.text, text.sound) == ("sample", "the the the", b"")
    assert (sound.name, sound.sound) == ("true", b"RIFF")
    assert sound.address == "data:audio/wav;base64," + base64.b64encode(b"RIFF").decode()


def test_most_runs_have_none(tmp_path: Path) -> None:
    assert read_samples(tmp_path) == ()
