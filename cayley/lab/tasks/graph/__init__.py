"""Graphs whose nodes are to be classified."""

from cayley.lab.tasks.graph.nodes import DATASETS, Nodes

__all__ = ["DATASETS", "TASKS", "Nodes"]

# the class and the settings of each name
TASKS = {dataset: (Nodes, {"dataset": dataset}) for dataset in DATASETS}
