"""Draw the figures of the site: ``python docs/figures [NAME ...]``; all of them without a name.

Each ``NAME.py`` has a function ``draw`` that returns a figure; it is written to ``NAME.svg``, the
same bytes each time.
"""

import importlib
import sys
from pathlib import Path

import matplotlib as mpl

FOLDER = Path(__file__).parent


def main() -> None:
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "cayley"
    sys.path.insert(0, str(FOLDER))
    known = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem[0] != "_")
    for name in sys.argv[1:] or known:
        figure = importlib.import_module(name).draw()
        path = FOLDER / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None, "Creator": None})
        # matplotlib leaves blanks at the ends of lines
        lines = path.read_text().splitlines()
        path.write_text("\n".join(line.rstrip() for line in lines) + "\n")
        print(path.relative_to(FOLDER.parent.parent))


if __name__ == "__main__":
    main()
