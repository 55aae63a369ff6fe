"""Modules whose extra is not installed are left out of the doctests."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("torch_geometric") else ["cayley/preconditioners/graph.py"]
