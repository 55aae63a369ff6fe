"""The base class of this package's optimizers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from cayley.checks import check_number

__all__ = ["DenseOptimizer", "as_real", "check_rate", "innermost", "scaled"]


class DenseOptimizer(Optimizer, ABC):
    """Optimizer that updates each parameter by its dense gradient.

    A subclass defines what a group must look like (``check``) and how a parameter is updated
    (``update``), or how all of a group are (``update_all``). A parameter without a gradient keeps
    its value and its state.
    """

    @abstractmethod
    def check(self, group: dict[str, Any]) -> None:
        """Raise unless the optimizer can work with the parameters and options of ``group``."""

    @abstractmethod
    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
        """Move the parameter ``p`` by its gradient ``g``, in place.

        Arguments:
            p: A parameter of any shape, real or complex.
            g: Its gradient, of the same shape.
            state: The optimizer's state of the parameter; empty at the first step.
            group: The options.
        """

    def update_all(
        self,
        ps: Sequence[Tensor],
        gs: Sequence[Tensor],
        states: Sequence[dict[str, Tensor]],
        group: dict[str, Any],
    ) -> None:
        """The same for all parameters of a group that have a gradient."""
        for p, g, state in zip(ps, gs, states, strict=True):
            self.update(p, g, state, group)

    @torch.no_grad()
    # pyrefly: ignore[bad-override]
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move every parameter that has a gradient.

        Arguments:
            closure: Evaluates the model, calls ``backward`` and returns the loss.

        Returns:
            The loss of the closure; None without one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            moved = [p for p in group["params"] if p.grad is not None]
            for p in moved:
                if p.grad.layout != torch.strided:
                    raise RuntimeError(
                        f"{type(self).__name__}: expected a dense gradient, got one of layout "
                        f"{p.grad.layout} for a parameter of shape {tuple(p.shape)}: build the "
                        "embedding with sparse=False, or give it to torch.optim.SparseAdam"
                    )
            if moved:
                # a gradient may be a lazy conjugate, which has no real view
                gradients = [p.grad.resolve_conj() for p in moved]
                self.update_all(moved, gradients, [self.state[p] for p in moved], group)
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters with its own options, once they have been checked."""
        super().add_param_group(param_group)
        try:
            self.check(self.param_groups[-1])
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise


def check_rate(owner: object, name: str, value: object) -> None:
    """Raise unless ``value`` is a learning rate: a number of at least 0, or a tensor of one, ().

    Example:
        >>> check_rate("SGD", "lr", torch.tensor([0.1, 0.2]))
        Traceback (most recent call last):
        ValueError: SGD: expected lr as a float or a tensor (), got a tensor (2,)
    """
    if isinstance(value, Tensor):
        if value.dim() != 0:
            owner = owner if isinstance(owner, str) else type(owner).__name__
            raise ValueError(
                f"{owner}: expected {name} as a float or a tensor (), got a tensor "
                f"{tuple(value.shape)}"
            )
        value = value.item()
    check_number(owner, name, value)


def scaled(gs: list[Tensor], lr: float | Tensor) -> tuple[list[Tensor], float]:
    """Tensors and a number whose products are those of gradients and a learning rate.

    torch's ``value=lr`` and ``alpha=lr`` read a tensor on the host, which waits for a GPU, and
    cannot be recorded in a CUDA graph.

    Example:
        >>> scaled([torch.ones(2)], torch.tensor(0.1))
        ([tensor([0.1000, 0.1000])], 1.0)
    """
    return ([*torch._foreach_mul(gs, lr)], 1.0) if isinstance(lr, Tensor) else (gs, lr)


def as_real(x: Tensor) -> Tensor:
    """The tensor itself if real, otherwise a view of its real and imaginary parts, (..., 2).

    An elementwise optimizer treats the two parts as separate numbers: squares of complex numbers
    would turn the imaginary diagonal of a skew-Hermitian gradient into a real step.

    Example:
        >>> as_real(torch.tensor([1.0 + 2.0j]))
        tensor([[1., 2.]])
    """
    return torch.view_as_real(x) if x.is_complex() else x


def innermost(optimizer: Optimizer) -> Optimizer:
    """The optimizer that one wraps, as accelerate's does, which has no hooks of its own."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer
