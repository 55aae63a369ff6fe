"""What docstrings need before Sphinx reads them."""

from typing import Any

from sphinx.application import Sphinx

__all__ = ["list_references", "setup"]


def list_references(lines: list[str]) -> list[str]:
    """Docstring with a list item for each reference: one ends where a line ends with a stop.

    Example:
        >>> list_references(["References:", "    A book, Abel,", "    1900.", "    B, 1901."])
        ['References:', '    - A book, Abel,', '      1900.', '    - B, 1901.']
    """
    result: list[str] = []
    inside = first = False
    for line in lines:
        inside = (inside and line.startswith("    ")) or line == "References:"
        if line == "References:":
            first = True
        elif inside:
            line = f"    {'- ' if first else '  '}{line.strip()}"
            first = line.endswith(".")
        result.append(line)
    return result


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = list_references(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """Come before napoleon."""
    app.connect("autodoc-process-docstring", _process, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
