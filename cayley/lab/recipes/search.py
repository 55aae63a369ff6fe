"""Recipes by words: of their names, networks, tasks, papers and claims."""

import difflib
import re
from collections.abc import Iterable, Sequence

from cayley.lab.recipes import published
from cayley.lab.recipes.data import data_set
from cayley.lab.recipes.schema import Recipe, TaskSettings

__all__ = ["matches", "near_words", "plain", "task_words"]


def plain(text: str) -> str:
    """Letters, digits and spaces in lower case, so that the spelling of a name does not matter.

    Example:
        >>> plain("NC-GRU") == plain("ncgru")
        True
    """
    return re.sub(r"[^a-z0-9 ]", "", text.lower())


def matches(recipe: Recipe, words: Sequence[str], title: str = "", *, claims: bool = False) -> bool:
    """Whether each word occurs somewhere in the description of a recipe.

    A word without a letter or a digit occurs nowhere.

    Arguments:
        recipe: The recipe.
        words: Such as ``["nc-gru", "ptb"]``.
        title: The title of the recipe's table.
        claims: Whether to search in statements about the recipe too, which also name others.
    """
    if not words:
        return True
    texts = [*_texts(recipe, title), *(_claims(recipe) if claims else ())]
    known = [plain(text) for text in texts]
    spelt = [plain(word) for word in words]
    return all(word.strip() and any(word in text for text in known) for word in spelt)


def near_words(words: Iterable[str], recipes: Sequence[Recipe]) -> list[str]:
    """Names of recipes, networks, tasks and data sets that are spelt like a word."""
    names = {
        name: None
        for recipe in recipes
        for name in (recipe.name, *recipe.name.split("/"), recipe.model.name, recipe.task.name)
    }
    names |= dict.fromkeys(data_set(recipe.task) for recipe in recipes)
    spelt = {name.lower(): name for name in names}
    found = (difflib.get_close_matches(word.lower(), spelt, 3) for word in words)
    return [spelt[name] for several in found for name in several]


def task_words(task: TaskSettings) -> list[str]:
    """The names of a task, here and in papers.

    Example:
        >>> task_words(TaskSettings("mnist", {"order": "permuted"}))
        ['mnist', 'mnist', 'permuted', 'pmnist']
    """
    words = [task.name, data_set(task)]
    if task.settings.get("order") == "permuted":
        words += ["permuted", f"p{task.name}"]
    return words


def _texts(recipe: Recipe, title: str) -> list[str]:
    # the same number may be printed in several papers
    names = {recipe.paper, *(published.result(name).paper for name in recipe.reported)}
    papers = [one for one in published.papers().values() if one.id in names]
    return [
        recipe.name,
        recipe.table,
        title,
        recipe.model.name,
        *task_words(recipe.task),
        recipe.paper,
        recipe.location,
        *(f"{one.id} {one.title} {' '.join(one.authors)} {one.year}" for one in papers),
    ]


def _claims(recipe: Recipe) -> list[str]:
    return [f"{name} {published.claim(name).text}" for name in recipe.claims]
