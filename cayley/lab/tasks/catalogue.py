"""All tasks by name, and tasks of the user's own."""

import difflib
from inspect import signature
from typing import Any

from cayley.lab.importing import import_class
from cayley.lab.tasks import graph, images, speech, synthetic, text
from cayley.lab.tasks.task import Task

__all__ = ["TASKS", "make_task", "task_class"]

# class and settings of each name
TASKS: dict[str, tuple[type[Task], dict[str, Any]]] = {
    **synthetic.TASKS,
    **images.TASKS,
    **text.TASKS,
    **speech.TASKS,
    **graph.TASKS,
}


def task_class(name: str) -> type[Task]:
    """The class of a task, by its name in ``TASKS`` or as ``module:Class``.

    Example:
        >>> task_class("adding") is task_class("cayley.lab.tasks.synthetic:Adding")
        True
    """
    return _find(name)[0]


def _find(name: str) -> tuple[type[Task], dict[str, Any]]:
    if name in TASKS:
        return TASKS[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        near = difflib.get_close_matches(name, TASKS, 1)
        raise ValueError(
            f"expected a task of {', '.join(TASKS)}, or module:Class, got {name!r}"
            + (f": did you mean {near[0]!r}?" if near else "")
        )
    found = import_class(name)
    if not (isinstance(found, type) and issubclass(found, Task)):
        raise TypeError(
            f"expected {attribute} in {module} to be a subclass of cayley.lab.tasks.Task, got "
            f"{found!r}"
        )
    return found, {}


def make_task(name: str, **settings: Any) -> Task:
    """A task by its name, with its settings.

    Arguments:
        name: A name in ``TASKS``, or ``module:Class`` for a task of the user's own.
        settings: The fields of the task's class.

    Example:
        >>> make_task("copying", T=500)
        Copying(T=500, delta=1, train=20000, valid=1000, test=1000, shuffle=True, fresh=False)
    """
    found, preset = _find(name)
    valid = list(signature(found).parameters)
    for setting in settings:
        if setting not in valid:
            near = difflib.get_close_matches(setting, valid, 1)
            raise TypeError(
                f"task {name!r}: expected settings of {', '.join(valid)}, got {setting!r}"
                + (f": did you mean {near[0]!r}?" if near else "")
            )
    return found(**(preset | settings))
