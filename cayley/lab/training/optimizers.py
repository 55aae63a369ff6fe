"""From the settings of a recipe to optimizers, a schedule of learning rates, and BNP."""

import difflib
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

import cayley
from cayley.lab.errors import RecipeError
from cayley.lab.recipes import OptimSettings, ScheduleSettings
from cayley.preconditioners import BNP

__all__ = ["build_bnp", "build_optimizer", "build_schedule"]


def build_optimizer(settings: OptimSettings, model: nn.Module) -> Optimizer:
    """The optimizer of a model: one, or one for each kind of parameters.

    Example:
        >>> settings = OptimSettings("Adam", lr=1e-3, recurrent="RMSpropTF", recurrent_lr=1e-4)
        >>> optimizer = build_optimizer(settings, cayley.ScoRNN(2, 8))
        >>> [(type(each).__name__, each.param_groups[0]["lr"]) for each in optimizer.optimizers]
        [('Adam', 0.001), ('RMSpropTF', 0.0001)]
    """
    try:
        groups = cayley.parameter_groups(
            model,
            settings.lr,
            recurrent_lr=settings.recurrent_lr,
            phase_lr=settings.phase_lr,
            weight_decay=settings.weight_decay or None,
        )
    except ValueError as error:
        raise RecipeError(f"optim: {error}") from error
    rest = (settings.name, settings.options)
    chosen = {
        "rest": rest,
        "recurrent": _choose(rest, settings.recurrent, settings.recurrent_options),
        "phases": _choose(rest, settings.phases, settings.phase_options),
    }
    chosen["stiefel"] = chosen["recurrent"]
    members: dict[str, list[dict[str, Any]]] = {}
    for group in groups:
        members.setdefault(repr(chosen[group["name"]]), []).append(group)
    optimizers = [_make(*chosen[group[0]["name"]], group) for group in members.values()]
    return optimizers[0] if len(optimizers) == 1 else cayley.optim.Optimizers(*optimizers)


def _choose(
    rest: tuple[str, dict[str, Any]], name: str, options: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Class and options: of the rest where nothing else is said."""
    if not name or name == rest[0]:
        return rest[0], options or rest[1]
    return name, options


def _make(name: str, options: dict[str, Any], groups: list[dict[str, Any]]) -> Optimizer:
    kind = _find(name, "optim.name", Optimizer, cayley.optim, torch.optim)
    try:
        return kind(groups, **options)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"optim: {name} refuses these settings: {error}") from error


def build_schedule(
    settings: ScheduleSettings, optimizer: Optimizer
) -> lr_scheduler.LRScheduler | None:
    """The schedule of the learning rates; None if they stay."""
    if not settings.name:
        return None
    kind = _find(settings.name, "optim.schedule.name", lr_scheduler.LRScheduler, lr_scheduler)
    if kind is lr_scheduler.ReduceLROnPlateau:
        raise RecipeError(
            "optim.schedule.name: expected one that needs no metric, got " + settings.name
        )
    try:
        return kind(optimizer, **settings.options)
    except (TypeError, ValueError) as error:
        raise RecipeError(
            f"optim.schedule: {settings.name} refuses these settings: {error}"
        ) from error


def build_bnp(settings: dict[str, Any], model: nn.Module) -> BNP | None:
    """The preconditioner; None without settings."""
    if not settings:
        return None
    try:
        return BNP(model, **settings)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"bnp: {error}") from error


def _find(name: str, key: str, kind: type, *places: Any) -> Any:
    """A class of a kind by its name in one of several modules."""
    found = {
        each: value
        for place in reversed(places)
        for each, value in vars(place).items()
        if isinstance(value, type) and issubclass(value, kind) and value is not kind
    }
    if name not in found:
        near = difflib.get_close_matches(name, found, 1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise RecipeError(f"{key}: expected one of {', '.join(sorted(found))}, got {name!r}{hint}")
    return found[name]
