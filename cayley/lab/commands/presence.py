"""Which data are available, checked once for each data set."""

from collections.abc import Iterable
from pathlib import Path

from cayley.lab.errors import DataError, RecipeError
from cayley.lab.recipes import Recipe, data_set

__all__ = ["find_missing"]


def find_missing(
    recipes: Iterable[Recipe], data: Path | None, *, download: bool = False, check: bool = True
) -> dict[str, str]:
    """The missing data sets of recipes, with what to do about it.

    Only the existence of files is checked; runs check that they are intact.

    Arguments:
        recipes: What is to be run.
        data: The user's folder or file.
        download: Whether missing files may be fetched, and so do not count.
        check: Whether files must have the published checksums.
    """
    # imported here, since torch takes seconds to import
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
            # its own run says what is wrong, without stopping the others
            continue
    return missing
