"""Recurrent networks with orthogonal and unitary weights, as drop-in ``torch.nn`` layers.

Where torch is imported already, so is everything here. Otherwise public names are imported at their
first use, and torch with them: the command ``cayley`` answers before. What ``torch.export.load``
reads needs the operators of this package, which are there after ``import cayley.layers``, in any
order with torch.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cayley import (
        activations,
        initializers,
        layers,
        norms,
        optim,
        parametrizations,
        preconditioners,
        recurrences,
    )
    from cayley.activations import ModReLU, modrelu
    from cayley.layers import (
        ENRNN,
        EURNN,
        LSTM,
        NCGRU,
        ORNN,
        RNN,
        URNN,
        ExpRNN,
        FullURNN,
        ScoRNN,
        ScuRNN,
        SpectralRNN,
    )
    from cayley.norms import AssortedTimeNorm
    from cayley.optim import parameter_groups
    from cayley.parametrizations import orthogonal_
    from cayley.preconditioners import BNP
    from cayley.recurrences import backend

__version__ = "0.1.0.dev0"

__all__ = [
    "BNP",
    "ENRNN",
    "EURNN",
    "LSTM",
    "NCGRU",
    "ORNN",
    "RNN",
    "URNN",
    "AssortedTimeNorm",
    "ExpRNN",
    "FullURNN",
    "ModReLU",
    "ScoRNN",
    "ScuRNN",
    "SpectralRNN",
    "activations",
    "backend",
    "initializers",
    "layers",
    "modrelu",
    "norms",
    "optim",
    "orthogonal_",
    "parameter_groups",
    "parametrizations",
    "preconditioners",
    "recurrences",
]

# where the public names are that are no modules
_HOMES = {
    "activations": ("ModReLU", "modrelu"),
    "layers": (
        "ENRNN",
        "EURNN",
        "LSTM",
        "NCGRU",
        "ORNN",
        "RNN",
        "URNN",
        "ExpRNN",
        "FullURNN",
        "ScoRNN",
        "ScuRNN",
        "SpectralRNN",
    ),
    "norms": ("AssortedTimeNorm",),
    "optim": ("parameter_groups",),
    "parametrizations": ("orthogonal_",),
    "preconditioners": ("BNP",),
    "recurrences": ("backend",),
}
_MODULES = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """A public name at its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _MODULES:
        return import_module(f"{__name__}.{name}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if "torch" in sys.modules:
    for _name in __all__:
        __getattr__(_name)
