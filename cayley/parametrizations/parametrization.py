"""The base class of all parametrisations, and checks that they share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor, nn

from cayley.checks import is_integer
from cayley.parametrizations.polar import polar
from cayley.tracing import no_autocast

__all__ = [
    "PRECISIONS",
    "Parametrization",
    "Pullback",
    "check_orthogonal",
    "check_precision",
    "check_square",
    "full_precision",
    "made_on",
    "rounding_tolerance",
]

Pullback = Callable[[Tensor], Sequence[Tensor]]

PRECISIONS = (torch.float32, torch.float64, torch.complex64, torch.complex128)


class Parametrization(nn.Module, ABC):
    r"""Map from free tensors :math:`X` to a structured matrix :math:`W` of shape (n, n).

    It follows the protocol of :mod:`torch.nn.utils.parametrize`: ``forward(*X)`` gives the matrix,
    ``right_inverse(W)`` gives free tensors that are mapped to ``W``. The module owns only what is
    *not* trained (signs, permutations, a base point), as buffers; the free tensors belong to the
    layer that uses it.

    Arguments:
        n: The size of the matrix.

    Attributes:
        names: The names of the free tensors, in the order of ``forward``'s arguments.
        phases: Those of ``names`` that are angles of complex numbers of modulus one.
        unconstrained: Those of ``names`` that are ordinary weights and need no learning rate of
            their own.
        is_complex: Whether W is complex.
        on_manifold: Whether the free tensor *is* W, so that only an optimizer for the Stiefel
            manifold keeps it unitary.
        stateful: Whether W also depends on buffers that earlier training steps have written. Then
            ``forward`` has the argument ``update``: whether to write them.
        asks_host: Whether the host takes part in a training step, see :meth:`prepared`.
    """

    names: tuple[str, ...]
    phases: tuple[str, ...] = ()
    unconstrained: tuple[str, ...] = ()
    is_complex: ClassVar[bool] = False
    on_manifold: ClassVar[bool] = False
    stateful: bool = False
    asks_host: bool = False

    def __init__(self, n: int) -> None:
        super().__init__()
        if not is_integer(n) or n < 1:
            raise ValueError(f"{type(self).__name__}: expected an int of at least 1, got {n!r}")
        self.n = n

    @abstractmethod
    def sample(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Sequence[Tensor]:
        """Free tensors drawn as the method's authors do, one for each of ``names``.

        It also fills the buffers again, which a module made on the meta device needs.
        """

    @property
    def awaits_rebase(self) -> bool:
        """Whether the option ``rebase`` was given, but no optimizer does what it says."""
        return any(map.awaits_rebase for map in self.children() if isinstance(map, Parametrization))

    def advance(self, *X: Tensor) -> Tensor:
        """The matrix that ``forward`` gives, for a training step: it also updates the buffers.

        ``forward`` alone leaves all buffers as they are.

        Arguments:
            *X: The free tensors.
        """
        return self(*X, update=True) if self.stateful else self(*X)

    def with_pullback(self, *X: Tensor, update: bool = False) -> tuple[Tensor, Pullback]:
        """The matrix, detached, and its pullback (vector-Jacobian product).

        The pullback maps the gradient of a loss with respect to W to those with respect to the free
        tensors; it can be called many times. This implementation uses autograd; a map with a
        gradient in closed form overrides it.

        Arguments:
            *X: The free tensors.
            update: Whether to update the buffers, as in :meth:`advance`.
        """
        # copies, since what is saved here no longer knows that a free tensor has been written to
        leaves = [x.detach().clone().requires_grad_() for x in X]
        # Activation checkpointing counts the tensors that a forward pass saves, and these would be
        # saved in the first of several passes only. A detached W does not keep its graph alive.
        with (
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(lambda x: x.detach(), lambda x: x),
        ):
            W = self.advance(*leaves) if update else self(*leaves)

        def pullback(G: Tensor) -> Sequence[Tensor]:
            return torch.autograd.grad(W, leaves, G, retain_graph=True)

        return W.detach(), pullback

    def capturable(self, *X: Tensor) -> bool:
        """Whether a CUDA graph can capture :meth:`with_pullback`, once it has been called.

        Arguments:
            *X: The free tensors.
        """
        return False

    def prepared(self, *X: Tensor) -> AbstractContextManager[None]:
        """Context of one training step with these free tensors, without the host.

        On entry, the host does its part of the step, so that a CUDA graph can record or replay the
        rest. Most maps need no host, and nothing is done.

        Arguments:
            *X: The free tensors.
        """
        return nullcontext()

    @property
    def onto(self) -> bool:
        """Whether :meth:`right_inverse` takes every matrix of the set: by default, if it exists."""
        return type(self).right_inverse is not Parametrization.right_inverse

    def right_inverse(self, W: Tensor) -> Tensor | Sequence[Tensor]:
        """Free tensors that are mapped to ``W`` (one tensor, or as many as there are ``names``)."""
        raise NotImplementedError(
            f"{type(self).__name__} reaches only a subset of the matrices and has no inverse: "
            'draw a matrix with sample(), or init="sample", or use a map that reaches every '
            "matrix, such as ScaledCayley"
        )

    def project(self, W: Tensor) -> Tensor:
        """The matrix nearest to ``W`` that a map onto the whole set can reach."""
        return polar(W)

    def defect(self, W: Tensor) -> Tensor:
        r"""Distance from the set, here :math:`\|W^* W - I\|_F`, computed in double precision."""
        W = W.detach().to(torch.complex128 if W.is_complex() else torch.float64)
        return torch.linalg.matrix_norm(W.mH @ W - torch.eye(self.n, device=W.device))

    def extra_repr(self) -> str:
        """The size, as it stands in ``repr``."""
        return f"{self.n}"


def check_precision(*tensors: Tensor) -> None:
    """Raise unless a structured matrix can be formed from the tensors in their precision."""
    for tensor in tensors:
        if tensor.dtype not in PRECISIONS:
            raise TypeError(
                "a structured matrix is formed in float32 or float64 (complex64 or complex128), "
                f"got {tensor.dtype}: keep its free entries in float32 and use torch.autocast for "
                "the rest of the model"
            )


def full_precision(*tensors: Tensor) -> AbstractContextManager[object]:
    """Context in which autocast is off, for tensors that must be float32 or float64.

    A matrix formed in half precision is 1e-3 away from its structure, and a recurrence applies that
    error hundreds of times.

    Example:
        >>> A = torch.eye(2)
        >>> with torch.autocast("cpu"), full_precision(A):
        ...     (A @ A).dtype
        torch.float32
    """
    check_precision(*tensors)
    return no_autocast(tensors[0].device)


def made_on(device: torch.device | str | None) -> AbstractContextManager[object]:
    """Context in which buffers are made on a device; None for torch's default.

    Example:
        >>> with torch.device("meta"), made_on("cpu"):
        ...     torch.empty(1).device
        device(type='cpu')
    """
    return nullcontext() if device is None else torch.device(device)


def check_square(W: Tensor, n: int, *, is_complex: bool) -> None:
    """Raise unless ``W`` is an (n, n) matrix, and real unless ``is_complex``."""
    if W.shape != (n, n):
        raise ValueError(f"expected a matrix of shape ({n}, {n}), got {tuple(W.shape)}")
    if W.is_complex() and not is_complex:
        raise TypeError(f"expected a real matrix, got {W.dtype}")


def rounding_tolerance(W: Tensor) -> float:
    """The largest defect that rounding can explain, 1000 ε √n.

    For W in half precision it is that of float32, the precision of its free tensors: with the ε of
    bfloat16 every matrix would pass.

    Example:
        >>> rounding_tolerance(torch.eye(4, dtype=torch.bfloat16)) < 1e-3
        True
    """
    eps = torch.finfo(torch.promote_types(W.dtype, torch.float32)).eps
    return 1e3 * eps * W.shape[-1] ** 0.5


def check_orthogonal(W: Tensor, defect: Tensor) -> None:
    """Raise unless rounding explains the ``defect`` of ``W``."""
    tolerance = rounding_tolerance(W)
    # written so that NaN fails too
    if not defect <= tolerance:
        kind = "unitary" if W.is_complex() else "orthogonal"
        raise ValueError(
            f"expected an {kind} matrix (‖W*W − I‖ ≤ {tolerance:.1e}), got ‖W*W − I‖ = "
            f"{float(defect):.3g}: cayley.parametrizations.polar(W) gives the nearest one".replace(
                "an unitary", "a unitary"
            )
        )
