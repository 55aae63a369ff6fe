"""All studies, by name."""

import difflib

from cayley.lab.errors import RecipeError
from cayley.lab.studies.activations import MODRELU_SURFACE
from cayley.lab.studies.feedforward import CIFAR10_SLICE
from cayley.lab.studies.gradients import GRADIENT_STABILITY, HEATMAPS
from cayley.lab.studies.matrices import (
    COST_ORDER,
    MULTIPLE_EIGENVALUES,
    NEUMANN_ORDER,
    UNITARITY,
)
from cayley.lab.studies.normalisations import POSTNORM
from cayley.lab.studies.rebasing import REBASE
from cayley.lab.studies.study import Study

__all__ = ["STUDIES", "find_study"]

STUDIES: dict[str, Study] = {
    one.name: one
    for one in (
        MODRELU_SURFACE,
        GRADIENT_STABILITY,
        HEATMAPS,
        NEUMANN_ORDER,
        COST_ORDER,
        POSTNORM,
        UNITARITY,
        MULTIPLE_EIGENVALUES,
        CIFAR10_SLICE,
        REBASE,
    )
}


def find_study(name: str) -> Study:
    """A study by its name.

    Example:
        >>> find_study("heatmap")
        Traceback (most recent call last):
        ...
        cayley.lab.errors.RecipeError: expected a study, got 'heatmap': did you mean heatmaps?
    """
    if name not in STUDIES:
        near = difflib.get_close_matches(name, STUDIES, 3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "see cayley study --list"
        raise RecipeError(f"expected a study, got {name!r}: {hint}")
    return STUDIES[name]
