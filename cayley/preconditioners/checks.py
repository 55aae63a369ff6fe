"""Checks of the arguments of :class:`~cayley.BNP`."""

import sys

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from cayley.checks import check_number

__all__ = ["COPIES_REFUSED", "check_model", "check_settings"]

COPIES_REFUSED = (
    "BNP: expected a model without nn.DataParallel, whose copies run in threads: use "
    "DistributedDataParallel"
)


def check_settings(
    eps: float, relative_eps: float, momentum: float | None, start: str, dtype: torch.dtype
) -> None:
    """Raise unless the settings of :class:`BNP` make sense."""
    for name, value in (("eps", eps), ("relative_eps", relative_eps)):
        check_number("BNP", name, value)
    if eps == 0:
        raise ValueError("BNP: expected a positive eps, got 0: a constant feature has no variance")
    if momentum is not None:
        check_number("BNP", "momentum", momentum, below=1.0)
    if start not in ("batch", "identity"):
        raise ValueError(f'BNP: expected start to be "batch" or "identity", got {start!r}')
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"BNP: expected dtype float32 or float64, got {dtype}")


def check_model(model: nn.Module, sync: bool) -> None:
    """Raise unless the gradients of the model can be preconditioned here."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"BNP: expected an nn.Module, got {type(model).__name__}")
    if any(isinstance(module, DataParallel) for module in model.modules()):
        raise ValueError(COPIES_REFUSED)
    if not sync and isinstance(model, DistributedDataParallel):
        raise ValueError(
            "BNP: expected sync=True with DistributedDataParallel, got False: with statistics of "
            "their own the processes drift apart"
        )
    # if a model is sharded, the module that does it has been imported
    fsdp, tensor = (sys.modules.get(f"torch.distributed.{name}") for name in ("fsdp", "tensor"))
    sharded = fsdp is not None and any(
        isinstance(module, fsdp.FullyShardedDataParallel) for module in model.modules()
    )
    if tensor is not None:
        sharded |= any(isinstance(p, tensor.DTensor) for p in model.parameters())
    if sharded:
        raise ValueError(
            "BNP: expected whole parameters, got sharded ones (FSDP): rows of a gradient cannot be "
            "centred if only a part of them is available. Use DistributedDataParallel"
        )
