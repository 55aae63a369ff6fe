"""A longer run has the numbers that it would have had; an edited one has its new settings."""

import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cayley.lab.errors import Interrupted, RecipeError, RunError
from cayley.lab.recipes.schema import Recipe, read_recipe
from cayley.lab.runs import (
    Interrupts,
    RunFolder,
    load_tensors,
    read_metrics,
    read_result,
    read_run,
)
from cayley.lab.runs.machine import Machine
from cayley.lab.runs.seals import digest, seal_json
from cayley.lab.training import Member, RunSettings, evaluate, resume, train, train_together
from cayley.lab.training.reporters import Quiet

TINY = RunSettings(Machine("cpu", "64-true", 1), tiny=True)
TEXT = {
    "task": {"name": "characters", "corpus": "own", "K": 8},
    "training": {"batch": 4, "steps": 10},
}
STEP = {"name": "StepLR", "every": "step", "step_size": 4, "gamma": 0.5}


def recipe(**changes: Any) -> Recipe:
    content: dict[str, Any] = {
        "name": "a",
        "task": {"name": "adding"},
        "model": {"name": "ScoRNN", "hidden": 6},
        "optim": {"name": "Adam", "lr": 1e-2, "recurrent_lr": 1e-3, "schedule": STEP},
        # five steps an epoch
        "training": {"batch": 8, "steps": 10, "log": 1},
    }
    return read_recipe(content | changes)


def numbers(folder: Path) -> list[Any]:
    """The records, without times and events."""
    return [
        {key: value for key, value in record.items() if "seconds" not in key}
        for record in read_metrics(folder)
        if record["kind"] != "event"
    ]


def stop_after(last: int, folder: Path, settings: Recipe) -> None:
    class Stop(Quiet):
        def step(self, step: int, epoch: float) -> None:
            if step == last:
                signal.raise_signal(signal.SIGTERM)

    with Interrupts() as interrupts, pytest.raises(Interrupted):
        train(settings, folder, settings=TINY, reporter=Stop(), interrupts=interrupts)


def edit(folder: Path, old: str, new: str) -> None:
    path = folder / "recipe.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("short", "long", "more"),
    [
        ({"steps": 10}, {"steps": 17}, 7),
        ({"epochs": 2}, {"epochs": 3}, 1),
    ],
)
def test_an_extended_run_has_the_numbers_of_a_longer_one(
    short: dict[str, int], long: dict[str, int], more: int, tmp_path: Path
) -> None:
    common = {"batch": 8, "log": 1}
    result = train(recipe(training=common | long), tmp_path / "long", settings=TINY)
    train(recipe(training=common | short), tmp_path / "run", settings=TINY)
    extended = resume(tmp_path / "run", extend=more)
    assert numbers(tmp_path / "run") == numbers(tmp_path / "long")
    assert (extended.step, extended.selected, extended.best, extended.last) == (
        result.step,
        result.selected,
        result.best,
        result.last,
    )
    description, found = read_run(tmp_path / "run")
    assert found == recipe(training=common | long)
    assert description.steps == result.step
    (change,) = description.changes
    assert (change.kind, change.step, change.note) == ("extended", 10, "")
    (length,) = short
    assert change.differences == (f"training.{length} = {long[length]}, not {short[length]}",)
    # all that it left is still its own
    assert resume(tmp_path / "run") == extended
    assert evaluate(tmp_path / "run", "test") == extended.selected["test"].scores
    again = resume(tmp_path / "run", extend=1)
    assert again.step > extended.step
    assert len(read_run(tmp_path / "run")[0].changes) == 2


def test_a_last_evaluation_between_two_is_noted(tmp_path: Path) -> None:
    train(recipe(training={"batch": 8, "steps": 7}), tmp_path, settings=TINY)
    resume(tmp_path, extend=3)
    (change,) = read_run(tmp_path)[0].changes
    note = "the evaluation after step 7 is one that a longer run would not have had"
    assert change.note == note
    (event,) = (record for record in read_metrics(tmp_path) if record["kind"] == "event")
    assert (event["event"], event["message"]) == (
        "extended",
        f"training.steps = 10, not 7; {note}",
    )


