"""Tensors of a data set, copied once to every device that uses them."""

import torch
from torch import Tensor

__all__ = ["Resident"]


class Resident:
    """Tensors that stay on the devices where they are used.

    Arguments:
        tensors: By name, on the CPU.

    Example:
        >>> data = Resident(labels=torch.arange(3))
        >>> data.on("cpu")["labels"]
        tensor([0, 1, 2])
    """

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors = tensors
        self._copies: dict[torch.device, dict[str, Tensor]] = {}

    def on(self, device: torch.device | str | None) -> dict[str, Tensor]:
        """The tensors on a device."""
        device = torch.empty(0, device=device).device
        if device not in self._copies:
            self._copies[device] = {name: x.to(device) for name, x in self.tensors.items()}
        return self._copies[device]
