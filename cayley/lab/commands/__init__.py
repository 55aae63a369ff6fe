"""Commands: what ``cayley train`` and the others do; :mod:`cayley.cli` has their arguments.

=============== ==============================================
``listing``     list, show
``views``       list --views
``training``    train, reproduce, resume, evaluate
``report``      report
``archive``     archive
=============== ==============================================

What takes long to import is imported where it is used: ``cayley --help`` needs none of it.
"""

from cayley.lab.commands.archive import archive
from cayley.lab.commands.listing import list_recipes, show
from cayley.lab.commands.report import report
from cayley.lab.commands.training import evaluate, reproduce, resume, train
from cayley.lab.commands.views import list_views

__all__ = [
    "archive",
    "evaluate",
    "list_recipes",
    "list_views",
    "report",
    "reproduce",
    "resume",
    "show",
    "train",
]
