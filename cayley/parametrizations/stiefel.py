"""Unitary matrices that are themselves the free tensor."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cayley.parametrizations.composition import UnitaryComposition
from cayley.parametrizations.parametrization import (
    Parametrization,
    check_orthogonal,
    check_square,
    made_on,
)
from cayley.parametrizations.polar import refine

__all__ = ["StiefelPoint"]


class StiefelPoint(Parametrization):
    r"""Unitary matrices :math:`W` that are trained directly: the free tensor is W itself.

    Note:
        Only an optimizer that moves along the Stiefel manifold keeps W unitary:
        ``cayley.optim.StiefelRMSprop`` or ``cayley.optim.StiefelSGD``. With any other, W is not
        unitary after the first step.

    References:
        Full-Capacity Unitary Recurrent Neural Networks, Wisdom, Powers, Hershey, Le Roux, Atlas,
        2016.

    Arguments:
        n: The size of W.

    Shapes:
        W complex (n, n) ↦ W complex (n, n).

    Example:
        >>> point = StiefelPoint(4)
        >>> (W,) = point.sample()
        >>> point(W) is W, bool(point.defect(W) < 1e-5)
        (True, True)
    """

    names = ("W",)
    is_complex = True
    on_manifold = True

    def forward(self, W: Tensor) -> Tensor:
        """``W`` itself."""
        return W

    def right_inverse(self, W: Tensor) -> Tensor:
        """``W`` itself, as a complex matrix, where it is unitary."""
        check_square(W, self.n, is_complex=True)
        W = W.to(torch.promote_types(W.dtype, torch.complex64))
        check_orthogonal(W, self.defect(W))
        return W

    def sample(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Sequence[Tensor]:
        """A matrix of :class:`~cayley.parametrizations.UnitaryComposition`; ``dtype`` is real."""
        with made_on(device):
            composition = UnitaryComposition(self.n)
        W = composition(*composition.sample(device=device, dtype=dtype))
        # rounding errors made here would stay in W
        return (refine(W),)
