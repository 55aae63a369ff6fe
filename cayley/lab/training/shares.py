"""The share of each process in a batch: the examples that it learns from, and its part of the loss.

The gradient of a batch is a sum over its examples, and ``DistributedDataParallel`` adds up what the
processes contribute to it. So every process makes the whole batch, which is a function of its
position, runs the forward and backward pass on some of the examples, and divides by the same number
as the loss of the whole batch: in a mean of means, the weight of an example would depend on its
process.
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
        recipe: Determines the size of a batch.
        task: The task of the recipe.
        model: The model, whose statistics over the batch the processes must be able to share.
        processes: The number of processes.
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
        batch: The whole batch.
        task: Determines which axis is that of the examples.
        rank: The rank of the process.
        count: The number of processes. If it does not divide the batch, the first processes get one
            example more.

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
    """The part of one of several processes in every step.

    If a batch has fewer examples than there are processes, as the last of an epoch may have, every
    process learns from the whole batch.

    Arguments:
        task: The task of the batches.
        model: The model, whose statistics over the batch are computed over all processes.
        bnp: Its preconditioner, if it has one.
        processes: The processes, and which of them this is.
        seed: The seed of the run; what dropout draws depends on it, on the position of the batch
            and on the rank of the process.
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
        """The examples that this process learns from."""
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
        """The loss to call backward on, and this process's part of the loss of a batch.

        Arguments:
            output: The output for the examples of this process.
            part: The examples of this process.
            batch: The whole batch.

        Returns:
            A scalar whose gradient, averaged over the processes, is that of the batch's loss; and
            a scalar whose sum over the processes is this loss.
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
        # the mean over no answers is NaN, and its weight is 0
        loss = torch.where(mine > 0, loss, 0) * (mine.to(loss) / all_)
        return loss * count, loss.detach()

    def _outputs(self, output: Tensor, batch: Batch) -> Tensor:
        """The outputs of all processes; only those of this one have a gradient."""
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
        """The losses of batches, summed over the parts of all processes."""
        losses = losses.clone()
        if losses.numel():
            dist.all_reduce(losses)
        return losses

    def whole_state(self, state: Any) -> Any:
        """The recurrent state of all examples, gathered from all processes."""
        if state is None or self.whole:
            return state
        found: list[Any] = [None] * self.processes.count
        dist.all_gather_object(found, _moved(state))
        return _joined(found)

    def own_state(self, state: Any) -> Any:
        """The recurrent state of this process's examples, taken from that of all examples."""
        if isinstance(state, Tensor):
            parts = state.tensor_split(self.processes.count, 1)
            return parts[self.processes.rank].contiguous()
        if isinstance(state, tuple):
            return tuple(self.own_state(part) for part in state)
        return state


def _weighs(task: Task) -> bool:
    """Whether a task has the weight that belongs to its loss: one class must define both."""
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
