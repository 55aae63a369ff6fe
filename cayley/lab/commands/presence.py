"""Which data are at hand, asked once for each data set."""

from collections.abc import Iterable
from pathlib import Path

from cayley.lab.errors import DataError, RecipeError
from cayley.lab.recipes import Recipe, data_set

__all__ = ["find_missing"]


def find_missing(
    recipes: Iterable[Recipe], data: Path | None, *, download: bool = False, check: bool = True
) -> dict[str, str]:
    """The data sets of recipes that are not there, with what to do about it.

    Files are looked for; whether they are intact, the run will say.

    Arguments:
        recipes: What is to be run.
        data: The user's folder or file.
        download: Whether missing files may be fetched, and so do not count.
        check: Whether files must have the published checksums.
    """
    # torch, which takes seconds to import, is wanted by those that ask for this only
    from cayley.lab.training import RunSettings, build_task

    settings = RunSettings(data=data, download=download, check=check)
    tasks = {data_set(recipe.task): recipe.task for recipe in recipes}
    missing = {}
    for name, task in tasks.items():
        try:
            build_task(task, settings).find_data()
        except DataError as error:
            missing[name] = str(error)
        except RecipeError:
            # its run says what is wrong, and does not keep the others from theirs
            continue
    return missing
