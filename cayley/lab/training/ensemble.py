"""Networks that learn side by side: one forward and one backward pass for all of them."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from cayley.lab.errors import RecipeError
from cayley.lab.models import SequenceModel
from cayley.lab.models.sequences import draws_randomly, without_windows
from cayley.lab.recipes import Recipe
from cayley.lab.runs import Precision
from cayley.lab.tasks import Batch
from cayley.lab.training.graphs import StepGraphs
from cayley.lab.training.learner import Learner, detach_state
from cayley.layers.recurrent import Recurrent
from cayley.norms.batch import PopulationStatistics
from cayley.parametrizations import StructuredMatrix

__all__ = ["Ensemble", "check_together", "shape_of"]


def check_together(recipe: Recipe, model: nn.Module, precision: Precision) -> None:
    """Raise unless networks of a recipe can learn side by side.

    Arguments:
        recipe: Of the networks.
        model: One of them.
        precision: Of the computation.
    """
    why = ""
    if recipe.bnp:
        why = "BNP gathers the statistics of one network at a time"
    elif precision == "bf16-mixed":
        why = "bf16-mixed rounds inside of a pass; use 32-true or 64-true"
    elif not isinstance(model, SequenceModel) or not all(
        isinstance(layer, Recurrent) for layer in model.layers
    ):
        why = f"{recipe.model.name} is no recurrent network of cayley"
    elif draws_randomly(model):
        why = "its dropout draws from a random stream that each seed has to itself"
    if why:
        raise RecipeError(
            f"{recipe.name}: expected networks that can learn together, got some that cannot: "
            f"{why}. Leave out --together"
        )


class Ensemble:
    """Networks that are built alike, and learn together.

    A step equals that of each alone, up to rounding. Forward and backward pass of the recurrent
    layers are those of all networks at once, by :func:`torch.func.vmap`; what is before and after
    them is each one's own, and so is all that changes weights. A matrix that follows the training,
    such as that of an NC-GRU, is formed by its network as ever.

    Arguments:
        model: One of the networks.
    """

    def __init__(self, model: nn.Module) -> None:
        layers = _sequence_model(model).layers
        self.followed = [
            name
            for name, module in layers.named_modules()
            if isinstance(module, StructuredMatrix) and module.map.stateful
        ]
        self.template = copy.deepcopy(layers)
        for name in self.followed:
            parent, _, own = name.rpartition(".")
            container = self.template.get_submodule(parent)
            assert isinstance(container, nn.ModuleDict)
            container[own] = _Given()
        given = {f"{name}.W" for name in self.followed}
        named = (name for name, _ in self.template.named_parameters())
        self.parameters = [name for name in named if name not in given]
        self.buffers = [name for name, _ in self.template.named_buffers()]
        # what a pass in training changes
        self.written = [
            f"{name}.{own}"
            for name, module in self.template.named_modules()
            if isinstance(module, PopulationStatistics)
            for own, _ in module.named_buffers()
        ]
        self._tensors: dict[Learner, dict[str, Tensor]] = {}
        self._recorded: tuple[tuple[Learner, ...], StepGraphs] | None = None

    def learn(self, learners: Sequence[Learner], batches: Sequence[Batch]) -> list[Tensor]:
        """Take one step of several networks, each by its batch.

        Arguments:
            learners: Those of networks like the ensemble's.
            batches: One for each; they have the same :func:`shape_of`.

        Returns:
            The losses before the step, scalars on the device.
        """
        pairs = [*zip(learners, batches, strict=True)]
        for learner, batch in pairs:
            learner.prepare(batch)
        before = [learner.state_before(batch) for learner, batch in pairs]
        state = None if before[0] is None else _stacked(before)
        batch = _joined(batches)
        graphs = self._graphs_of((*learners,))
        if graphs is None:
            losses, state = self._update(learners, batch, state)
        else:
            groups = [group for learner in learners for group in learner.optimizer.param_groups]
            losses, state = graphs.take(batch, state, [group["lr"] for group in groups])
        for (learner, own), after in zip(pairs, _unstacked(state), strict=True):
            learner.state = after
            learner.end_step(own)
        return [*losses.unbind()]

    def _graphs_of(self, learners: tuple[Learner, ...]) -> StepGraphs | None:
        """The recordings of steps that these learners take together, where each could alone."""
        if any(learner.graphs is None for learner in learners):
            return None
        if self._recorded is None or self._recorded[0] != learners:
            step, memory = partial(self._update, learners), partial(_memory, learners)
            graphs = StepGraphs(step, learners[0].fabric.device, memory)
            if self._recorded is not None:
                # on which autograd adds up the gradients of those that are left
                graphs.stream = self._recorded[1].stream
            self._recorded = learners, graphs
        return self._recorded[1]

    def _update(self, learners: Sequence[Learner], batch: Batch, state: Any) -> tuple[Tensor, Any]:
        """The part of a step that is the device's, of the batches and states of all networks."""
        own = [self._own(learner) for learner in learners]
        parameters = {name: _leaf([each[name] for each in own]) for name in self.parameters}
        batches = _parted(batch)
        models = [_sequence_model(learner.model) for learner in learners]
        inputs = [_input(part) for part in batches]
        # sets what the precision of the run asks for, as a forward pass of one network does
        with learners[0].fabric.autocast():
            outputs, state = self._forward(models, inputs, state, parameters, own)
        losses = []
        for learner, part, output in zip(learners, batches, outputs, strict=True):
            losses.append(learner.task.loss(output, part))
            learner.optimizer.zero_grad()
        total = torch.stack(losses)
        learners[0].fabric.backward(total.sum())
        for name, stacked in parameters.items():
            if stacked.grad is not None:
                for each, gradient in zip(own, stacked.grad, strict=True):
                    each[name].grad = gradient
        for learner, part in zip(learners, batches, strict=True):
            learner.move(part)
        return total.detach(), detach_state(state)

    def _forward(
        self,
        models: Sequence[SequenceModel],
        inputs: Sequence[Tensor],
        state: Any,
        parameters: dict[str, Tensor],
        own: Sequence[dict[str, Tensor]],
    ) -> tuple[list[Tensor], Any]:
        """The answers and states of the networks."""
        parameters = {**parameters}
        for name in self.followed:
            matrices = [model.layers.get_submodule(name)(update=True) for model in models]
            parameters[f"{name}.W"] = torch.stack(matrices)
        buffers = {name: torch.stack([each[name] for each in own]) for name in self.buffers}
        x = torch.stack([model.read(input) for model, input in zip(models, inputs, strict=True)])
        states = []
        for name, layer in self.template.named_children():
            tensors = (_below(name, parameters), _below(name, buffers))
            hx = None if state is None else state[int(name)]
            call = partial(_call, layer)
            x, hx = vmap(call, (0, 0, 0, None if hx is None else 0))(*tensors, x, hx)
            states.append(without_windows(layer, hx))
        with torch.no_grad():
            for name in self.written:
                for each, value in zip(own, buffers[name], strict=True):
                    each[name].copy_(value)
        outputs = [model.answer(each) for model, each in zip(models, x.unbind(), strict=True)]
        return outputs, tuple(states)

    def _own(self, learner: Learner) -> dict[str, Tensor]:
        """The tensors of a network by name."""
        if learner not in self._tensors:
            names, layers = (*self.parameters, *self.buffers), _sequence_model(learner.model).layers
            self._tensors[learner] = {name: _tensor(layers, name) for name in names}
        return self._tensors[learner]


