"""The share of each process in a batch: the examples that it learns from, and its part of the loss.

The gradient of a batch is a sum over its examples, and ``DistributedDataParallel`` adds up what the
processes contribute to it. So every process makes the whole batch, which is a function of its
position, goes forward and backward with some of the examples, and divides by what the loss of the
whole batch divides by: a mean of the means would weigh examples by the process that has them.
"""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cayley.lab.errors import RecipeError
from cayley.lab.models import BatchNorm
from cayley.lab.processes import Processes
from cayley.lab.recipes import Recipe
from cayley.lab.tasks import Batch, Task
from cayley.lab.tasks.counter import key
from cayley.norms import synchronize
from cayley.preconditioners import BNP
from cayley.processes import gather

__all__ = ["Share", "check_batch", "check_shares", "take_rows"]


def check_batch(batch: int, processes: int) -> None:
    """Raise unless processes can share a batch equally.

    Example:
        >>> check_batch(50, 4)
        Traceback (most recent call last):
        ...
        cayley.lab.errors.RecipeError: training.batch: expected a multiple of the 4 processes that
        share it, got 50: choose another number of --devices, or --set training.batch=48
    """
    if batch % processes:
        nearest = max(processes, round(batch / processes) * processes)
        raise RecipeError(
            f"training.batch: expected a multiple of the {processes} processes that share it, got "
            f"{batch}: choose another number of --devices, or --set training.batch={nearest}"
        )


def check_shares(recipe: Recipe, task: Task, model: nn.Module, processes: int) -> None:
    """Raise unless processes can train a model together.

    Arguments:
        recipe: Says how many examples a batch has.
        task: What the batches are of.
        model: Whose statistics over the batch must be known.
        processes: How many there are.
    """
    if processes == 1:
        return
    if task.reads == "graph":
        raise RecipeError(
            f"expected batches of examples that {processes} processes can share, got those of "
            f"{recipe.task.name}, which are graphs: train it on one device"
        )
    check_batch(recipe.training.batch, processes)
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, BatchNorm):
            raise RecipeError(
                f"expected a model whose statistics over the batch {processes} processes can "
                f"share, got {type(module).__name__} in {name or 'the model'}: use "
                "cayley.lab.models.BatchNorm, or train it on one device"
            )


def take_rows(batch: Batch, task: Task, rank: int, count: int) -> Batch:
    """The examples of a batch that a process learns from.

    Arguments:
        batch: The whole of it.
        task: Says which axis is that of the examples.
        rank: The number of the process.
        count: How many processes there are. The first ones have one more where it does not fit.

    Example:
        >>> from cayley.lab.tasks import Position, make_task
        >>> task = make_task("adding", T=20)
        >>> batch = task.batch("train", 5, Position())
        >>> [tuple(take_rows(batch, task, rank, 2).input.shape) for rank in range(2)]
        [(20, 3, 2), (20, 2, 2)]
    """

    def own(x: Tensor, axis: int) -> Tensor:
        return x.tensor_split(count, axis)[rank].contiguous()

    assert isinstance(batch.input, Tensor)
    return replace(
        batch,
        input=own(batch.input, 0 if task.reads == "rows" else 1),
        target=own(batch.target, 1 if task.answers == "each" else 0),
        lengths=None if batch.lengths is None else own(batch.lengths, 0),
        index=None if batch.index is None else own(batch.index, 0),
    )


