"""One step of a frozen Elman layer: few launches, and little Python around them."""

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor

from cayley.activations import ACTIVATIONS
from cayley.kernels.cpu import elman_step as cpu
from cayley.kernels.cuda import elman_step as cuda
from cayley.kernels.dispatch import backend_in_force
from cayley.parametrizations import StructuredMatrix
from cayley.tracing import traced, transforms_active

__all__ = ["FrozenStep"]


class FrozenStep(NamedTuple):
    r"""The step :math:`h' = \phi(U x + W h; b)` of a constant W, without gradients.

    The products are so small that Python and the launches take most of the time: the step of a few
    rows is one call of a kernel, others are two products and the activation.

    Attributes:
        nonlinearity: A key of :data:`cayley.activations.ACTIVATIONS`.
        matrix: The frozen matrix.
        kept: The W that it kept when this was made, (H, H).
        U: The input matrix, (H, I).
        Wt: W transposed, contiguous.
        b: The bias, or the threshold of the activation, (H), or (H/2) if it is complex.
        sizes: I and H.
        kernel: A function that makes a step of few rows; None if there is none for these weights.
        most_rows: The number of rows up to which it is the best.
    """

    nonlinearity: str
    matrix: StructuredMatrix
    kept: Tensor
    U: Tensor
    Wt: Tensor
    b: Tensor
    sizes: tuple[int, int]
    kernel: Callable[..., tuple[Tensor, Tensor]] | None
    most_rows: int

    @classmethod
    def of(cls, nonlinearity: str, U: Tensor, matrix: StructuredMatrix, b: Tensor) -> Self:
        """The step with these weights; what is written to U and b counts from the next step on."""
        W = matrix.acting
        Wt = W.mT.contiguous()
        device = cuda if U.is_cuda else cpu
        refusal = device.step_refusal(nonlinearity, U, Wt, b)
        kernel = device.elman_step if refusal is None else None
        H, I = U.shape  # noqa: E741
        most_rows = device.most_rows(I, H)
        return cls(nonlinearity, matrix, W, U, Wt, b, (I, H), kernel, most_rows)

    def is_current(self, U: Tensor, b: Tensor) -> bool:
        """Whether U, W and b are those that this was made from, and W is still frozen."""
        matrix = self.matrix
        same = self.U is U and self.b is b and matrix.kept is self.kept
        # another layer, or a cell, that shares the matrix may have ended it
        return same and matrix.is_frozen and matrix.keeps_its_own()

    def __call__(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor] | None:
        """The output and the state after a step; None if the general path has to look at it.

        Arguments:
            x: The input, (B, I).
            state: h, (B, H), or (1, B, H) for a state that shares no memory with the output.
        """
        nonlinearity, _, _, U, Wt, b, (I, H), kernel, most_rows = self  # noqa: E741
        if x.dim() != 2:
            return None
        B, alone = len(x), state.dim() == 2
        if (
            x.shape != (B, I)
            or state.shape != ((B, H) if alone else (1, B, H))
            or not (x.dtype is state.dtype is U.dtype is Wt.dtype)
            or not (x.device == state.device == U.device)
        ):
            return None
        if (
            kernel is not None
            and 0 < B <= most_rows
            # their memory may be another one by now: weight.data = …
            and U.is_contiguous()
            and b.is_contiguous()
            and backend_in_force() == "auto"
            and not traced(x, state)
        ):
            return kernel(nonlinearity, x, state, U, Wt, b)
        if transforms_active():
            # vmap has no rule for products in place
            return None
        h, Ut = state if alone else state[0], U.t()
        if nonlinearity == "modrelu":
            z = torch.mm(x, Ut).addmm_(h, Wt)
            # modrelu with a launch less: |z| + b in one operation, and the rest in place
            sign = z.sign()
            y = torch.addcmul(b, z, sign).relu_().mul_(sign)
        else:
            activation = ACTIVATIONS[nonlinearity]
            z = torch.mm(x, Ut) if activation.threshold else torch.addmm(b, x, Ut)
            y = activation.apply(z.addmm_(h, Wt), b)
        # a copy: the caller may write to the output
        return y, y if alone else torch.stack((y,))
