"""Many launches on a GPU as one."""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Replay"]


class _Recorded(NamedTuple):
    """A CUDA graph, where it reads and writes, and what else it reads."""

    graph: torch.cuda.CUDAGraph
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    constants: Sequence[Tensor]


class Replay:
    """A function of tensors that is a CUDA graph from its third call on.

    A small matrix is formed by some twenty kernels, each of which takes less time than its launch.
    The first call of a kind on a stream runs as it is written, the second is recorded, and all
    others are replayed. Results are copies: what a call has returned, no other call changes. On
    other devices, and where somebody else records a graph, the function is simply called.

    Arguments:
        function: Takes inputs and constants, returns tensors; it decides nothing by their values.

    Example:
        >>> double = Replay(lambda x, two: [two * x])
        >>> double([torch.ones(2)], [torch.tensor(2.0)])
        [tensor([2., 2.])]
    """

    def __init__(self, function: Callable[..., Sequence[Tensor]]) -> None:
        self.function = function
        self._recorded: dict[tuple, _Recorded | None] = {}
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
            key = (device, torch.cuda.current_stream().cuda_stream, *kinds)
            if key not in self._recorded:
                # what torch and the driver load at the first time is no part of a graph
                self._recorded[key] = None
                return self.function(*inputs, *constants)
            recorded = self._recorded[key]
            if recorded is None:
                recorded = self._recorded[key] = self._record(inputs, constants)
            torch._foreach_copy_(list(recorded.inputs), list(inputs))
            recorded.graph.replay()
            return [y.clone() for y in recorded.outputs]

    def _record(self, inputs: Sequence[Tensor], constants: Sequence[Tensor]) -> _Recorded:
        places = [x.clone(memory_format=torch.contiguous_format) for x in inputs]
        graph = torch.cuda.CUDAGraph()
        # other threads go on meanwhile
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = self.function(*places, *constants)
        return _Recorded(graph, places, outputs, constants)
