"""The options that all Elman networks share, and checks of their values."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

import torch

from cayley.activations import ACTIVATIONS
from cayley.checks import check_integer
from cayley.initializers import INITIALIZERS, Initializer

__all__ = [
    "Options",
    "check_nonlinearity",
    "check_norm",
    "named_initializers",
    "with_initializers",
]

NORMS = (None, "layer", "atn")
INITIALIZED = ("weight_ih", "weight_hh", "bias", "h0")


class Options(TypedDict, total=False):
    """Keyword arguments that every network passes on to :class:`RNN`."""

    trainable_h0: bool
    nonpositive_bias: bool
    norm: Literal["layer", "atn"] | None
    window: int | None
    affine: bool
    plain_state: bool
    initializers: Mapping[str, Initializer | str] | None
    device: torch.device | str | None
    dtype: torch.dtype | None


def with_initializers(options: Options, **own: Initializer) -> Options:
    """The options of a network with its own initialisers, unless the options name others.

    Example:
        >>> from torch import nn
        >>> options = with_initializers({"initializers": {"h0": nn.init.ones_}}, h0=nn.init.zeros_)
        >>> options["initializers"]["h0"].__name__
        'ones_'
    """
    given = named_initializers(options.get("initializers") or {})
    return {**options, "initializers": {**own, **given}}


def check_norm(norm: str | None, window: int | None, affine: bool, is_complex: bool) -> None:
    """Raise unless the normalisation exists and has what it needs."""
    if norm not in NORMS:
        raise ValueError(f"expected norm to be one of {list(NORMS)}, got {norm!r}")
    if norm is not None and is_complex:
        raise ValueError(f"expected norm=None with a complex matrix, got {norm!r}")
    if norm is None and not affine:
        raise ValueError("affine=False needs a normalisation: expected norm, got None")
    if norm == "atn":
        if window is None:
            raise ValueError("norm='atn' needs the number of steps of its window: pass window=K")
        check_integer("window", window)
    elif window is not None:
        raise ValueError(
            f"window is a setting of norm='atn', got window={window} with norm={norm!r}: leave it "
            "out, or use norm='atn'"
        )


def check_nonlinearity(nonlinearity: str, is_complex: bool) -> None:
    """Raise unless the activation exists for states of this kind."""
    # a list, since nonlinearity may be something without a hash
    known = sorted({"modrelu", "identity"} if is_complex else {*ACTIVATIONS} - {"modrelu_stacked"})
    if nonlinearity not in known:
        kind = "a complex" if is_complex else "a real"
        raise ValueError(
            f"expected the nonlinearity of {kind} recurrence to be one of {known}, got "
            f"{nonlinearity!r}"
        )


def named_initializers(
    initializers: Mapping[str, Initializer | str], names: Sequence[str] = INITIALIZED
) -> dict[str, Initializer]:
    """Initialisers as functions, where some may be given by name; raise for unknown names.

    Example:
        >>> named_initializers({"bias": "zeros_"})["bias"] is torch.nn.init.zeros_
        True
    """
    if not isinstance(initializers, Mapping):
        raise TypeError(
            f"expected initializers as a dictionary of functions with keys from {names}, got "
            f"{initializers!r}"
        )
    if unknown := set(initializers) - set(names):
        raise ValueError(f"unknown initializers {sorted(unknown)}: expected some of {names}")
    found: dict[str, Initializer] = {}
    for name, initializer in initializers.items():
        if isinstance(initializer, str):
            if initializer not in INITIALIZERS:
                raise ValueError(
                    f"expected the initializer of {name!r} to be a function or one of "
                    f"{sorted(INITIALIZERS)}, got {initializer!r}"
                )
            initializer = INITIALIZERS[initializer]
        if not callable(initializer):
            raise TypeError(
                f"expected initializers to be functions that fill a tensor in place, got "
                f"{initializer!r} for {name!r}"
            )
        found[name] = initializer
    return found
