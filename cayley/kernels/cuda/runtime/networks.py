"""Arrays of several networks, for a launch that runs all of them."""

from collections.abc import Sequence

from torch import Tensor

from cayley.kernels.memory import readable

__all__ = ["MOST_NETWORKS", "stacked_arrays"]

MOST_NETWORKS = 65535  # of a launch: the second dimension of a grid


def stacked_arrays(tensors: Sequence[Tensor | None]) -> tuple[list[Tensor | None], int]:
    """Tensors as ``src/networks.cuh`` reads them, and what is shared by all networks.

    Arguments:
        tensors: Those of all networks, along the first dimension. One that is expanded along it is
            shared, and not copied.

    Returns:
        The arrays, and an integer in which bit k is set if there is only one array k, or none.

    Example:
        >>> import torch
        >>> arrays, shared = stacked_arrays([torch.zeros(3, 2), torch.ones(2).expand(3, 2), None])
        >>> arrays[1], bin(shared)
        (tensor([1., 1.]), '0b110')
    """
    first = [t[0] if t is not None and t.stride(0) == 0 and len(t) > 1 else t for t in tensors]
    pairs = zip(first, tensors, strict=True)
    shared = (one is None or one is not t for one, t in pairs)
    return [*map(readable, first)], sum(bit << k for k, bit in enumerate(shared))
