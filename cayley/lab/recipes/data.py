"""The data sets of recipes by name, and how to get them, without importing any task."""

from typing import Literal

from cayley.lab.recipes.schema import TaskSettings

__all__ = ["Supply", "data_set", "supply"]

Supply = Literal["none", "download", "your copy", "unknown"]

# tasks that draw their examples
DRAWN = ("adding", "copying", "denoise")
# tasks whose corpus is a setting, and the one that they read without it
CORPORA = {"characters": "ptb", "words": "ptb", "speech": "timit"}
# what cannot be downloaded
LICENSED = ("timit", "own", "ogbn-proteins", "ogbn-products")


def data_set(task: TaskSettings) -> str:
    """The data set that a task reads; empty if it draws its examples.

    Example:
        >>> data_set(TaskSettings("words")), data_set(TaskSettings("cora"))
        ('ptb', 'cora')
    """
    if task.name in DRAWN:
        return ""
    if task.name in CORPORA:
        return str(task.settings.get("corpus", CORPORA[task.name]))
    return task.name


def supply(task: TaskSettings) -> Supply:
    """How to get the data of a task: by ``--download``, or from the user; unknown for own tasks.

    Example:
        >>> supply(TaskSettings("adding")), supply(TaskSettings("mnist"))
        ('none', 'download')
    """
    name = data_set(task)
    if ":" in name:
        return "unknown"
    if not name:
        return "none"
    return "your copy" if name in LICENSED else "download"
