"""Optimizers, learning-rate schedules and BNP from the settings of a recipe."""

import copy
import difflib
import math
import warnings
from typing import Annotated, Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

import cayley
from cayley.lab.errors import RecipeError
from cayley.lab.recipes import OptimSettings, ScheduleSettings
from cayley.lab.settings import Range, convert
from cayley.lab.training.uncompiled import uncompiled
from cayley.preconditioners import BNP

__all__ = ["build_bnp", "build_optimizer", "build_schedule", "rebase_along"]

# LBFGS needs the loss several times within a step, SparseAdam needs sparse gradients, and others
# need optimizers, schedules or functions, which no recipe can hold
UNUSABLE = (
    *("LBFGS", "SparseAdam", "Optimizers", "_LRScheduler"),
    *("ChainedScheduler", "SequentialLR", "LambdaLR", "MultiplicativeLR"),
)
# arguments that mean the same in all schedules
COUNTS = ("step_size", "T_max", "T_0", "T_mult", "total_iters", "total_steps", "step_size_up")
FACTORS = ("gamma", "factor", "start_factor", "end_factor", "power", "max_lr", "eta_min")
ALLOWED = {
    **dict.fromkeys(COUNTS, Annotated[int, Range(1, 10**15)]),
    **dict.fromkeys(FACTORS, Annotated[float, Range(0)]),
}
# steps of a schedule that are tried out: more would take longer than a tenth of a second
TRIED = 10_000


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
    _warn_of_idle(settings, model, {group["name"] for group in groups})
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
    keys = {"rest": "optim.name", "phases": "optim.phases" if settings.phases else "optim.name"}
    recurrent = "optim.recurrent" if settings.recurrent else "optim.name"
    optimizers = [
        _make(*chosen[name], group, keys.get(name, recurrent))
        for group in members.values()
        for name in (group[0]["name"],)
    ]
    return optimizers[0] if len(optimizers) == 1 else cayley.optim.Optimizers(*optimizers)


def _warn_of_idle(settings: OptimSettings, model: nn.Module, names: set[str]) -> None:
    """Warn of settings for parameters that a model does not have."""
    for name, keys, what in (
        ("recurrent", ("recurrent", "recurrent_lr", "recurrent_options"), "structured matrices"),
        ("phases", ("phases", "phase_lr", "phase_options"), "phases"),
    ):
        idle = [f"optim.{key}" for key in keys if getattr(settings, key)]
        if idle and name not in names:
            warnings.warn(
                f"{' and '.join(idle)}: without effect, since the model has no {what}", stacklevel=3
            )


