"""Links to names of the package, by whichever of its paths a docstring has.

``cayley.ScoRNN``, ``cayley.layers.ScoRNN`` and ``cayley.layers.networks.ScoRNN`` are one class,
which has one place in the reference. A name that does not exist is a warning, and so an error.
"""

from importlib import import_module
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

__all__ = ["setup"]

logger = logging.getLogger(__name__)


def find(path: str) -> Any:
    """What a dotted path names; raise LookupError if there is nothing."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            annotations = getattr(found, "__annotations__", {})
            if not hasattr(found, part) and part not in annotations:
                raise LookupError(path)
            found = getattr(found, part, None)
        return found
    raise LookupError(path)


def names_of(path: str, found: Any) -> list[str]:
    """Paths under which the same may be documented."""
    names = [path]
    module, name = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    if module and name:
        names += [f"{module}.{name}", f"cayley.{name}", f"{module.rpartition('.')[0]}.{name}"]
    return names


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.TextElement
) -> nodes.reference | nodes.TextElement | None:
    """Find the place of a name that Sphinx does not know by this path."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].lstrip("~")
    path = target.lstrip(".")
    if target.startswith(".") or not path.startswith("cayley"):
        # relative to the module and to the packages above it
        here = (node.get("py:module") or "cayley").split(".")
        paths = [".".join((*here[:k], path)) for k in range(len(here), 0, -1)]
        if kind := node.get("py:class"):
            paths.insert(0, ".".join((*here, kind, path)))
    else:
        paths = [path]
    objects = env.domains.python_domain.objects
    known = False
    for candidate in paths:
        try:
            found = find(candidate)
        except LookupError:
            continue
        known = True
        for name in names_of(candidate, found):
            if name in objects:
                entry = objects[name]
                assert app.builder is not None
                return make_refnode(
                    app.builder, node["refdoc"], entry.docname, entry.node_id, contnode, name
                )
    if not known and path.startswith("cayley"):
        logger.warning("there is no %s", path, location=node)
    return contnode if known else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Answer to references that Sphinx cannot resolve."""
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
