"""A structured matrix as a module: the free tensors together with the map that forms the matrix."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from cayley.parametrizations.parametrization import Parametrization

__all__ = ["StructuredMatrix"]


class StructuredMatrix(nn.Module):
    r"""Trainable free tensors :math:`X` and the map that makes of them :math:`W = f(X)`.

    What :func:`torch.nn.utils.parametrize.register_parametrization` does to a module by giving it a
    class of its own, this does by composition: it can be pickled. Calling it forms W.

    Note:
        W is formed at every call that must record a gradient, and otherwise kept until a free
        tensor or a buffer changes. Changes are noticed as autograd notices them, by a tensor's
        version and storage; a write through ``tensor.data`` escapes both. ``train()`` and
        ``eval()`` forget what was kept.

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
        if torch.is_grad_enabled() and any(X.requires_grad for X in free):
            return self.map(*free)
        if torch.compiler.is_compiling():
            return self.map(*free)
        sources = (*free, *self.map.buffers())
        if any(source.is_inference() for source in sources):
            return self.map(*free)
        if self._kept is None or not self._kept.holds(sources):
            self._kept = _Kept(self.map(*free), sources)
        return self._kept.W

    def train(self, mode: bool = True) -> "StructuredMatrix":
        """Set the mode, as every module does, and forget the matrix that was kept."""
        self._kept = None
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "StructuredMatrix":
        """Move or cast, as ``to`` does; a complex tensor takes part as its real parts do.

        ``double()`` passes complex tensors over, and ``to(torch.float64)`` would take their
        imaginary parts away.
        """
        self._kept = None

        def apply(X: Tensor) -> Tensor:
            return torch.view_as_complex(fn(torch.view_as_real(X))) if X.is_complex() else fn(X)

        return super()._apply(apply, recurse)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_kept": None}


class _Kept:
    """A matrix, and what tells whether its sources, or itself, were changed since."""

    def __init__(self, W: Tensor, sources: Sequence[Tensor]) -> None:
        self.W = W
        # aliases keep the storages alive, so that no other tensor takes over their addresses
        self.aliases = [source.detach() for source in sources]
        self.mark = self._mark(sources)

    def _mark(self, sources: Sequence[Tensor]) -> tuple[object, ...]:
        inference = torch.is_inference_mode_enabled()
        own = None if self.W.is_inference() else self.W._version
        return inference, own, *((x.data_ptr(), x._version, x.dtype) for x in sources)

    def holds(self, sources: Sequence[Tensor]) -> bool:
        return self.mark == self._mark(sources)
