"""Optimizers that start without the compiler of torch."""

import inspect
from functools import cache
from typing import Any

import torch
from torch.optim import Optimizer

__all__ = ["uncompiled"]


class _Uncompiled(Optimizer):
    """The methods of torch that are wrapped to keep ``torch.compile`` out, without the wrappers."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)
    state_dict = inspect.unwrap(Optimizer.state_dict)
    load_state_dict = inspect.unwrap(Optimizer.load_state_dict)


# cached: a process may start many runs
@cache
def uncompiled(kind: type[Optimizer]) -> type[Any]:
    """A class of optimizers that does the same, but cannot be part of a compiled function.

    Note:
        The first optimizer that is made imports ``torch._dynamo``, and with it sympy and much of
        ``torch.distributed``, only to tell a compiler to leave its methods alone. That takes as
        long as importing torch, and no optimizer of the laboratory is compiled.

    Arguments:
        kind: A class whose steps need no gradients.

    Example:
        >>> kind = uncompiled(torch.optim.SGD)
        >>> kind.__name__, issubclass(kind, torch.optim.SGD)
        ('SGD', True)
    """
    methods: dict[str, Any] = {"step": torch.no_grad()(inspect.unwrap(kind.step))}
    return type(kind.__name__, (kind, _Uncompiled), methods)
