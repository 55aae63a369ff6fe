"""The engine of a run: puts models on a device, in a precision, and averages gradients."""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

from cayley.lab.errors import MachineError
from cayley.lab.processes import Processes
from cayley.lab.runs.precision import Precision
from cayley.lab.wording import counted

__all__ = ["Engine", "cast", "find_device"]


def find_device(name: str, processes: Processes) -> torch.device:
    """The device of this process; raise if it is not there.

    Arguments:
        name: ``"auto"`` for a GPU if torch can use one and else the CPU, ``"cpu"``, ``"cuda"``, or
            ``"cuda:1"``.
        processes: The processes of the run; each of several has its own GPU.

    Example:
        >>> find_device("cpu", Processes())
        device(type='cpu')
    """
    kind, _, number = name.partition(":")
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise MachineError(
            f"expected a GPU for the device {name}, got none that torch can use: choose "
            "--device cpu"
        )
    found = torch.cuda.device_count()
    if not processes.several:
        index = int(number or 0)
        if index >= found:
            raise MachineError(
                f"expected a GPU for the device {name}, got {counted(found, 'GPU')}, the last of "
                f"which is cuda:{found - 1}: choose that, or --device cpu"
            )
        return torch.device("cuda", index)
    if number:
        raise MachineError(
            f"expected a device for each of {processes.count} processes, got {name}: choose "
            f"--device {kind}"
        )
    if found < processes.local_count:
        raise MachineError(
            f"expected a GPU for each of {processes.local_count} processes, got "
            f"{counted(found, 'GPU')}: choose fewer --devices, or --device cpu"
        )
    return torch.device("cuda", processes.local_rank)


@dataclass(frozen=True)
class Engine:
    """What models of a run compute with.

    Attributes:
        device: The device of this process.
        precision: The precision of parameters and computation.
        processes: The processes of the run, which are connected if there are several.
    """

    device: torch.device
    precision: Precision
    processes: Processes

    def setup_module(self, model: nn.Module) -> nn.Module:
        """What to call instead of a model, which itself is moved to the device.

        It computes in the precision of the engine. If there are several processes, the gradients
        of its backward pass are averaged over them.
        """
        if self.precision == "64-true":
            model.double()
        model.to(self.device)
        module = self._averaging(model) if self.processes.several else model
        return module if self.precision == "32-true" else _InPrecision(module, self)

    def autocast(self) -> AbstractContextManager:
        """Context in which operations have the precision of the engine."""
        if self.precision == "bf16-mixed":
            return torch.autocast(self.device.type, torch.bfloat16)
        return _default_dtype(torch.float64) if self.precision == "64-true" else nullcontext()

    def _averaging(self, model: nn.Module) -> nn.Module:
        # matrices with one column have the same layout either way
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        # all processes compute the same buffers; before torch 2.13 the option had another name
        known = "forward_sync_buffers" in signature(DistributedDataParallel).parameters
        options: dict[str, Any] = {("forward_sync" if known else "broadcast") + "_buffers": False}
        return DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            # this keeps the order of buckets, so that a resumed run adds in the same order
            find_unused_parameters=True,
            **options,
        )


class _InPrecision(nn.Module):
    """A model that is given its input, and gives its output, in the types of a precision."""

    def __init__(self, model: nn.Module, engine: Engine) -> None:
        super().__init__()
        self.model = model
        self.engine = engine
        mixed = engine.precision == "bf16-mixed"
        self.inside = torch.bfloat16 if mixed else torch.float64
        self.outside = torch.float32 if mixed else torch.float64

    def forward(self, *inputs: Any) -> Any:
        with self.engine.autocast():
            output = self.model(*cast(inputs, self.inside))
        return cast(output, self.outside)


def cast(values: Any, dtype: torch.dtype) -> Any:
    """Tensors in tuples, lists and dictionaries, those of floating point in another type.

    Example:
        >>> cast((torch.ones(1), torch.tensor([2]), None), torch.float64)
        (tensor([1.], dtype=torch.float64), tensor([2]), None)
    """

    def convert(value: Any) -> Any:
        is_float = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(dtype) if is_float else value

    return tree_map(convert, values)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Context in which tensors are created in a type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
