"""The laboratory: the experiments of the papers as tasks, recipes, runs and reports.

Packages import one another only along these arrows, from left to right::

    cli → commands ┬→ studies → training ┬→ models → tasks ┬→ errors, importing, packages,
                   ├→ sweeps → training  │    └──→ recipes ┤  processes, settings, wording
                   │                     └→ runs → recipes ┘
                   ├→ report → runs
                   └→ verdicts → report

============= ==================================================================
``recipes``   what to train, and what was published about it
``tasks``     what networks are trained on: batches, loss, metrics, baselines
``models``    the network of a recipe
``runs``      run folders, machines, interrupts
``training``  from a recipe to a finished run
``studies``   what goes on inside of networks: numbers and pictures
``sweeps``    searches over the settings of recipes, by many workers
``report``    runs beside the published numbers
``verdicts``  what runs and studies say about every claim
``commands``  what :mod:`cayley.cli` calls
``errors``    errors that a user can fix
``importing`` classes of the user's own
``packages``  those that are missing, and what installs them
``processes`` those that train one run together
``settings``  what a setting may be: types, words, ranges
``wording``   numbers and times in words
============= ==================================================================

The core never imports the laboratory, and tasks import nothing from the core.
``tests/lab/test_rooms.py`` checks all of this.
"""
