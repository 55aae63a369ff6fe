"""Sweeps: searches over the settings of a recipe, by any number of workers.

============== ==============================================================================
``space``      what is searched: the schema of a space, read strictly from TOML
``catalogue``  the ready spaces of the package, and spaces by name
``choices``    every choice of a space, and the recipe that a choice makes
``checking``   recipes of the ends of a space, built before any work
``engine``     the samplers, pruners and distributions of Optuna
``storage``    where studies are: a file or a database, and the lock of its studies
``claims``     trials held by workers, and those that a worker has left behind
``trials``     one trial: a run, whose evaluations are reported; ``outcomes`` of it
``study``      a sweep in a storage: begun once, joined by all who agree on its ``identity``
``results``    the best of a study, and how far it is
``worker``     trial after trial, until there are as many as were asked for
============== ==============================================================================

Optuna takes long to import, as torch does: names here need neither until they are used. What trains
is imported from ``checking``, ``trials`` and ``worker``.
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
