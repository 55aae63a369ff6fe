"""Recurrent networks with orthogonal and unitary weights, as drop-in ``torch.nn`` layers.

In the process of the command ``cayley``, public names (and torch) are imported at their first use,
so that the command answers quickly. Everywhere else ``import cayley`` imports all of them and
registers the operators that ``torch.export.load`` needs.
"""

import sys
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cayley import (
        activations,
        diagnostics,
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
        ENRNNCell,
        EURNNCell,
        ExpRNN,
        ExpRNNCell,
        FullURNN,
        FullURNNCell,
        LSTMCell,
        NCGRUCell,
        ORNNCell,
        RNNCell,
        ScoRNN,
        ScoRNNCell,
        ScuRNN,
        ScuRNNCell,
        SpectralRNN,
        SpectralRNNCell,
        URNNCell,
        freeze,
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
    "ENRNNCell",
    "EURNNCell",
    "ExpRNN",
    "ExpRNNCell",
    "FullURNN",
    "FullURNNCell",
    "LSTMCell",
    "ModReLU",
    "NCGRUCell",
    "ORNNCell",
    "RNNCell",
    "ScoRNN",
    "ScoRNNCell",
    "ScuRNN",
    "ScuRNNCell",
    "SpectralRNN",
    "SpectralRNNCell",
    "URNNCell",
    "activations",
    "backend",
    "diagnostics",
    "freeze",
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

# the modules of those public names that are not modules themselves
_HOMES = {
    "activations": ("ModReLU", "modrelu"),
    "layers": (
        "freeze",
        "ENRNNCell",
        "EURNNCell",
        "ExpRNNCell",
        "FullURNNCell",
        "LSTMCell",
        "NCGRUCell",
        "ORNNCell",
        "RNNCell",
        "ScoRNNCell",
        "ScuRNNCell",
        "SpectralRNNCell",
        "URNNCell",
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
    """Import a public name at its first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _MODULES:
        return import_module(f"{__name__}.{name}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _is_command() -> bool:
    """Whether this is the process of ``cayley``, or of ``python -m cayley``."""
    script = Path(sys.argv[0]).stem if getattr(sys, "argv", None) else ""
    return script == "cayley" or ("-m", "cayley") in pairwise(sys.orig_argv)


def _say_interrupted(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Say in one line that Ctrl-C came during the imports; show other errors as usual."""
    if issubclass(kind, KeyboardInterrupt):
        print("cayley: stopped before anything had begun", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


if _is_command():
    sys.excepthook = _say_interrupted
else:
    for _name in __all__:
        __getattr__(_name)
