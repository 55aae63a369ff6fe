"""How long runs will take on this machine, measured on a few steps of some of them."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from cayley.lab.errors import LabError
from cayley.lab.models import build_model, count_parameters
from cayley.lab.recipes import Recipe
from cayley.lab.tasks import Batch, Position, Split, Task
from cayley.lab.training.evaluation import check_work, evaluated_splits, evaluation_batch
from cayley.lab.training.learner import Learner
from cayley.lab.training.setup import RunSettings, build_task, initial_model

__all__ = ["Estimate", "estimate_run", "estimate_runs"]

# the first of these steps may compile; after PATIENCE seconds no further step is measured
STEPS = 4
PATIENCE = 1.0


@dataclass(frozen=True)
class Estimate:
    """How long a run will take.

    Attributes:
        steps: The number of steps.
        step_seconds: The time of one step.
        evaluations: The number of evaluations.
        evaluation_seconds: The time of one evaluation.
        like: The index, among the estimated runs, of the run that was measured instead of this one;
            None if this one was measured.
    """

    steps: int
    step_seconds: float
    evaluations: int
    evaluation_seconds: float
    like: int | None = None

    @property
    def seconds(self) -> float:
        """The time of training and evaluation."""
        return self.steps * self.step_seconds + self.evaluations * self.evaluation_seconds


def estimate_run(recipe: Recipe, settings: RunSettings) -> Estimate:
    """Measure a few steps, and a batch of an evaluation; nothing is written.

    Arguments:
        recipe: The recipe to run.
        settings: Machine and data; the data must be there.

    Example:
        >>> from cayley.lab.recipes import find_recipe
        >>> recipe = find_recipe("quickstart").recipe(overrides=["model.hidden=4"])
        >>> found = estimate_run(recipe, RunSettings(tiny=True))
        >>> found.steps, found.evaluations, found.seconds > 0
        (2500, 6, True)
    """
    return _estimate(recipe, build_task(recipe.task, settings), settings)


def _estimate(recipe: Recipe, task: Task, settings: RunSettings) -> Estimate:
    model = initial_model(recipe, task, recipe.seed, settings.machine)
    check_work(recipe, task)
    learner = Learner(recipe, task, model, settings.machine)
    steps, evaluations = _count(recipe, task)
    batches = _batches(task, "train", recipe.training.batch, learner, settings)
    return Estimate(
        steps,
        _measure(learner.learn, batches, learner),
        evaluations,
        _evaluation(recipe, task, learner, settings),
    )


def estimate_runs(
    recipes: Sequence[Recipe],
    settings: RunSettings,
    *,
    seconds: float,
    known: Mapping[int, tuple[float, float]] | None = None,
) -> list[Estimate | LabError]:
    """Measure steps of several runs for some time; estimate the others by their operations.

    The run with the fewest operations of each network is measured first, then that of each network
    on each task. Runs that differ only in their optimizer or their length have the same steps. A
    run for which no time is left is estimated from the measured run with the most similar number
    of operations: of the same network and task if there is one, else of the same network, else of
    any network.

    Arguments:
        recipes: The recipes to run.
        settings: Machine and data; the data must be there.
        seconds: When to stop measuring; the first run is always measured.
        known: For finished runs, by the index of the recipe: the seconds that training and
            evaluation took.

    Returns:
        An estimate for each recipe, or why there is none.

    Example:
        >>> from cayley.lab.recipes import find_recipe
        >>> entry = find_recipe("quickstart")
        >>> recipes = [entry.recipe(overrides=[f"model.hidden={n}"]) for n in (4, 8)]
        >>> first, second = estimate_runs(recipes, RunSettings(tiny=True), seconds=0.0)
        >>> first.like, second.like, second.step_seconds > first.step_seconds
        (None, 0, True)
    """
    # a task reads its files once
    tasks: dict[str, Task] = {}
    found: dict[int, Estimate | LabError] = {}
    works: dict[int, _Work] = {}
    for k, recipe in enumerate(recipes):
        name = repr(recipe.task)
        try:
            if name not in tasks:
                tasks[name] = build_task(recipe.task, settings)
            works[k] = _count_work(recipe, tasks[name])
        except LabError as error:
            found[k] = error
    for k in (known or {}).keys() & works.keys():
        training, evaluation = (known or {})[k]
        found[k] = Estimate(
            works[k].steps,
            training / works[k].steps,
            works[k].evaluations,
            evaluation / works[k].evaluations,
        )
    likes = {_shape(recipes[k]): k for k in found.keys() & works.keys()}
    began = time.perf_counter()
    for k in _in_order(recipes, works):
        over = likes and time.perf_counter() - began > seconds
        if k in found or _shape(recipes[k]) in likes or over:
            continue
        try:
            found[k] = _estimate(recipes[k], tasks[repr(recipes[k].task)], settings)
            likes[_shape(recipes[k])] = k
        except LabError as error:
            found[k] = error
    for k in works.keys() - found.keys():
        same = likes.get(_shape(recipes[k]))
        near = likes.values() if same is None else (same,)
        if not near:
            # none could be measured
            found[k] = next(one for one in found.values() if isinstance(one, LabError))
            continue
        found[k] = _scaled(recipes, works, found, k, near)
    return [found[k] for k in range(len(recipes))]


@dataclass(frozen=True)
class _Work:
    """How many steps and evaluations a run has, and the operations of each."""

    steps: int
    step: float
    evaluations: int
    evaluation: float


def _count_work(recipe: Recipe, task: Task) -> _Work:
    """The work of a run; operations are known up to a factor that depends on the network.

    Every parameter, and every entry of a square matrix that is computed from fewer parameters, is
    used once at each step of a sequence.
    """
    with torch.device("meta"):
        numbers = count_parameters(build_model(recipe.model, task))
    hidden = recipe.model.hidden
    numbers += sum(n * n for n in ([hidden] if isinstance(hidden, int) else hidden))
    input = task.batch("train", 1, Position(), seed=recipe.seed).input
    # rows count as sequences of one step, and so does a graph
    numbers *= input.shape[0] if isinstance(input, torch.Tensor) else 1
    steps, evaluations = _count(recipe, task)
    B = evaluation_batch(recipe)
    examples = B * sum(task.steps(split, B) for split in evaluated_splits(recipe, task))
    return _Work(
        steps, float(numbers * recipe.training.batch), evaluations, float(numbers * examples)
    )


def _in_order(recipes: Sequence[Recipe], works: Mapping[int, _Work]) -> list[int]:
    """The smallest run of every network, then of every network on every task, then the rest."""
    met: set[str | tuple[str, str]] = set()
    ranks: dict[int, tuple[bool, bool, float]] = {}
    for k in sorted(works, key=lambda k: works[k].step):
        name, kind = recipes[k].model.name, _kind(recipes[k])
        ranks[k] = (name in met, kind in met, works[k].step)
        met |= {name, kind}
    return sorted(ranks, key=ranks.__getitem__)


def _scaled(
    recipes: Sequence[Recipe],
    works: Mapping[int, _Work],
    found: Mapping[int, Estimate | LabError],
    k: int,
    near: Iterable[int],
) -> Estimate:
    """The estimate of a run from that of the most similar among some others."""
    own, work = recipes[k], works[k]

    def distance(j: int) -> tuple[bool, bool, float]:
        other = recipes[j]
        return (
            _kind(own) != _kind(other),
            own.model.name != other.model.name,
            abs(math.log(work.step / works[j].step)),
        )

    like = min(near, key=distance)
    one = found[like]
    assert isinstance(one, Estimate)
    return Estimate(
        work.steps,
        one.step_seconds * work.step / works[like].step,
        work.evaluations,
        one.evaluation_seconds * work.evaluation / works[like].evaluation,
        like,
    )


def _kind(recipe: Recipe) -> tuple[str, str]:
    return recipe.model.name, recipe.task.name


def _shape(recipe: Recipe) -> str:
    """The settings that the time of a step, and of an evaluation, depends on."""
    training = replace(recipe.training, steps=0, epochs=0)
    return repr((recipe.task, recipe.model, training, recipe.evaluation))


def _count(recipe: Recipe, task: Task) -> tuple[int, int]:
    """The steps of a run, and its evaluations."""
    epoch = task.steps("train", recipe.training.batch, seed=recipe.seed)
    steps = recipe.training.steps or recipe.training.epochs * epoch
    every = epoch if recipe.evaluation.every == "epoch" else recipe.evaluation.every
    return steps, -(-steps // every) + recipe.evaluation.start


def _evaluation(recipe: Recipe, task: Task, learner: Learner, settings: RunSettings) -> float:
    """The seconds of an evaluation, from a batch of one split for all batches of all splits."""
    B = evaluation_batch(recipe)
    splits = evaluated_splits(recipe, task)
    learner.model.eval()
    with torch.no_grad():
        seconds = _measure(
            lambda batch: learner.forward(batch.input, None),
            _batches(task, splits[0], B, learner, settings),
            learner,
        )
    return seconds * sum(task.steps(split, B) for split in splits)


def _batches(
    task: Task, split: Split, B: int, learner: Learner, settings: RunSettings
) -> Iterable[Batch]:
    place = learner.engine.device
    return task.batches(split, B, epochs=None, device=place, dtype=settings.machine.dtype)


def _measure(work: Callable[[Batch], Any], batches: Iterable[Batch], learner: Learner) -> float:
    """The shortest time of a batch, in seconds, over a few batches; fewer if they are slow."""
    times: list[float] = []
    began = time.perf_counter()
    for _, batch in zip(range(STEPS), batches, strict=False):
        work(batch)
        if learner.engine.device.type == "cuda":
            torch.cuda.synchronize(learner.engine.device)
        now = time.perf_counter()
        times.append(now - began)
        began = now
        if sum(times) > PATIENCE:
            break
    return min(times)
