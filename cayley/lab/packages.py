"""A package that is missing: who imports it, and what installs it."""

import importlib
import re
from collections.abc import Iterable
from pathlib import Path
from traceback import walk_tb

__all__ = ["explain_missing", "find_extra"]

CAYLEY = Path(__file__).parent.parent
# nothing that a user runs needs these extras
INTERNAL = ("dev", "docs")


def explain_missing(error: ModuleNotFoundError) -> str:
    """What is missing, who imports it, and what to do, in a sentence.

    Example:
        >>> try:
        ...     import package_of_nobody
        ... except ModuleNotFoundError as error:
        ...     explain_missing(error).startswith("expected the module package_of_nobody, got none")
        True
    """
    name, file = error.name or "", _importing_file(error)
    own = file is not None and file.is_relative_to(CAYLEY)
    # that a module is missing in a package which is there may be due to an old version
    extra = find_extra(name.partition(".")[0] if own else name)
    if own or extra is not None:
        place = f"[{extra or 'lab'}]" if extra != "" else ""
        return (
            f"expected the package {name}, got none: pip install 'cayley{place}' installs it; in a "
            f"checkout, pip install --editable '.{place}'"
        )
    asker = "your own code" if file is None else str(file)
    return (
        f"expected the module {name}, got none: {asker} imports it, not cayley, which does not "
        "install it: install the package that contains it, or remove the import"
    )


def find_extra(module: str, requirements: Iterable[str] | None = None) -> str | None:
    """The extra of cayley that installs a module; empty if cayley always does, None if none does.

    Arguments:
        module: The name by which it is imported, without a dot.
        requirements: As package metadata lists them; None for those of cayley.

    Example:
        >>> find_extra("tomli_w", ["torch>=2.8", 'tomli-w>=1.1; extra == "lab"'])
        'lab'
        >>> find_extra("tomli", ["torch>=2.8", 'tomli-w>=1.1; extra == "lab"'])
    """
    for requirement in _requirements() if requirements is None else requirements:
        found = re.match(r"[\w.-]+", requirement)
        package = re.sub(r"[-.]", "_", found[0]).lower() if found else ""
        extra = re.search(r"extra == [\"']([^\"']+)", requirement)
        where = extra[1] if extra else ""
        # a package and its module have one name, apart from vl-convert-python
        if module.lower() == package.removesuffix("_python") and where not in INTERNAL:
            return where
    return None


def _requirements() -> list[str]:
    """What the extras of cayley install, by its metadata; nothing if it is not installed."""
    # importing it takes a third of the time in which cayley --help answers
    from importlib import metadata

    try:
        return metadata.requires("cayley") or []
    except metadata.PackageNotFoundError:
        return []


def _importing_file(error: BaseException) -> Path | None:
    """The file whose import failed; None if no file did, as in a prompt of Python."""
    names = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    files = [name for name in names if not name.startswith("<") and name != importlib.__file__]
    return Path(files[-1]) if files else None
