"""A study in one process: what is given out, joined and refused."""

from pathlib import Path

import pytest
from lab.sweeps.made_up import TEXT, begin, finish, space

from cayley.lab.errors import RecipeError, RunError
from cayley.lab.sweeps import Outcome, describe_studies, open_storage

optuna = pytest.importorskip("optuna", reason="sweeps need the extra sweep")


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
    (study,) = describe_studies(other.storage)
    assert study["best_trial"] == 0
    # a longer study goes on where this one ended
    assert finish(begin(tmp_path, url=url, trials=5)) == 4
    assert begin(tmp_path, url=url, trials=5).claim() == (None, 0)


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
    with pytest.raises(RecipeError, match="was started with") as caught:
        begin(tmp_path, space(**{old: new}))
    assert all(word in str(caught.value) for word in words.split(", "))
    # but for its length and its words
    begin(tmp_path, space(**{"trials = 4": 'trials = 9\ntitle = "more"'}))


def test_a_study_of_another_program_is_refused(tmp_path: Path) -> None:
    storage = open_storage(f"journal://{tmp_path / 'sweeps.journal'}")
    optuna.create_study(storage=storage.optuna, study_name="mine").ask()
    with pytest.raises(RunError, match="which is from another program"):
        begin(tmp_path)


@pytest.mark.parametrize("sampler", ["grid", "random"])
def test_steps_have_the_values_that_a_condition_names(sampler: str, tmp_path: Path) -> None:
    text = TEXT.replace("trials = 4", "trials = 6").replace('"random", seed = 3', f'"{sampler}"')
    text = text.replace("low = 1e-4, high = 1e-1, log = true", "low = 0.1, high = 0.5, step = 0.1")
    text = text.replace('["glorot", 0.1]', '{ values = ["glorot", 0.1], when = {"optim.lr" = 0.3}}')
    url = f"journal://{tmp_path / 'sweeps.journal'}"
    sweep = begin(tmp_path, space(text), url=url, trials=4)
    for number in range(4):
        if sampler == "random":
            # as Optuna adds steps
            sweep.study.enqueue_trial({"optim.lr": 0.1 + 2 * 0.1})
        task, _ = sweep.claim()
        assert task is not None
        with task.claim:
            assert ("model.output_init" in task.choice) == (task.choice["optim.lr"] == 0.3)
            assert sweep.finish(task, Outcome("complete", -float(number)))
    (study,) = describe_studies(open_storage(url))
    assert study["best_settings"]["optim.lr"] == 0.3


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


def test_a_longer_queue_is_no_longer_study(tmp_path: Path) -> None:
    sweep = begin(tmp_path, trials=1)
    for lr in (0.01, 0.02):
        sweep.study.enqueue_trial({"optim.lr": lr})
    assert finish(sweep) == 0
    assert sweep.claim() == (None, 0)
