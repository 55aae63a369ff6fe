"""Networks that learn side by side: one step of all of them."""

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from cayley.kernels.crowds import crowded
from cayley.lab.errors import RecipeError
from cayley.lab.models import SequenceModel
from cayley.lab.models.sequences import draws_randomly, without_windows
from cayley.lab.recipes import Recipe
from cayley.lab.runs import Precision
from cayley.lab.tasks import Batch
from cayley.lab.training.graphs import StepGraphs
from cayley.lab.training.joint import step_together
from cayley.lab.training.learner import Learner, detach_state
from cayley.layers.recurrent import Recurrent
from cayley.norms.batch import PopulationStatistics
from cayley.parametrizations import StructuredMatrix

__all__ = ["Ensemble", "check_together", "shape_of"]


def check_together(recipe: Recipe, model: nn.Module, precision: Precision) -> None:
    """Raise unless several networks of a recipe can learn side by side.

    Arguments:
        recipe: The recipe of the networks.
        model: One of the networks.
        precision: The precision of the computation.
    """
    why = ""
    if recipe.bnp:
        why = "BNP gathers the statistics of one network at a time"
    elif precision == "bf16-mixed":
        why = "bf16-mixed rounds inside a pass; use 32-true or 64-true"
    elif not isinstance(model, SequenceModel) or not all(
        isinstance(layer, Recurrent) for layer in model.layers
    ):
        why = f"{recipe.model.name} is not a recurrent network of cayley"
    elif draws_randomly(model):
        why = "its dropout draws from a random stream, and each seed has its own"
    if why:
        raise RecipeError(
            f"{recipe.name}: expected networks that can learn together, got some that cannot: "
            f"{why}. Leave out --together"
        )


