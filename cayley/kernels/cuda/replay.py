"""Many launches on a GPU as one."""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from cayley.kernels.dispatch import backend_in_force

__all__ = ["Captured", "Replay"]

T = TypeVar("T")


class Captured(Generic[T]):
    """A function of tensors at fixed addresses that is a CUDA graph from its second call on.

    The first call runs eagerly, since what torch and the driver load then cannot be part of a
    graph; the second is captured, and from it on the graph is replayed. All calls after the first
    return the same tensors. On other devices the function is simply called.

    Arguments:
        device: Where it works.

    Example:
        >>> x = torch.ones(2)
        >>> double = Captured(x.device)
        >>> for _ in range(3):
        ...     y = double(lambda: x.mul_(2))
        >>> y
        tensor([8., 8.])
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._called = False
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: T

    def __call__(self, function: Callable[[], T]) -> T:
        """What the function returns.

        Arguments:
            function: The same at every call. It takes no arguments, makes no decision that depends
                on values, and its owner keeps the tensors that it reads and writes.
        """
        if self._device.type != "cuda":
            return function()
        with torch.cuda.device(self._device):
            if not self._called:
                self._called = True
                return function()
            if self._graph is None:
                graph = torch.cuda.CUDAGraph()
                # other threads may go on meanwhile
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    self._result = function()
                self._graph = graph
            self._graph.replay()
            return self._result


class _Places(NamedTuple):
    """The tensors that a captured function reads, and its graph."""

    inputs: list[Tensor]
    constants: Sequence[Tensor]
    captured: Captured[Sequence[Tensor]]


class Replay:
    """A function of tensors that is a CUDA graph from its second call on.

    A matrix of a few hundred rows is computed by about twenty kernels, each of which takes less
    time than its launch. Calls of each kind, on each stream and by each back end, have a graph of
    their own, see :class:`Captured`. Results are copies, which later calls do not change. On other
    devices, and while another graph is captured, the function is simply called.

    Arguments:
        function: Takes inputs and constants and returns tensors; it makes no decision that depends
            on their values.

    Example:
        >>> double = Replay(lambda x, two: [two * x])
        >>> double([torch.ones(2)], [torch.tensor(2.0)])
        [tensor([2., 2.])]
    """

    def __init__(self, function: Callable[..., Sequence[Tensor]]) -> None:
        self.function = function
        self._places: dict[tuple, _Places] = {}
        self._lock = threading.Lock()

    @torch.no_grad()
    def __call__(self, inputs: Sequence[Tensor], constants: Sequence[Tensor]) -> Sequence[Tensor]:
        """The function's results.

        Arguments:
            inputs: Tensors whose values change.
            constants: Tensors whose values never do.
        """
        device = inputs[0].device
        if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return self.function(*inputs, *constants)
        with torch.cuda.device(device), self._lock:
            kinds = ((x.shape, x.dtype) for x in inputs)
            stream = torch.cuda.current_stream().cuda_stream
            key = (device, stream, backend_in_force(), *kinds)
            if key not in self._places:
                own = [x.clone(memory_format=torch.contiguous_format) for x in inputs]
                self._places[key] = _Places(own, constants, Captured(device))
            own, constants, captured = self._places[key]
            torch._foreach_copy_(own, list(inputs))
            return [y.clone() for y in captured(lambda: self.function(*own, *constants))]
