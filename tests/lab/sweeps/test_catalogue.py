from pathlib import Path

import pytest

from cayley.lab.errors import RecipeError
from cayley.lab.sweeps import find_space

HEAD = 'recipe = "quickstart"\nmetric = "valid_mse"\ntrials = 4\n'


def test_a_recipe_beside_the_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cayley.lab.recipes import find_recipe, write_recipe

    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "own.toml").write_text(write_recipe(find_recipe("quickstart").recipe()))
    text = HEAD.replace("quickstart", "own.toml") + "[parameters]\noptim.lr = [1]"
    (tmp_path / "place" / "mine.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    space = find_space("place/mine.toml")
    assert space.name == "mine"
    assert space.base().task.name == "adding"


@pytest.mark.parametrize("name", ["scornn-mnits", "none.toml"])
def test_a_space_that_is_not_there(name: str) -> None:
    with pytest.raises(RecipeError, match=r"did you mean scornn-mnist|could not read none\.toml"):
        find_space(name)
