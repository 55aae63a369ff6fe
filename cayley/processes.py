"""The processes of a data-parallel model: how many they are, and what each of them has."""

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
    """What every process has, in the order of their ranks, (·) ↦ (R, ·), with gradients.

    All must call this with tensors of one shape, and all must go backward if one does.

    Example:
        >>> gather(torch.arange(3))
        tensor([[0, 1, 2]])
    """
    return x[None] if world_size() == 1 else _Gather.apply(x)


class _Gather(torch.autograd.Function):
    """A copy of each process's tensor, whose gradients go back to where it is from."""

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
