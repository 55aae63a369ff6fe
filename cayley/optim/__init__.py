"""Optimizers: along the Stiefel manifold, with TensorFlow's semantics, and several as one."""

from cayley.optim.groups import parameter_groups
from cayley.optim.multiple import Optimizers
from cayley.optim.rebasing import attach_rebase, rebase_
from cayley.optim.stiefel import StiefelRMSprop, StiefelSGD, stiefel_step
from cayley.optim.tensorflow import AdagradTF, RMSpropTF

__all__ = [
    "AdagradTF",
    "Optimizers",
    "RMSpropTF",
    "StiefelRMSprop",
    "StiefelSGD",
    "attach_rebase",
    "parameter_groups",
    "rebase_",
    "stiefel_step",
]
