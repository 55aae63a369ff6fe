"""The statistics of one module between two steps of the optimizer."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge

from cayley.batched_gradients import is_many
from cayley.preconditioners.rule import Observation, Rows
from cayley.preconditioners.statistics import Statistics

__all__ = ["Collector"]

# rows with fewer than SMALL numbers wait until there are MANY, or until the backward pass ends
SMALL, MANY = 2**16, 64


class Collector:
    """Pools the rows of the forward passes that backward passes reach.

    A row counts once its output receives a gradient other than 0, and only once until
    :meth:`take`, however often its graph is used. Forward passes without a backward pass do not
    count, nor do backward passes without gradients for the parameters, such as
    ``torch.autograd.grad`` with respect to an input, unless they will be differentiated themselves.
    If an optimizer has stepped without :meth:`take` and the gradients have been set to None or 0
    since, the rows pooled before are dropped; but not those of a pass that will be differentiated,
    whose gradients are still to come.

    Arguments:
        parameters: Returns the trained parameters of the module.
        dtype: The minimum precision of the statistics.

    Attributes:
        reached: Whether a backward pass has ever reached the module.

    Example:
        >>> from cayley.preconditioners.rule import reached
        >>> w, x = torch.ones(1, requires_grad=True), torch.tensor([[1.0], [3.0]])
        >>> collector, y = Collector(lambda: [w]), x * w
        >>> collector.record(Observation([y], lambda grads: {"x": Rows(x, reached(grads[0]))}))
        >>> y.sum().backward()
        >>> collector.take()["x"].mean
        tensor([2.])
        >>> collector.take()
        {}
    """

    def __init__(
        self, parameters: Callable[[], Iterable[Tensor]], *, dtype: torch.dtype = torch.float32
    ) -> None:
        self.reached = False
        self._parameters = parameters
        self._dtype = dtype
        self._running: set[int] = set()
        # whether the last backward pass will itself be differentiated
        self._differentiated = False
        self._pooled: dict[str, Statistics] = {}
        self._small: dict[str, list[Rows]] = {}
        self._arrived: list[_Pass] = []
        self._period = object()
        self._drops: Tensor | int = 0

    def record(self, observation: Observation) -> None:
        """Wait for the gradients of a forward pass."""
        if torch._C._current_graph_task_id() == -1:
            # a backward pass that still seems to be running has failed
            self._running.clear()
        one = _Pass(observation)
        for i, output in enumerate(observation.outputs):
            if output.requires_grad:
                output.register_hook(lambda grad, i=i: self._arrive(one, i, grad))

    def take(self) -> dict[str, Statistics]:
        """The statistics of each site since the last call; empty if no backward pass came."""
        taken = self._pooled
        self._forget()
        self._running.clear()
        return taken

    def _arrive(self, one: "_Pass", i: int, grad: Tensor | None) -> None:
        if is_many(grad):
            # many at a time are returned, and not added to the gradient of a parameter
            return
        task = torch._C._current_graph_task_id()
        if task not in self._running:
            parameters = [p for p in self._parameters() if p.requires_grad]
            # gradients are enabled in a backward pass that will be differentiated itself
            if not (torch.is_grad_enabled() or any(_has_gradient(p) for p in parameters)):
                return
            # inside another backward pass (activation checkpointing) nothing is dropped
            if not self._running:
                if not self._differentiated:
                    self._drop([p.grad for p in parameters if p.grad is not None])
                self._differentiated = torch.is_grad_enabled()
            self._running.add(task)
            # pyrefly: ignore[missing-attribute]
            Variable._execution_engine.queue_callback(lambda: self._finish(task))
        self.reached = True
        one.grads[i] = grad
        one.again = torch._C._autograd._get_current_graph_task_keep_graph()
        if len(one.grads) == 1:
            with torch.no_grad():
                self._count(one)
        elif not one.waits:
            one.waits = True
            self._arrived.append(one)

    @torch.no_grad()
    def _finish(self, task: int) -> None:
        """Reduce the rows that wait for the end of a backward pass."""
        self._settle()
        self._running.discard(task)

    def _settle(self) -> None:
        # none of them waits any longer, even if one raises an error
        arrived, self._arrived = self._arrived, []
        for one in arrived:
            self._count(one)
        for site in [*self._small]:
            self._reduce(site)

    @torch.no_grad()
    def _drop(self, gradients: Sequence[Tensor]) -> None:
        """Drop the rows of earlier backward passes if nothing is left of their gradients."""
        if not gradients:
            self._forget()
            return
        # a backward pass that failed has left rows that wait
        self._settle()
        # step() has usually taken all, and there is no gradient to look at
        if self._pooled:
            # a tensor, for "if" would wait for the GPU: rows that are dropped become no rows
            kept = torch.stack([g.any() for g in gradients]).any()
            self._pooled = {site: found.where(kept) for site, found in self._pooled.items()}
            self._drops = self._drops + ~kept

    def _count(self, one: "_Pass") -> None:
        for site, rows in one.new_rows(self._period, self._drops).items():
            if rows.values.layout != torch.strided or rows.values.numel() >= SMALL:
                self._pool(site, rows)
                continue
            waiting = self._small.setdefault(site, [])
            waiting.append(rows)
            if len(waiting) == MANY:
                self._reduce(site)

    def _reduce(self, site: str) -> None:
        waiting = self._small.pop(site)
        values = torch.cat([rows.values.reshape(-1, rows.values.shape[-1]) for rows in waiting])
        self._pool(site, Rows(values, torch.cat([rows.reached.reshape(-1) for rows in waiting])))

    def _pool(self, site: str, rows: Rows) -> None:
        found = Statistics.of(*rows, dtype=self._dtype)
        before = self._pooled.get(site)
        self._pooled[site] = found if before is None else before.merge(found)

    def _forget(self) -> None:
        self._pooled, self._small, self._arrived = {}, {}, []
        self._period, self._drops = object(), 0
        self._differentiated = False


def _has_gradient(parameter: Tensor) -> bool:
    """Whether the current backward pass has a gradient for a parameter."""
    try:
        return torch._C._will_engine_execute_node(get_gradient_edge(parameter).node)
    except RuntimeError:
        # torch cannot tell for torch.autograd.grad with respect to the parameter itself
        return True


class _Pass:
    """A forward pass that waits for its gradients."""

    def __init__(self, observation: Observation) -> None:
        # not the outputs: the graph keeps this object, and would then keep itself alive
        self._rows = observation.rows
        self.grads: list[Tensor | None] = [None] * len(observation.outputs)
        self.waits, self.again = False, True
        self._period: object = None
        self._drops: Tensor | int = 0
        self._seen: dict[str, Tensor] = {}

    def new_rows(self, period: object, drops: Tensor | int) -> dict[str, Rows]:
        """The rows that these gradients reach, and that none has reached before.

        Arguments:
            period: Those reached in another period count again.
            drops: Those reached when this was another number count again.
        """
        if period is not self._period:
            self._seen = {}
        elif drops is not self._drops:
            same = drops == self._drops
            self._seen = {site: seen & same for site, seen in self._seen.items()}
        self._period, self._drops = period, drops
        result = {}
        for site, (values, reached) in self._rows(self.grads).items():
            seen = self._seen.get(site)
            self._seen[site] = reached if seen is None else reached | seen
            result[site] = Rows(values, reached if seen is None else reached & ~seen)
        self.grads = [None] * len(self.grads)
        self.waits = False
        if not self.again:
            # to free the memory of the inputs early
            self._rows = lambda grads: {}
        return result
