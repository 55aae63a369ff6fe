from pathlib import Path

import pytest

from cayley.lab.errors import RecipeError
from cayley.lab.recipes import find_recipe, parse_override, read_table, tables

FILE = """
title = "A table"
[defaults]
paper = "someone2020"
task = { name = "adding", T = 200 }
optim = { name = "Adam", lr = 1e-3 }
training = { batch = 50, epochs = 10 }
[defaults.code]
task = { T = 100 }
training = { batch = 20 }
[[row]]
name = "a/one"
parameters = 7
model = { name = "ScoRNN", hidden = 170 }
[[row]]
name = "a/two"
model = { name = "LSTM", hidden = 60 }
training = { epochs = 5 }
[row.code]
training = { batch = 10 }
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text(FILE)
    return tmp_path / "mine.toml"


def test_rows_go_over_defaults_and_code_over_both(path: Path) -> None:
    table = read_table(path)
    assert (table.name, table.title) == ("mine", "A table")
    one, two = table.entries
    assert two.variants == ("paper", "code")
    paper, code = two.recipe(), two.recipe("code")
    assert (paper.training.epochs, paper.training.batch, paper.task.settings) == (5, 50, {"T": 200})
    assert (code.training.epochs, code.training.batch, code.task.settings) == (5, 10, {"T": 100})
    assert (code.variant, code.table, code.paper) == ("code", "mine", "someone2020")
    assert one.recipe("code").training.batch == 20


def test_what_the_code_has_none_of(path: Path) -> None:
    """Such as options of a network that the code does not have."""
    path.write_text(
        """
        [defaults]
        task = { name = "adding" }
        optim = { name = "Adam", lr = 1e-3 }
        training = { batch = 20, epochs = 2 }
        [[row]]
        name = "one"
        paper = "someone2020"
        [row.paper-only]
        model = { name = "NCGRU", hidden = 6, orthogonal = [] }
        [row.code]
        model = { name = "torch.GRU", hidden = 5 }
        [[row]]
        name = "two"
        [row.paper-only]
        model = { name = "RNN", hidden = 6 }
        """
    )
    one, two = read_table(path).entries
    assert one.recipe().paper == one.recipe("code").paper == "someone2020"
    assert (one.recipe().model.name, one.recipe().model.options) == ("NCGRU", {"orthogonal": []})
    assert (one.recipe("code").model.name, one.recipe("code").model.options) == ("torch.GRU", {})
    assert two.variants == ("paper",)


def test_overrides_go_last_and_forget_the_count(path: Path) -> None:
    entry = read_table(path).entries[0]
    assert entry.recipe().parameters == 7
    changed = entry.recipe(overrides=["model.hidden=[3, 4]", "optim.name=SGD", "bnp.eps=0.1"])
    assert (changed.model.hidden, changed.optim.name, changed.bnp) == ((3, 4), "SGD", {"eps": 0.1})
    assert changed.parameters == 0
    own = entry.recipe(overrides=["task.x=1"], task="my.module:Task")
    assert (own.task.name, own.task.settings) == ("my.module:Task", {"x": 1})


def test_the_count_is_forgotten_only_where_it_may_change(path: Path) -> None:
    entry = read_table(path).entries[0]
    for change in ("training.epochs=3", "optim.lr=1e-2", "evaluation.batch=5", "seed=3"):
        assert entry.recipe(overrides=[change]).parameters == 7
    assert entry.recipe(overrides=["task.T=300"]).parameters == 0
    assert entry.recipe(overrides=["model.hidden=3", "parameters=9"]).parameters == 9


@pytest.mark.parametrize(
    ("overrides", "epochs", "steps", "said"),
    [
        ([], 10, 0, ""),
        (["training.steps=3"], 0, 3, "training.epochs=0: training.steps=3 takes the place of 10 "),
        (["training.steps=3", "training.epochs=0"], 0, 3, ""),
        (["training.epochs=3"], 3, 0, ""),
    ],
)
def test_steps_take_the_place_of_epochs(
    overrides: list[str], epochs: int, steps: int, said: str, path: Path
) -> None:
    entry = read_table(path).entries[0]
    training = entry.recipe(overrides=overrides).training
    assert (training.epochs, training.steps) == (epochs, steps)
    assert "".join(entry.implied(overrides=overrides)).startswith(said)
    assert bool(entry.implied(overrides=overrides)) == bool(said)


def test_epochs_take_the_place_of_steps() -> None:
    entry = find_recipe("quickstart")
    training = entry.recipe(overrides=["training.epochs=3"]).training
    assert (training.epochs, training.steps) == (3, 0)
    (said,) = entry.implied(overrides=["training.epochs=3"])
    assert said.startswith("training.steps=0: training.epochs=3 takes the place of")
    with pytest.raises(RecipeError, match="either epochs or steps"):
        entry.recipe(overrides=["training.epochs=3", "training.steps=3"])


@pytest.mark.parametrize(
    "overrides",
    [
        ["optim.schedule.name=StepLR", "optim.schedule.step_size=5"],
        ["optim.schedule={name='StepLR', step_size=5}"],
    ],
)
def test_another_schedule_does_not_get_the_arguments_of_this_one(overrides: list[str]) -> None:
    entry = find_recipe("quickstart")
    schedule = entry.recipe(overrides=overrides).optim.schedule
    assert (schedule.name, schedule.every, schedule.options) == ("StepLR", "step", {"step_size": 5})
    said = ["left out, as settings of CosineAnnealingLR: T_max = 2500"]
    assert entry.implied(overrides=overrides) == said
    assert entry.implied(overrides=overrides, tiny=True) == said
    assert not entry.implied(overrides=[*overrides, "optim.schedule.T_max=5"])
    assert entry.recipe(overrides=["optim.schedule.name="]).optim.schedule.options == {}
    # those of the same one are changed one by one
    same = ["optim.schedule.name=CosineAnnealingLR", "optim.schedule.eta_min=1e-5"]
    options = entry.recipe(overrides=same).optim.schedule.options
    assert options == {"T_max": 2500, "eta_min": 1e-5}
    assert not entry.implied(overrides=same)


def test_another_optimizer_does_not_get_the_arguments_of_this_one(path: Path) -> None:
    optim = 'optim = { name = "RMSprop", lr = 1e-3, options = { alpha = 0.9 } }'
    path.write_text(FILE.replace('optim = { name = "Adam", lr = 1e-3 }', optim))
    entry = read_table(path).entries[0]
    other = ["optim.name=SGD", "optim.options.momentum=0.9"]
    assert entry.recipe(overrides=other).optim.options == {"momentum": 0.9}
    assert entry.implied(overrides=other) == ["left out, as settings of RMSprop: alpha = 0.9"]
    # nor does it lose them
    assert entry.recipe().optim.options == {"alpha": 0.9}
    rate = ["optim.lr=1e-4"]
    assert entry.recipe(overrides=rate).optim.options == {"alpha": 0.9}
    assert not entry.implied(overrides=rate)


def test_another_network_does_not_get_the_arguments_of_this_one() -> None:
    entry = find_recipe("scornn/mnist-170")
    assert entry.recipe().model.options == {"negative_ones": 17}
    other = ["model.name=LSTM", "model.forget_bias=1.0"]
    model = entry.recipe(overrides=other).model
    # settings that all networks have are kept
    assert (model.name, model.hidden, model.options) == ("LSTM", 170, {"forget_bias": 1.0})
    assert entry.implied(overrides=other) == ["left out, as settings of ScoRNN: negative_ones = 17"]
    again = ["model.name=NCGRU", "model.negative_ones=5"]
    assert entry.recipe(overrides=again).model.options == {"negative_ones": 5}
    assert not entry.implied(overrides=again)
    same = ["model.name=ScoRNN", "model.hidden=64"]
    assert entry.recipe(overrides=same).model.options == {"negative_ones": 17}
    assert not entry.implied(overrides=same)


def test_what_is_left_out_is_no_longer_among_what_a_paper_does_not_say() -> None:
    entries = [entry for table in tables().values() for entry in table.entries]
    found = [one for one in entries if "model.negative_ones" in one.recipe().unstated]
    assert found
    for entry in found:
        unstated = entry.recipe(overrides=["model.name=torch.GRU"]).unstated
        assert "model.negative_ones" not in unstated
        assert "model.hidden" in unstated or "model.hidden" not in entry.recipe().unstated


def test_another_task_leaves_what_was_said_of_this_one_behind() -> None:
    entry = find_recipe("gcn/cora-adam")
    assert any(key.startswith("task.") for key in entry.recipe().unstated)
    assert entry.recipe().reported
    recipe = entry.recipe(task="photo")
    assert recipe == entry.recipe(overrides=["task.name=photo"])
    assert entry.implied(task="photo") == entry.implied(overrides=["task.name=photo"])
    assert entry.recipe(task=entry.recipe().task.name).reported
    assert (recipe.task.name, recipe.task.settings) == ("photo", {})
    assert not any(key.startswith("task") for key in recipe.unstated)
    assert not recipe.reported
    assert not recipe.claims


def test_tried_out_it_is_short(path: Path) -> None:
    entry = read_table(path).entries[0]
    recipe = entry.recipe(tiny=True)
    assert (recipe.training.epochs, recipe.training.steps, recipe.training.batch) == (0, 2, 4)
    assert (recipe.model, recipe.parameters) == (entry.recipe().model, 7)
    more = entry.recipe(overrides=["training.steps=30", "training.batch=7"], tiny=True)
    assert (more.training.steps, more.training.batch) == (30, 7)
    assert not entry.implied(overrides=["training.steps=30"], tiny=True)
    epochs = entry.recipe(overrides=["training.epochs=2"], tiny=True)
    assert (epochs.training.epochs, epochs.training.steps) == (2, 0)


def test_another_task_says_which_settings_it_leaves_out() -> None:
    entry = find_recipe("sage/products-sgd")
    (said,) = entry.implied(task="photo")
    assert said == "left out, as settings of ogbn-products: neighbours = [15, 10, 5]"
    assert entry.recipe(task="photo").task.settings == {}
    given = ["task.neighbours=[3]"]
    assert not entry.implied(overrides=given, task="photo")
    assert entry.recipe(overrides=given, task="photo").task.settings == {"neighbours": [3]}


def test_an_override_is_key_and_value() -> None:
    assert parse_override("a.b='1'") == {"a": {"b": "1"}}
    assert parse_override("a=x=y") == {"a": "x=y"}
    assert parse_override("a=1e-4") == {"a": 1e-4}
    # more digits than Python makes a number of
    assert parse_override("a=" + "1" * 5000) == {"a": "1" * 5000}
    with pytest.raises(RecipeError, match="expected key=value"):
        parse_override("model.hidden")
    with pytest.raises(RecipeError, match="expected key=value in UTF-8"):
        parse_override("note=\udcff")


def test_a_file_of_the_users_own(path: Path) -> None:
    assert find_recipe(f"{path}:a/two").name == "a/two"
    with pytest.raises(RecipeError, match="name one of its rows"):
        find_recipe(str(path))
    path.write_text(FILE[: FILE.rindex("[[row]]")])
    assert find_recipe(str(path)).name == "a/one"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = 3 3", "could not read"),
        ("title = 'a'", "missing key row"),
        ("row = []", r"expected tables \[\[row\]\], .* got row = \[\]"),
        ("[row]\nname = 'a'", r"expected tables \[\[row\]\]"),
        ("row = 5", r"expected tables \[\[row\]\]"),
        ("defaults = 5\n[[row]]\nname = 'a'", r"expected a table \[defaults\], got defaults = 5"),
        ("[[row]]\nname = ['a']", r"row 1: expected a name, got \['a'\]"),
        ("name = {a = 1}\n[task]", "row 1: expected a name, got"),
        ("default = {}\nrow = []", "unknown key default: did you mean defaults?"),
        ("[[row]]\nmodel = {}", "row 1: name"),
        ("[task]\nname = 'adding'", "mine.toml: missing key name$"),
        ("nam = 'a'\n[task]\n[model]", "mine.toml: missing key name: is nam misspelt?"),
        ("defaults = {}\ntask = {}", "unknown key task: expected title, defaults, row"),
    ],
)
def test_files_that_are_wrong(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(RecipeError, match=message):
        read_table(path)
    with pytest.raises(RecipeError, match="could not read"):
        read_table(path.with_name("absent.toml"))


def test_a_mark_of_the_order_of_bytes_is_passed_over(path: Path) -> None:
    path.write_text("[[row]]\nname = 'a'", encoding="utf-8-sig")
    assert [entry.name for entry in read_table(path).entries] == ["a"]


def test_names_are_found_or_the_nearest_named() -> None:
    assert find_recipe("quickstart").name == "quickstart"
    with pytest.raises(RecipeError, match="did you mean quickstart"):
        find_recipe("quikstart")
    with pytest.raises(RecipeError, match=r"expected a variant of \['paper'\], got 'code'"):
        find_recipe("quickstart").recipe("code")


def test_no_name_is_used_twice() -> None:
    names = [entry.name for table in tables().values() for entry in table.entries]
    assert len(names) == len(set(names))
