"""The recurrent matrix of a long-term and a short-term state."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from cayley.checks import is_integer
from cayley.parametrizations.cayley import ScaledCayley
from cayley.parametrizations.eigenvalue import EigenvalueNormalization
from cayley.parametrizations.parametrization import Parametrization, Pullback, check_square
from cayley.parametrizations.polar import polar
from cayley.parametrizations.rebase_option import Rebase

__all__ = ["LongShort", "check_sizes", "long_short"]

COUPLINGS = {"uniform": nn.init.xavier_uniform_, "orthogonal": nn.init.orthogonal_}


def long_short(W_L: Tensor, W_C: Tensor, W_S: Tensor) -> Tensor:
    r"""Block matrix that acts on a state :math:`[h^L; h^S]`, where L has no influence on S.

    .. math:: W = \begin{bmatrix} W_L & W_C \\ 0 & W_S \end{bmatrix}

    Its eigenvalues are those of :math:`W_L` and :math:`W_S`.

    Arguments:
        W_L: The matrix of the long-term state, (q, q).
        W_C: The matrix from the short-term state to the long-term one, (q, s).
        W_S: The matrix of the short-term state, (s, s).

    Returns:
        W, (q + s, q + s).

    Example:
        >>> long_short(torch.eye(1), torch.full((1, 1), 2.0), torch.full((1, 1), 0.5))
        tensor([[1.0000, 2.0000],
                [0.0000, 0.5000]])
    """
    below = W_S.new_zeros(W_S.shape[0], W_L.shape[0])
    return torch.cat((torch.cat((W_L, W_C), 1), torch.cat((below, W_S), 1)))


class LongShort(Parametrization):
    r"""Block matrices of an orthogonal :math:`W_L` and a normalised :math:`W_S`.

    .. math::
        W = \begin{bmatrix} W_L & W_C \\ 0 & W_S \end{bmatrix}, \qquad
        W_L = (I + A)^{-1} (I - A) D, \quad W_S = T \text{ or } \frac{T}{\rho(T) + \epsilon}

    as :class:`~cayley.parametrizations.ScaledCayley` and
    :class:`~cayley.parametrizations.EigenvalueNormalization` make them; :math:`W_C` is free, or 0.

    References:
        Orthogonal Recurrent Neural Networks and Batch Normalization in Deep Neural Networks
        (dissertation), Helfrich, 2020, section 2.7.

    Arguments:
        q: The size of :math:`W_L`; 0 for none.
        s: The size of :math:`W_S`; 0 for none.
        coupled: Whether there is a :math:`W_C`.
        negative_ones: How many entries of D are −1, the last ones. None for q // 2, or for none of
            them with ``rebase``.
        eps: The ε above.
        coupling: How :math:`W_C` is drawn: ``"uniform"`` (Glorot) or ``"orthogonal"``, rows or
            columns of a random orthogonal matrix.
        rebase: The rebase of :math:`W_L`, see :class:`~cayley.parametrizations.ScaledCayley`.

    Note:
        In the reference only A has a learning rate of its own. So ``parameter_groups`` puts A into
        the group of recurrent tensors, and T and C into the other.

    Attributes:
        long: The map of :math:`W_L`, or None.
        short: The map of :math:`W_S`, or None.

    Shapes:
        A's free entries (q(q−1)/2), C (q, s) if coupled, T (s, s) ↦ W (q + s, q + s). Without a
        long-term or a short-term state, its tensors are left out.

    Example:
        >>> blocks = LongShort(4, 2, negative_ones=1)
        >>> W = blocks(*blocks.sample())
        >>> W.shape, bool(W[4:, :4].any()), bool(blocks.defect(W) < 1e-6)
        (torch.Size([6, 6]), False, True)
    """

    def __init__(
        self,
        q: int,
        s: int,
        *,
        coupled: bool = True,
        negative_ones: int | None = None,
        eps: float = 0.0,
        coupling: str = "uniform",
        rebase: Rebase | None = None,
    ) -> None:
        check_sizes("q", q, "s", s)
        super().__init__(q + s)
        if coupling not in COUPLINGS:
            raise ValueError(f"expected coupling to be one of {[*COUPLINGS]}, got {coupling!r}")
        if not q and negative_ones:
            raise ValueError(f"expected no negative_ones without a W_L, got {negative_ones}")
        if not q and rebase is not None:
            raise ValueError(f"expected rebase=None without a W_L, got {rebase!r}")
        self.q, self.s = q, s
        self.coupled = coupled and q > 0 and s > 0
        self.coupling = coupling
        self.long = ScaledCayley(q, negative_ones=negative_ones, rebase=rebase) if q else None
        self.short = EigenvalueNormalization(s, eps=eps) if s else None
        present = {"A": q > 0, "C": self.coupled, "T": s > 0}
        self.names = tuple(name for name, there in present.items() if there)
        self.unconstrained = tuple(name for name in self.names if name != "A")
        self.stateful = self.asks_host = self.short is not None

    def forward(self, *free: Tensor, update: bool = False) -> Tensor:
        """The block matrix of A, C and T, or those of them that exist."""
        X = dict(zip(self.names, free, strict=True))
        W_L = free[0].new_zeros(0, 0) if self.long is None else self.long(X["A"])
        W_S = free[0].new_zeros(0, 0)
        if self.short is not None:
            W_S = self.short(X["T"], update=update)
        W_C = X["C"] if self.coupled else free[0].new_zeros(self.q, self.s)
        return long_short(W_L, W_C, W_S)

    @torch.no_grad()
    def with_pullback(self, *X: Tensor, update: bool = False) -> tuple[Tensor, Pullback]:
        """The block matrix, detached, and its pullback, put together from those of its blocks."""
        free = dict(zip(self.names, X, strict=True))
        W_L = W_S = X[0].new_zeros(0, 0)
        W_C = free["C"] if self.coupled else X[0].new_zeros(self.q, self.s)
        pullbacks: dict[str, Pullback] = {"C": lambda G: (G,)}
        # first, so that the GPU works on eigenvalues while the CPU prepares the rest
        if self.short is not None:
            W_S, pullbacks["T"] = self.short.with_pullback(free["T"], update=update)
        if self.long is not None:
            W_L, pullbacks["A"] = self.long.with_pullback(free["A"])

        def pullback(G: Tensor) -> Sequence[Tensor]:
            G_L, G_C, _, G_S = self.blocks(G)
            blocks = {"A": G_L, "C": G_C, "T": G_S}
            return [gradient for name in self.names for gradient in pullbacks[name](blocks[name])]

        return long_short(W_L, W_C, W_S), pullback

    def capturable(self, *X: Tensor) -> bool:
        """Whether a CUDA graph can capture :meth:`with_pullback`: if it can for both blocks."""
        free = dict(zip(self.names, X, strict=True))
        return (self.long is None or self.long.capturable(free["A"])) and (
            self.short is None or self.short.capturable(free["T"])
        )

    def prepared(self, *X: Tensor) -> AbstractContextManager[None]:
        """Context of a training step without the host, which finds the eigenvalue on entry."""
        free = dict(zip(self.names, X, strict=True))
        return nullcontext() if self.short is None else self.short.prepared(free["T"])

    def blocks(self, W: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The four blocks of W: long, coupling, the one that is 0, and short."""
        upper, lower = W.split((self.q, self.s))
        (W_L, W_C), (below, W_S) = (rows.split((self.q, self.s), 1) for rows in (upper, lower))
        return W_L, W_C, below, W_S

    def right_inverse(self, W: Tensor) -> Sequence[Tensor]:
        """Free tensors that give ``W``; sets D, and T is not divided by ρ until ρ(T) > 1 again."""
        check_square(W, self.n, is_complex=False)
        W_L, W_C, below, W_S = self.blocks(W)
        zero = {"below": below} if self.coupled else {"below": below, "right of": W_C}
        for where, block in zero.items():
            if not (block == 0).all():
                raise ValueError(
                    f"expected zeros {where} W_L, got entries up to {float(block.abs().max()):.3g}"
                    ": project(W) removes them"
                )
        # all checks come before the first map changes its buffers
        if self.short is not None:
            self.short.check(W_S)
        X = {"C": W_C.clone()}
        if self.long is not None:
            X["A"] = self.long.right_inverse(W_L)
        if self.short is not None:
            X["T"] = self.short.right_inverse(W_S)
        return [X[name] for name in self.names]

    def sample(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Sequence[Tensor]:
        """A and T as their maps draw them, C by ``coupling``."""
        X: list[Tensor] = []
        if self.long is not None:
            X += self.long.sample(device=device, dtype=dtype)
        if self.coupled:
            X.append(
                COUPLINGS[self.coupling](torch.empty(self.q, self.s, device=device, dtype=dtype))
            )
        if self.short is not None:
            X += self.short.sample(device=device, dtype=dtype)
        return X

    def project(self, W: Tensor) -> Tensor:
        """The nearest orthogonal block, the block divided by ρ, and zeros where they belong."""
        W_L, W_C, _, W_S = self.blocks(W)
        return long_short(
            W_L if self.long is None else polar(W_L),
            W_C if self.coupled else torch.zeros_like(W_C),
            W_S if self.short is None else self.short.project(W_S),
        )

    def defect(self, W: Tensor) -> Tensor:
        """The defects of the blocks and the norms of the zero blocks, as one Euclidean norm."""
        W_L, W_C, below, W_S = self.blocks(W.detach().to(torch.float64))
        parts = [torch.linalg.matrix_norm(below) if below.numel() else below.sum()]
        if not self.coupled:
            parts.append(torch.linalg.matrix_norm(W_C) if W_C.numel() else W_C.sum())
        if self.long is not None:
            parts.append(self.long.defect(W_L))
        if self.short is not None:
            parts.append(self.short.defect(W_S))
        return torch.linalg.vector_norm(torch.stack(parts))

    def extra_repr(self) -> str:
        """The sizes and whether the blocks are coupled."""
        return f"{self.q}, {self.s}" + ("" if self.coupled else ", coupled=False")


def check_sizes(long_name: str, q: int, short_name: str, s: int) -> None:
    """Raise unless both sizes are integers of at least 0, and not both 0."""
    for name, size in ((long_name, q), (short_name, s)):
        if not is_integer(size):
            raise TypeError(f"expected {name} to be an int, got {type(size).__name__}: {size!r}")
    if min(q, s) < 0 or q + s < 1:
        raise ValueError(
            f"expected {long_name} and {short_name} of at least 0 with a sum of at least 1, got "
            f"{q} and {s}"
        )
