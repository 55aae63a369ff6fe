"""What is written for TensorBoard, by a writer that notes its calls; and by torch's own."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from lab.descriptions import make_description
from torch import nn

from cayley.cli import main
from cayley.lab.processes import Processes
from cayley.lab.training import Quiet, tensorboard
from cayley.lab.training.tensorboard import FOLDER, TensorBoard

SMALL = [
    "--tiny",
    "-q",
    "--device",
    "cpu",
    "--set",
    "training.steps=2",
    "training.log=1",
    "model.hidden=4",
]


class Notes:
    """A writer that keeps the names of what it is given, by kind."""

    def __init__(self, folder: Path, step: int) -> None:
        self.folder, self.first = folder, step
        self.found: dict[str, list[tuple[str, int]]] = {}
        self.values: dict[tuple[str, int], float] = {}
        self.closed = False

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.values[name, step] = value
        self._note("scalar", name, step)

    def add_histogram(self, name: str, values: Any, step: int) -> None:
        assert values.numel()
        assert not values.requires_grad
        self._note("histogram", name, step)

    def add_figure(self, name: str, figure: Any, step: int) -> None:
        figure.canvas.draw()
        self._note("figure", name, step)

    def add_text(self, name: str, text: str, step: int) -> None:
        self._note("text", name, step)

    def close(self) -> None:
        self.closed = True

    def _note(self, kind: str, name: str, step: int) -> None:
        self.found.setdefault(kind, []).append((name, step))


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Notes]:
    made: list[Notes] = []

    def open_writer(folder: Path, step: int) -> Notes:
        made.append(Notes(folder, step))
        return made[-1]

    monkeypatch.setattr(tensorboard, "_open", open_writer)
    monkeypatch.setattr("cayley.lab.training.check_tensorboard", lambda: None)
    return made


def train(output: Path, recipe: str, *words: str) -> Path:
    assert main(["train", recipe, "-o", str(output), *SMALL, *words]) == 0
    (path,) = output.rglob("run.json")
    return path.parent


def test_scalars_histograms_and_pictures(writers: list[Notes], tmp_path: Path) -> None:
    folder = train(tmp_path, "quickstart", "model.negative_ones=2", "--tensorboard")
    (writer,) = writers
    assert (writer.folder, writer.first, writer.closed) == (folder / FOLDER, 0, True)
    scalars = {name for name, _ in writer.found["scalar"]}
    assert {"loss/train", "lr/rest", "mse/valid", "mse/test"} <= scalars
    assert "orthogonality/layers.0.weight_hh_l0" in scalars
    assert writer.values["orthogonality/layers.0.weight_hh_l0", 2] < 1e-5
    histograms = {name for name, _ in writer.found["histogram"]}
    assert {"output.weight", "output.bias"} <= histograms
    assert {name for name, step in writer.found["figure"] if step == 2} == {
        "spectrum/layers.0.weight_hh_l0",
        "singular_values",
        "angles/layers.0.weight_hh_l0",
    }


def test_a_free_matrix_has_a_spectrum_only(writers: list[Notes], tmp_path: Path) -> None:
    train(tmp_path, "lstm/adding-200", "training.epochs=0", "--tensorboard")
    (writer,) = writers
    assert {name.partition("/")[0] for name, _ in writer.found["figure"]} == {
        "spectrum",
        "singular_values",
    }
    assert not any(name.startswith("orthogonality") for name, _ in writer.found["scalar"])


def test_numbers_are_those_of_a_run_without_it(writers: list[Notes], tmp_path: Path) -> None:
    def losses(folder: Path) -> list[str]:
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        return [line.partition(', "seconds"')[0] for line in lines]

    words = ("model.negative_ones=2",)
    plain = train(tmp_path / "a", "quickstart", *words)
    written = train(tmp_path / "b", "quickstart", *words, "--tensorboard")
    assert losses(plain) == losses(written)
    assert len(writers) == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_of_several_processes_the_first_writes(
    rank: int, writers: list[Notes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "find_processes", lambda: Processes(rank, 2))
    reporter = TensorBoard(Quiet(), tmp_path)
    reporter.begin(make_description(), 0, nn.Linear(1, 1))
    reporter.record({"kind": "eval", "step": 0, "scores": {"test": {"mse": 1.0}}})
    reporter.end(None)
    assert len(writers) == (rank == 0)


@pytest.mark.skipif(find_spec("tensorboard") is not None, reason="tensorboard is installed")
def test_without_the_package_nothing_is_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "quickstart", "-o", str(tmp_path), *SMALL, "--tensorboard"]) == 1
    assert "expected the package tensorboard" in (err := capsys.readouterr().err)
    assert "pip install tensorboard" in err
    assert not [*tmp_path.rglob("run.json")]


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="no tensorboard: pip install it")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_it(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # pyrefly: ignore[missing-import]
        EventAccumulator,
    )

    folder = train(tmp_path, "quickstart", "model.negative_ones=2", "--tensorboard")
    events = EventAccumulator(str(folder / FOLDER)).Reload()
    tags: dict[str, Any] = events.Tags()
    assert "loss/train" in tags["scalars"]
    assert "output.weight" in tags["histograms"]
    assert "singular_values" in tags["images"]
    assert [one.step for one in events.Scalars("loss/train")] == [1, 2]
