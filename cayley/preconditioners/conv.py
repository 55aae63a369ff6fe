"""The rule for convolutions."""

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from cayley.preconditioners.joint import Bias, Block, Weight
from cayley.preconditioners.rule import Layout, Observation, Rows, Rule, reached

__all__ = ["ConvRule"]


class ConvRule(Rule):
    """The block [b, W] of a convolution, with one mean and one variance for each channel.

    Note:
        The rows of a convolution are the patches under its kernel, and exact statistics would be
        those of each channel at each position of the kernel. These differ little, because of
        borders and strides. Like batch normalisation, the rule uses those of the channel over all
        examples and positions of the input, without padding. An example counts if any of its
        outputs received a gradient.

    References:
        Batch Normalization Preconditioning for Neural Network Training, Lange, Helfrich, Ye, 2022.

    Example:
        >>> ConvRule().layout(nn.Conv2d(4, 6, 3, groups=2)).blocks[0].weights[0].groups
        2
    """

    name = "Conv"
    types: ClassVar[tuple[type[nn.Module], ...]] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

    def layout(self, module: nn.Module) -> Layout:
        """One block of weight and bias, in the convolution's groups."""
        assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        weight = Weight("weight", "channels", groups=module.groups)
        return Layout((Block((weight,), (Bias("bias"),)),))

    def observe(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Observation:
        """The channels at all positions of the input."""
        assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        spatial = len(module.kernel_size)

        def batched(x: Tensor) -> Tensor:
            return x.reshape(-1, *x.shape[-spatial - 1 :])

        x = batched((args[0] if args else kwargs["input"]).detach()).movedim(1, -1)

        def rows(grads: Sequence[Any]) -> dict[str, Rows]:
            examples = reached(batched(grads[0]).flatten(1))
            return {"channels": Rows(x, examples.view(-1, *[1] * spatial).expand(x.shape[:-1]))}

        return Observation((output,), rows)