def _choose(
    rest: tuple[str, dict[str, Any]], name: str, options: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Class and options; those of the other parameters if none are given."""
    if not name or name == rest[0]:
        return rest[0], options or rest[1]
    return name, options


def _make(name: str, options: dict[str, Any], groups: list[dict[str, Any]], key: str) -> Optimizer:
    kind = _find(name, key, Optimizer, cayley.optim, torch.optim)
    if "lr" in options:
        raise RecipeError(
            "optim: expected learning rates as lr, recurrent_lr and phase_lr, got one among the "
            f"options of {name}, where it would have no effect"
        )
    try:
        return uncompiled(kind)(groups, **options)
    # classes of torch raise many kinds of errors for an option of the wrong type
    except Exception as error:
        raise RecipeError(f"optim: {name} refuses these settings: {error}") from error


def rebase_along(settings: OptimSettings, model: nn.Module, optimizer: Optimizer) -> None:
    """Let an optimizer rebase D of scaled Cayley transforms, if the settings say so.

    Example:
        >>> settings, model = OptimSettings("Adam", lr=1e-3, rebase="auto"), nn.Linear(2, 2)
        >>> rebase_along(settings, model, build_optimizer(settings, model))
        Traceback (most recent call last):
        ...
        cayley.lab.errors.RecipeError: optim.rebase: expected a model with a real scaled Cayley
        transform without a bandwidth (ENRNN, NCGRU, ScoRNN, RNN with recurrent='cayley' or
        'neumann', or a weight of cayley.orthogonal_), got none; ScuRNN trains its D
    """
    if not settings.rebase:
        return
    try:
        cayley.optim.attach_rebase(model, optimizer, settings.rebase)
    except (TypeError, ValueError) as error:
        raise RecipeError(f"optim.rebase: {error}") from error


def build_schedule(
    settings: ScheduleSettings, optimizer: Optimizer, steps: int
) -> lr_scheduler.LRScheduler | None:
    """The learning-rate schedule; None if the rates are constant.

    It is tried out for as many steps as it will take, up to ten thousand: if it fails, or if a rate
    is negative or not finite, an error is raised before the run starts.

    Arguments:
        settings: Its class and arguments.
        optimizer: The optimizer whose rates change.
        steps: The number of steps that the schedule will take.

    Example:
        >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        >>> build_schedule(ScheduleSettings("StepLR", options={"step_size": 0}), optimizer, 10)
        Traceback (most recent call last):
        ...
        cayley.lab.errors.RecipeError: optim.schedule.step_size: expected an integer from 1 to
        1,000,000,000,000,000, got 0
    """
    if not settings.name:
        if settings.options:
            given = " and ".join(f"optim.schedule.{key}" for key in settings.options)
            raise RecipeError(
                f"expected optim.schedule.name with {given}, got none: name a schedule"
            )
        return None
    kind = _find(settings.name, "optim.schedule.name", lr_scheduler.LRScheduler, lr_scheduler)
    if kind is lr_scheduler.ReduceLROnPlateau:
        raise RecipeError(
            "optim.schedule.name: expected a schedule that needs no metric, got " + settings.name
        )
    for name, value in settings.options.items():
        convert(value, ALLOWED.get(name, Any), f"optim.schedule.{name}")
    try:
        schedule = kind(optimizer, **settings.options)
        wrong = _try_out(schedule, optimizer, min(steps, TRIED))
    # a formula may fail with any error, such as a division by zero
    except Exception as error:
        raise RecipeError(
            f"optim.schedule: {settings.name} refuses these settings: {error}"
        ) from error
    if wrong:
        raise RecipeError(f"optim.schedule: {settings.name} gives {wrong}: change its settings")
    return schedule


def _try_out(schedule: lr_scheduler.LRScheduler, optimizer: Optimizer, steps: int) -> str:
    """What is wrong with a learning rate, or empty; the schedule is restored afterwards."""
    state = copy.deepcopy(schedule.state_dict())
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    wrong = ""
    with warnings.catch_warnings():
        # torch warns if a schedule takes a step before its optimizer
        warnings.simplefilter("ignore")
        for step in range(1, steps + 1):
            schedule.step()
            rates = [group["lr"] for group in optimizer.param_groups]
            if bad := [rate for rate in rates if not (math.isfinite(rate) and rate >= 0)]:
                wrong = f"a learning rate of {bad[0]:g} after {step} of its steps"
                break
    schedule.load_state_dict(state)
    for group, before in zip(optimizer.param_groups, groups, strict=True):
        group.update(before)
    return wrong


def build_bnp(settings: dict[str, Any], model: nn.Module) -> BNP | None:
    """The preconditioner; None without settings."""
    if not settings:
        return None
    try:
        return BNP(model, **settings)
    # its arguments may be of any type
    except Exception as error:
        raise RecipeError(f"bnp: {error}") from error


def _find(name: str, key: str, kind: type, *places: Any) -> Any:
    """A subclass of a class, by its name in one of several modules."""
    found = {
        each: value
        for place in reversed(places)
        for each, value in vars(place).items()
        if isinstance(value, type) and issubclass(value, kind) and value is not kind
        if each not in UNUSABLE
    }
    if name not in found:
        near = difflib.get_close_matches(name, found, 1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise RecipeError(f"{key}: expected one of {', '.join(sorted(found))}, got {name!r}{hint}")
    return found[name]
