"""A structured matrix as a module: the free tensors together with the map that forms the matrix."""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from cayley.parametrizations.parametrization import Parametrization, check_precision
from cayley.tracing import computes_now, has_tangent, traced

__all__ = ["StructuredMatrix"]


class StructuredMatrix(nn.Module):
    r"""Trainable free tensors :math:`X` and the map that makes of them :math:`W = f(X)`.

    What :func:`torch.nn.utils.parametrize.register_parametrization` does to a module by giving it a
    class of its own, this does by composition: it can be pickled. Calling it forms W.

    Note:
        W is formed once and kept until a free tensor or a buffer changes: in evaluation, and on the
        CPU also where gradients are recorded, so that several calls between two steps of an
        optimizer share one. Changes are noticed by comparing values: a fused optimizer, a
        broadcast or a write through ``tensor.data`` leaves no other trace. What is returned is a
        copy of what is kept.

        On a GPU the comparison would wait for the device, and W is formed at every call that
        records a gradient.

    Arguments:
        map: The parametrisation. It is copied: two matrices never share one.
        device, dtype: Of the free tensors; dtype is real also where W is complex.

    Example:
        >>> from cayley.parametrizations import ScaledCayley
        >>> matrix = StructuredMatrix(ScaledCayley(3))
        >>> [name for name, _ in matrix.named_parameters()], matrix().shape
        (['A'], torch.Size([3, 3]))
    """

    def __init__(
        self,
        map: Parametrization,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.map = copy.deepcopy(map).to(device=device, dtype=dtype)
        for name, X in zip(map.names, self.map.sample(device=device, dtype=dtype), strict=True):
            self.register_parameter(name, nn.Parameter(X))
        self._kept: _Kept | None = None

    @property
    def free(self) -> tuple[Tensor, ...]:
        """The free tensors, in the order of the map's arguments."""
        return tuple(getattr(self, name) for name in self.map.names)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the free tensors anew."""
        first = self.free[0]
        dtype = first.dtype.to_real()
        for X, value in zip(
            self.free, self.map.sample(device=first.device, dtype=dtype), strict=True
        ):
            X.copy_(value)

    @torch.no_grad()
    def assign(self, W: Tensor) -> None:
        """Choose the free tensors so that the matrix is ``W``."""
        X = self.map.right_inverse(W.to(self.free[0].device))
        for free, value in zip(self.free, (X,) if isinstance(X, Tensor) else X, strict=True):
            free.copy_(value)

    def forward(self) -> Tensor:
        """The matrix W, (n, n)."""
        free = self.free
        recorded = torch.is_grad_enabled() and any(X.requires_grad for X in free)
        # a point of a manifold is W
        if (recorded and self.map.on_manifold) or traced(free[0]):
            return self.map(*free)
        # what is kept has a gradient only
        if any(has_tangent(X) for X in free):
            return self.map(*free)
        # in a CUDA graph that is being recorded, with what has run before
        if not computes_now(free[0]) and not (recorded and self.map.records(*free)):
            return self.map(*free)
        if recorded and free[0].device.type != "cpu":
            # to compare values would be to wait for the device
            return _Attached.apply(_Kept(*self.map.formed(*free)), self.map, *free)
        kept = self._kept
        if (
            kept is None
            or (recorded and kept.pullback is None)
            or not kept.holds(self._sources(free))
        ):
            # some maps write their buffers: what W is a function of is known afterwards
            made = self.map.formed(*free) if recorded else (self.map(*free).detach().clone(), None)
            self._kept = kept = _Kept(*made, self._sources(free))
        return _Attached.apply(kept, self.map, *free) if recorded else kept.W.clone()

    def _sources(self, free: Sequence[Tensor]) -> Iterator[Tensor]:
        """Everything that W is a function of; what changes at every step comes first."""
        return chain(free, self.map.buffers())

    def train(self, mode: bool = True) -> "StructuredMatrix":
        """Set the mode, as every module does; warn if W has left its manifold."""
        self._kept = None
        W = self.free[0]
        if self.map.on_manifold and not W.is_meta:
            defect = float(self.map.defect(W))
            if not defect <= 0.1:
                warnings.warn(
                    f"W is off the unitary matrices by ‖W*W − I‖ = {defect:.2g}: train it with "
                    "cayley.optim.StiefelRMSprop or StiefelSGD over the groups that "
                    "cayley.parameter_groups makes",
                    stacklevel=2,
                )
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "StructuredMatrix":
        """Move or cast, as ``to`` does; a complex tensor takes part as its real parts do.

        ``double()`` passes complex tensors over, and ``to(torch.float64)`` would take their
        imaginary parts away.
        """
        self._kept = None

        def apply(X: Tensor) -> Tensor:
            if not X.is_complex():
                return fn(X)
            parts = fn(torch.view_as_real(X))
            check_precision(parts)
            return torch.view_as_complex(parts)

        return super()._apply(apply, recurse)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_kept": None}


class _Kept:
    """A matrix, the way back from it, and the values that it was formed from.

    Arguments:
        W: The matrix, apart from any graph.
        pullback: Takes a gradient to those of the free tensors; None where nobody asks for it.
        sources: What W is a function of.
    """

    def __init__(
        self,
        W: Tensor,
        pullback: Callable[[Tensor], Sequence[Tensor]] | None,
        sources: Iterable[Tensor] = (),
    ) -> None:
        self.W = W
        self.pullback = pullback
        self.values = [source.detach().clone() for source in sources]

    def holds(self, sources: Iterable[Tensor]) -> bool:
        """Whether the sources still have these values."""
        return all(
            x is not None
            and y is not None
            and x.dtype == y.dtype
            and x.device == y.device
            and torch.equal(x, y)
            for x, y in zip_longest(sources, self.values)
        )


class _Attached(torch.autograd.Function):
    """A kept matrix as a function of the free tensors, which may be differentiated many times."""

    @staticmethod
    def forward(ctx: Any, kept: _Kept, map: Parametrization, *free: Tensor) -> Tensor:
        ctx.kept, ctx.map = kept, map
        ctx.save_for_backward(*free)
        return kept.W.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (G,) = gradients
        if not torch.is_grad_enabled():
            return None, None, *ctx.kept.pullback(G)
        # a gradient that is differentiated again must lead to the free tensors themselves
        free = ctx.saved_tensors
        needed = [X for X in free if X.requires_grad]
        found = iter(torch.autograd.grad(ctx.map(*free), needed, G, create_graph=True))
        return None, None, *(next(found) if X.requires_grad else None for X in free)
