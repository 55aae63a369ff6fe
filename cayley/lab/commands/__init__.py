"""Commands: what ``cayley train`` and the others do; :mod:`cayley.cli` has their arguments.

=============== ==============================================
``listing``     list, show; ``presence`` of their data
``views``       list --views
``claims``      list --claims, list --missing
``training``    train, reproduce, resume, evaluate
``report``      report
``studies``     study; ``diagnosis`` diagnose
``sweep``       sweep
``verdicts``    verdicts
``archive``     archive
``status``      status
``new``         new; ``starters`` are what it writes
``completion``  completion
``planning``    what is to be done, before it is done
``cluster``     runs as tasks of Ray; on a ``node``, with ``parcels``
``slurm``       the script of an array
``sizing``      model.parameters among the settings
``files``       writing them
=============== ==============================================

What takes long to import is imported where it is used: ``cayley --help`` needs none of it.
"""

from cayley.lab.commands.archive import archive
from cayley.lab.commands.claims import list_claims, list_missing
from cayley.lab.commands.completion import completion
from cayley.lab.commands.diagnosis import diagnose
from cayley.lab.commands.listing import list_recipes, show
from cayley.lab.commands.new import new
from cayley.lab.commands.report import report
from cayley.lab.commands.status import status
from cayley.lab.commands.studies import study
from cayley.lab.commands.sweep import sweep
from cayley.lab.commands.training import evaluate, reproduce, resume, train
from cayley.lab.commands.verdicts import verdicts
from cayley.lab.commands.views import list_views

__all__ = [
    "archive",
    "completion",
    "diagnose",
    "evaluate",
    "list_claims",
    "list_missing",
    "list_recipes",
    "list_views",
    "new",
    "report",
    "reproduce",
    "resume",
    "show",
    "status",
    "study",
    "sweep",
    "train",
    "verdicts",
]
