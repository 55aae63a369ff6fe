"""A training step as a CUDA graph, which a GPU repeats without waiting for Python."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from cayley.lab.models import BatchNorm
from cayley.lab.recipes import Recipe
from cayley.lab.tasks import Batch
from cayley.optim.optimizer import DenseOptimizer

__all__ = ["StepGraphs", "graph_refusal", "keeps_nothing", "set_capturable", "unchanged"]

# takes a batch and a state, returns the loss and the next state, both detached
Step = Callable[[Batch, Any], tuple[Tensor, Any]]
# steps of each kind that are taken, and undone, before one is recorded
WARM_UP = 3
# the most kinds that are recorded, since each takes its own memory
MOST_KINDS = 16


def graph_refusal(recipe: Recipe, model: nn.Module, optimizer: Optimizer) -> str | None:
    """Why the steps of a run cannot be recorded; None if they can.

    Arguments:
        recipe: The recipe of the run.
        model: The model.
        optimizer: Its optimizer.

    Example:
        >>> import cayley
        >>> from cayley.lab.recipes import find_recipe
        >>> recipe, model = find_recipe("quickstart").recipe(), cayley.LSTM(2, 8, norm="batch")
        >>> graph_refusal(recipe, model, torch.optim.Adam(model.parameters()))
        'statistics over the batch are averaged with the help of the host'
    """
    for module in model.modules():
        # an LSTM's "atn" may be over the batch too
        if isinstance(module, BatchNorm) or getattr(module, "over", None) == "batch":
            return "statistics over the batch are averaged with the help of the host"
    if recipe.optim.rebase:
        return "D is chosen again with the help of the host"
    if recipe.bnp:
        return "BNP counts its steps on the host"
    if recipe.optim.lr_by_length or recipe.optim.schedule.every == "step":
        return "the learning rates, constants of a graph, change at every step"
    for each in getattr(optimizer, "optimizers", (optimizer,)):
        if not (isinstance(each, SGD | DenseOptimizer) or "capturable" in each.defaults):
            return f"{type(each).__name__} counts its steps on the host"
    return None


def keeps_nothing(optimizer: Optimizer) -> bool:
    """Whether an optimizer remembers nothing of its steps: SGD without momentum.

    Example:
        >>> keeps_nothing(SGD([torch.ones(1)], lr=0.1))
        True
        >>> keeps_nothing(SGD([torch.ones(1)], lr=0.1, momentum=0.9))
        False
    """
    members = getattr(optimizer, "optimizers", (optimizer,))
    return all(
        isinstance(each, SGD) and not any(group["momentum"] for group in each.param_groups)
        for each in members
    )


def set_capturable(optimizer: Optimizer, capturable: bool) -> None:
    """Choose where an optimizer counts its steps, including those already taken.

    Arguments:
        optimizer: The optimizer.
        capturable: True for the device, as CUDA graphs need it; False for where it counted when it
            was made, even if it has loaded the state of a run with graphs since.
    """
    for each in getattr(optimizer, "optimizers", (optimizer,)):
        for group in each.param_groups:
            if "capturable" not in each.defaults:
                continue
            group["capturable"] = on_device = capturable or each.defaults["capturable"]
            for p in group["params"]:
                # an entry, even an empty one, would say that a step has been taken
                state = each.state.get(p, {})
                if "step" in state:
                    state["step"] = state["step"].to(p.device if on_device else "cpu")


class StepGraphs:
    """Takes training steps by recording each kind of step once, and replaying the recording.

    Two steps are of the same kind if their tensors have the same shapes, and either both or neither
    continue from a state. Learning rates are constants of a recording: when one changes, steps are
    recorded again. Which steps are replayed does not depend on where a run was interrupted: all
    but the first step of a run, in which optimizers create their state, and steps that cannot be
    recorded.

    Arguments:
        step: Takes a step, without waiting for the device; the host has done its part.
        device: A GPU.
        memory: Returns what a step changes in place; None before the first step of a run.
    """

    def __init__(
        self, step: Step, device: torch.device, memory: Callable[[], list[Tensor] | None]
    ) -> None:
        self.step, self.memory = step, memory
        # autograd accumulates gradients on the stream on which a parameter was first used
        self.stream = torch.cuda.Stream(device)
        self.warm: set[Any] = set()
        self.graphs: dict[Any, _StepGraph] = {}
        self.rates: list[float] = []

    def take(self, batch: Batch, state: Any, rates: list[float]) -> tuple[Tensor, Any]:
        """Take one step.

        Arguments:
            batch: The batch to learn from.
            state: The state after the previous step; None for zero.
            rates: The learning rates.

        Returns:
            The loss and the next state; the next step overwrites them.
        """
        if rates != self.rates:
            self.graphs.clear()
            self.rates = rates
        kind = _kind(batch, state)
        if kind not in self.graphs and not self._record(kind, batch, state):
            with self._aside():
                return self.step(batch, state)
        return self.graphs[kind].replay(batch, state)

    def _record(self, kind: Any, batch: Batch, state: Any) -> bool:
        """Record a step, if possible; return whether it was."""
        memory = self.memory()
        if kind is None or memory is None or len(self.graphs) == MOST_KINDS:
            return False
        with self._aside():
            if kind not in self.warm:
                # this compiles kernels and creates buffers
                with unchanged(memory):
                    for _ in range(WARM_UP):
                        self.step(batch, state)
                self.warm.add(kind)
            self.graphs[kind] = _StepGraph(self.step, batch, state, self.stream)
        return True

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Context on the stream of recordings, in order with the work on the current stream."""
        current = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            yield
        current.wait_stream(self.stream)


