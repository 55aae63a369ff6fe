from pathlib import Path

import pytest

from cayley.lab.recipes import find_recipe, tables
from cayley.lab.training import run_folder


def name(*overrides: str, recipe: str = "scornn/pmnist-170", task: str = "") -> str:
    entry = find_recipe(recipe)
    changed = entry.recipe(overrides=overrides, task=task)
    folder = run_folder(Path("runs"), changed, 1, entry.recipe())
    assert folder.parent == Path("runs", recipe)
    return folder.name


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], "paper-seed1"),
        (["optim.lr=3e-4"], "lr-3e-4-seed1"),
        (["optim.lr=0.125"], "lr-0.125-seed1"),
        (["optim.lr=1"], "lr-1-seed1"),
        (["optim.lr=1.25e-7", "model.hidden=64"], "hidden-64-lr-1.25e-7-seed1"),
        (["model.hidden=[5, 4]", "evaluation.batch=20"], "hidden-5-4-evaluation-batch-20-seed1"),
        (["training.batch=20"], "batch-20-seed1"),
        (["model.name=torch.LSTM", "optim.name=SGD"], "model-torch.LSTM-optim-SGD-seed1"),
        (["model.name=NCGRU", "model.order=3"], "model-NCGRU-order-3-seed1"),
        (["optim.schedule.name=StepLR"], "schedule-StepLR-seed1"),
        (["bnp.momentum=0.5"], "bnp-momentum-0.5-seed1"),
        (["task.name=mine:Task"], "task-mine.Task-seed1"),
        (["model.tied=true"], "tied-true-seed1"),
    ],
)
def test_names_say_what_was_changed(overrides: list[str], expected: str) -> None:
    assert name(*overrides) == expected


def test_the_same_recipe_has_the_same_name() -> None:
    lr = find_recipe("quickstart").recipe().optim.lr
    assert name(f"optim.lr={lr}", "model.hidden=80", recipe="quickstart") == "paper-seed1"
    same = [
        name("optim.lr=3e-4", "model.hidden=64"),
        name("model.hidden=64", "optim.lr=0.0003"),
        name("model.hidden=7", "optim.lr=30e-5", "model.hidden=64"),
    ]
    assert len(set(same)) == 1


def test_arguments_of_another_network_are_named_even_if_the_old_one_had_them() -> None:
    ones = find_recipe("scornn/pmnist-170").recipe().model.options["negative_ones"]
    given = name("model.name=NCGRU", f"model.negative_ones={ones}")
    assert given == f"model-NCGRU-negative-ones-{ones}-seed1"
    assert name("model.name=NCGRU") == "model-NCGRU-seed1"


def test_names_that_would_be_too_long_or_unclear_have_a_digest() -> None:
    many = ["model.dropout=0.5", "training.batch=7", "training.patience=3", "training.log=4"]
    long = [name(*many, "evaluation.every=5", f"evaluation.batch={b}") for b in (8, 9)]
    assert long[0] != long[1]
    assert long[0][:-15] == long[1][:-15]
    assert all(len(one) < 80 for one in long)
    assert all(one.startswith("dropout-0.5-batch-7-") for one in long)
    unclear = [name(f"task.path={text}") for text in ("../../x", "./../x", "x")]
    assert len(set(unclear)) == 3
    assert not any("/" in one for one in unclear)
    assert name("task.path=../../x") == unclear[0]


def test_the_settings_of_another_task_are_all_said() -> None:
    assert name(task="copying", recipe="quickstart") == "task-copying-seed1"
    assert name("task.name=copying", recipe="quickstart") == "task-copying-seed1"
    given = name("task.name=copying", "task.T=100", recipe="quickstart")
    assert given == "task-copying-T-100-seed1"


def test_toys_and_precisions_are_runs_of_their_own() -> None:
    recipe = find_recipe("quickstart").recipe()
    folders = [
        run_folder(Path(), recipe, 1, recipe, tiny=tiny, precision=precision).name
        for tiny in (False, True)
        for precision in ("32-true", "64-true", "bf16-mixed")
    ]
    assert folders == [
        "paper-seed1",
        "float64-seed1",
        "bfloat16-seed1",
        "tiny-seed1",
        "tiny-float64-seed1",
        "tiny-bfloat16-seed1",
    ]


def test_the_variant_of_the_code_is_named() -> None:
    entry = next(e for t in tables().values() for e in t.entries if "code" in e.variants)
    base = entry.recipe("code")
    changed = entry.recipe("code", ["training.batch=3"])
    assert run_folder(Path(), base, 1, base).name == "code-seed1"
    assert run_folder(Path(), changed, 1, base).name == "code-batch-3-seed1"
