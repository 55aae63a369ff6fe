"""Imports run along the arrows in the docstring of ``cayley.lab``, and take public names only."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import cayley

PACKAGE = Path(cayley.__file__).parent
LAB = PACKAGE / "lab"

# what each room may import of the laboratory, beside itself
SHARED = {"errors", "importing", "packages", "processes", "settings", "wording"}
ROOMS: dict[str, set[str]] = {
    **{name: set() for name in SHARED},
    "settings": {"errors"},
    "processes": {"errors"},
    "recipes": SHARED,
    "tasks": SHARED,
    "models": {"recipes", "tasks", *SHARED},
    "runs": {"recipes", *SHARED},
    "training": {"recipes", "tasks", "models", "runs", *SHARED},
    "report": {"recipes", "runs", *SHARED},
    "studies": {"recipes", "tasks", "models", "runs", "training", *SHARED},
    "sweeps": {"recipes", "tasks", "models", "runs", "training", *SHARED},
    "verdicts": {"recipes", "runs", "report", *SHARED},
    "commands": {
        *("recipes", "runs", "training", "report", "studies", "sweeps", "verdicts"),
        *SHARED,
    },
}
# the rooms that compute import the core too
COMPUTING = {"models", "runs", "training", "studies"}
# what of the core is about files, and needs no torch
FILES = {"cayley.disk_cache"}
TASK_ROOMS = {"synthetic", "images", "text", "speech", "graph"}


def module_name(path: Path) -> str:
    parts = ("cayley", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
OURS = {name: path for name, path in MODULES.items() if name.startswith("cayley.lab.")}


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Modules of cayley that a file imports, wherever in it, with each name that it takes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: expected absolute imports"
            found = [(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        for module, name in found:
            if module.partition(".")[0] == "cayley":
                # a name that is a module is an import of that module
                inner = f"{module}.{name}"
                yield (inner, "") if inner in MODULES else (module, name)


def find_circle(edges: dict[str, set[str]]) -> set[str]:
    """The names that no order puts after all that they import."""
    left = dict(edges)
    while free := [name for name, taken in left.items() if not taken & left.keys()]:
        for name in free:
            del left[name]
    return set(left)


def test_every_room_is_declared_and_says_what_is_in_it() -> None:
    assert {name.split(".")[2] for name in OURS} == set(ROOMS)
    assert {path.parent.name for path in (LAB / "tasks").glob("*/__init__.py")} == TASK_ROOMS
    for path in LAB.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_imports_run_along_the_arrows() -> None:
    assert not find_circle(ROOMS)
    for name, path in OURS.items():
        room = name.split(".")[2]
        for module, _ in imports(path):
            if module.startswith("cayley.lab."):
                assert module.split(".")[2] in ROOMS[room] | {room}, f"{name} imports {module}"
            else:
                assert room in COMPUTING or module in FILES, f"{name} imports {module}"


def test_the_core_never_imports_the_laboratory() -> None:
    for name in MODULES.keys() - OURS.keys() - {"cayley.cli", "cayley.lab"}:
        for module, _ in imports(MODULES[name]):
            assert not module.startswith("cayley.lab"), f"{name} imports {module}"


def test_rooms_of_tasks_do_not_import_each_other() -> None:
    for name, path in OURS.items():
        words = name.split(".")[2:]
        if words[0] != "tasks" or words[1:2] == [] or words[1] not in TASK_ROOMS:
            continue
        for module, _ in imports(path):
            inner = module.removeprefix("cayley.lab.tasks.").split(".")[0]
            assert inner not in (TASK_ROOMS - {words[1]}) | {"catalogue"}, f"{name}: {module}"


def test_modules_have_no_circle() -> None:
    """Not in the functions of a module either, and not for the sake of types."""
    edges = {name: {module for module, _ in imports(path)} - {name} for name, path in OURS.items()}
    assert not find_circle(edges)


def test_what_is_imported_is_public() -> None:
    for name, path in {**OURS, "cayley.cli": MODULES["cayley.cli"]}.items():
        for module, taken in imports(path):
            if taken and module in OURS:
                public = importlib.import_module(module).__all__
                assert taken in public, f"{name}: {taken} is not in {module}.__all__"


def test_public_names_exist() -> None:
    for name in OURS:
        module = importlib.import_module(name)
        assert len(set(module.__all__)) == len(module.__all__), name
        assert all(hasattr(module, one) for one in module.__all__), name
