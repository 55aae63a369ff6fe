"""The search space of a sweep: keys of a recipe and their values, read strictly from TOML."""

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from cayley.lab.errors import RecipeError
from cayley.lab.recipes import Recipe, Variant, find_recipe, from_table
from cayley.lab.recipes.reading import FURTHER
from cayley.lab.settings import Range

__all__ = ["Parameter", "PrunerSettings", "SamplerSettings", "Space", "read_space"]

Number = int | float
# names of studies are also names of folders
NAME = r"[a-z0-9]+([.-][a-z0-9]+)*"


@dataclass(frozen=True)
class Parameter:
    """A key of the recipe that is searched: a list of values, or a range.

    Attributes:
        key: The key, such as ``optim.lr``.
        values: The list; empty for a range.
        low, high: The ends of the range, both included.
        log: Whether the range is logarithmic.
        step: The step between values; None for any number, or any integer if both ends are
            integers.
        when: Values that other parameters must have; otherwise the recipe's own setting is kept.
    """

    key: str
    values: tuple[Any, ...] = ()
    low: Number | None = None
    high: Number | None = None
    log: bool = False
    step: Number | None = None
    when: dict[str, Any] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether all values of a range are integers."""
        ends = (self.low, self.high, 1 if self.step is None else self.step)
        return all(isinstance(end, int) for end in ends)

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that are checked before any trial: all of a list, both ends of a range."""
        return self.values or (self.low, self.high)

    @property
    def all_values(self) -> tuple[Any, ...]:
        """Every value, for a grid; empty if there are infinitely many."""
        if self.values:
            return self.values
        if self.log or (self.step is None and not self.is_whole):
            return ()
        low, high, step = self._exact
        return tuple(self.value(k) for k in range(int((high - low) // step) + 1))

    def value(self, count: int) -> Number:
        """The value a number of steps above the low end of a range, as it is written in decimal.

        Example:
            >>> Parameter("optim.lr", low=0.1, high=0.3, step=0.1).value(2), 0.1 + 2 * 0.1
            (0.3, 0.30000000000000004)
        """
        assert self.low is not None
        low, _, step = self._exact
        kind = type(self.low + (1 if self.step is None else self.step))
        return kind(low + count * step)

    def nearest(self, value: Number) -> Number:
        """The value of a range with a step that is nearest to a number."""
        low, _, step = self._exact
        return self.value(round((Decimal(value) - low) / step))

    @property
    def _exact(self) -> tuple[Decimal, Decimal, Decimal]:
        """Both ends of a range and its step, exactly as they are written."""
        ends = (self.low, self.high, 1 if self.step is None else self.step)
        low, high, step = (Decimal(repr(end)) for end in ends)
        return low, high, step

    def is_present(self, chosen: Mapping[str, Any]) -> bool:
        """Whether this parameter applies, given the values of the other parameters."""
        return all(key in chosen and chosen[key] in few for key, few in self.when.items())


@dataclass(frozen=True)
class SamplerSettings:
    """The sampler, which chooses settings; other keys are options of its Optuna class."""

    name: Literal["tpe", "random", "grid", "gp", "qmc", "cmaes"] = "tpe"
    options: dict[str, Any] = field(default_factory=dict, metadata=FURTHER)


@dataclass(frozen=True)
class PrunerSettings:
    """The pruner, which ends trials early; other keys are options of its Optuna class."""

    name: Literal["none", "median", "percentile", "halving", "hyperband", "threshold"] = "none"
    options: dict[str, Any] = field(default_factory=dict, metadata=FURTHER)


@dataclass(frozen=True)
class Space:
    """A search over settings of a recipe.

    Attributes:
        recipe: A name from ``cayley list``, or a file, relative to that of the space.
        metric: The split and the metric to optimize, such as ``valid_mse``; its value is that of
            the finished run, from the evaluation that the recipe selects.
        parameters: The parameters to search.
        name: The name of the space, which is that of its file.
        direction: Whether to minimize or maximize the metric; empty for the better direction.
        trials: The total number of trials; 0 for every choice of a grid.
        variant: The variant of the recipe.
        set: Settings that differ from the recipe in all trials, such as ``training.epochs=5``.
        sampler: The sampler, which chooses settings.
        pruner: The pruner, which ends trials early.
        title: A short title.
        source: Where a paper describes the search.
        note: What a reader must know.
        folder: The folder of the file.
    """

    recipe: str
    metric: str
    parameters: tuple[Parameter, ...] = ()
    name: str = ""
    direction: Literal["", "minimize", "maximize"] = ""
    trials: Annotated[int, Range(0, 10**6)] = 0
    variant: Variant = "paper"
    set: tuple[str, ...] = ()
    sampler: SamplerSettings = field(default_factory=SamplerSettings)
    pruner: PrunerSettings = field(default_factory=PrunerSettings)
    title: str = ""
    source: str = ""
    note: str = ""
    folder: str = ""

    @property
    def split(self) -> str:
        """The split of the metric."""
        return self.metric.partition("_")[0]

    @property
    def score(self) -> str:
        """The metric without its split."""
        return self.metric.partition("_")[2]

    def base(self, *, tiny: bool = False) -> Recipe:
        """The recipe without the searched settings.

        Arguments:
            tiny: Whether to make it small enough to train in seconds.
        """
        name = self.recipe
        if re.search(r"\.toml(:.*)?$", name):
            name = str(Path(self.folder, name))
        return find_recipe(name).recipe(self.variant, self.set, tiny=tiny)

    def choose(self, changes: Sequence[str]) -> "Space":
        """The same search with additional settings in all trials."""
        return _with_set(self, (*self.set, *changes))


def read_space(text: str, name: str, folder: Path = Path()) -> Space:
    r"""Read and check a space, written as TOML.

    Arguments:
        text: TOML with ``recipe``, ``metric`` and ``[parameters]``.
        name: The name of the space.
        folder: The folder of the recipe, if that is a file.

    Example:
        >>> space = read_space('''
        ... recipe = "quickstart"
        ... metric = "valid_mse"
        ... trials = 20
        ... [parameters]
        ... optim.lr = { low = 1e-4, high = 1e-1, log = true }
        ... model.negative_ones = [0, 20, 40]
        ... ''', "mine")
        >>> [one.key for one in space.parameters]
        ['optim.lr', 'model.negative_ones']
        >>> read_space('recipe = "quickstart"\nmetrik = "valid_mse"', "mine")
        Traceback (most recent call last):
        ...
        cayley.lab.errors.RecipeError: mine: unknown key metrik: did you mean metric?
    """
    try:
        return _read(tomllib.loads(text), name, folder)
    # invalid TOML raises a ValueError, and a RecipeError is one too
    except ValueError as error:
        raise RecipeError(f"{name}: {error}") from None


def _read(content: dict[str, Any], name: str, folder: Path) -> Space:
    own = {key: value for key, value in content.items() if key != "parameters"}
    for key in ("name", "folder"):
        if key in own:
            raise RecipeError(f"{key}: expected no such key: it is that of the file")
    if not re.fullmatch(NAME, name):
        raise RecipeError(
            "expected a name of lower-case words and numbers with - or . between them, got "
            f"{name!r}"
        )
    space: Space = from_table(Space, own)
    split, score = space.split, space.score
    if split not in ("train", "valid", "test") or not score:
        raise RecipeError(
            f"metric: expected a split and a metric, such as valid_mse, got {space.metric!r}"
        )
    parameters = tuple(_parameters(content.get("parameters", {}), ""))
    if not parameters:
        raise RecipeError("parameters: expected at least one key of the recipe, got none")
    for one in parameters:
        _check(one)
    space = replace(space, name=name, folder=str(folder), parameters=_ordered(parameters))
    space = _with_set(space, space.set)
    if space.sampler.name == "grid":
        if space.sampler.options:
            raise RecipeError(
                f"sampler: grid has no options, got {', '.join(space.sampler.options)}"
            )
        for one in parameters:
            if not one.all_values:
                raise RecipeError(
                    f"parameters.{one.key}: expected a list or a range with a step, as the sampler "
                    "is grid, got a range of infinitely many values"
                )
    elif not space.trials:
        raise RecipeError(
            "missing key trials: the total number of trials; only a grid can do without it"
        )
    return space


def _with_set(space: Space, changes: tuple[str, ...]) -> Space:
    """A space with these settings in all trials, of which none is searched in all trials."""
    searched = {one.key for one in space.parameters if not one.when}
    for change in changes:
        key = change.partition("=")[0].strip()
        if key in searched:
            raise RecipeError(
                f"set: expected settings that are not searched, got {change!r}: every trial has a "
                f"value of {key} from [parameters]"
            )
    return replace(space, set=changes)


def _parameters(content: Any, path: str) -> Iterator[Parameter]:
    """The parameters in a table, whose keys may be dotted: ``optim.lr`` or ``"optim.lr"``."""
    words = {one.name for one in fields(Parameter)} - {"key"}
    for key, value in content.items():
        key = f"{path}{key}"
        if isinstance(value, list):
            yield Parameter(key, values=tuple(value))
        elif isinstance(value, Mapping) and words & value.keys():
            yield from_table(Parameter, {"key": key, **value}, f"parameters.{key}.")
        elif isinstance(value, Mapping):
            yield from _parameters(value, f"{key}.")
        else:
            raise RecipeError(
                f"parameters.{key}: expected a list, or a range such as {{ low = 1e-4, high = "
                f"1e-2, log = true }}, got {value!r}"
            )


def _check(one: Parameter) -> None:
    """Raise unless the values of a parameter are valid."""
    where = f"parameters.{one.key}"
    if one.values:
        if (one.low, one.high, one.step, one.log) != (None, None, None, False):
            raise RecipeError(f"{where}: expected values, or low and high, got both")
        seen = [json.dumps(value, sort_keys=True, default=str) for value in one.values]
        if len({*seen}) < len(seen):
            double = next(value for value in seen if seen.count(value) > 1)
            raise RecipeError(f"{where}: expected values that differ, got {double} twice")
        return
    if one.low is None or one.high is None:
        raise RecipeError(f"{where}: expected values, or both low and high")
    if not (math.isfinite(one.low) and math.isfinite(one.high) and one.low < one.high):
        raise RecipeError(
            f"{where}: expected low to be less than high, got low = {one.low}, high = {one.high}"
        )
    if one.log and one.low <= 0:
        raise RecipeError(
            f"{where}: expected low to be positive, as the range is logarithmic, got {one.low}"
        )
    if one.step is None:
        return
    if one.log:
        raise RecipeError(f"{where}: expected a step or log = true, got both")
    if not (one.step > 0 and one.value(1) <= one.high):
        raise RecipeError(
            f"{where}: expected a step of more than 0 and at most high − low, got {one.step}"
        )
    last = one.all_values[-1]
    if not math.isclose(last, one.high, rel_tol=1e-9):
        raise RecipeError(
            f"{where}: expected high to be low plus a number of steps, got {one.high}: the last "
            f"value is {last}"
        )


def _ordered(parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """Parameters, each after those it depends on, with lists of values in their conditions."""
    known = {one.key: one for one in parameters}
    if len(known) < len(parameters):
        raise RecipeError("parameters: expected every key once, got one twice")
    for one in parameters:
        for key, few in one.when.items():
            where = f"parameters.{one.key}.when"
            if key not in known:
                raise RecipeError(f"{where}: expected other parameters of the space, got {key!r}")
            one.when[key] = few = tuple(few) if isinstance(few, list) else (few,)
            values = known[key].all_values
            if strange := [value for value in few if values and value not in values]:
                raise RecipeError(
                    f"{where}: expected values that {key} has, {', '.join(map(repr, values))}, got "
                    f"{strange[0]!r}"
                )
    ordered: dict[str, Parameter] = {}
    while len(ordered) < len(parameters):
        free = [one for one in parameters if one.key not in ordered and {*one.when} <= {*ordered}]
        if not free:
            circle = ", ".join(one.key for one in parameters if one.key not in ordered)
            raise RecipeError(
                f"parameters: expected conditions without a cycle, got one of {circle}"
            )
        ordered |= {one.key: one for one in free}
    return tuple(ordered.values())
