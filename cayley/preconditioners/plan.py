"""Which rule applies to which module of a model, and why others have none."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import nn

from cayley.preconditioners.joint import Block
from cayley.preconditioners.rule import Hook, Rule
from cayley.preconditioners.rules import OPAQUE
from cayley.preconditioners.unit import Unit, names_of, present

__all__ = ["Pattern", "join", "make_plan"]

Pattern = str | type[nn.Module]
Path = tuple[tuple[str, nn.Module], ...]


class _Candidate(NamedTuple):
    name: str
    module: nn.Module
    rule: Rule
    blocks: list[Block]


def make_plan(
    model: nn.Module,
    rules: Sequence[Rule],
    include: Sequence[Pattern] | None,
    exclude: Sequence[Pattern],
    dtype: torch.dtype,
) -> tuple[list[Unit], dict[str, str]]:
    """What to precondition, and why the rest is left out.

    Arguments:
        model: The model.
        rules: The rules; the first that fits a module is used, for all its submodules too.
        include: Names, with wildcards, or types of modules to precondition, each with all its
            submodules; None for all.
        exclude: Modules to leave out, in the same form.
        dtype: The minimum precision of the statistics.

    Returns:
        The modules that are preconditioned, and the reason for every parameter that is not.
    """
    candidates: list[_Candidate] = []
    reasons: dict[str, str] = {}
    everywhere = _everywhere(model)
    for path in _paths(model):
        name, module = path[-1]
        if any(one.module is outer for one in candidates for _, outer in path):
            continue
        why = _why_not(path, everywhere[module], include, exclude)
        rule = next((rule for rule in rules if rule.serves(module)), None)
        if why is not None or rule is None:
            why = why or _why_unserved(module, rules)
            reasons |= {join(name, key): why for key, _ in module.named_parameters(recurse=False)}
            continue
        _check_unhooked(name, module)
        layout = rule.layout(module)
        real = {key: p for key, p in module.named_parameters() if not p.is_complex()}
        candidates.append(_Candidate(name, module, rule, present(layout.blocks, real)))
        reasons |= _why_left(name, module, layout.left)
    _check_patterns(model, (*(include or ()), *exclude))
    return _units(model, candidates, reasons, dtype), reasons


def _units(
    model: nn.Module,
    candidates: Sequence[_Candidate],
    reasons: dict[str, str],
    dtype: torch.dtype,
) -> list[Unit]:
    """One unit for all modules that share all their parameters; none if they share only some."""
    holders = Counter(
        p
        for module in model.modules()
        for _, p in module.named_parameters(recurse=False, remove_duplicate=False)
    )
    groups: dict[tuple[type[Rule], tuple[nn.Parameter, ...]], list[_Candidate]] = defaultdict(list)
    for one in candidates:
        parameters = tuple(one.module.get_parameter(name) for name in names_of(one.blocks))
        groups[type(one.rule), parameters].append(one)
    units: list[Unit] = []
    for (_, parameters), group in groups.items():
        first = group[0]
        if any(holders[p] != len(group) for p in parameters):
            for one in group:
                for name in names_of(one.blocks):
                    reasons[join(one.name, name)] = (
                        "a parameter of its block belongs to another module too"
                    )
        elif parameters:
            modules = [one.module for one in group]
            units.append(Unit(first.name, modules, first.rule, first.blocks, dtype))
    return units


def _paths(model: nn.Module) -> Iterator[Path]:
    """Every module with the modules that contain it, from the outermost."""
    named = dict(model.named_modules())
    for name in named:
        # a module that occurs in two places is listed at the first only
        yield _path(name, named)


def _path(name: str, named: Mapping[str, nn.Module]) -> Path:
    """A module and those that contain it, from the outermost."""
    parts = name.split(".") if name else []
    prefixes = [".".join(parts[:k]) for k in range(len(parts) + 1)]
    return tuple((prefix, named[prefix]) for prefix in prefixes if prefix in named)


def _everywhere(model: nn.Module) -> dict[nn.Module, Path]:
    """Every module with itself and all that contain it, under all names that they have."""
    named = dict(model.named_modules(remove_duplicate=False))
    found: dict[nn.Module, Path] = {}
    for name, module in named.items():
        found[module] = (*found.get(module, ()), *_path(name, named))
    return found


def _matches(pattern: Pattern, path: Path) -> bool:
    if isinstance(pattern, str):
        return any(fnmatchcase(name, pattern) for name, _ in path if name)
    return any(isinstance(module, pattern) for _, module in path)


def _why_not(
    path: Path,
    everywhere: Path,
    include: Sequence[Pattern] | None,
    exclude: Sequence[Pattern],
) -> str | None:
    if include is not None and not any(_matches(pattern, everywhere) for pattern in include):
        return "not among those to include"
    if any(_matches(pattern, everywhere) for pattern in exclude):
        return "excluded"
    return next((why for kind, why in OPAQUE.items() if _matches(kind, path)), None)


def _why_unserved(module: nn.Module, rules: Sequence[Rule]) -> str:
    kind = type(module).__name__
    if any(isinstance(module, rule.types) for rule in rules):
        return f"{kind} has a forward of its own"
    return f"no rule for {kind}"


def _why_left(name: str, module: nn.Module, left: Mapping[str, str]) -> dict[str, str]:
    """Why each parameter of a preconditioned module is left out if it is in no block."""
    reasons: dict[str, str] = {}
    for key, p in module.named_parameters():
        why = "its weight is not preconditioned"
        if p.is_complex():
            why = "it is complex"
        elif key.startswith("parametrizations."):
            why = "the weight is a function of it, and its preconditioned gradient could ascend"
        reasons[join(name, key)] = left.get(key, why)
    return reasons


def _check_patterns(model: nn.Module, patterns: Sequence[Pattern]) -> None:
    for pattern in patterns:
        if not any(_matches(pattern, path) for path in _everywhere(model).values()):
            names = ", ".join(name for name, _ in model.named_modules() if name)
            raise ValueError(
                "BNP: expected include and exclude to match modules of the model, but "
                + (f"{pattern!r} matches none of: {names}" if names else "it has no submodules")
            )


def _check_unhooked(name: str, module: nn.Module) -> None:
    hooks = module._forward_hooks.values()
    if any(isinstance(hook, Hook) and hook.function is not None for hook in hooks):
        raise ValueError(
            f"BNP: {name or 'the model'} is already preconditioned by another BNP: call remove() "
            "on that one, or give the two different modules with include= and exclude="
        )


def join(prefix: str, name: str) -> str:
    """The full name of a name inside a module."""
    return f"{prefix}.{name}" if prefix else name
