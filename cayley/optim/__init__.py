"""Optimizers: along the Stiefel manifold, with TensorFlow's semantics, and several as one."""

from cayley.optim.groups import parameter_groups
from cayley.optim.multiple import Optimizers
from cayley.optim.stiefel import StiefelRMSprop, StiefelSGD, stiefel_step
from cayley.optim.tensorflow import AdagradTF, RMSpropTF

__all__ = [
    "AdagradTF",
    "Optimizers",
    "RMSpropTF",
    "StiefelRMSprop",
    "StiefelSGD",
    "parameter_groups",
    "stiefel_step",
]
