"""A study and its trials, in one process: what is given out, taken up, told and refused."""

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from cayley.lab.errors import Interrupted, RecipeError, RunError
from cayley.lab.runs import Interrupts, Machine, read_metrics
from cayley.lab.sweeps import Outcome, Space, Sweep, find_space, join, open_storage, read_space
from cayley.lab.sweeps import claims as claims_module
from cayley.lab.sweeps.checking import check_space
from cayley.lab.sweeps.claims import BEAT, OWNER, Watch
from cayley.lab.sweeps.engine import make_pruner, make_sampler
from cayley.lab.sweeps.space import PrunerSettings, SamplerSettings
from cayley.lab.sweeps.worker import work
from cayley.lab.training import Quiet, RunSettings

optuna = pytest.importorskip("optuna", reason="sweeps need the extra sweep")

TEXT = """
recipe = "quickstart"
metric = "valid_mse"
trials = 4
set = ["training.steps=4", "evaluation.every=2", "model.hidden=6"]
sampler = { name = "random", seed = 3 }
[parameters]
optim.lr = { low = 1e-4, high = 1e-1, log = true }
model.output_init = ["glorot", 0.1]
"""
SETTINGS = RunSettings(Machine("cpu", threads=1), tiny=True)


def space(text: str = TEXT, **changes: str) -> Space:
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return read_space(text, "mine")


def begin(folder: Path, found: Space | None = None, url: str = "", **more: Any) -> Sweep:
    storage = open_storage(url or f"journal://{folder / 'sweeps.journal'}")
    return join(found or space(), storage, folder, direction="minimize", tiny=True, **more)


def finish(sweep: Sweep, value: float = 1.0) -> int:
    task, _ = sweep.claim()
    assert task is not None
    with task.claim:
        assert sweep.finish(task, Outcome("complete", value))
    return task.number


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_there_are_as_many_trials_as_were_asked_for(kind: str, tmp_path: Path) -> None:
    place = {"journal": "journal://", "sqlite": "sqlite:///"}[kind]
    url = f"{place}{tmp_path / 'studies'}"
    one, other = (begin(tmp_path, url=url) for _ in range(2))
    held = []
    for sweep in (one, other, one, other):
        task, _ = sweep.claim()
        assert task is not None
        task.claim.__enter__()
        held.append((sweep, task))
    assert [task.number for _, task in held] == [0, 1, 2, 3]
    # the seed that they have in common is not that of every trial
    assert len({task.choice["optim.lr"] for _, task in held}) == 4
    assert one.claim() == (None, 4)
    assert other.claim() == (None, 4)
    for sweep, task in held:
        assert sweep.finish(task, Outcome("complete", 1.0 + task.number))
        task.claim.__exit__(None, None, None)
    assert one.claim() == other.claim() == (None, 0)
    best = other.best()
    assert best is not None
    assert best.number == 0
    # a longer study goes on where this one ended
    assert finish(begin(tmp_path, url=url, trials=5)) == 4
    assert begin(tmp_path, url=url, trials=5).claim() == (None, 0)


def test_what_is_left_behind_is_taken_up_in_its_folder(tmp_path: Path) -> None:
    one, other = begin(tmp_path), begin(tmp_path)
    first, _ = one.claim()
    assert first is not None
    # it dies without a word
    os.close(first.claim._file)
    again, others = other.claim()
    assert again is not None
    assert (again.number, again.choice, again.folder) == (0, first.choice, first.folder.resolve())
    assert others == 0
    # whoever comes back from the dead is not listened to
    assert not one.finish(first, Outcome("complete", 5.0))
    with again.claim:
        assert other.finish(again, Outcome("complete", 2.0))
    assert not other.finish(again, Outcome("complete", 3.0))
    assert [trial.values for trial in other.study.trials] == [[2.0]]


def test_a_trial_without_a_worker_is_taken_up(tmp_path: Path) -> None:
    sweep = begin(tmp_path)
    sweep.study.ask()
    task, _ = sweep.claim()
    assert task is not None
    assert task.number == 0