class _Given(nn.Module):
    """A matrix that was formed before, in the place of a structured one."""

    is_frozen = False

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.empty(0))

    def forward(self, *, update: bool = False) -> Tensor:
        return self.W


def shape_of(batch: Batch) -> tuple[Any, ...]:
    """What batches have in common that networks can learn from together."""
    return batch.fresh, batch.lengths is None, _input(batch).shape, batch.target.shape


def _joined(batches: Sequence[Batch]) -> Batch:
    """Batches as one, whose tensors have a first dimension more."""
    fields = ("input", "target", "lengths", "index")
    values = {name: [getattr(batch, name) for batch in batches] for name in fields}
    there = {name: own for name, own in values.items() if own[0] is not None}
    stacked: dict[str, Any] = {name: torch.stack(own) for name, own in there.items()}
    return replace(batches[0], **stacked)


def _parted(batch: Batch) -> list[Batch]:
    """The batches of which one was made."""
    fields = ("input", "target", "lengths", "index")
    there = {name: value for name in fields if (value := getattr(batch, name)) is not None}
    parts = zip(*(value.unbind() for value in there.values()), strict=True)
    return [replace(batch, **dict(zip(there, part, strict=True))) for part in parts]


def _memory(learners: Sequence[Learner]) -> list[Tensor] | None:
    """What a step of several learners changes in place; None before the first step of one."""
    tensors: list[Tensor] = []
    for learner in learners:
        own = learner.memory()
        if own is None:
            return None
        tensors += own
    return tensors


def _call(layer: nn.Module, parameters: Any, buffers: Any, x: Tensor, hx: Any) -> Any:
    return functional_call(layer, (parameters, buffers), (x, hx))


def _below(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those of a submodule, by the names that they have in it.

    Example:
        >>> _below("0", {"0.W": torch.ones(1), "1.W": torch.zeros(1)})
        {'W': tensor([1.])}
    """
    prefix = f"{name}."
    return {key.removeprefix(prefix): v for key, v in tensors.items() if key.startswith(prefix)}


def _sequence_model(model: nn.Module) -> SequenceModel:
    assert isinstance(model, SequenceModel), "only networks of sequences learn together"
    return model


def _input(batch: Batch) -> Tensor:
    assert isinstance(batch.input, Tensor), "only networks of sequences learn together"
    return batch.input


def _tensor(model: nn.Module, name: str) -> Tensor:
    parent, _, own = name.rpartition(".")
    return getattr(model.get_submodule(parent), own)


def _leaf(parameters: Sequence[Tensor]) -> Tensor:
    """The same parameter of all networks as one.

    It has a gradient of its own: those of its parts, where two parameters are added up, would share
    their memory, and clipping change them twice.
    """
    with torch.no_grad():
        stacked = torch.stack([*parameters])
    return stacked.requires_grad_(parameters[0].requires_grad)


def _stacked(states: Sequence[Any]) -> Any:
    """The states of all networks as one."""
    flat = [tree_flatten(state) for state in states]
    leaves = [torch.stack(values) for values in zip(*(own for own, _ in flat), strict=True)]
    return tree_unflatten(leaves, flat[0][1])


def _unstacked(state: Any) -> list[Any]:
    """The state of each network.

    Example:
        >>> _unstacked((torch.tensor([[1], [2]]),))
        [(tensor([1]),), (tensor([2]),)]
    """
    leaves, structure = tree_flatten(state)
    # copies: a checkpoint would hold the whole of what it has a part of
    own = zip(*([part.clone() for part in leaf.unbind()] for leaf in leaves), strict=True)
    return [tree_unflatten([*values], structure) for values in own]