class Ensemble:
    """Networks of the same architecture that learn together.

    A step equals the steps of each network alone, up to rounding. The recurrent layers of all
    networks share one forward and one backward pass, with :func:`torch.func.vmap`. Everything
    before and after these layers is done for each network separately. So is a matrix whose map
    keeps a state, such as that of an NC-GRU: its own network computes it. On a GPU the weights of
    all networks are updated together.

    Steps that are CUDA graphs have no joint passes: there each network has a stream of its own.
    Only networks in double precision, which have no kernels, keep the joint passes: apart, the
    graph would hold every operation of every step of every network.

    Arguments:
        model: One of the networks.

    Attributes:
        apart: Whether each network has a stream of its own in a CUDA graph.
    """

    def __init__(self, model: nn.Module) -> None:
        layers = _sequence_model(model).layers
        self.apart = all(p.dtype != torch.float64 for p in layers.parameters())
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
        # buffers that a forward pass in training changes
        self.written = [
            f"{name}.{own}"
            for name, module in self.template.named_modules()
            if isinstance(module, PopulationStatistics)
            for own, _ in module.named_buffers()
        ]
        self._tensors: dict[Learner, dict[str, Tensor]] = {}
        self._streams: dict[Learner, torch.cuda.Stream] = {}
        self._recorded: tuple[tuple[Learner, ...], StepGraphs] | None = None

    def learn(self, learners: Sequence[Learner], batches: Sequence[Batch]) -> list[Tensor]:
        """Take one step of several networks, each with its own batch.

        Arguments:
            learners: Learners whose networks have the architecture of the ensemble.
            batches: One for each learner; :func:`shape_of` is the same for all.

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
            with ExitStack() as stack:
                for learner in learners:
                    stack.enter_context(learner.prepared())
                losses, state = graphs.take(batch, state, [group["lr"] for group in groups])
            # a copy: the next step overwrites the state, also that of a run that has left by then
            state = tree_map_only(Tensor, torch.clone, state)
        for (learner, own), after in zip(pairs, _parts(state, len(pairs)), strict=True):
            learner.state = after
            learner.end_step(own)
        return [*losses.unbind()]

    def _graphs_of(self, learners: tuple[Learner, ...]) -> StepGraphs | None:
        """The recorded steps of these learners; None unless each of them can record steps."""
        if any(learner.graphs is None for learner in learners):
            return None
        if self._recorded is None or self._recorded[0] != learners:
            update = self._update_apart if self.apart else self._update
            step, memory = partial(update, learners), partial(_memory, learners)
            graphs = StepGraphs(step, learners[0].engine.device, memory)
            if self._recorded is not None:
                # autograd accumulates the gradients of the remaining networks on this stream
                graphs.stream = self._recorded[1].stream
            self._recorded = learners, graphs
        return self._recorded[1]

    def _update_apart(
        self, learners: Sequence[Learner], batch: Batch, state: Any
    ) -> tuple[Tensor, Any]:
        """The same as :meth:`_update`, with a stream for each network.

        Joint passes save the host's time, which a recorded step does not take. Without them no
        network waits for another, and a GPU has always enough to do: where the last rows of one
        network are computed, the gradients of others are.
        """
        current = torch.cuda.current_stream(learners[0].engine.device)
        parts = zip(learners, _parted(batch), _parts(state, len(learners)), strict=True)
        losses, states = [], []
        with crowded(len(learners), current.device_index):
            for learner, part, before in parts:
                stream = self._stream(learner)
                stream.wait_stream(current)
                with torch.cuda.stream(stream):
                    loss, after = learner.update(part, before)
                losses.append(loss)
                states.append(after)
        for learner in learners:
            current.wait_stream(self._stream(learner))
        for tensor in (*losses, *tree_flatten(states)[0]):
            tensor.record_stream(current)
        return torch.stack(losses), _stacked(states)

    def _stream(self, learner: Learner) -> torch.cuda.Stream:
        """The stream of a network, always the same: autograd remembers where a weight is used."""
        if learner not in self._streams:
            self._streams[learner] = torch.cuda.Stream(learner.engine.device)
        return self._streams[learner]

    def _update(self, learners: Sequence[Learner], batch: Batch, state: Any) -> tuple[Tensor, Any]:
        """The part of a step that runs on the device, for all networks."""
        own = [self._own(learner) for learner in learners]
        parameters = {name: _leaf([each[name] for each in own]) for name in self.parameters}
        batches = _parted(batch)
        models = [_sequence_model(learner.model) for learner in learners]
        inputs = [_input(part) for part in batches]
        # applies the precision of the run, as the forward pass of a single network does
        with learners[0].engine.autocast():
            outputs, state = self._forward(models, inputs, state, parameters, own)
        losses = []
        for learner, part, output in zip(learners, batches, outputs, strict=True):
            losses.append(learner.task.loss(output, part))
            learner.optimizer.zero_grad()
        total = torch.stack(losses)
        total.sum().backward()
        for name, stacked in parameters.items():
            if stacked.grad is not None:
                for each, gradient in zip(own, stacked.grad, strict=True):
                    each[name].grad = gradient
        with ExitStack() as rates:
            for learner, part in zip(learners, batches, strict=True):
                learner.clip()
                rates.enter_context(learner.scaled_rates(part))
            step_together([learner.optimizer for learner in learners])
        return total.detach(), detach_state(state)

    def _forward(
        self,
        models: Sequence[SequenceModel],
        inputs: Sequence[Tensor],
        state: Any,
        parameters: dict[str, Tensor],
        own: Sequence[dict[str, Tensor]],
    ) -> tuple[list[Tensor], Any]:
        """The outputs and states of the networks."""
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
        if models[0].last:
            # once for all: the gradient of each would have all steps, most of them 0
            x = x[:, -1:]
        outputs = [model.answer(each) for model, each in zip(models, x.unbind(), strict=True)]
        return outputs, tuple(states)

    def _own(self, learner: Learner) -> dict[str, Tensor]:
        """The tensors of a network by name."""
        if learner not in self._tensors:
            names, layers = (*self.parameters, *self.buffers), _sequence_model(learner.model).layers
            self._tensors[learner] = {name: _tensor(layers, name) for name in names}
        return self._tensors[learner]


class _Given(nn.Module):
    """A matrix that was computed before, in place of a structured one."""

    is_frozen = False

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.empty(0))

    def forward(self, *, update: bool = False) -> Tensor:
        return self.W


def shape_of(batch: Batch) -> tuple[Any, ...]:
    """What batches must have in common for networks to learn from them together."""
    return batch.fresh, batch.lengths is None, _input(batch).shape, batch.target.shape


def _joined(batches: Sequence[Batch]) -> Batch:
    """Several batches as one, whose tensors have an additional first dimension."""
    fields = ("input", "target", "lengths", "index")
    values = {name: [getattr(batch, name) for batch in batches] for name in fields}
    there = {name: own for name, own in values.items() if own[0] is not None}
    stacked: dict[str, Any] = {name: torch.stack(own) for name, own in there.items()}
    return replace(batches[0], **stacked)


def _parted(batch: Batch) -> list[Batch]:
    """The inverse of :func:`_joined`."""
    fields = ("input", "target", "lengths", "index")
    there = {name: value for name in fields if (value := getattr(batch, name)) is not None}
    parts = zip(*(value.unbind() for value in there.values()), strict=True)
    return [replace(batch, **dict(zip(there, part, strict=True))) for part in parts]


def _memory(learners: Sequence[Learner]) -> list[Tensor] | None:
    """What a step of several learners changes in place; None before the first step of any."""
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
    """The tensors of a submodule, by their names inside it.

    Example:
        >>> _below("0", {"0.W": torch.ones(1), "1.W": torch.zeros(1)})
        {'W': tensor([1.])}
    """
    prefix = f"{name}."
    return {key.removeprefix(prefix): v for key, v in tensors.items() if key.startswith(prefix)}


def _sequence_model(model: nn.Module) -> SequenceModel:
    assert isinstance(model, SequenceModel), "only sequence models learn together"
    return model


def _input(batch: Batch) -> Tensor:
    assert isinstance(batch.input, Tensor), "only sequence models learn together"
    return batch.input


def _tensor(model: nn.Module, name: str) -> Tensor:
    parent, _, own = name.rpartition(".")
    return getattr(model.get_submodule(parent), own)


def _leaf(parameters: Sequence[Tensor]) -> Tensor:
    """The same parameter of all networks, stacked, as a leaf with its own gradient.

    If gradients went back to the parameters themselves, those of two parameters that are added
    would share memory, and clipping would change them twice.
    """
    with torch.no_grad():
        stacked = torch.stack([*parameters])
    return stacked.requires_grad_(parameters[0].requires_grad)


def _stacked(states: Sequence[Any]) -> Any:
    """The states of all networks, stacked."""
    flat = [tree_flatten(state) for state in states]
    leaves = [torch.stack(values) for values in zip(*(own for own, _ in flat), strict=True)]
    return tree_unflatten(leaves, flat[0][1])


def _parts(state: Any, count: int) -> list[Any]:
    """The state of each of ``count`` networks, views of their stacked one.

    Example:
        >>> _parts((torch.tensor([[1], [2]]),), 2)
        [(tensor([1]),), (tensor([2]),)]
    """
    leaves, structure = tree_flatten(state)
    own = [leaf.unbind() if isinstance(leaf, Tensor) else (leaf,) * count for leaf in leaves]
    return [tree_unflatten([part[k] for part in own], structure) for k in range(count)]
