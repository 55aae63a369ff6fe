from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from cayley.lab.commands.live import LiveTable
from cayley.lab.commands.queue import Queue, Work
from cayley.lab.commands.side_by_side import Process, run_side_by_side
from cayley.lab.recipes import find_recipe
from cayley.lab.runs import Interrupts, Machine
from cayley.lab.training import RunSettings, train


class Stuck:
    seconds = 61.0


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    recipe = find_recipe("quickstart").recipe(overrides=["training.steps=6"], tiny=True)
    train(recipe, tmp_path / "b", settings=RunSettings(Machine("cpu"), tiny=True))
    names = ("a", "b", "c", "d")
    works = [Work(name, "quickstart", tmp_path / name, ("true",)) for name in names]
    works[0].code, works[3].code, works[0].seconds = 0, 3, 5.0
    found = Queue(works, tmp_path / "queue.json")
    found.running["b"] = Stuck()  # pyrefly: ignore[unsupported-operation]
    return found


def test_every_run_has_a_row_those_under_way_first(queue: Queue) -> None:
    console = Console(file=StringIO(), width=60)
    console.print(LiveTable(console).table(queue))
    lines = console.file.getvalue().splitlines()  # pyrefly: ignore[missing-attribute]
    assert [line.split() for line in lines] == [
        ["run", "step", "time"],
        ["b", "running", "6/6", "0:01:01"],
        ["d", "failed"],
        ["c", "to", "do"],
        ["a", "done", "0:00:05"],
        ["2", "of", "4", "done"],
    ]


def test_words_are_printed_above_the_table(queue: Queue) -> None:
    console = Console(file=StringIO(), width=60, force_terminal=True)
    with LiveTable(console, lambda queue: "two workers") as table:
        table.show(queue)
        # a second has not passed
        queue.works[0].name = "renamed"
        table.show(queue)
        table.tell("a: done")
    text = console.file.getvalue()  # pyrefly: ignore[missing-attribute]
    assert "a: done" in text
    assert "two workers" in text
    assert "renamed" not in text.partition("a: done")[0]


def test_brackets_are_words(queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    queue.works[2].name = "c [/c] :x:"
    table = LiveTable(progress=lambda queue: "two [/workers]")
    table.tell("failed: expected [long, short] for ENRNN [/dim]")
    table.console.print(table.table(queue))
    text = capsys.readouterr().err
    for words in ("expected [long, short] for ENRNN [/dim]", "c [/c] :x:", "two [/workers]"):
        assert words in text


def test_processes_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    works = [Work(name, "none", None, ("true",)) for name in ("one", "two")]
    queue = Queue(works, tmp_path / "queue.json")
    with Interrupts() as interrupts:
        assert run_side_by_side(queue, 2, interrupts, start=Process, live=True) == 0
    assert "one: done" in capsys.readouterr().err
