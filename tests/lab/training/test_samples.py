import io
import wave
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cayley.cli import main
from cayley.lab.report.samples import read_samples
from cayley.lab.tasks.text import Text
from cayley.lab.training.samples import TOKENS, go_on, has_samples

SHORT = ["--set", "training.epochs=0", "training.steps=1", "evaluation.every=1", "-q"]


def train(recipe: str, output: Path, *changes: str) -> Path:
    words = ["train", recipe, "--tiny", "-o", str(output), *SHORT, "--set", *changes]
    assert main([*words, "--device", "cpu"]) == 0
    (path,) = output.rglob("run.json")
    return path.parent


def test_a_text_goes_on(tmp_path: Path) -> None:
    folder = train("lstm/characters-350", tmp_path, "model.hidden=4")
    (sample,) = read_samples(folder)
    assert len(sample.text) == TOKENS["characters"]
    assert len(set(sample.text)) > 5


def test_predictions_have_a_sound(tmp_path: Path) -> None:
    changes = ("model.hidden=4", "evaluation.audio=false", "model.negative_ones=1")
    folder = train("scornn/timit-425", tmp_path, *changes)
    predicted, true = read_samples(folder)
    assert (predicted.name, true.name) == ("predicted", "true")
    for sample in (predicted, true):
        with wave.open(io.BytesIO(sample.sound)) as sound:
            assert (sound.getframerate(), sound.getnchannels()) == (8000, 1)
            assert sound.getnframes() > 0
    assert len(predicted.sound) == len(true.sound)


def test_other_tasks_have_none(tmp_path: Path) -> None:
    assert not has_samples("mnist")
    folder = train("quickstart", tmp_path, "model.hidden=4", "model.negative_ones=1")
    assert read_samples(folder) == ()


def test_samples_are_those_of_the_run_as_it_is(tmp_path: Path) -> None:
    folder = train("lstm/characters-350", tmp_path, "model.hidden=4")
    first = (folder / "sample.txt").read_text()
    # as if it had been killed while it wrote its result
    for name in ("result.json", "sample.txt"):
        (folder / name).unlink()
    assert main(["resume", str(folder), "-q"]) == 0
    assert (folder / "sample.txt").read_text() == first
    (folder / "sample.txt").write_text("of a shorter run")
    (folder / "sample-true.wav").write_bytes(b"RIFF")
    assert main(["resume", str(folder), "-q", "--extend", "1"]) == 0
    (sample,) = read_samples(folder)
    assert len(sample.text) == TOKENS["characters"]


@pytest.mark.parametrize("carry", [True, False])
def test_a_state_that_counts_is_carried_over_segments(carry: bool) -> None:
    """A network that is sure of (number of tokens seen) mod 5 says so, whatever the segments."""
    task = Text("words", K=7, vocabulary=5, carry=carry, invented=True)

    def count(tokens: Tensor, state: int | None) -> tuple[Tensor, int]:
        before = state or 0
        seen = before + torch.arange(1, len(tokens) + 1)
        return 100.0 * torch.nn.functional.one_hot(seen % 5, 5)[:, None], before + len(tokens)

    said = go_on(count, torch.zeros(7, dtype=torch.int64), task)  # pyrefly: ignore[bad-argument-type]
    if carry:
        assert said == [(7 + k) % 5 for k in range(TOKENS["words"])]
    else:
        assert said[:8] == [7 % 5, *(k % 5 for k in range(1, 8))]


def test_words_have_lines() -> None:
    task = Text("words", invented=True)
    object.__setattr__(task, "encoded", (["a", "<eos>", "b"], {}))
    assert task.decode([0, 1, 2, 2, 1]) == "a\nb b\n"
