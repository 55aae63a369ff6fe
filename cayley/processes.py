"""The processes of a data-parallel model: their number, and gathering their tensors."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["gather", "world_size"]


def world_size(group: "dist.ProcessGroup | None" = None) -> int:
    """The number of processes; 1 where torch.distributed is not in use.

    Example:
        >>> world_size()
        1
    """
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def gather(x: Tensor) -> Tensor:
    """The tensors of all processes, stacked in the order of ranks, (·) ↦ (R, ·), with gradients.

    All processes must call this with tensors of the same shape, and if one calls backward, all
    must.

    Example:
        >>> gather(torch.arange(3))
        tensor([[0, 1, 2]])
    """
    return x[None] if world_size() == 1 else _Gather.apply(x)


class _Gather(torch.autograd.Function):
    """A copy of each process's tensor; gradients are sent back to the process that it is from."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        copies = [torch.empty_like(x) for _ in range(world_size())]
        dist.all_gather(copies, x)
        return torch.stack(copies)

    @staticmethod
    @once_differentiable
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        # a copy: the gradient may be needed elsewhere too
        grad = grads[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad)
        return grad[dist.get_rank()]