def test_runs_that_cannot_be_extended(tmp_path: Path) -> None:
    stop_after(3, tmp_path / "a", recipe())
    with pytest.raises(RunError, match=r"expected a finished run to extend, .*cayley resume"):
        resume(tmp_path / "a", extend=3)
    still = recipe(
        optim={"name": "SGD", "lr": 0.0}, training={"batch": 8, "epochs": 50, "patience": 1}
    )
    train(still, tmp_path / "b", settings=TINY)
    with pytest.raises(RunError, match="got one that stopped early"):
        resume(tmp_path / "b", extend=3)
    cycle = {"name": "OneCycleLR", "every": "step", "max_lr": 0.1, "total_steps": 10}
    ends = recipe(optim={"name": "SGD", "lr": 1e-2, "schedule": cycle})
    train(ends, tmp_path / "c", settings=TINY)
    with pytest.raises(RunError, match="OneCycleLR, which ends with the run"):
        resume(tmp_path / "c", extend=3)
    assert resume(tmp_path / "c").step == 10


@pytest.mark.parametrize("moment", range(3))
def test_killed_while_it_is_extended_a_run_is_still_one(
    moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = train(recipe(), tmp_path, settings=TINY)
    write, calls = RunFolder.write, []

    def killed(run: RunFolder, name: str, *parts: bytes) -> None:
        if name in ("run.json", "recipe.toml"):
            calls.append(name)
            if len(calls) > moment:
                raise KeyboardInterrupt
        write(run, name, *parts)

    with monkeypatch.context() as context:
        context.setattr(RunFolder, "write", killed)
        if moment < 2:
            with pytest.raises(KeyboardInterrupt):
                resume(tmp_path, extend=5)
        else:
            resume(tmp_path, extend=5)
    assert resume(tmp_path).step == (15 if moment else result.step)
    assert (tmp_path / "recipe.toml").exists()


def test_an_edited_recipe_is_taken_on_when_asked_for(tmp_path: Path) -> None:
    train(recipe(), tmp_path / "whole", settings=TINY)
    stop_after(6, tmp_path / "run", recipe())
    edit(tmp_path / "run", "recurrent_lr = 0.001", "recurrent_lr = 0.008")
    edit(tmp_path / "run", "steps = 10", "steps = 12")
    with pytest.raises(RunError, match="--continue-with"):
        resume(tmp_path / "run")
    result = resume(tmp_path / "run", continue_with=True)
    assert result.step == 12
    before, after = numbers(tmp_path / "whole"), numbers(tmp_path / "run")
    assert after[:8] == before[:8]
    rates = {r["step"]: r["lr"]["recurrent"] for r in after if r["kind"] == "train"}
    assert [rates[step] for step in (6, 7, 8, 12)] == [0.0005, 0.004, 0.002, 0.001]
    description, found = read_run(tmp_path / "run")
    assert found.optim.recurrent_lr == 0.008
    (change,) = description.changes
    assert (change.kind, change.step) == ("edited", 6)
    assert change.differences == (
        "optim.recurrent_lr = 0.008, not 0.001",
        "training.steps = 12, not 10",
    )
    # without a change it is nothing but to go on
    assert resume(tmp_path / "run", continue_with=True) == result
    assert evaluate(tmp_path / "run", "test") == result.selected["test"].scores
    assert load_tensors(tmp_path / "run", "checkpoint.pt", description)


def test_weights_after_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    """A run that is killed may have saved better ones since, which an edited run never reaches."""
    folder = tmp_path / "run"
    stop_after(6, folder, recipe())
    with RunFolder(folder) as run:
        run.description, _ = read_run(folder)
        later = run.load("best-valid.pt") | {"step": 9}
        run.save("best-valid.pt", later)
    edit(folder, "steps = 10", "steps = 7")
    # with which it gets worse
    edit(folder, "lr = 0.01", "lr = 5.0")
    result = resume(folder, continue_with=True)
    if (folder / "best-valid.pt").exists():
        description, _ = read_run(folder)
        saved = load_tensors(folder, "best-valid.pt", description)
        assert saved["step"] == result.best["valid"].step <= 7


def test_weights_of_another_step_are_not_those_of_the_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = train(recipe(), folder, settings=TINY)
    with RunFolder(folder) as run:
        run.description, _ = read_run(folder)
        run.save("best-valid.pt", run.load("best-valid.pt") | {"step": 99})
    step = result.best["valid"].step
    with pytest.raises(RunError, match=f"weights of step {step}, .*got those of step 99"):
        evaluate(folder, "valid", weights="valid")


def test_another_schedule_goes_on_from_here(tmp_path: Path) -> None:
    stop_after(6, tmp_path, recipe())
    edit(tmp_path, "gamma = 0.5", "gamma = 0.1")
    resume(tmp_path, continue_with=True)
    rates = {r["step"]: r["lr"]["rest"] for r in read_metrics(tmp_path) if r["kind"] == "train"}
    assert [rates[step] for step in (6, 7, 8)] == pytest.approx([0.005, 0.001, 0.0001])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "adding"', 'name = "copying"', "got one of task.name, which makes it another"),
        ("batch = 8", "batch = 20", "got one of training.batch"),
        ('select = "valid"', 'select = "test"', "got one of evaluation.select"),
        ('name = "Adam"', 'name = "SGD"', "got one of optim.name"),
        ('name = "a"\n', 'name = "b"\n', "got one of name, which"),
        ("seed = 5544", "seed = 7", "got one of seed, which"),
        ("hidden = 6", "hidden = 7", "could not use .*checkpoint.pt, .*undo the change"),
    ],
)
def test_what_makes_it_another_run_is_refused(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    stop_after(3, tmp_path, recipe())
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    edit(tmp_path, old, new)
    with pytest.raises(RunError, match=message):
        resume(tmp_path, continue_with=True)
    edit(tmp_path, new, old)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    resume(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("audio = false", "audio = true", "evaluation.audio: expected a speech task, got Text"),
        ("batch = 2\nselect", "batch = 9999\nselect", "change .*evaluation.batch"),
    ],
)
def test_an_edit_that_would_fail_later_is_refused_at_once(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    text = {
        "task": {"name": "characters", "K": 5},
        "model": {"name": "ScoRNN", "hidden": 4},
        "training": {"batch": 2, "steps": 5},
        "evaluation": {"batch": 2},
    }
    stop_after(3, tmp_path, recipe(**text))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    edit(tmp_path, old, new)
    with pytest.raises(RecipeError, match=message):
        resume(tmp_path, continue_with=True)
    edit(tmp_path, new, old)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_finished_run_is_not_edited(tmp_path: Path) -> None:
    train(recipe(), tmp_path, settings=TINY)
    edit(tmp_path, "steps = 10", "steps = 12")
    with pytest.raises(RunError, match=r"got a finished one .* --extend"):
        resume(tmp_path, continue_with=True)
    assert json.loads((tmp_path / "run.json").read_text())["changes"] == []
    edit(tmp_path, "steps = 12", "steps = 10")
    assert read_result(tmp_path) == resume(tmp_path)


PARITY = "from cayley.lab.tasks.synthetic import Adding\n\n\nclass Parity(Adding):\n    pass\n"


@pytest.fixture
def parity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Writes a task of one's own, and forgets the one that was imported."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(more: str) -> None:
        (tmp_path / "my_parity.py").write_text(PARITY + more)
        monkeypatch.delitem(sys.modules, "my_parity", raising=False)

    write("")
    return write


OWN = {"task": {"name": "my_parity:Parity"}}


def test_edited_code_is_taken_on_when_asked_for(
    tmp_path: Path, parity: Callable[[str], None]
) -> None:
    train(recipe(**OWN), tmp_path / "whole", settings=TINY)
    folder = tmp_path / "run"
    stop_after(6, folder, recipe(**OWN))
    (before,) = read_run(folder)[0].code.values()
    parity("# edited\n")
    after = digest((tmp_path / "my_parity.py").read_bytes())
    words = f"code of my_parity {after[:8]}, not {before[:8]}"
    with pytest.raises(RunError, match=rf"expected the code .*{words}: undo .*--continue-with"):
        resume(folder, trust=True)
    parity("")
    assert not read_run(folder)[0].changes
    parity("# edited\n")
    member = Member(recipe(**OWN), folder, 5544, TINY, Quiet())
    with pytest.raises(RunError, match="expected the code"):
        train_together([member])
    resume(folder, trust=True, continue_with=True)
    # the edit did not change what it computes, nor was the optimiser told of new settings
    assert numbers(folder) == numbers(tmp_path / "whole")
    description, found = read_run(folder)
    assert found == recipe(**OWN)
    assert description.code == {"my_parity": after}
    (change,) = description.changes
    assert (change.kind, change.step, change.differences) == ("edited", 6, (words,))
    # from now on this is its code
    assert resume(folder, trust=True, extend=2).step == 12
    assert read_run(folder)[0].code == {"my_parity": after}
    parity("")
    assert resume(folder, trust=True).step == 12
    for asked in (False, True):
        with pytest.raises(RunError, match="expected the code"):
            resume(folder, trust=True, extend=2, continue_with=asked)


def test_what_is_evaluated_with_other_code_is_said(
    tmp_path: Path, parity: Callable[[str], None]
) -> None:
    folder = tmp_path / "run"
    result = train(recipe(**OWN), folder, settings=TINY)
    assert evaluate(folder, "test", trust=True) == pytest.approx(result.selected["test"].scores)
    parity("# edited\n")
    with pytest.warns(UserWarning, match="was trained with code of my_parity .*, as it is now"):
        evaluate(folder, "test", trust=True)


def test_the_code_of_older_runs_stays_unknown(
    tmp_path: Path, parity: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr("cayley.lab.training.setup.find_code", lambda _: {})
        train(recipe(**OWN), tmp_path / "run", settings=TINY)
    parity("# edited\n")
    assert resume(tmp_path / "run", trust=True, extend=2).step == 12
    assert read_run(tmp_path / "run")[0].code == {}


def write_text(folder: Path, words: str) -> Path:
    folder.mkdir(exist_ok=True)
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text(words if split == "train" else "ab" * 20)
    return folder


@pytest.mark.parametrize(
    "words",
    [
        # as many different characters, of which another is the most frequent
        "abb" * 80,
        # one more
        "aab" * 80 + "c",
    ],
)
def test_a_text_whose_tokens_have_other_numbers_is_refused(words: str, tmp_path: Path) -> None:
    settings = RunSettings(Machine("cpu", "64-true", 1), data=tmp_path / "text")
    data, run = write_text(tmp_path / "text", "aab" * 80), tmp_path / "run"
    train(recipe(**TEXT), run, settings=settings)
    scores = evaluate(run, "test")
    # elsewhere, or another text with the same numbers
    assert evaluate(run, "test", data=write_text(tmp_path / "moved", "aab" * 80)) == scores
    assert evaluate(run, "test", data=write_text(tmp_path / "longer", "aab" * 90)) == scores
    write_text(data, words)
    wrong = f"expected the text that the run in {run} was trained with, from {data}, got {data}, "
    with pytest.raises(RunError, match=re.escape(wrong)):
        evaluate(run, "test")
    with pytest.raises(RunError, match=re.escape(wrong)):
        resume(run, extend=1)
    # as if it were unfinished
    (run / "result.json").unlink()
    with pytest.raises(RunError, match=re.escape(wrong)):
        resume(run)
    member = Member(recipe(**TEXT), run, 5544, settings, Quiet())
    with pytest.raises(RunError, match=re.escape(wrong)):
        train_together([member])
    write_text(data, "aab" * 80)
    assert resume(run).status == "done"


def test_an_older_run_has_no_digest_of_its_text(tmp_path: Path) -> None:
    settings = RunSettings(Machine("cpu", "64-true", 1), data=tmp_path / "text")
    data, run = write_text(tmp_path / "text", "aab" * 80), tmp_path / "run"
    train(recipe(**TEXT), run, settings=settings)
    description, _ = read_run(run)
    content = json.loads((run / "run.json").read_text())
    assert content.pop("vocabulary")
    del content["seal"]
    (run / "run.json").write_text(json.dumps(seal_json(content, description.seal)))
    write_text(data, "abb" * 80)
    assert evaluate(run, "test")
