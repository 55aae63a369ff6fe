"""Arrays of several networks, for a launch that runs all of them."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from cayley.kernels.memory import readable

__all__ = ["MOST_NETWORKS", "arrays_of"]

MOST_NETWORKS = 65535  # of a launch: the second dimension of a grid


def arrays_of(tensors: Sequence[Tensor | None], several: bool) -> tuple[list[Any], int]:
    """Tensors as ``src/networks.cuh`` reads them, and what is shared by all networks.

    Arguments:
        tensors: Those of a network, or of several along the first dimension. One that is expanded
            along it is shared, and not copied.
        several: Which of the two.

    Returns:
        The arrays, and an integer in which bit k is set if there is only one array k, or none.

    Example:
        >>> import torch
        >>> own, shared = torch.zeros(3, 2), torch.ones(2)
        >>> arrays, bits = arrays_of([own, shared.expand(3, 2), None], several=True)
        >>> arrays[1], bin(bits)
        (tensor([1., 1.]), '0b110')
    """
    if not several:
        return [readable(tensor) for tensor in tensors], 0
    arrays: list[Any] = []
    bits = 0
    for k, tensor in enumerate(tensors):
        shared = tensor is None or tensor.stride(0) == 0
        bits |= shared << k
        arrays.append(readable(tensor[0] if tensor is not None and shared else tensor))
    return arrays, bits
