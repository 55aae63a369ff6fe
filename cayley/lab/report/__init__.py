"""Reports: run folders beside the published numbers, as a page, as figures and as Markdown."""

from cayley.lab.report.command import report

__all__ = ["report"]
