import pytest

from cayley.lab.recipes import TaskSettings, data_set, supply, tables
from cayley.lab.tasks import TASKS
from cayley.lab.training import RunSettings, build_task, reads_files

SETTINGS = [TaskSettings(name) for name in TASKS] + [
    TaskSettings(task, {"corpus": corpus})
    for task, corpora in (("words", ("ptb", "own")), ("speech", ("timit", "nltk", "fsdd", "own")))
    for corpus in corpora
]


@pytest.mark.parametrize("task", SETTINGS, ids=str)
def test_what_is_told_without_the_task_is_what_the_task_tells(task: TaskSettings) -> None:
    needs = build_task(task, RunSettings()).needs
    if not reads_files(task):
        assert (data_set(task), supply(task)) == ("", "none")
    else:
        assert data_set(task)
        downloads = bool(needs) and all(file.url for file in needs)
        assert supply(task) == ("download" if downloads else "your copy")


def test_tasks_of_the_users_own_are_not_known() -> None:
    assert supply(TaskSettings("nobody:Task")) == "unknown"


def test_every_recipe_has_a_known_task() -> None:
    names = {entry.recipe().task.name for table in tables().values() for entry in table.entries}
    assert names <= set(TASKS)
