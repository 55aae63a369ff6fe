import importlib
import sys
from pathlib import Path

import pytest

from cayley.lab.recipes import find_recipe
from cayley.lab.runs import find_code, own_classes
from cayley.lab.runs.seals import digest


def test_the_source_is_that_of_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "read_once.py"
    path.write_text("class Mine: ...\n")
    recipe = find_recipe("quickstart").recipe(task="read_once:Mine")
    first = {"read_once": digest("class Mine: ...\n")}
    assert find_code(recipe) == first
    path.write_text("class Mine:\n    edited = True\n")
    # this process has not seen the edit
    assert find_code(recipe) == first
    importlib.reload(sys.modules["read_once"])
    assert find_code(recipe) == {"read_once": digest(path.read_bytes())}


@pytest.mark.parametrize("name", ["adding", "cayley.lab.tasks.synthetic:Adding"])
def test_cayley_is_not_the_users_own(name: str) -> None:
    recipe = find_recipe("quickstart").recipe(task=name)
    assert own_classes(recipe) == find_code(recipe) == {}


@pytest.mark.parametrize("name", ["module_of_nobody:Mine", "sys:Mine"])
def test_what_has_no_file_is_left_out(name: str) -> None:
    recipe = find_recipe("quickstart").recipe(task=name)
    assert own_classes(recipe) == {"task.name": (name, name.partition(":")[0])}
    assert find_code(recipe) == {}
