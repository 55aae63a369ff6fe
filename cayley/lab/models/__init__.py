"""Models: networks from the settings of a recipe and the sizes of a task.

=============== ==========================================================
``building``    the network of a recipe, and its number of parameters
``sequences``   recurrent layers between an embedding and an output
``feedforward`` networks of rows and of graphs
=============== ==========================================================
"""

from cayley.lab.models.building import LAYERS, build_model, count_parameters
from cayley.lab.models.feedforward import MLP, BatchNorm, GraphNetwork
from cayley.lab.models.sequences import SequenceModel

__all__ = [
    "LAYERS",
    "MLP",
    "BatchNorm",
    "GraphNetwork",
    "SequenceModel",
    "build_model",
    "count_parameters",
]
