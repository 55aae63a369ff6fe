"""Statistics of all processes of a data-parallel model."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from cayley.preconditioners.statistics import Statistics
from cayley.processes import world_size

__all__ = ["gather_statistics"]


def gather_statistics(
    found: Sequence[Statistics], group: "dist.ProcessGroup | None" = None
) -> list[Statistics]:
    """The statistics of the rows of all processes, bitwise the same on each.

    Every process must call this with the same number of statistics of the same sizes; one that saw
    no rows passes :meth:`Statistics.none`. There is one exchange for all of them.

    Arguments:
        found: The statistics of this process.
        group: The processes; None for all.
    """
    if not found:
        return []
    device = found[0].mean.device
    flat = torch.cat([v.reshape(-1).to(device, torch.float64) for one in found for v in one])
    copies = [torch.empty_like(flat) for _ in range(world_size(group))]
    dist.all_gather(copies, flat, group)
    # merged in the order of the ranks on every process, so that all round in the same way
    first, *others = (_unpack(copy, found) for copy in copies)
    for other in others:
        first = [a.merge(b) for a, b in zip(first, other, strict=True)]
    return [
        Statistics(*(v.to(like.mean) for v in one)) for one, like in zip(first, found, strict=True)
    ]


def _unpack(flat: Tensor, like: Sequence[Statistics]) -> list[Statistics]:
    parts = iter(flat.split([v.numel() for one in like for v in one]))
    return [Statistics(*(next(parts).view(v.shape) for v in one)) for one in like]
