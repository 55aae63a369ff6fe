"""The settings of a recipe: frozen dataclasses, read strictly from TOML."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from cayley.lab.errors import RecipeError
from cayley.lab.recipes.reading import FURTHER, from_table, to_table
from cayley.lab.settings import Free, Range

__all__ = [
    "EvaluationSettings",
    "ModelSettings",
    "OptimSettings",
    "Recipe",
    "ScheduleSettings",
    "Seed",
    "TaskSettings",
    "TrainingSettings",
    "Variant",
    "read_recipe",
    "write_recipe",
]

Variant = Literal["paper", "code"]
Seed = Annotated[int, Range(0, 2**32 - 1)]
Size = Annotated[int, Range(1, 10**6)]
Dropout = Annotated[float, Range(0, below=1)]
Positive = Annotated[float, Range(0)]
Name = Annotated[str, Free("a class, which is looked up: what there is then is listed")]
Options = Annotated[dict[str, Any], Free("arguments of a class, which checks them")]
Word = Annotated[str, Free("for readers")]


@dataclass(frozen=True)
class TaskSettings:
    """A task by its name; all other keys of the table are its settings."""

    name: Name
    settings: Options = field(default_factory=dict, metadata=FURTHER)


@dataclass(frozen=True)
class ModelSettings:
    """A network by its name; keys that are not listed here are keyword arguments of its layer.

    Attributes:
        name: A layer of cayley, ``torch.LSTM`` and its like, ``MLP``, ``GCN``, ``SAGE``, or
            ``module:Class``.
        hidden: Units, or a list of them: see :func:`~cayley.lab.models.build_model`.
        layers: The number of layers, if they have the same size.
        dropout: Between layers.
        locked: Whether the dropouts between layers, on the embedding and on the output have one
            mask for all steps of a batch (variational dropout).
        embedding: The size of a learned embedding of tokens; 0 for one-hot vectors.
        embedding_init: Glorot uniform, a number b for U(−b, b), or torch's own N(0, 1).
        embedding_dropout: On the embedded tokens.
        word_dropout: Dropout of whole tokens of the vocabulary, wherever they occur in a batch.
        weight_dropout: Dropout of free recurrent matrices, one mask per batch (DropConnect).
        output_dropout: On the input of the output layer.
        tied: Whether embedding and output layer share their weights, initialised as the latter's.
        input_matrix: ``"identity"`` to fix the first input matrix to the identity.
        output_init: How the output layer starts: Glorot uniform, a number b for U(−b, b), or as
            torch's own.
        options: Further keyword arguments.
    """

    name: Name
    hidden: Size | tuple[Annotated[int, Range(0, 10**6)], ...]
    layers: Annotated[int, Range(1, 1000)] = 1
    dropout: Dropout = 0.0
    locked: bool = False
    embedding: Annotated[int, Range(0, 10**6)] = 0
    embedding_init: Literal["glorot", "torch"] | Positive = "glorot"
    embedding_dropout: Dropout = 0.0
    word_dropout: Dropout = 0.0
    weight_dropout: Dropout = 0.0
    output_dropout: Dropout = 0.0
    tied: bool = False
    input_matrix: Literal["", "identity"] = ""
    output_init: Literal["glorot", "torch"] | Positive = "glorot"
    options: Options = field(default_factory=dict, metadata=FURTHER)


@dataclass(frozen=True)
class ScheduleSettings:
    """A class of :mod:`torch.optim.lr_scheduler`; keys not listed here are its arguments."""

    name: Name = ""
    every: Literal["epoch", "step"] = "epoch"
    options: Options = field(default_factory=dict, metadata=FURTHER)


@dataclass(frozen=True)
class OptimSettings:
    """Optimizers of the free tensors of structured matrices, of phases, and of all the rest.

    Attributes:
        name: A class of :mod:`torch.optim` or :mod:`cayley.optim`, for the rest.
        lr: Its learning rate.
        weight_decay: Weight decay of the rest.
        options: Further keyword arguments of that class.
        recurrent: A class for the free tensors; empty for the same.
        recurrent_lr: None for ``lr``.
        recurrent_options: Keyword arguments of that class.
        phases: A class for the phases; empty for the same.
        phase_lr: None for ``lr``.
        phase_options: Keyword arguments of that class.
        rebase: ``"auto"``, or after how many steps to check whether scaled Cayley transforms need
            another D, see :func:`cayley.optim.attach_rebase`; empty to keep the initial D.
        lr_by_length: Whether learning rates are multiplied by the length of a text segment / K.
        schedule: How learning rates change.
    """

    name: Name
    lr: Positive
    weight_decay: Positive = 0.0
    options: Options = field(default_factory=dict)
    recurrent: Name = ""
    recurrent_lr: Positive | None = None
    recurrent_options: Options = field(default_factory=dict)
    phases: Name = ""
    phase_lr: Positive | None = None
    phase_options: Options = field(default_factory=dict)
    rebase: Literal["", "auto"] | Annotated[int, Range(1, 10**9)] = ""
    lr_by_length: bool = False
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)


@dataclass(frozen=True)
class TrainingSettings:
    """How long and in what steps to train; 0 stands for none.

    Attributes:
        batch: Examples per step.
        epochs: The length of the run in epochs; 0 if it is given in steps.
        steps: The length of the run in steps; 0 if it is given in epochs.
        clip_norm: The largest norm of the whole gradient, after BNP.
        clip_value: The largest entry of the gradient, after BNP.
        patience: Stop after this many evaluations without a better one.
        log: Steps between two records of the loss; 0 for ten, or for a thousand records per run,
            but at most ten thousand steps.
    """

    batch: Annotated[int, Range(1, 10**7)]
    epochs: Annotated[int, Range(0, 10**9)] = 0
    steps: Annotated[int, Range(0, 10**15)] = 0
    clip_norm: Positive = 0.0
    clip_value: Positive = 0.0
    patience: Annotated[int, Range(0, 10**9)] = 0
    log: Annotated[int, Range(0, 10**6)] = 0


@dataclass(frozen=True)
class EvaluationSettings:
    """When, on what, and which evaluation gives the numbers of the run.

    Attributes:
        every: ``"epoch"``, or a number of steps.
        start: Whether there is one before the first step.
        splits: The splits to evaluate on.
        batch: Examples per batch; 0 for that of training.
        select: The evaluation that is best on ``"valid"`` or on ``"test"``, the ``"last"``, or for
            ``"each"`` split its own best. ``"test"`` and ``"each"`` are optimistic, but some papers
            do it.
        metric: The metric that decides; empty for the task's first.
        audio: Whether the sound of predictions is scored at the end.
    """

    every: Literal["epoch"] | Annotated[int, Range(1, 10**15)] = "epoch"
    start: bool = True
    splits: tuple[Literal["train", "valid", "test"], ...] = ("valid", "test")
    batch: Annotated[int, Range(0, 10**7)] = 0
    select: Literal["valid", "test", "last", "each"] = "valid"
    metric: Annotated[
        str, Free("a metric of the task, found when a run begins, or all are listed")
    ] = ""
    audio: bool = False


@dataclass(frozen=True)
class Recipe:
    """One row of a published table or figure, as something to run.

    Attributes:
        name: Such as ``scornn/mnist-170``.
        task, model, optim, training, evaluation: What to do.
        table: The name of its file.
        variant: What the paper says, or what its published code does.
        paper: The paper.
        location: The table or figure in the paper.
        reported: Names of the published numbers that it is meant to reproduce.
        claims: Names of the published statements that it is about.
        unstated: Settings that the paper does not give.
        note: What a reader should know.
        parameters: The number of parameters by the paper's formula; 0 if not known.
        seed: The seed of the first run.
        seeds: How many runs the paper averaged.
        bnp: Keyword arguments of :class:`cayley.BNP`; empty for none.
    """

    name: Annotated[str, Free("a path of words, whose form is checked below")]
    task: TaskSettings
    model: ModelSettings
    optim: OptimSettings
    training: TrainingSettings
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    table: Word = ""
    variant: Variant = "paper"
    paper: Word = ""
    location: Word = ""
    reported: tuple[Annotated[str, Free("found in published.toml, or the nearest named")], ...] = ()
    claims: tuple[Annotated[str, Free("found in published.toml, or the nearest named")], ...] = ()
    unstated: tuple[Annotated[str, Free("keys of the recipe, which is checked below")], ...] = ()
    note: Word = ""
    parameters: Annotated[int, Range(0, 10**15)] = 0
    seed: Seed = 5544
    seeds: Annotated[int, Range(1, 10**6)] = 1
    bnp: Options = field(default_factory=dict)


def read_recipe(content: Mapping[str, Any]) -> Recipe:
    """Check a table of settings, as TOML gives it, and turn it into a recipe.

    Example:
        >>> optim, training = {"name": "Adam", "lr": 1e-3}, {"batch": 50, "epochs": 10}
        >>> model = {"name": "ScoRNN", "hidden": 170, "negative_ones": 85}
        >>> content = {"name": "mine", "model": model, "optim": optim, "training": training}
        >>> read_recipe(content | {"task": {"name": "adding", "T": 200}}).model.options
        {'negative_ones': 85}
        >>> try:
        ...     read_recipe(content | {"tusk": {"name": "adding"}})
        ... except RecipeError as error:
        ...     print(error)
        mine: unknown key tusk: did you mean task?
    """
    name = content.get("name", "recipe")
    try:
        recipe = from_table(Recipe, content)
        check(recipe)
    except RecipeError as error:
        raise RecipeError(f"{name}: {error}") from None
    return recipe


def write_recipe(recipe: Recipe) -> str:
    """A recipe as complete TOML; :func:`read_recipe` reads the same recipe from it."""
    import tomli_w

    return tomli_w.dumps(to_table(recipe))


def check(recipe: Recipe) -> None:
    """Raise unless the settings fit together."""
    training, evaluation = recipe.training, recipe.evaluation
    if not re.fullmatch(r"[a-z0-9]+([.-][a-z0-9]+)*(/[a-z0-9]+([.-][a-z0-9]+)*)*", recipe.name):
        raise RecipeError(
            "name: expected lower-case words and numbers joined by - or ., in parts separated by "
            f"/, got {recipe.name!r}"
        )
    if (training.epochs > 0) == (training.steps > 0):
        raise RecipeError(
            "training: expected either epochs or steps to be positive, got "
            f"epochs={training.epochs} and steps={training.steps}: set the other one to 0"
        )
    if evaluation.select in ("valid", "test") and evaluation.select not in evaluation.splits:
        raise RecipeError(
            f'evaluation.select: expected "last", "each" or one of the splits '
            f"{list(evaluation.splits)}, got {evaluation.select!r}"
        )
    content = to_table(recipe) if recipe.unstated else {}
    for key in recipe.unstated:
        first, _, second = key.partition(".")
        if first not in content or (second and second not in content[first]):
            raise RecipeError(f"unstated: expected keys of this recipe, got {key!r}")
