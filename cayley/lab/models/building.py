"""Networks from the settings of a model and the sizes of a task."""

import difflib
import operator
import os
from dataclasses import fields, replace
from functools import reduce
from inspect import Parameter, signature
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

import torch
from torch import nn

import cayley
from cayley.lab.errors import RecipeError
from cayley.lab.importing import import_class
from cayley.lab.models.feedforward import CONVOLUTIONS, MLP, GraphNetwork, convolution
from cayley.lab.models.sequences import SequenceModel, features_of, free_matrices
from cayley.lab.recipes import ModelSettings, check_keys
from cayley.lab.settings import Range, convert
from cayley.lab.tasks import Task
from cayley.layers import NETWORKS

__all__ = ["LAYERS", "build_model", "count_parameters"]

LAYERS: dict[str, type[nn.Module]] = {
    **NETWORKS,
    "torch.GRU": nn.GRU,
    "torch.LSTM": nn.LSTM,
    "torch.RNN": nn.RNN,
}
# arguments of layers that have other names in the settings, or that the laboratory chooses
CHOSEN = {
    "self",
    "mode",
    "sizes",
    "input_size",
    "hidden_size",
    "long_size",
    "short_size",
    "num_layers",
    "dropout",
    "batch_first",
    "device",
    "dtype",
}
# settings whose argument has a name with another meaning here
RENAMED: dict[type[nn.Module], dict[str, str]] = {cayley.EURNN: {"rotations": "layers"}}
# integers among the arguments of layers are counts
Count = Annotated[int, Range(0, 10**6)]
# networks with this many units fit into any machine
SMALL = 10_000
# weights, their gradients, and two moments of an optimizer
COPIES = 4
VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def build_model(settings: ModelSettings, task: Task) -> nn.Module:
    """The network of a recipe.

    ``hidden`` is a number of units. For recurrent networks a list means layers of these sizes, but
    for ENRNN the two sizes [long, short]; for MLP it is the list of hidden layers.

    Arguments:
        settings: The settings of the model.
        task: The task, for the sizes of inputs and outputs; none of its files is read.

    Returns:
        A module that takes the input of a batch and a state, and returns outputs and a state.

    Example:
        >>> from cayley.lab.tasks import make_task
        >>> settings = ModelSettings("ScoRNN", hidden=170, options={"negative_ones": 85})
        >>> count_parameters(build_model(settings, make_task("adding", T=200)))
        15046
    """
    wanted = {"MLP": "rows", **dict.fromkeys(CONVOLUTIONS, "graph")}.get(settings.name, "sequences")
    given = task.reads if task.reads in ("rows", "graph") else "sequences"
    if wanted != given:
        raise RecipeError(
            f"model.name: expected a network that reads {given}, the input of the task, got "
            f"{settings.name}, which reads {wanted}"
        )
    hidden = settings.hidden if isinstance(settings.hidden, tuple) else (settings.hidden,)
    if 0 in hidden and settings.name != "ENRNN":
        raise RecipeError(
            f"model.hidden: expected sizes of at least 1, got {list(hidden)}: only the sizes of "
            "ENRNN may be 0"
        )
    if settings.layers * sum(hidden) + settings.embedding > SMALL:
        check_memory(settings, task)
    if wanted != "sequences":
        check_unused(settings, wanted)
    if settings.name == "MLP":
        settings = check_options(settings, MLP)
        sizes = (task.input_size, *hidden, task.output_size)
        return MLP(sizes, dropout=settings.dropout, **settings.options)
    if settings.name in CONVOLUTIONS:
        settings = check_options(settings, GraphNetwork, convolution(settings.name))
        sizes = (task.input_size, *hidden * (settings.layers - 1), task.output_size)
        return GraphNetwork(settings.name, sizes, dropout=settings.dropout, **settings.options)
    tokens = task.reads == "tokens"
    if settings.embedding and not tokens:
        raise RecipeError(
            f"model.embedding: expected 0, as the task has no tokens, got {settings.embedding}"
        )
    for name in ("embedding_dropout", "word_dropout"):
        if getattr(settings, name) and not settings.embedding:
            raise RecipeError(f"model.{name}: expected 0 without an embedding")
    layers = make_layers(settings, hidden, settings.embedding or task.input_size)
    return SequenceModel(
        layers,
        task.input_size if tokens else 0,
        task.output_size,
        task.answers == "last",
        settings,
    )


def make_layers(
    settings: ModelSettings, hidden: tuple[int, ...], input_size: int
) -> list[nn.Module]:
    """Recurrent layers: one module, or one for each size."""
    kind = layer_class(settings.name)
    settings = check_options(settings, kind)
    if not hidden:
        raise RecipeError("model.hidden: expected at least one size, got an empty list")
    if issubclass(kind, cayley.ENRNN):
        if len(hidden) != 2:
            raise RecipeError(f"model.hidden: expected [long, short] for ENRNN, got {list(hidden)}")
        stack = [hidden]
    else:
        stack = [(size,) for size in hidden]
    if len(stack) > 1 and settings.layers > 1:
        raise RecipeError(
            f"model.layers: expected 1 with a list of sizes, got {settings.layers}: the list says "
            "how many there are"
        )
    if settings.dropout and len(stack) * settings.layers == 1:
        raise RecipeError(
            f"model.dropout: expected 0 with a single layer, as it acts between layers, got "
            f"{settings.dropout}: use output_dropout"
        )
    renamed = RENAMED.get(kind, {})
    options = {renamed.get(name, name): value for name, value in settings.options.items()}
    count = settings.layers
    if settings.locked:
        # the dropout inside a stack has a mask for each step
        stack, count = stack * count, 1
    layers: list[nn.Module] = []
    for sizes in stack:
        between = {"dropout": settings.dropout} if count > 1 else {}
        size = features_of(layers[-1]) if layers else input_size
        layers.append(kind(size, *sizes, count, **between, **options))
    if settings.weight_dropout and not all(map(free_matrices, layers)):
        raise RecipeError(
            f"model.weight_dropout: expected 0, as the recurrent matrix of {settings.name} is "
            f"structured and would not stay so, got {settings.weight_dropout}"
        )
    if settings.input_matrix == "identity":
        U = cast(nn.Parameter, layers[0].weight_ih_l0)
        if U.shape[0] != U.shape[1]:
            raise RecipeError(
                f"model.input_matrix: expected a square matrix to be the identity, got one of "
                f"shape {tuple(U.shape)}: set model.embedding to {U.shape[0]}"
            )
        nn.init.eye_(U.requires_grad_(False))
    return layers