class Share:
    """What one of several processes does of every step.

    A batch of fewer examples than processes, such as the last of an epoch may be, is learnt from by
    all of them, each with all of it.

    Arguments:
        task: What the batches are of.
        model: Whose statistics over the batch are those of all processes.
        bnp: Its preconditioner, if it has one.
        processes: Which process this is.
        seed: Of the run: dropout draws by it, the position of the batch and the process.
    """

    def __init__(
        self, task: Task, model: nn.Module, bnp: BNP | None, processes: Processes, seed: int
    ) -> None:
        self.task, self.model, self.bnp = task, model, bnp
        self.processes, self.seed = processes, seed
        self.axis = 1 if task.answers == "each" else 0
        self.weighs = _weighs(task)
        self.whole: bool | None = None

    def part(self, batch: Batch) -> Batch:
        """What this process learns from."""
        rank, count = self.processes.rank, self.processes.count
        self._synchronize(batch.target.shape[self.axis] < count)
        place = batch.position
        torch.manual_seed(key("draws", self.seed, place.epoch, place.batch, rank) % 2**63)
        return batch if self.whole else take_rows(batch, self.task, rank, count)

    def _synchronize(self, whole: bool) -> None:
        if self.whole is whole:
            return
        self.whole = whole
        synchronize(self.model, not whole)
        for module in self.model.modules():
            if isinstance(module, BatchNorm):
                module.synchronized = not whole
        if self.bnp is not None:
            self.bnp.sync = not whole

    def loss(self, output: Tensor, part: Batch, batch: Batch) -> tuple[Tensor, Tensor]:
        """What to go backward from, and what this process adds to the loss of a batch.

        Arguments:
            output: Of the examples of this process.
            part: These examples.
            batch: All of them.

        Returns:
            A scalar whose gradients have the gradient of the batch's loss as their mean over the
            processes, and one whose sum over the processes is this loss.
        """
        count = self.processes.count
        if self.whole:
            loss = self.task.loss(output, part)
            return loss, loss.detach() / count
        if not self.weighs:
            loss = self.task.loss(self._outputs(output, batch), batch)
            return loss * count, loss.detach() / count
        mine, all_ = self.task.weight(part), self.task.weight(batch)
        loss = self.task.loss(output, part)
        # the mean of no answers is not a number, and what it weighs is 0
        loss = torch.where(mine > 0, loss, 0) * (mine / all_).to(loss)
        return loss * count, loss.detach()

    def _outputs(self, output: Tensor, batch: Batch) -> Tensor:
        """Those of all processes; only those of this one have a gradient."""
        B, count = batch.target.shape[self.axis], self.processes.count
        most = -(-B // count)
        shape = [*output.shape]
        shape[self.axis] = most
        padded = output.new_zeros(shape)
        padded.narrow(self.axis, 0, output.shape[self.axis]).copy_(output.detach())
        sizes = [len(rows) for rows in torch.arange(B).tensor_split(count)]
        parts = [
            copy.narrow(self.axis, 0, size)
            for copy, size in zip(gather(padded), sizes, strict=True)
        ]
        parts[self.processes.rank] = output
        return torch.cat(parts, self.axis)

    def total(self, losses: Tensor) -> Tensor:
        """The losses of batches, from what each process added to them."""
        losses = losses.clone()
        if losses.numel():
            dist.all_reduce(losses)
        return losses

    def whole_state(self, state: Any) -> Any:
        """The recurrent state of all examples, from that of each process's."""
        if state is None or self.whole:
            return state
        found: list[Any] = [None] * self.processes.count
        dist.all_gather_object(found, _moved(state))
        return _joined(found)

    def own_state(self, state: Any) -> Any:
        """The recurrent state of this process's examples, of that of all."""
        if isinstance(state, Tensor):
            parts = state.tensor_split(self.processes.count, 1)
            return parts[self.processes.rank].contiguous()
        if isinstance(state, tuple):
            return tuple(self.own_state(part) for part in state)
        return state


def _weighs(task: Task) -> bool:
    """Whether a task says what its loss divides by; a loss of its own needs a weight of its own."""
    owners = [
        next(kind for kind in type(task).__mro__ if name in vars(kind))
        for name in ("loss", "weight")
    ]
    return owners[0] is owners[1]


def _moved(state: Any) -> Any:
    if isinstance(state, Tensor):
        return state.detach().cpu()
    return tuple(_moved(part) for part in state) if isinstance(state, tuple) else state


def _joined(states: list[Any]) -> Any:
    first = states[0]
    if isinstance(first, Tensor):
        return torch.cat(states, 1)
    if isinstance(first, tuple):
        return tuple(_joined([*parts]) for parts in zip(*states, strict=True))
    return first
