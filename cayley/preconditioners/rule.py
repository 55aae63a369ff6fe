"""The base class of the rules of a preconditioner, one for each kind of module."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from cayley.preconditioners.checks import COPIES_REFUSED
from cayley.preconditioners.joint import Block
from cayley.tracing import computes_now

__all__ = ["Hook", "Layout", "Observation", "Rows", "Rule", "reached", "recording", "suspended"]


class Rows(NamedTuple):
    """Rows that multiplied a weight.

    Attributes:
        values: Detached, (..., F), or a sparse matrix (N, F).
        reached: Which of them affect the loss, (...).
    """

    values: Tensor
    reached: Tensor


class Observation(NamedTuple):
    """What a forward pass of a module records for the backward pass.

    Attributes:
        outputs: The outputs of the module. The pass counts if a gradient arrives at one of them.
        rows: A function of the gradients of the outputs, None where none arrived, that returns the
            rows of each site. The autograd graph keeps it, so it must not hold an output itself.
        read: Tensors that the function reads, detached; an error is raised if they change before
            it is called. :meth:`Rule.watch` adds the module's arguments.
    """

    outputs: Sequence[Tensor]
    rows: Callable[[Sequence[Any]], Mapping[str, Rows]]
    read: Sequence[Tensor] = ()


@dataclass(frozen=True)
class Layout:
    """How the parameters of a module are grouped.

    Attributes:
        blocks: The blocks that are preconditioned.
        left: Why other parameters are left as they are, by name.
    """

    blocks: tuple[Block, ...]
    left: Mapping[str, str] = field(default_factory=dict)


class Hook:
    """A function on a module that does nothing in a copy or a pickle of the module.

    So ``torch.save(model)`` works, and a copy adds nothing to the statistics of the original.

    Example:
        >>> import copy
        >>> hook = Hook(lambda x: x + 1)
        >>> hook(1), copy.deepcopy(hook)(1)
        (2, None)
    """

    def __init__(self, function: Callable[..., Any] | None) -> None:
        self.function = function

    # torch.compile leaves hooks to Python; torch.compiler.disable would import the compiler now
    @torch._disable_dynamo
    def __call__(self, *args: Any) -> Any:
        """What the function returns, or None in a copy."""
        return None if self.function is None else self.function(*args)

    def __reduce__(self) -> tuple[type["Hook"], tuple[None]]:
        return Hook, (None,)


@contextmanager
def suspended(model: nn.Module) -> Iterator[None]:
    """Context in which forward passes of a model count for none of the preconditioners it has.

    Arguments:
        model: The model.
    """
    hooks = [
        hook
        for module in model.modules()
        for hook in module._forward_hooks.values()
        if isinstance(hook, Hook)
    ]
    functions = [hook.function for hook in hooks]
    for hook in hooks:
        hook.function = None
    try:
        yield
    finally:
        for hook, function in zip(hooks, functions, strict=True):
            hook.function = function


class Rule(ABC):
    """How one kind of module is preconditioned.

    One instance is used for all modules of its types, and stores nothing about any of them.

    Attributes:
        name: The name that :meth:`cayley.BNP.report` prints.
        types: The modules that it is for. Subclasses with a forward pass of their own are not.
    """

    name: ClassVar[str]
    types: ClassVar[tuple[type[nn.Module], ...]]

    @abstractmethod
    def layout(self, module: nn.Module) -> Layout:
        """How the parameters are grouped; raise ValueError if that cannot be determined."""

    @abstractmethod
    def observe(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Observation | None:
        """What a forward pass with these arguments records for the backward pass."""

    def serves(self, module: nn.Module) -> bool:
        """Whether the module is of these types, with their forward pass."""
        return any(
            isinstance(module, kind) and type(module).forward is kind.forward for kind in self.types
        )

    def watch(
        self, module: nn.Module, record: Callable[[Observation], None]
    ) -> list[RemovableHandle]:
        """Hook the module, so that each forward pass that counts is recorded."""

        def after(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
        ) -> None:
            # the current parameters: a module made on the meta device gets others later
            weight = next(module.parameters(), None)
            if weight is None:
                raise ValueError(COPIES_REFUSED)
            if recording(weight):
                observation = self.observe(module, args, kwargs, output)
                if observation is not None:
                    read = (*observation.read, *_tensors((args, kwargs)))
                    record(observation._replace(read=read))

        return [module.register_forward_hook(Hook(after), with_kwargs=True)]


def _tensors(arguments: Any) -> list[Tensor]:
    """The tensors among arguments, detached: they share memory and count the same changes."""
    return [x.detach() for x in tree_leaves(arguments) if isinstance(x, Tensor)]


def reached(grad: Tensor) -> Tensor:
    """Which rows affect the loss: those whose output has a gradient other than 0, (...).

    All others, such as padding or nodes of a graph that no target depends on, add nothing to the
    gradient of the weight.

    Example:
        >>> reached(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
        tensor([ True, False])
    """
    if grad.numel() > 2**16 and grad.device.type == "cpu":
        # a few features are nearly always enough; on a GPU looking at them would wait
        some = grad[..., :16].abs().sum(-1) != 0
        if some.all():
            return some
    return grad.abs().sum(-1) != 0


def recording(tensor: Tensor) -> bool:
    """Whether operations on a tensor are computed now, and recorded for a backward pass.

    Example:
        >>> with torch.no_grad():
        ...     recording(torch.zeros(1))
        False
    """
    return torch.is_grad_enabled() and computes_now(tensor)
