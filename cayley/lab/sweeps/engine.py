"""Optuna's samplers, pruners and distributions, from the settings of a space."""

import difflib
import json
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any

from cayley.lab.errors import LabError, RecipeError
from cayley.lab.sweeps.space import Parameter, PrunerSettings, SamplerSettings, Space

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

__all__ = ["check_optuna", "decode", "encode", "make_pruner", "make_sampler", "suggest"]

SAMPLERS = {
    "tpe": "TPESampler",
    "random": "RandomSampler",
    # the number of a trial determines its choice
    "grid": "RandomSampler",
    "gp": "GPSampler",
    "qmc": "QMCSampler",
    "cmaes": "CmaEsSampler",
}
PRUNERS = {
    "none": "NopPruner",
    "median": "MedianPruner",
    "percentile": "PercentilePruner",
    "halving": "SuccessiveHalvingPruner",
    "hyperband": "HyperbandPruner",
    "threshold": "ThresholdPruner",
}
# options that TOML cannot write, or that would make a sampler print warnings
HIDDEN = ("independent_sampler", "constraints_func", "gamma", "weights", "source_trials")
# samplers that need a package which the extra does not install
NEEDED = {"cmaes": "cmaes"}
Plain = bool | int | float | str


def check_optuna() -> None:
    """Raise if Optuna is not installed."""
    if find_spec("optuna") is None:
        raise LabError(
            "expected the package optuna, got none: pip install 'cayley[sweep]' installs it; in a "
            "checkout, pip install --editable '.[sweep]'"
        )


def make_sampler(settings: SamplerSettings) -> "BaseSampler":
    """The sampler of a space.

    Example:
        >>> make_sampler(SamplerSettings("tpe", {"n_startup_trails": 5}))
        Traceback (most recent call last):
        ...
        cayley.lab.errors.RecipeError: sampler: unknown option n_startup_trails of tpe: did you mean
        n_startup_trials?
    """
    check_optuna()
    from optuna import samplers

    package = NEEDED.get(settings.name)
    if package and find_spec(package) is None:
        raise RecipeError(
            f"sampler: {settings.name} needs the package {package}: pip install {package}, or "
            "choose another sampler"
        )
    options = dict(settings.options)
    kind = getattr(samplers, SAMPLERS[settings.name])
    valid = signature(kind).parameters
    # these warn of what every sweep does: workers ask for their settings one after another
    quiet = ("warn_independent_sampling", "warn_asynchronous_seeding")
    if settings.name != "tpe":
        options = {name: False for name in quiet if name in valid} | options
    return _make("sampler", settings.name, kind, options)


def make_pruner(settings: PrunerSettings) -> "BasePruner":
    """The pruner of a space."""
    check_optuna()
    from optuna import pruners

    kind = getattr(pruners, PRUNERS[settings.name])
    return _make("pruner", settings.name, kind, settings.options)


def _make(what: str, name: str, kind: type, options: Mapping[str, Any]) -> Any:
    valid = [one for one in signature(kind).parameters if one not in HIDDEN]
    for option in options:
        if option not in valid:
            near = difflib.get_close_matches(option, valid, 1)
            hint = f"did you mean {near[0]}?" if near else f"expected {', '.join(valid) or 'none'}"
            raise RecipeError(f"{what}: unknown option {option} of {name}: {hint}")
    import optuna

    try:
        with warnings.catch_warnings():
            # the user cannot do anything about experimental features of Optuna
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return kind(**options)
    # classes of Optuna raise many kinds of errors for an option of the wrong type
    except Exception as error:
        raise RecipeError(f"{what}: {name} refuses these options: {error}") from error


def suggest(trial: "Trial", space: Space) -> dict[str, Any]:
    """The settings of a trial, in the order of the space.

    Arguments:
        trial: The trial; settings that it already has are kept.
        space: The space to be searched.
    """
    chosen: dict[str, Any] = {}
    for one in space.parameters:
        if not one.is_present(chosen):
            continue
        if one.values:
            value = trial.suggest_categorical(one.key, [*map(encode, one.values)])
            chosen[one.key] = decode(one, value)
            continue
        assert one.low is not None
        assert one.high is not None
        if one.is_whole:
            step = 1 if one.step is None else int(one.step)
            ends = int(one.low), int(one.high)
            chosen[one.key] = trial.suggest_int(one.key, *ends, log=one.log, step=step)
        else:
            ends = float(one.low), float(one.high)
            value = trial.suggest_float(one.key, *ends, log=one.log, step=one.step)
            chosen[one.key] = decode(one, value)
    return chosen


def encode(value: Any) -> Plain:
    """A value of a list as it is stored: lists and tables as JSON.

    Example:
        >>> encode(0.5), encode([5, 4])
        (0.5, '[5, 4]')
    """
    return value if isinstance(value, Plain) else json.dumps(value, sort_keys=True)


def decode(one: Parameter, value: Any) -> Any:
    """The value of a parameter, from its stored form."""
    if not one.values:
        # Optuna adds steps in binary: 0.1 + 2 · 0.1 is not 0.3 there
        return value if one.step is None or one.is_whole else one.nearest(value)
    # 1 and true are equal in Python, but not in a recipe
    return next(
        known
        for known in one.values
        if encode(known) == value and type(encode(known)) is type(value)
    )
