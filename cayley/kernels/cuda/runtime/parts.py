"""Arrays that only kernels read and write, in one allocation."""

from torch import Tensor

__all__ = ["Part", "parts"]

ALIGNMENT = 4  # in floats: parts begin as vectors do


class Part:
    """A part of a tensor, for a kernel: a launch needs only its address.

    On a slow host, making a small tensor takes as long as some kernels.

    Arguments:
        whole: A tensor in one dimension.
        start: Where the part begins.
        size: The number of its elements.
    """

    __slots__ = ("address", "size", "start", "whole")

    def __init__(self, whole: Tensor, start: int, size: int) -> None:
        self.whole, self.start, self.size = whole, start, size
        self.address = whole.data_ptr() + whole.element_size() * start

    def data_ptr(self) -> int:
        """The address, as for a tensor."""
        return self.address

    def view(self, *shape: int) -> Tensor:
        """The part as a tensor."""
        return self.whole[self.start : self.start + self.size].view(shape)


def parts(like: Tensor, *sizes: int) -> list[Part]:
    """Arrays of the given sizes, with the device and the dtype of a tensor.

    Example:
        >>> import torch
        >>> [part.view(-1).shape for part in parts(torch.zeros(1), 3, 5)]
        [torch.Size([3]), torch.Size([5])]
    """
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    whole = like.new_empty(starts[-1])
    return [Part(whole, start, size) for start, size in zip(starts, sizes, strict=False)]
