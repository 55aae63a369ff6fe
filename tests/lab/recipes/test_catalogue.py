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


def test_an_override_is_key_and_value() -> None:
    assert parse_override("a.b='1'") == {"a": {"b": "1"}}
    assert parse_override("a=x=y") == {"a": "x=y"}
    assert parse_override("a=1e-4") == {"a": 1e-4}
    with pytest.raises(RecipeError, match="expected key=value"):
        parse_override("model.hidden")


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
        ("default = {}\nrow = []", "unknown key default: did you mean defaults?"),
        ("[[row]]\nmodel = {}", "row 1: name"),
    ],
)
def test_files_that_are_wrong(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(RecipeError, match=message):
        read_table(path)
    with pytest.raises(RecipeError, match="could not read"):
        read_table(path.with_name("absent.toml"))


def test_names_are_found_or_the_nearest_named() -> None:
    assert find_recipe("quickstart").name == "quickstart"
    with pytest.raises(RecipeError, match="did you mean quickstart"):
        find_recipe("quikstart")
    with pytest.raises(RecipeError, match=r"expected a variant of \['paper'\], got 'code'"):
        find_recipe("quickstart").recipe("code")


def test_no_name_is_used_twice() -> None:
    names = [entry.name for table in tables().values() for entry in table.entries]
    assert len(names) == len(set(names))
