"""Graphs: their nodes are to be classified."""

from cayley.lab.tasks.graph.nodes import DATASETS, Nodes

__all__ = ["DATASETS", "TASKS", "Nodes"]

# class and settings of each name
TASKS = {dataset: (Nodes, {"dataset": dataset}) for dataset in DATASETS}
