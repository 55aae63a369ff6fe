"""Tasks by name, and of the user's own."""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from inspect import signature
from pathlib import Path

import pytest
from processes import run_after_torch

import cayley.lab.tasks
from cayley.lab.errors import DataError
from cayley.lab.tasks import TASKS, Source, make_task, score_split, task_class
from cayley.lab.tasks.graph import Nodes
from cayley.lab.tasks.synthetic import Adding
from cayley.lab.tasks.text import Text

OWN = """
from dataclasses import dataclass
import torch
from cayley.lab.tasks.examples import ExampleTask
from cayley.lab.tasks.metrics import mean_squared_error

@dataclass(frozen=True)
class Parity(ExampleTask):
    bits: int = 3
    reads = "rows"
    answers = "rows"
    naive_rule = "always 1/2: 1/4"
    input_size = property(lambda self: self.bits)
    output_size = property(lambda self: 1)
    metrics = property(lambda self: (mean_squared_error,))
    def size(self, split): return {"train": 4, "valid": 2, "test": 2}[split]
    def examples(self, split, index, seed, dtype):
        first = {"train": 0, "valid": 4, "test": 6}[split]
        x = ((index + first).unsqueeze(1) >> torch.arange(self.bits) & 1).to(dtype)
        return x, (x.sum(1, keepdim=True) % 2), None
    def loss(self, output, batch): return (output - batch.target).square().mean()
    def naive(self, batch): return torch.full_like(batch.target, 0.5)
    def baseline(self, split): return {"mse": 0.25}
    def tiny(self): return self

class NoTask: ...
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "own_parity.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_parity"
    sys.modules.pop("own_parity", None)


def test_names() -> None:
    assert make_task("adding", T=50) == Adding(T=50)
    assert make_task("words", K=70) == Text("words", K=70)
    assert vars(make_task("photo"))["dataset"] == "photo"
    assert task_class("cora") is Nodes
    assert all(make_task(name) for name in TASKS)


def test_a_task_of_the_users_own(module: str) -> None:
    task = make_task(f"{module}:Parity", bits=4)
    assert task.input_size == 4
    naive = score_split(task, lambda batch, state: (task.naive(batch), None), "test", 1)
    assert naive == task.baseline("test")
    with pytest.raises(TypeError, match="expected NoTask in own_parity to be a subclass"):
        make_task(f"{module}:NoTask")
    with pytest.raises(TypeError, match="got None"):
        make_task(f"{module}:Nothing")


def test_wrong_names_are_told_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'copying'"):
        make_task("copyng")
    with pytest.raises(TypeError, match=r"expected settings of T, markers.*did you mean 'shuffle'"):
        make_task("adding", shufle=False)


@pytest.mark.slow
def test_import_brings_numpy_and_nothing_else() -> None:
    script = (
        "import sys, numpy, cayley; before = set(sys.modules)\n"
        "import cayley.lab.tasks\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "new -= set(sys.stdlib_module_names) | {'cayley', 'torch', 'numpy'}\n"
        "assert not new, new\n"
    )
    run_after_torch(script)


def test_public_names_exist() -> None:
    names = cayley.lab.tasks.__all__
    assert len(set(names)) == len(names)
    assert all(name in vars(cayley.lab.tasks) for name in names)


@pytest.mark.parametrize("name", TASKS)
def test_data_that_are_not_there_are_told_without_reading(name: str, tmp_path: Path) -> None:
    reads = "source" in signature(task_class(name)).parameters
    task = make_task(name, **({"source": Source(tmp_path)} if reads else {}))
    with pytest.raises(DataError) if reads else nullcontext():
        task.find_data()
    task.tiny().find_data()


def test_what_may_be_downloaded_is_not_missing(tmp_path: Path) -> None:
    source = Source(tmp_path, download=True)
    for name in ("mnist", "cifar10", "words", "cora", "photo"):
        make_task(name, source=source).find_data()
    make_task("speech", corpus="fsdd", source=source).find_data()
    with pytest.raises(DataError, match="LDC93S1"):
        make_task("speech", corpus="timit", source=source).find_data()
    with pytest.raises(DataError, match="expected a text file"):
        make_task("words", corpus="own").find_data()
    assert not list(tmp_path.iterdir())
