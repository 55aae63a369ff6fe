"""The network with a long-term and a short-term state."""

from typing import Unpack, cast

from torch import nn

from cayley.initializers import small_uniform_
from cayley.layers.elman import RNN
from cayley.layers.options import Options, with_initializers
from cayley.parametrizations.long_short import LongShort, check_sizes
from cayley.parametrizations.rebase_option import Rebase

__all__ = ["ENRNN"]


class ENRNN(RNN):
    r"""Eigenvalue-normalised network: an orthogonal long-term and a dissipative short-term state.

    .. math::
        h^L_t &= \mathrm{modReLU}_b(U^L x_t + W_L h^L_{t-1} + W_C h^S_{t-1}) \\
        h^S_t &= \mathrm{modReLU}_b(U^S x_t + W_S h^S_{t-1})

    with an orthogonal :math:`W_L = (I + A)^{-1} (I - A) D` and :math:`W_S = T`; from the first step
    with ρ(T) > 1 on, :math:`W_S = T / (\rho(T) + \epsilon)`. The state is
    :math:`h = [h^L; h^S]`, and ``layer.weight_hh_l0`` is the matrix [[W_L, W_C], [0, W_S]], so that
    one recurrence of :class:`~cayley.RNN` computes both. :math:`U \sim U[-0.01, 0.01]`, b = 0 and
    :math:`h_0 = 0` at the start.

    Note:
        The reference's code computes all eigenvalues of T at every step, which takes most of its
        time. Here the dominant eigenpair is tracked from step to step, see
        :func:`~.eigenvalue.dominant.dominant_eigenpair`. ``layer.events`` counts how often that
        was not enough.

    References:
        Eigenvalue Normalized Recurrent Neural Networks for Short Term Memory, Helfrich, Ye, 2020.
        Orthogonal Recurrent Neural Networks and Batch Normalization in Deep Neural Networks
        (dissertation), Helfrich, 2020, section 2.7.

    Arguments:
        input_size: The number of features of the input.
        long_size: The number q of units of the long-term state; 0 for none.
        short_size: The number s of units of the short-term state; 0 for none, which makes the
            network a :class:`~cayley.ScoRNN`.
        num_layers: The number of layers stacked.
        bias, batch_first, dropout, bidirectional: See :class:`~cayley.RNN`.
        coupled: Whether the short-term state acts on the long-term one, by :math:`W_C`.
        negative_ones: How many entries of D are −1, the last ones. None for q // 2, or for none of
            them with ``rebase``.
        eps: The ε above; the reference uses 0.
        nonlinearity: See :class:`~cayley.RNN`.
        coupling: How :math:`W_C` is drawn, ``"uniform"`` (Glorot) or ``"orthogonal"``.
        rebase: See :class:`~cayley.ScoRNN`.
        options: Further keyword arguments of :class:`~cayley.RNN`.

    Example:
        >>> import torch
        >>> layer = ENRNN(2, 96, 64, negative_ones=29)
        >>> output, h_n = layer(torch.randn(100, 50, 2))
        >>> output.shape, sum(p.numel() for p in layer.parameters())
        (torch.Size([100, 50, 160]), 15280)
        >>> bool(layer.weight_hh_l0[96:, :96].any())
        False
    """

    def __init__(
        self,
        input_size: int,
        long_size: int,
        short_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        coupled: bool = True,
        negative_ones: int | None = None,
        eps: float = 0.0,
        nonlinearity: str = "modrelu",
        coupling: str = "uniform",
        rebase: Rebase | None = None,
        **options: Unpack[Options],
    ) -> None:
        check_sizes("long_size", long_size, "short_size", short_size)
        super().__init__(
            input_size,
            long_size + short_size,
            num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            recurrent=lambda n: LongShort(
                long_size,
                short_size,
                coupled=coupled,
                negative_ones=negative_ones,
                eps=eps,
                coupling=coupling,
                rebase=rebase,
            ),
            nonlinearity=nonlinearity,
            **with_initializers(options, weight_ih=small_uniform_, bias=nn.init.zeros_),
        )
        self.long_size = long_size
        self.short_size = short_size

    @property
    def events(self) -> dict[str, dict[str, int]]:
        """How the dominant eigenpair of each T was found so far, by the matrix's name.

        The counts are those of :class:`~.eigenvalue.dominant.Event`.
        """
        maps = (cast(LongShort, matrix.map).short for matrix in self.matrices())
        return {
            name: map.events
            for name, map in zip(self.structured, maps, strict=True)
            if map is not None
        }

    def extra_repr(self) -> str:
        """As ``nn.RNN`` prints it, with the two sizes."""
        return f"{super().extra_repr()}, long_size={self.long_size}, short_size={self.short_size}"
