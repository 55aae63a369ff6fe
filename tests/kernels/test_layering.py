"""What is below imports nothing from above."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import run_after_torch

import cayley

PACKAGE = Path(cayley.__file__).parent
ABOVE_KERNELS = ("recurrences", "norms", "parametrizations", "layers", "optim", "lab")
ABOVE_RECURRENCES = ("parametrizations", "layers", "optim", "lab")


def imported(folder: Path) -> Iterator[tuple[str, str]]:
    """Modules of a folder, and what each imports."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                yield path.name, node.module
            elif isinstance(node, ast.Import):
                yield from ((path.name, alias.name) for alias in node.names)


@pytest.mark.parametrize(
    ("folder", "above"), [("kernels", ABOVE_KERNELS), ("recurrences", ABOVE_RECURRENCES)]
)
def test_nothing_is_imported_from_above(folder: str, above: tuple[str, ...]) -> None:
    names = tuple(f"cayley.{name}" for name in above)
    wrong = [pair for pair in imported(PACKAGE / folder) if pair[1].startswith(names)]
    assert not wrong


def test_a_parametrisation_loads_no_recurrence() -> None:
    """Nor anything else above; the package itself loads everything, and is left out."""
    program = f"""
import sys, types
package = types.ModuleType("cayley")
package.__path__ = [{str(PACKAGE)!r}]
sys.modules["cayley"] = package
import cayley.parametrizations.cayley
above = ("cayley.recurrences", "cayley.layers", "cayley.norms")
wrong = [name for name in sys.modules if name.startswith(above)]
assert not wrong, wrong
"""
    run_after_torch(program)