@contextmanager
def unchanged(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Context after which tensors, and random number generators, are as they were before it.

    Example:
        >>> x = torch.ones(2)
        >>> with unchanged([x]):
        ...     x.add_(1)
        tensor([2., 2.])
        >>> x
        tensor([1., 1.])
    """
    before = [tensor.detach().clone() for tensor in tensors]
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    with torch.random.fork_rng(list(devices)):
        yield
    with torch.no_grad():
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)


class _StepGraph:
    def __init__(self, step: Step, batch: Batch, state: Any, stream: torch.cuda.Stream) -> None:
        # a graph always reads from the same addresses
        self.given = [tensor.clone() for tensor in _tensors(batch, state)]
        values = iter(self.given)
        input, target = next(values), next(values)
        own = replace(batch, input=input, target=target)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            self.found = step(own, _filled(state, values))

    def replay(self, batch: Batch, state: Any) -> tuple[Tensor, Any]:
        for own, tensor in zip(self.given, _tensors(batch, state), strict=True):
            own.copy_(tensor)
        self.graph.replay()
        return self.found


def _kind(batch: Batch, state: Any) -> tuple[Any, ...] | None:
    """What steps must have in common to share a recording; None if they cannot be recorded."""
    # the host reads lengths
    if not isinstance(batch.input, Tensor) or batch.lengths is not None:
        return None
    return tuple((tensor.shape, tensor.dtype) for tensor in _tensors(batch, state))


def _tensors(batch: Batch, state: Any) -> list[Tensor]:
    """Everything that a step reads and that does not belong to the learner."""
    assert isinstance(batch.input, Tensor)
    return [batch.input, batch.target, *_leaves(state)]


def _leaves(state: Any) -> list[Tensor]:
    """The tensors of a state, which is made of tuples.

    Example:
        >>> _leaves((torch.ones(1), (None, torch.zeros(1))))
        [tensor([1.]), tensor([0.])]
    """
    if isinstance(state, Tensor):
        return [state]
    return [leaf for part in state for leaf in _leaves(part)] if isinstance(state, tuple) else []


def _filled(state: Any, values: Iterator[Tensor]) -> Any:
    """A state of the same structure with other tensors."""
    if isinstance(state, Tensor):
        return next(values)
    return tuple(_filled(part, values) for part in state) if isinstance(state, tuple) else state
