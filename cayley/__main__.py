"""``python -m cayley``: the command ``cayley``."""

from cayley.cli import main

raise SystemExit(main())