def layer_class(name: str) -> type[nn.Module]:
    """The class of a layer by its name in ``LAYERS``, or as ``module:Class``."""
    if name in LAYERS:
        return LAYERS[name]
    if ":" not in name:
        valid = (*LAYERS, "MLP", *CONVOLUTIONS)
        near = difflib.get_close_matches(name, valid, 1)
        raise RecipeError(
            f"model.name: expected one of {', '.join(valid)}, or module:Class, got {name!r}"
            + (f": did you mean {near[0]}?" if near else "")
        )
    found = import_class(name)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise RecipeError(f"model.name: expected {name} to be a class of nn.Module, got {found!r}")
    return found


def check_unused(settings: ModelSettings, reads: str) -> None:
    """Raise if a network without recurrence is given settings that it does not have."""
    unused = {"embedding", "embedding_init", "embedding_dropout", "word_dropout", "locked", "tied"}
    unused |= {"weight_dropout", "output_dropout", "input_matrix", "output_init"}
    unused |= {"layers"} if reads == "rows" else set()
    for field in fields(settings):
        if field.name in unused and getattr(settings, field.name) != field.default:
            raise RecipeError(f"model.{field.name}: {settings.name} has none: leave it out")
    if reads == "graph" and isinstance(settings.hidden, tuple):
        raise RecipeError(f"model.hidden: expected one number for {settings.name}, got a list")


def check_memory(settings: ModelSettings, task: Task) -> None:
    """Raise if training the network takes more memory than the machine has, even without states."""
    # a class of the user's own may not work on the meta device
    if torch.get_default_device().type == "meta" or ":" in settings.name:
        return
    # building a network on the meta device must not change the random numbers of the real one
    with torch.device("meta"), torch.random.fork_rng([]):
        model = build_model(settings, task)
    bytes = COPIES * sum(p.numel() * p.element_size() for p in model.parameters())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if bytes > memory:
        raise RecipeError(
            f"model: expected a network that fits into the {memory / 2**30:.3g} GiB of this "
            f"machine, got one that takes {bytes / 2**30:.3g} GiB for weights, gradients and "
            "moments alone: make model.hidden smaller"
        )


def check_options(settings: ModelSettings, *kinds: type) -> ModelSettings:
    """The same settings, with options converted to the types of these classes' arguments.

    It raises if a setting is not an argument of any of them, or is of another type.
    """
    valid = [name for kind in kinds for name in _arguments(kind) if name not in CHOSEN]
    valid += [name for kind in kinds for name in RENAMED.get(kind, ())]
    names = [field.name for field in fields(settings) if field.name != "options"]
    check_keys(settings.options, [*valid, *names], (), "model.")
    if ":" in settings.name:
        # a class of the user's own checks its arguments itself
        return settings
    hints = {name: hint for kind in kinds for name, hint in _arguments(kind).items()}
    renamed = {name: new for kind in kinds for name, new in RENAMED.get(kind, {}).items()}
    options = {
        name: convert(value, _bounded(hints[renamed.get(name, name)]), f"model.{name}")
        for name, value in settings.options.items()
    }
    return replace(settings, options=options)


def _arguments(kind: type) -> dict[str, Any]:
    """The named arguments of a class and of its base classes that take the rest, with types."""
    found: dict[str, Any] = {}
    for parent in kind.__mro__:
        if "__init__" in vars(parent):
            # annotations of the user's own may exist for type checkers only
            known = parent.__module__.startswith(("cayley.", "torch"))
            hints = get_type_hints(parent.__init__, include_extras=True) if known else {}
            parameters = signature(parent.__init__).parameters.values()
            named = [p.name for p in parameters if p.kind not in VARIADIC]
            found = {name: hints.get(name, Any) for name in named} | found
            if all(p.kind != Parameter.VAR_KEYWORD for p in parameters):
                break
    return found


def _bounded(hint: Any) -> Any:
    """A type whose integers are counts."""
    if get_origin(hint) in (Union, UnionType):
        return reduce(operator.or_, map(_bounded, get_args(hint)))
    return Count if hint is int else hint


def count_parameters(model: nn.Module) -> int:
    """The number of trained parameters as the papers count them.

    Note:
        They have one bias where torch adds two, in an Elman network and an LSTM, and count a
        unitary matrix by the n² dimensions of the unitary group.

    Example:
        >>> count_parameters(nn.LSTM(1, 128)), sum(p.numel() for p in nn.LSTM(1, 128).parameters())
        (66560, 67072)
    """
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    for module in model.modules():
        if isinstance(module, (nn.RNN, nn.LSTM, cayley.RNN)) or (
            isinstance(module, cayley.LSTM) and module.norm is None
        ):
            own = module.named_parameters(recurse=False)
            count -= sum(p.numel() for name, p in own if name.startswith("bias_hh"))
    return count
