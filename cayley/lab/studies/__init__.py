"""Studies: questions about what happens inside networks, answered by numbers and a picture.

==================== ===========================================================
``study``            what a study is
``training``         networks of recipes, trained for some steps
``activations``      the surface of modReLU
``gradients``        gradients of states, Jacobians of states by inputs
``normalisations``   what is left of states after normalisation
``matrices``         orthogonality, eigenvalues, series and costs of matrices
``feedforward``      batch normalisation and BNP on a slice of CIFAR-10
``rebasing``         a fixed D against one that is chosen again
``catalogue``        all of them, by name
``diagnosis``        what goes on inside the user's own runs
``folders``          ``studies/NAME``: numbers of each seed, and the picture
==================== ===========================================================
"""

from cayley.lab.studies.catalogue import STUDIES, find_study
from cayley.lab.studies.folders import run_study
from cayley.lab.studies.study import Measured, Study

__all__ = [
    "STUDIES",
    "Measured",
    "Study",
    "find_study",
    "run_study",
]
