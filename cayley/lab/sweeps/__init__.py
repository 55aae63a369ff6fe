"""Sweeps: searches over the settings of a recipe, by any number of workers.

============== ==============================================================================
``space``      the search space, read strictly from TOML
``catalogue``  the ready spaces of the package, and spaces by name
``choices``    the choices of a space, and the recipe of a choice
``checking``   builds recipes at the ends of a space before any trial starts
``engine``     the samplers, pruners and distributions of Optuna
``storage``    where studies are: a file or a database, and the lock of its studies
``claims``     trials held by workers, and trials whose worker has died
``trials``     one trial: a run whose evaluations are reported; ``outcomes`` of trials
``study``      a sweep in a storage, joined by all workers that agree on its ``identity``
``results``    the best trial of a study, and its progress
``worker``     runs trials until the study has all of them
============== ==============================================================================

Optuna and torch take long to import, so that the names here import neither until they are used. The
functions that train are imported from ``checking``, ``trials`` and ``worker`` instead.
"""

from cayley.lab.sweeps.catalogue import find_space, spaces
from cayley.lab.sweeps.choices import grid, make_recipe, write_setting
from cayley.lab.sweeps.outcomes import Outcome
from cayley.lab.sweeps.results import best_recipe, describe_studies
from cayley.lab.sweeps.space import Parameter, Space, read_space
from cayley.lab.sweeps.storage import Storage, default_url, open_storage
from cayley.lab.sweeps.study import Sweep, join

__all__ = [
    "Outcome",
    "Parameter",
    "Space",
    "Storage",
    "Sweep",
    "best_recipe",
    "default_url",
    "describe_studies",
    "find_space",
    "grid",
    "join",
    "make_recipe",
    "open_storage",
    "read_space",
    "spaces",
    "write_setting",
]
