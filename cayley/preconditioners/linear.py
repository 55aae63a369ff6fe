"""The rule for linear layers."""

from typing import Any, ClassVar

from torch import nn

from cayley.preconditioners.joint import Bias, Block, Weight
from cayley.preconditioners.rule import Layout, Observation, Rows, Rule, reached

__all__ = ["LinearRule"]


class LinearRule(Rule):
    """The block [b, W] of ``nn.Linear``; every input vector is a row, along all leading axes.

    References:
        Batch Normalization Preconditioning for Neural Network Training, Lange, Helfrich, Ye, 2022.

    Example:
        >>> LinearRule().layout(nn.Linear(2, 3)).blocks[0].biases
        (Bias(name='bias', rows=slice(None, None, None)),)
    """

    name = "Linear"
    types: ClassVar[tuple[type[nn.Module], ...]] = (nn.Linear,)

    def layout(self, module: nn.Module) -> Layout:
        """One block of weight and bias."""
        return Layout((Block((Weight("weight", "input"),), (Bias("bias"),)),))

    def observe(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Observation:
        """The input vectors."""
        x = (args[0] if args else kwargs["input"]).detach()
        return Observation((output,), lambda grads: {"input": Rows(x, reached(grads[0]))})
