"""Calls for several networks, which do not wait for one another on a GPU."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from cayley.kernels.crowds import crowded
from cayley.tracing import transforms_active

__all__ = ["Calls", "side_by_side"]

# streams that calls run on: a launch for one network may fill a third of a GPU, or less
STREAMS = 8


@dataclass(frozen=True)
class Calls:
    """How G networks are divided among calls.

    Attributes:
        networks: Their number G.
        count: The number of calls.
        grouped: Whether a call takes several networks, along the first dimension of its tensors;
            otherwise it takes one, whose tensors do not have that dimension.
    """

    networks: int
    count: int
    grouped: bool

    @staticmethod
    def apart(networks: int) -> "Calls":
        """A call for each network."""
        return Calls(networks, networks, False)

    @staticmethod
    def together(networks: int, count: int) -> "Calls":
        """So many calls, whose numbers of networks differ by at most one."""
        return Calls(networks, count, True)

    def arguments(self, dims: Sequence[int | None], flat: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The arguments of each call; what networks share is not copied.

        Example:
            >>> x, dims = torch.tensor([3, 5, 7]), [0, None]
            >>> Calls.apart(3).arguments(dims, [x, "auto"])[1]
            (tensor(5), 'auto')
            >>> Calls.together(3, 2).arguments(dims, [x, "auto"])
            [(tensor([3, 5]), 'auto'), (tensor([7]), 'auto')]
            >>> Calls.together(3, 1).arguments([None], [torch.ones(2)])[0][0].stride()
            (0, 1)
        """
        own = [self._parts(value, dim) for value, dim in zip(flat, dims, strict=True)]
        return [*zip(*own, strict=True)]

    def _parts(self, value: Any, dim: int | None) -> Sequence[Any]:
        if not isinstance(value, Tensor) or (dim is None and not self.grouped):
            return (value,) * self.count
        if dim is None:
            value, dim = value.expand(self.networks, *value.shape), 0
        if not self.grouped:
            return value.unbind(dim)
        return value.movedim(dim, 0).tensor_split(self.count)

    def joined(self, results: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
        """The results of all calls, with the networks along the first dimension."""
        return tuple(self._joined(values) for values in zip(*results, strict=True))

    def _joined(self, values: Sequence[Tensor]) -> Tensor:
        if not self.grouped:
            return torch.stack([*values])
        if values[0].shape == (0,):  # stands for 0
            return values[0].new_empty(self.networks, 0)
        return values[0] if self.count == 1 else torch.cat([*values])


def side_by_side(
    run: Callable[..., Sequence[Tensor]],
    calls: Calls,
    dims: Sequence[int | None],
    flat: Sequence[Any],
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """The results of all networks, and their dimension."""
    device = next(value.device for value in flat if isinstance(value, Tensor))
    results = []
    with _streams_for(calls, device) as of_call:
        for k, arguments in enumerate(calls.arguments(dims, flat)):
            with of_call(k, arguments):
                results.append(run(*arguments))
    if device.type == "cuda" and calls.count > 1 and not transforms_active():
        current = torch.cuda.current_stream(device)
        for result in results:
            for tensor in result:
                tensor.detach().record_stream(current)
    joined = calls.joined(results)
    return joined, (0,) * len(joined)


@contextmanager
def _streams_for(calls: Calls, device: torch.device) -> Iterator[Callable[..., Any]]:
    """Context for calls that do not wait for one another; what follows waits for all of them.

    It gives a function that makes a context for a call from its number and its arguments.
    """
    if transforms_active():
        yield lambda k, arguments: nullcontext()
        return
    if device.type != "cuda" or calls.count == 1:
        with crowded(calls.networks, device.index):
            yield lambda k, arguments: nullcontext()
        return
    streams, current = _streams(device), torch.cuda.current_stream(device)
    used: set[int] = set()

    @contextmanager
    def of_call(k: int, arguments: Sequence[Any]) -> Iterator[None]:
        stream = streams[k % STREAMS]
        if k % STREAMS not in used:
            used.add(k % STREAMS)
            stream.wait_stream(current)
        for value in arguments:
            if isinstance(value, Tensor) and value.is_cuda:
                # so that their memory is not reused before this stream has read it
                value.detach().record_stream(stream)
        with torch.cuda.stream(stream):
            yield

    try:
        with crowded(calls.networks, device.index):
            yield of_call
    finally:
        for k in used:
            current.wait_stream(streams[k])


@cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(STREAMS)]
