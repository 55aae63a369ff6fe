"""Population statistics of a normalisation over the batch, separate for each time step."""

import warnings
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cayley.checks import check_integer
from cayley.tracing import computes_now

__all__ = ["MAX_STEPS", "PopulationStatistics"]

MAX_STEPS = 1024  # an image of 32² pixels, read one by one


class PopulationStatistics(nn.Module):
    r"""Mean and variance of every unit at every time step, over the batches seen in training.

    .. math::
        \bar\mu_t \leftarrow (1 - \alpha_t)\, \bar\mu_t + \alpha_t\, \mu_t, \qquad
        \alpha_t = \max(\alpha, 1/k_t) \, n_t / \bar n_t

    and the same for the variance, where :math:`n_t` sequences of this batch reach step t, and
    :math:`\bar n_t` on average over the :math:`k_t` batches that reach it: a plain mean over
    sequences at first, then a moving one. A step that only one sequence reaches has no variance and
    does not count; a warning says so once. A step that never counted uses the statistics of the
    last step before it that did.

    Each of the first ``max_steps`` − 1 steps has a slot of its own. The last slot is for all later
    steps, whose values are pooled. So the buffers have one size whatever the sequences: streams do
    not let them grow, and the processes of ``DistributedDataParallel`` (which use the statistics of
    the first, as those of ``nn.BatchNorm1d``, or after :func:`~cayley.norms.synchronize` those of
    all), averages of models and checkpoints fit together.

    Note:
        ``load_state_dict`` takes statistics with any number of slots. Surplus slots are pooled in
        the last one.

    References:
        Recurrent Batch Normalization, Cooijmans, Ballas, Laurent, Gülçehre, Courville, 2017.

    Arguments:
        features: The number F of units.
        max_steps: The number of slots.
        momentum: The α above.
        device, dtype: The device and dtype of the statistics.

    Attributes:
        synchronized: Whether training takes the statistics of all processes.

    Example:
        >>> population = PopulationStatistics(1)
        >>> population.update(torch.tensor([[1.0], [2.0]]), torch.ones(2, 1), 8)
        >>> mean, variance = population(torch.tensor([0, 1, 2, 7]))
        >>> mean.flatten()
        tensor([1., 2., 2., 2.])
    """

    mean: Tensor
    var: Tensor
    batches: Tensor
    sequences: Tensor

    def __init__(
        self,
        features: int,
        *,
        max_steps: int = MAX_STEPS,
        momentum: float = 0.1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_integer("max_steps", max_steps)
        self.momentum = momentum
        self.synchronized = False
        self.register_buffer("mean", torch.zeros(max_steps, features, device=device, dtype=dtype))
        self.register_buffer("var", torch.ones(max_steps, features, device=device, dtype=dtype))
        for name in ("batches", "sequences"):
            counts = torch.zeros(max_steps, device=device, dtype=torch.int64)
            self.register_buffer(name, counts)
        # not a buffer: averages of models pair those of one model with those of another
        self.slots: Tensor | None = None
        self._warned = False
        self._may_be_empty = False  # whether some steps did not count, perhaps none of them

    def reset(self) -> None:
        """Forget all batches: mean 0 and variance 1 at every step."""
        self._may_be_empty, self.slots = False, None
        with torch.no_grad():
            self.mean.zero_()
            self.var.fill_(1)
            self.batches.zero_()
            self.sequences.zero_()

    def forward(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance at time steps counted from 0, (…) ↦ (…, F) each."""
        counted = self.batches > 0
        if self._may_be_empty and computes_now(counted):
            if not counted.any():
                raise RuntimeError(
                    "there are no population statistics for evaluation, since no training step had "
                    "two sequences or more: train on batches of at least two"
                )
            self._may_be_empty = False
        slots = self._slots() if self.slots is None else self.slots
        at = slots[steps.clamp(0, len(slots) - 1)]
        return self.mean[at], self.var[at]

    def _slots(self) -> Tensor:
        """For each step the last slot up to it that counted; if there is none, the first."""
        counted = self.batches > 0
        slots = torch.arange(len(counted), device=counted.device)
        last = torch.where(counted, slots, 0).cummax(0).values
        return torch.maximum(last, counted.int().argmax())

    def freeze(self) -> None:
        """Keep the table of which statistics each step uses, until some are added."""
        self.slots = None if self.batches.is_meta else self._slots()

    @torch.no_grad()
    def update(self, mean: Tensor, var: Tensor, sequences: int | Tensor, start: int = 0) -> None:
        """Add the statistics of one batch.

        Arguments:
            mean: The mean of each step, (T, F).
            var: The unbiased variance of each step, (T, F).
            sequences: The number of sequences that reach each step, one for all steps or (T), on
                the CPU.
            start: The number of steps that came before these.
        """
        T, last = mean.shape[0], len(self.batches) - 1
        self.slots = None
        # a number where it is the same for all steps: every operation on a GPU takes time to launch
        n: int | Tensor = sequences
        if isinstance(sequences, Tensor):
            few = computes_now(sequences) and bool((sequences < 2).any())
            n = sequences.to(self.batches, non_blocking=True)
            n = torch.where(n > 1, n, 0)
        else:
            few = sequences < 2
        if few:
            self._may_be_empty = True
            self._warn_once()
            if not isinstance(n, Tensor):
                return
        mean, var = mean.to(self.mean.dtype), var.to(self.var.dtype)
        own = max(0, min(T, last - start))
        if T - own > 1:
            n = n if isinstance(n, Tensor) else self.batches.new_full((T,), n)
            mean, var, n = _with_pooled_end(mean, var, n, own)
            T = own + 1
        first = min(start, last)
        at = slice(first, first + T)
        # without a copy of each to itself, as += on a part would make
        total, k = self.sequences[at].add_(n), self.batches[at].add_(n > 0)
        if isinstance(n, Tensor):
            total = total.clamp_min(1)
        # integers would become numbers of the global default dtype
        exact = torch.promote_types(self.mean.dtype, torch.float32)
        share = ((self.momentum * k.to(exact)).clamp_min(1) * n / total).clamp_max(1)
        share = share.to(self.mean.dtype)[:, None]
        for kept, new in ((self.mean[at], mean), (self.var[at], var)):
            # exactly new where that is all
            moved = kept.lerp(new, share)
            if isinstance(n, Tensor):
                # where a step does not count, its values may be NaN, and 0 times NaN is not 0
                moved = moved.where(share > 0, kept)
            kept.copy_(moved)

    def _warn_once(self) -> None:
        # compiled code cannot warn, but evaluation still raises if nothing counted
        if not self._warned and not torch.compiler.is_compiling():
            self._warned = True
            warnings.warn(
                "normalisation over the batch: a step of a single sequence has no variance, and "
                "does not count in the population statistics",
                stacklevel=3,
            )

    def _apply(
        self, fn: Callable[[Tensor], Tensor], recurse: bool = True
    ) -> "PopulationStatistics":
        super()._apply(fn, recurse)
        if self.slots is not None:
            self.freeze()
        return self

    def _load_from_state_dict(
        self, state_dict: MutableMapping[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        self.slots = None
        names = [f"{prefix}{name}" for name, _ in self.named_buffers(recurse=False)]
        saved = [state_dict[name] for name in names if name in state_dict]
        slots = len(self.batches)
        if len(saved) == len(names) and len(saved[0]) != slots:
            with torch.no_grad():
                fitted = _fitted(saved, slots)
            state_dict.update(zip(names, fitted, strict=True))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        """The number of units and of slots."""
        slots, features = self.mean.shape
        return f"{features}, max_steps={slots}"


def _with_pooled_end(
    mean: Tensor, var: Tensor, n: Tensor, own: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Statistics of steps, where those from ``own`` on are pooled into one."""
    weights = n[own:, None].to(mean.dtype)
    weights = weights / weights.sum().clamp_min(1)
    # where a step does not count, its values may be anything
    m, v = (table[own:].where(weights > 0, 0) for table in (mean, var))
    pooled = (weights * m).sum(0)
    spread = (weights * (v + (m - pooled).square())).sum(0)
    return (
        torch.cat((mean[:own], pooled[None])),
        torch.cat((var[:own], spread[None])),
        torch.cat((n[:own], n[own:].sum(0, keepdim=True))),
    )


def _fitted(tables: Sequence[Tensor], slots: int) -> list[Tensor]:
    """The four tables with another number of slots: empty ones are added, or the last pooled."""
    mean, var, batches, sequences = tables
    missing = slots - len(batches)
    if missing < 0:
        mean, var, sequences = _with_pooled_end(mean, var, sequences, slots - 1)
        batches = torch.cat((batches[: slots - 1], batches[slots - 1 :].amax(0, keepdim=True)))
        return [mean, var, batches, sequences]
    more = (
        mean.new_zeros(missing, *mean.shape[1:]),
        var.new_ones(missing, *var.shape[1:]),
        batches.new_zeros(missing),
        sequences.new_zeros(missing),
    )
    return [torch.cat(pair) for pair in zip(tables, more, strict=True)]
