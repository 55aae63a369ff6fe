"""The last tensor of the state of a normalised recurrence, which streams need beside h and c."""

from typing import Literal

import torch
from torch import Tensor

from cayley.norms.atn import bessel_factor
from cayley.norms.layouts import step_mask
from cayley.norms.pooling import Pool
from cayley.norms.windows import TimeWindow, advance

__all__ = ["StreamState", "stream_size"]


def stream_size(sites: int, window: int, over: Literal["layer", "batch"]) -> int:
    """The number S of columns of the last tensor; 0 if there is none.

    Example:
        >>> stream_size(3, 10, "layer"), stream_size(3, 1, "layer"), stream_size(3, 10, "batch")
        (58, 0, 1)
    """
    if over == "batch":
        return 1
    return 1 + sites * (2 * window - 1) if window > 1 else 0


class StreamState:
    """The last tensor of the state: read before a run, extended by it, and written after it.

    Its columns are the number of steps seen and, over the layer, for each normalisation the
    reference, the K − 1 means and the K − 1 variances. A layer whose next step needs none of this
    has no such tensor.

    Arguments:
        sites: The names of the normalisations, in the order of the state.
        window: The number K of steps.
        over: ``"layer"`` or ``"batch"``.
        state: The tensor, (B, S); None at the start.
        x: The input, (T, B, ·), or (N, ·) with ``batch_sizes``.
        batch_sizes: The batch sizes of a packed sequence, (T).
        pool: What makes statistics over the batch those of all processes; None for this one's.
    """

    def __init__(
        self,
        sites: list[str],
        window: int,
        over: Literal["layer", "batch"],
        state: Tensor | None,
        x: Tensor,
        batch_sizes: Tensor | None,
        pool: Pool | None = None,
    ) -> None:
        self.sites, self.window, self.over = sites, window, over
        self.batch_sizes, self.x = batch_sizes, x
        self.B = x.shape[1] if batch_sizes is None else int(batch_sizes[0])
        self.examples = self.B if pool is None else pool.total
        self.T = x.shape[0] if batch_sizes is None else len(batch_sizes)
        self.seen = None if state is None else state[:, :1].detach().round()
        self.past: dict[str, TimeWindow] = {}
        self.found: dict[str, tuple[Tensor, Tensor]] = {}
        K = window
        if state is None or self.seen is None or over == "batch" or K == 1:
            return
        first = torch.arange(K - 1, 0, -1, device=x.device)[:, None, None]
        weights = (self.seen >= first).to(x.dtype)
        for name, columns in zip(sites, state[:, 1:].split(2 * K - 1, 1), strict=True):
            reference, tables = columns[:, :1], columns[:, 1:]
            means, variances = (table.mT.unsqueeze(-1) for table in tables.split(K - 1, 1))
            # columns of steps that did not happen may hold anything
            means, variances = (table.where(weights > 0, 0) for table in (means, variances))
            self.past[name] = TimeWindow(reference, means, variances, weights)

    def steps(self) -> Tensor:
        """The number of each step in its sequence, from 0, (T, 1), or (T, B) after a state."""
        steps = torch.arange(self.T, device=self.x.device)[:, None]
        return steps if self.seen is None else steps + self.seen.mT.long()

    def start(self) -> int:
        """The number of steps before this run, of the sequence with the most."""
        return 0 if self.seen is None else int(self.seen.max())

    def take(self, **found: tuple[Tensor, Tensor] | None) -> None:
        """Add the statistics that the recurrence found, by the names of the normalisations."""
        self.found |= {name: values for name, values in found.items() if values is not None}

    def _weights(self) -> Tensor:
        """The number of examples at each step, (T, 1, 1)."""
        if self.batch_sizes is None:
            return self.x.new_full((self.T, 1, 1), self.examples)
        return self.batch_sizes.to(self.x)[:, None, None]

    def statistics(self, eps: float) -> dict[str, tuple[Tensor, Tensor]]:
        """Mean and unbiased variance over the batch that were used at each step, (T, F)."""
        result = {}
        factor = bessel_factor(self._weights(), self.window)
        for name, (reference, values) in self.found.items():
            _, _, mean, scale = values.detach()
            var = (scale**-2 - eps).clamp_min(0) * factor
            result[name] = ((mean + reference)[:, 0], var[:, 0])
        return result

    def state(self) -> tuple[Tensor, ...]:
        """The tensor after the run, if the layer has one."""
        if stream_size(len(self.sites), self.window, self.over) == 0:
            return ()
        lengths = None
        if self.batch_sizes is None:
            seen = self.x.new_full((self.B, 1), self.T)
        else:
            lengths = step_mask(self.batch_sizes, self.x.device).sum(0)
            seen = lengths[:, None].to(self.x.dtype)
        if self.seen is not None:
            seen = seen + self.seen
        columns = [seen]
        if self.over == "layer":
            one = self.x.new_ones(self.T, 1, 1)
            for name in self.sites:
                reference, (m, v, *_) = self.found[name]
                window = advance(self.past.get(name), reference, m, v, one, self.window, lengths)
                columns.append(reference)
                columns += [table[..., 0].mT for table in (window.means, window.variances)]
        return (torch.cat(columns, 1),)