def test_a_worker_of_another_machine_is_silent_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = begin(tmp_path)
    task, _ = sweep.claim()
    assert task is not None
    os.close(task.claim._file)
    content = {**task.trial.user_attrs[OWNER], "host": "another", "folder": "/not/here"}
    task.trial.set_user_attr(OWNER, content)
    clock = [0.0]
    monkeypatch.setattr(claims_module.time, "monotonic", lambda: clock[0])
    watch = Watch()

    def is_left() -> bool:
        return watch.is_left(sweep.study.get_trials(deepcopy=False)[0])

    assert not is_left()
    clock[0] = 100.0
    task.trial.set_user_attr(BEAT, 1)
    assert not is_left()
    clock[0] = 240.0
    assert not is_left()
    clock[0] = 260.0
    assert is_left()
    # where its folder is seen and locked, it is alive however silent
    content["folder"], content["host"] = str(task.folder), socket.gethostname()
    task.trial.set_user_attr(OWNER, content)
    again, _ = sweep.claim()
    assert again is not None
    with again.claim:
        assert not watch.is_left(sweep.study.get_trials(deepcopy=False)[0])


def test_the_number_of_a_claim_counts_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_module, "BEAT_SECONDS", 0.01)
    sweep = begin(tmp_path)
    task, _ = sweep.claim()
    assert task is not None
    with task.claim:
        while sweep.study.get_trials(deepcopy=False)[0].user_attrs.get(BEAT, 0) < 3:
            pass


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("1e-4", "1e-3", "parameters.optim.lr"),
        ("[parameters]", "[parameters]\noptim.weight_decay = [0]", "parameters.optim.weight_decay"),
        ("model.output_init =", "model.embedding_init =", "output_init, parameters.model.emb"),
        ("steps=4", "steps=6", "recipe"),
        ("seed = 3", "seed = 4", "sampler"),
        ('"valid_mse"', '"test_mse"', "metric"),
    ],
)
def test_another_space_is_refused(old: str, new: str, words: str, tmp_path: Path) -> None:
    begin(tmp_path)
    with pytest.raises(RecipeError, match="was begun with") as caught:
        begin(tmp_path, space(**{old: new}))
    assert all(word in str(caught.value) for word in words.split(", "))
    # but for its length and its words
    begin(tmp_path, space(**{"trials = 4": 'trials = 9\ntitle = "more"'}))


def test_a_study_of_another_program_is_refused(tmp_path: Path) -> None:
    storage = open_storage(f"journal://{tmp_path / 'sweeps.journal'}")
    optuna.create_study(storage=storage.optuna, study_name="mine").ask()
    with pytest.raises(RunError, match="which is of another program"):
        begin(tmp_path)


def test_a_grid_is_done_choice_by_choice(tmp_path: Path) -> None:
    text = TEXT.replace("trials = 4\n", "").replace(
        'sampler = { name = "random", seed = 3 }', 'sampler.name = "grid"'
    )
    found = space(text.replace("{ low = 1e-4, high = 1e-1, log = true }", "[0.1, 0.2]"))
    sweep = begin(tmp_path, found)
    assert sweep.trials == 4
    # a worker that is killed in the middle of asking
    sweep.study.enqueue_trial({"optim.lr": 0.1, "model.output_init": "glorot"})
    assert [finish(sweep) for _ in range(4)] == [0, 1, 2, 3]
    assert sweep.claim() == (None, 0)
    assert [tuple(trial.params.values()) for trial in sweep.study.trials] == [
        (0.1, "glorot"),
        (0.1, 0.1),
        (0.2, "glorot"),
        (0.2, 0.1),
    ]
    with pytest.raises(RecipeError, match="at most the 4 choices of the grid, got 5"):
        begin(tmp_path, found, trials=5)


