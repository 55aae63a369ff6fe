"""A learner: a model with its optimizers, learning rates and preconditioner."""

import copy
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import cayley
from cayley.lab.errors import RecipeError
from cayley.lab.models import BatchNorm
from cayley.lab.processes import find_processes
from cayley.lab.recipes import Recipe
from cayley.lab.runs import Machine
from cayley.lab.tasks import Batch, Task
from cayley.lab.tasks.text import Text
from cayley.lab.training.graphs import (
    StepGraphs,
    graph_refusal,
    keeps_nothing,
    set_capturable,
)
from cayley.lab.training.optimizers import (
    build_bnp,
    build_optimizer,
    build_schedule,
    rebase_along,
)
from cayley.lab.training.shares import Share
from cayley.lab.training.timetable import schedule_steps
from cayley.parametrizations import StructuredMatrix

__all__ = ["Learner", "detach_state"]


class Learner:
    """A model and everything that changes its weights.

    Arguments:
        recipe: Has the settings of the training.
        task: Has the loss.
        model: Takes the input of a batch and a state, returns an output and a state.
        machine: Device and precision, and whether to take steps as CUDA graphs.
        seed: The seed of the run.

    Attributes:
        no_graph: Why steps on a GPU are not CUDA graphs although they are allowed; empty otherwise.
        share: The part of this process in every step; None if it is the only one.
    """

    def __init__(
        self, recipe: Recipe, task: Task, model: nn.Module, machine: Machine, *, seed: int = 0
    ) -> None:
        self.training = recipe.training
        self.every = recipe.optim.schedule.every
        self.K = segment_length(recipe, task)
        self.task = task
        processes = find_processes()
        self.engine = machine.engine(processes)
        self.model = model
        self.forward = self.engine.setup_module(model)
        self.optimizer = build_optimizer(recipe.optim, model)
        rebase_along(recipe.optim, model, self.optimizer)
        steps = schedule_steps(recipe, task.steps("train", recipe.training.batch))
        self.schedule = build_schedule(recipe.optim.schedule, self.optimizer, steps)
        self.bnp = build_bnp(recipe.bnp, model)
        self.share = Share(task, model, self.bnp, processes, seed) if processes.several else None
        self.state: Any = None
        modules = (one for one in model.modules() if isinstance(one, StructuredMatrix))
        self.to_prepare = [matrix for matrix in modules if matrix.map.asks_host]
        self.no_graph = self._graph_refusal(recipe, machine)
        self.graphs = None
        if machine.graph is not False and self.engine.device.type == "cuda" and not self.no_graph:
            self.graphs = StepGraphs(self.update, self.engine.device, self.memory)
            set_capturable(self.optimizer, True)

    def _graph_refusal(self, recipe: Recipe, machine: Machine) -> str:
        """Why steps cannot be CUDA graphs; empty if they can or need not be, raise if they must."""
        on_gpu = self.engine.device.type == "cuda"
        if machine.graph is False or (machine.graph is None and not on_gpu):
            return ""
        if not on_gpu:
            reason = "the device is not a GPU"
        elif self.share is not None:
            reason = "several processes exchange gradients inside a step"
        elif machine.precision == "bf16-mixed":
            reason = "autocast makes copies of the weights"
        else:
            reason = graph_refusal(recipe, self.model, self.optimizer)
        if machine.graph and reason:
            raise RecipeError(
                f"--graph: expected steps that can be recorded, got {recipe.name}, where {reason}: "
                "leave --graph out"
            )
        return reason or ""

    def learn(self, batch: Batch) -> Tensor:
        """Take one step with a batch; the recurrent state continues from the batch before.

        It equals the following, with BNP and clipping only if the recipe has them::

            output, state = model(batch.input, None if batch.fresh else state)
            task.loss(output, batch).backward()
            bnp.step()
            clip_grad_norm_(model.parameters(), clip_norm)
            optimizer.step()

        with learning rates that may be scaled by the length of the batch, see
        ``optim.lr_by_length``.

        Returns:
            The loss before the step, a scalar on the device; with several processes, the part of
            the loss that is this one's.
        """
        self.prepare(batch)
        state = self.state_before(batch)
        if self.graphs is None:
            loss, self.state = self.update(batch, state)
        else:
            rates = [group["lr"] for group in self.optimizer.param_groups]
            with self.prepared():
                loss, self.state = self.graphs.take(batch, state, rates)
        self.end_step(batch)
        return loss

    def prepare(self, batch: Batch) -> None:
        """Do what is due before the forward pass of a batch."""
        if batch.position.batch == 0:
            for module in self.model.modules():
                # the paper recomputes the inverse at the start of each epoch
                if isinstance(module, cayley.NCGRU):
                    module.refresh_()
                # it averages over the batches of an epoch
                if isinstance(module, BatchNorm):
                    module.restart_()

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Context of a step as a CUDA graph: on entry, the host does its part."""
        with ExitStack() as stack:
            for matrix in self.to_prepare:
                stack.enter_context(matrix.prepared())
            yield

    def state_before(self, batch: Batch) -> Any:
        """The recurrent state that a batch starts from; None for the initial state of the model."""
        return None if batch.fresh else self.state

    def update(self, batch: Batch, state: Any) -> tuple[Tensor, Any]:
        """The part of a step that runs on the device."""
        part = batch if self.share is None else self.share.part(batch)
        output, state = self.forward(part.input, state)
        if self.share is None:
            loss = self.task.loss(output, part)
            added = loss.detach()
        else:
            loss, added = self.share.loss(output, part, batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.move(batch)
        return added, detach_state(state)

    def move(self, batch: Batch) -> None:
        """Update the weights with the gradients of a batch."""
        self.clip()
        with self.scaled_rates(batch):
            self.optimizer.step()

    def clip(self) -> None:
        """Change the gradients as the recipe says, before an update."""
        if self.bnp is not None:
            self.bnp.step()
        if self.training.clip_norm:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip_norm)
        if self.training.clip_value:
            nn.utils.clip_grad_value_(self.model.parameters(), self.training.clip_value)

    def end_step(self, batch: Batch) -> None:
        """Advance the learning-rate schedule, if it is due."""
        ended = batch.next.batch == 0
        if self.schedule is not None and (ended or self.every == "step"):
            self.schedule.step()

    def memory(self) -> list[Tensor] | None:
        """What a step changes in place; None before the first step, which creates some of it."""
        kept = self.optimizer.state.values()
        if not kept and not keeps_nothing(self.optimizer):
            return None
        slots = [slot for state in kept for slot in state.values() if isinstance(slot, Tensor)]
        return [*self.model.parameters(), *self.model.buffers(), *slots]

    @contextmanager
    def scaled_rates(self, batch: Batch) -> Iterator[None]:
        """Context that scales learning rates by length / K, if ``optim.lr_by_length`` is set."""
        if self.K is None:
            yield
            return
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] *= len(batch.target) / self.K
        try:
            yield
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def rates(self) -> dict[str, float]:
        """The learning rates, by the name of the parameter group."""
        return {group["name"]: group["lr"] for group in self.optimizer.param_groups}

    def is_finite(self) -> bool:
        """Whether all weights are finite."""
        finite = [p.isfinite().all() for p in self.model.parameters()]
        return bool(torch.stack(finite).all())

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on, with random states, of all processes."""
        device = self.engine.device
        state = self.state if self.share is None else self.share.whole_state(self.state)
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "bnp": None if self.bnp is None else self.bnp.state_dict(),
            # copies: a view into the states of several networks would be saved with all of them
            "state": tree_map_only(Tensor, torch.clone, state),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        device = self.engine.device
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        set_capturable(self.optimizer, self.graphs is not None)
        if self.schedule is not None:
            self.schedule.load_state_dict(state["schedule"])
        if self.bnp is not None:
            self.bnp.load_state_dict(state["bnp"])
        whole = state["state"]
        own = whole if self.share is None else self.share.own_state(whole)
        self.state = detach_state(own, device)
        torch.set_rng_state(state["random"])
        if state["random_cuda"] is not None and device.type == "cuda":
            torch.cuda.set_rng_state(state["random_cuda"], device)

    def load_with_new_settings(self, state: dict[str, Any], steps: int) -> None:
        """Load what :meth:`state_dict` returned for another recipe, except optimizer settings.

        The learning rates are those that this recipe has at that step.

        Arguments:
            state: The state of the other recipe.
            steps: The number of steps that the schedule has taken.
        """
        settings = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self.optimizer.param_groups
        ]
        start = None if self.schedule is None else copy.deepcopy(self.schedule.state_dict())
        self.load_state_dict(state | {"schedule": start})
        for group, own in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(own)
        if self.schedule is not None:
            with warnings.catch_warnings():
                # the optimizer has taken its steps in an earlier session
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                for _ in range(steps):
                    self.schedule.step()


def segment_length(recipe: Recipe, task: Task) -> int | None:
    """The segment length for which learning rates are given; None if it does not matter."""
    if not recipe.optim.lr_by_length:
        return None
    if not isinstance(task, Text):
        raise RecipeError(
            f"optim.lr_by_length: expected false, as the task is not text, got true for "
            f"{recipe.task.name}"
        )
    return task.K


def detach_state(state: Any, device: torch.device | None = None) -> Any:
    """A state of tensors in tuples, detached from the graph that computed it.

    Example:
        >>> detach_state((torch.ones(1, requires_grad=True) * 2, None))
        (tensor([2.]), None)
    """
    if isinstance(state, Tensor):
        return state.detach().to(device)
    if isinstance(state, tuple):
        return tuple(detach_state(part, device) for part in state)
    return state
