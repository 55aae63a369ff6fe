"""Equations as MathML, made when the site is built: a page needs no script and no network."""

import re
from xml.etree import ElementTree

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

__all__ = ["setup", "to_mathml"]

logger = logging.getLogger(__name__)


def to_mathml(latex: str, *, display: bool) -> str:
    r"""MathML of a formula; raise where a command is not known.

    Example:
        >>> to_mathml("x^2", display=False).startswith("<math")
        True
        >>> to_mathml(r"\norm{x}", display=False)
        Traceback (most recent call last):
        ...
        ValueError: \norm is not known
    """
    if display and (r"\\" in latex or "&" in latex) and r"\begin" not in latex:
        # a first bracket would be an option of the environment
        latex = rf"\begin{{split}}{{}}{latex}\end{{split}}"
    result = convert(latex, display="block" if display else "inline")
    # browsers know the style, and not all of them the attribute
    result = re.sub(r'columnalign="(\w+)"', r'style="text-align: \1"', result)
    for node in ElementTree.fromstring(result).iter():
        # what it does not know it copies
        if (node.text or "").startswith("\\") and len(node.text or "") > 1:
            raise ValueError(f"{node.text} is not known")
    return result


def _write(translator: HTML5Translator, node: nodes.Element, *, display: bool) -> None:
    try:
        result = to_mathml(node.astext(), display=display)
    except Exception as error:
        logger.warning("equation %r: %s", node.astext(), error, location=node)
        result = translator.encode(node.astext())
    tag = "div" if display else "span"
    translator.body.append(f'<{tag} class="equation">{result}</{tag}>')
    raise nodes.SkipNode


def _inline(translator: HTML5Translator, node: nodes.math) -> None:
    _write(translator, node, display=False)


def _block(translator: HTML5Translator, node: nodes.math_block) -> None:
    _write(translator, node, display=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the renderer ``mathml``."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