@pytest.mark.parametrize("name", ["tpe", "gp", "qmc", "random"])
def test_samplers_choose(name: str, tmp_path: Path) -> None:
    sweep = begin(tmp_path, space(**{'"random", seed = 3': f'"{name}", seed = 1'}))
    assert [finish(sweep, float(k)) for k in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (make_pruner, PrunerSettings("median", {"n_warmup": 1}), "did you mean n_warmup_steps?"),
        (make_pruner, PrunerSettings("percentile"), "percentile refuses these options"),
        (make_sampler, SamplerSettings("random", {"sed": 1}), "did you mean seed?"),
        (make_sampler, SamplerSettings("gp", {"independent_sampler": 1}), "unknown option"),
    ],
)
def test_options_of_optuna_are_checked(make: Any, settings: Any, words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        make(settings)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("optim.lrr = [1]", "unknown key optim.lrr: did you mean optim.lr?"),
        ("optim.lr = [-1]", "optim.lr: expected a number of at least 0"),
        ("optim.lr = { low = -1, high = 1 }", "optim.lr: expected a number of at least 0"),
        ("training.batch = { low = 1, high = 2.5 }", "training.batch: expected an integer"),
        ('optim.name = ["Adam", "Adamm"]', "did you mean Adam?"),
        ('model.name = ["ScoRNN", "ScoRN"]', "did you mean ScoRNN?"),
        ("model.negative_one = [1]", "unknown key model.negative_one"),
        ("model.negative_ones = { low = 0, high = 90 }", "negative_ones"),
        ("task.TT = [10]", "expected settings of T"),
        ("task.T = [1, 10]", "T: expected"),
        ("optim.options.momentum = [0.9]", "Adam refuses these settings"),
        ("bnp.epsilon = [0.9]", "bnp: "),
        ("evaluation.splits = [['test'], ['valid', 'test']]", "expected a split that is evaluated"),
    ],
)
def test_ends_of_a_space_are_checked_before_any_work(line: str, words: str) -> None:
    text = TEXT.partition("[parameters]")[0].replace(', "model.hidden=6"', "")
    text = text.replace("]\n", ', "evaluation.select=last"]\n', 1)
    with pytest.raises(RecipeError) as caught:
        check_space(space(f"{text}[parameters]\n{line}"))
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"mine: parameters.{line.partition(' ')[0]}: ")


def test_a_metric_that_the_task_has_not() -> None:
    with pytest.raises(RecipeError, match="expected one of valid_mse, got 'valid_accuracy'"):
        check_space(space(valid_mse="valid_accuracy"))


@pytest.mark.parametrize(
    "name",
    [
        *("atn-windows", "cifar10-bn", "cifar10-bnp", "cifar10-plain", "enrnn-adding"),
        *("nc-gru-order", "scornn-mnist", "scornn-pmnist"),
    ],
)
def test_ready_spaces_can_be_searched(name: str) -> None:
    found = find_space(name)
    assert found.title
    assert found.source
    check_space(found)
    make_sampler(found.sampler)
    make_pruner(found.pruner)


def test_the_searches_of_cifar10_have_equal_budgets() -> None:
    plain, *others = (find_space(f"cifar10-{name}") for name in ("plain", "bn", "bnp"))
    for one in others:
        assert (one.trials, one.parameters, one.set) == (plain.trials, plain.parameters, plain.set)


def test_pruned_diverged_and_failed_trials_end(tmp_path: Path) -> None:
    text = TEXT.partition("[parameters]")[0] + (
        "pruner = { name = 'threshold', upper = 0.0001 }\n"
        "[parameters]\n"
        "optim.lr = [1e-3, 1e30]\n"
        "training.clip_norm = [0.0]\n"
        "model.negative_ones = [3, 9]\n"
    )
    text = text.replace('name = "random", seed = 3', 'name = "grid"').replace(
        '"evaluation.every=2"', '"evaluation.every=2", "optim.name=SGD"'
    )
    sweep = begin(tmp_path, space(text))
    told = []
    work(sweep, SETTINGS, interrupts=Interrupts(), tell=told.append)
    states = [trial.state.name for trial in sweep.study.trials]
    assert states == ["PRUNED", "FAIL", "PRUNED", "FAIL"]
    reasons = [trial.user_attrs["reason"] for trial in sweep.study.trials]
    assert reasons[0] == "pruned after step 2"
    assert "negative_ones" in reasons[1]
    assert "step 2" in reasons[2]
    # a run that was pruned can be gone on with all the same
    records = (tmp_path / "mine" / "trial-0000" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(records[-1])["event"] == "pruned"
    assert [one.outcome.state for one in told] == ["pruned", "failed", "pruned", "failed"]


def test_a_trial_that_breaks_its_worker_again_and_again_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cayley.lab.sweeps import worker

    def fail(*arguments: Any, **more: Any) -> None:
        raise ZeroDivisionError("a fault of the device")

    monkeypatch.setattr(worker, "run_trial", fail)
    sweep = begin(tmp_path)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            work(sweep, SETTINGS, interrupts=Interrupts())
    (trial,) = sweep.study.trials
    assert trial.state.name == "FAIL"
    assert trial.user_attrs["reason"] == "ZeroDivisionError: a fault of the device"


def test_the_run_of_another_trial_is_not_gone_on_with(tmp_path: Path) -> None:
    work(begin(tmp_path, trials=1), SETTINGS, interrupts=Interrupts())
    (tmp_path / "sweeps.journal").unlink()
    with pytest.raises(RunError, match="expected the run of this trial"):
        work(
            begin(tmp_path, space(**{"seed = 3": "seed = 9"}), trials=1),
            SETTINGS,
            interrupts=Interrupts(),
        )


def test_half_a_line_of_a_journal_is_cut_off(tmp_path: Path) -> None:
    sweep = begin(tmp_path)
    finish(sweep)
    with open(tmp_path / "sweeps.journal", "ab") as file:
        file.write(b'{"op_code": 4, "wor')
    assert finish(begin(tmp_path)) == 1
    assert [trial.number for trial in begin(tmp_path).study.trials] == [0, 1]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("runs/sweeps.journal", "expected journal:///path, sqlite:///path"),
        ("journal://", "expected journal:///path/of/a/file"),
        ("sqlite://", "expected sqlite:///path/of/a/file"),
        ("postgresql+psycopg2://me@host/db", "write postgresql+psycopg://"),
        ("mysql://me@host/db", "write mysql+pymysql://"),
        ("oracle://me@host/db", "expected journal:///path"),
    ],
)
def test_addresses_of_storages(url: str, words: str) -> None:
    with pytest.raises((RecipeError, RuntimeError)) as caught:
        open_storage(url)
    assert words in str(caught.value)


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    url = f"postgresql+psycopg://me:secret@/db?host={tmp_path}"
    with pytest.raises(RunError, match="could not use the storage") as caught:
        open_storage(url)
    assert "secret" not in str(caught.value)


class Stop(Quiet):
    """Asks a run to stop after a step."""

    def __init__(self, interrupts: Interrupts, last: int) -> None:
        self.interrupts, self.last = interrupts, last

    def step(self, step: int, epoch: float) -> None:
        if step == self.last:
            self.interrupts.signal = signal.SIGTERM


def test_a_worker_that_was_asked_to_stop_goes_on_with_its_trial(tmp_path: Path) -> None:
    interrupts = Interrupts()
    sweep = begin(tmp_path, trials=2)
    with pytest.raises(Interrupted, match=r"stopped in trial 0.*the same command goes on") as caught:
        work(sweep, SETTINGS, interrupts=interrupts, reporter=lambda folder: Stop(interrupts, 3))
    assert caught.value.code == 143
    told: list[Any] = []
    work(begin(tmp_path, trials=2), SETTINGS, interrupts=Interrupts(), tell=told.append)
    assert [one.number for one in told] == [0, 1]
    events = [one["event"] for one in read_metrics(told[0].folder) if one["kind"] == "event"]
    assert events == ["interrupted", "resumed"]
    assert [sorted(one.intermediate_values) for one in sweep.study.trials] == [[2, 4]] * 2


def test_a_longer_queue_is_no_longer_study(tmp_path: Path) -> None:
    sweep = begin(tmp_path, trials=1)
    for lr in (0.01, 0.02):
        sweep.study.enqueue_trial({"optim.lr": lr})
    assert finish(sweep) == 0
    assert sweep.claim() == (None, 0)
