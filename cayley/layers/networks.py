"""The networks of the papers: :class:`~cayley.RNN` with different recurrent matrices."""

from functools import partial
from typing import Literal, Unpack, cast

from torch import nn

from cayley.checks import check_integer
from cayley.initializers import small_uniform_, unit_state_
from cayley.layers.elman import RNN
from cayley.layers.options import Options, with_initializers
from cayley.parametrizations import (
    ComplexScaledCayley,
    GivensLayers,
    HouseholderProduct,
    MatrixExponential,
    ScaledCayley,
    SpectralSVD,
    StiefelPoint,
    UnitaryComposition,
)
from cayley.parametrizations.rebase_option import Rebase

__all__ = ["EURNN", "ORNN", "URNN", "ExpRNN", "FullURNN", "ScoRNN", "ScuRNN", "SpectralRNN"]


class ScoRNN(RNN):
    r"""Orthogonal network by the scaled Cayley transform (scoRNN).

    .. math:: h_t = \mathrm{modReLU}_b(U x_t + W h_{t-1}), \qquad W = (I + A)^{-1} (I - A) D

    A is skew-symmetric, given by its n(n−1)/2 free entries; D is a diagonal of ±1, fixed.
    :math:`U \sim U[-0.01, 0.01]`, b = 0, :math:`h_0 = 0` at the start.

    References:
        Orthogonal Recurrent Neural Networks with Scaled Cayley Transform, Helfrich, Willmott, Ye,
        2018, section 3.

    Arguments:
        input_size: The number of features of the input.
        hidden_size: The number n of units.
        num_layers: The number of layers stacked.
        bias, batch_first, dropout, bidirectional: See :class:`~cayley.RNN`.
        negative_ones: How many entries of D are −1, the last ones: the paper's ρ, which it tunes
            between n/10 and 7n/10. None for n // 2, or for none of them with ``rebase``.
        nonlinearity: See :class:`~cayley.RNN`.
        bandwidth: How many diagonals of A above the main one may be non-zero; None for all.
        init: What A starts with: ``"blocks"``, the paper's choice, which gives W the eigenvalues
            :math:`\pm e^{\pm it}`, :math:`t \sim U[0, \pi/2)`; ``"circle"``, ``"uniform"`` or
            ``"zero"``, see :func:`~cayley.parametrizations.skew.initial_entries`.
        rebase: Whether D is chosen again where entries of A grow beyond 1, for the same W:
            ``"auto"``, or after how many steps to look. When the layer is made, D is chosen for
            the initial W, which depends on ``negative_ones``. In training it takes the optimizer,
            whose moments have to follow: call ``cayley.optim.attach_rebase(model, optimizer)``
            once; a warning says so if you forget. None to keep D.
        options: Further keyword arguments of :class:`~cayley.RNN`.

    Example:
        >>> import torch
        >>> layer = ScoRNN(2, 170, negative_ones=85)
        >>> output, h_n = layer(torch.randn(200, 50, 2))
        >>> output.shape, sum(p.numel() for p in layer.parameters())
        (torch.Size([200, 50, 170]), 14875)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        negative_ones: int | None = None,
        nonlinearity: str = "modrelu",
        bandwidth: int | None = None,
        init: str = "blocks",
        rebase: Rebase | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            recurrent=partial(
                ScaledCayley,
                negative_ones=negative_ones,
                bandwidth=bandwidth,
                init=init,
                rebase=rebase,
            ),
            nonlinearity=nonlinearity,
            **with_initializers(options, weight_ih=small_uniform_, bias=nn.init.zeros_),
        )


class ScuRNN(RNN):
    r"""Unitary network by the scaled Cayley transform (scuRNN).

    .. math::
        h_t = \mathrm{modReLU}_b(U x_t + W h_{t-1}), \qquad
        W = (I + A)^{-1} (I - A)\, \mathrm{diag}(e^{i\theta})

    over n complex units; A is skew-Hermitian, given by n² real numbers, and θ is trained too.
    :math:`\theta \sim U[0, 2\pi)`; b and the trained :math:`h_0` are :math:`U[-0.01, 0.01]`, U is
    Glorot uniform.

    References:
        Complex Unitary Recurrent Neural Networks using Scaled Cayley Transform, Maduranga,
        Helfrich, Ye, 2019, section 3.

    Arguments:
        input_size: The number of features of the input.
        hidden_size: The number n of complex units; the output has 2n features [Re h, Im h].
        num_layers: The number of layers stacked.
        bias, batch_first, dropout, bidirectional: See :class:`~cayley.RNN`.
        bandwidth: How many diagonals of A above the main one may be non-zero; None for all.
        init: What the real part of A starts with, see :class:`ScoRNN`; the imaginary part is 0.
        options: Further keyword arguments of :class:`~cayley.RNN`.

    Example:
        >>> import torch
        >>> output, h_n = ScuRNN(1, 116)(torch.randn(100, 50, 1))
        >>> output.shape
        torch.Size([100, 50, 232])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        bandwidth: int | None = None,
        init: str = "blocks",
        **options: Unpack[Options],
    ) -> None:
        options.setdefault("trainable_h0", True)
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            recurrent=partial(ComplexScaledCayley, bandwidth=bandwidth, init=init),
            nonlinearity="modrelu",
            **with_initializers(
                options, weight_ih=nn.init.xavier_uniform_, bias=small_uniform_, h0=small_uniform_
            ),
        )


class URNN(RNN):
    r"""Unitary network of restricted capacity (uRNN).

    .. math::
        h_t = \mathrm{modReLU}_b(U x_t + W h_{t-1}), \qquad
        W = D_3 R_2 F^{-1} D_2 \Pi R_1 F D_1

    over n complex units, with diagonal phases :math:`D_k`, reflections :math:`R_k`, the Fourier
    transform F and a fixed permutation Π: 7n real parameters, which reach all unitary matrices
    only up to n = 7.

    Note:
        The paper applies the factors one by one, in O(n log n). This layer does so where their
        number has no prime factor above 61: on a CPU in float32 and float64 with 128 units or more,
        if the prime factors add up to at most an eighth of it; and on a GPU in float32 with 256 or
        more that fit into a multiprocessor (2624 on an H200). With 800 units or more a CPU does so
        for larger prime factors too. Otherwise W is formed once per forward pass, as for every
        network.

    References:
        Unitary Evolution Recurrent Neural Networks, Arjovsky, Shah, Bengio, 2016, section 4.

    Arguments:
        input_size: The number of features of the input.
        hidden_size: The number n of complex units; the output has 2n features [Re h, Im h].
        num_layers: The number of layers stacked.
        bias, batch_first, dropout, bidirectional: See :class:`~cayley.RNN`.
        options: Further keyword arguments of :class:`~cayley.RNN`.

    Example:
        >>> import torch
        >>> output, h_n = URNN(1, 64)(torch.randn(100, 50, 1))
        >>> output.shape
        torch.Size([100, 50, 128])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        **options: Unpack[Options],
    ) -> None:
        options.setdefault("trainable_h0", True)
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            recurrent=UnitaryComposition,
            nonlinearity="modrelu",
            **with_initializers(
                options, weight_ih=nn.init.xavier_uniform_, bias=small_uniform_, h0=unit_state_
            ),
        )


class FullURNN(RNN):
    r"""Unitary network of full capacity, whose matrix itself is the parameter.

    .. math:: h_t = \mathrm{modReLU}_b(U x_t + W h_{t-1}), \qquad W^* W = I

    over n complex units. W is initialised as in :class:`URNN`.

    Note:
        With an optimizer of ``torch.optim`` W would no longer be unitary after the first step.
        Train it with :class:`cayley.optim.StiefelRMSprop` or :class:`cayley.optim.StiefelSGD`,
        over the groups that :func:`cayley.parameter_groups` makes; ``train()`` and ``eval()`` warn
        if W is not unitary. torch's ``GradScaler``, ``clip_grad_value_`` and fused optimizers
        do not take complex parameters such as W: for mixed precision use bfloat16, which needs no
        scaler.

    References:
        Full-Capacity Unitary Recurrent Neural Networks, Wisdom, Powers, Hershey, Le Roux, Atlas,
        2016, section 4.

    Arguments:
        input_size: The number of features of the input.
        hidden_size: The number n of complex units; the output has 2n features [Re h, Im h].
        num_layers: The number of layers stacked.
        bias, batch_first, dropout, bidirectional: See :class:`~cayley.RNN`.
        options: Further keyword arguments of :class:`~cayley.RNN`.

    Example:
        >>> from cayley.optim import StiefelRMSprop, parameter_groups
        >>> layer = FullURNN(1, 32)
        >>> optimizer = StiefelRMSprop(parameter_groups(layer, lr=1e-3, recurrent_lr=1e-6))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        **options: Unpack[Options],
    ) -> None:
        options.setdefault("trainable_h0", True)
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            recurrent=StiefelPoint,
            nonlinearity="modrelu",
            **with_initializers(
                options, weight_ih=nn.init.xavier_uniform_, bias=small_uniform_, h0=unit_state_
            ),
        )


class EURNN(RNN):
    r"""Unitary network of layers of plane rotations (EURNN).

    .. math::
        h_t = \mathrm{modReLU}_b(U x_t + W h_{t-1}), \qquad W = D F^{(1)} F^{(2)} \cdots F^{(L)}

    over n complex units; each layer :math:`F^{(l)}` rotates disjoint pairs of units.

    Note:
        The rotations are applied one by one, in O(L n), if there are 64 units or more, at most one
        layer for eight of them, and at most 64 layers: on a CPU in float32 and float64, on a GPU in
        float32, as far as its shared memory has room for the layers. Otherwise W is formed once per
        forward pass, as for every network.

    References:
        Tunable Efficient Unitary Neural Networks (EUNN) and their application to RNNs, Jing, Shen,
        Dubček, Peurifoy, Skirlo, LeCun, Tegmark, Soljačić, 2017, section 3.

    Arguments:
        input_size: The number of features of the input.
        hidden_size: The number n of complex units; the output has 2n features [Re h, Im h].
        num_layers: The number of recurrent layers stacked.
        bias, batch_first, dropout, bidirectional: See :class:`~cayley.RNN`.
        layers: The number L of layers of rotations of neighbouring units; n + 2 of them reach every
            unitary matrix. Or ``"fft"``: log₂ n layers in the pattern of the fast Fourier
            transform.
        options: Further keyword arguments of :class:`~cayley.RNN`.

    Example:
        >>> import torch
        >>> output, h_n = EURNN(1, 64, layers="fft")(torch.randn(100, 50, 1))
        >>> output.shape
        torch.Size([100, 50, 128])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        layers: int | Literal["fft"] = 2,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            recurrent=partial(GivensLayers, layers=layers),
            nonlinearity="modrelu",
            **with_initializers(options, weight_ih=nn.init.xavier_uniform_, bias=nn.init.zeros_),
        )


class ORNN(RNN):
    r"""Orthogonal network by Householder reflections (oRNN).

    .. math::
        h_t = \mathrm{LeakyReLU}(U x_t + W h_{t-1} + b), \qquad W = H_n H_{n-1} \cdots H_{n-l+1}

    :math:`H_k` reflects the last k coordinates; :math:`h_0` is trained and starts at 0.

    References:
        Efficient Orthogonal Parametrisation of Recurrent Neural Networks Using Householder
        Reflections, Mhammedi, Hellicar, Rahman, Bailey, 2017, section 3.

    Arguments:
        input_size: The number of features of the input.
        hidden_size: The number n of units.
        num_layers: The number of layers stacked.
        bias, batch_first, dropout, bidirectional: See :class:`~cayley.RNN`.
        reflections: The number l of reflections, or n if that is fewer.
        nonlinearity: See :class:`~cayley.RNN`.
        options: Further keyword arguments of :class:`~cayley.RNN`.

    Example:
        >>> import torch
        >>> output, h_n = ORNN(1, 128, reflections=16)(torch.randn(100, 50, 1))
        >>> output.shape
        torch.Size([100, 50, 128])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        reflections: int = 16,
        nonlinearity: str = "leaky_relu",
        **options: Unpack[Options],
    ) -> None:
        options.setdefault("trainable_h0", True)
        check_integer("reflections", reflections)
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            recurrent=lambda n: HouseholderProduct(n, reflections=min(reflections, n)),
            nonlinearity=nonlinearity,
            **with_initializers(options, weight_ih=nn.init.xavier_uniform_, bias=nn.init.zeros_),
        )


class ExpRNN(RNN):
    r"""Orthogonal network by the matrix exponential (expRNN).

    .. math:: h_t = \mathrm{modReLU}_b(U x_t + W h_{t-1}), \qquad W = B \exp(K)

    K is skew-symmetric, given by its n(n−1)/2 free entries; the base B is not trained and starts as
    the identity. :meth:`rebase_` moves it, as dynamic trivialisation does.

    References:
        Cheap Orthogonal Constraints in Neural Networks: A Simple Parametrization of the Orthogonal
        and Unitary Group, Lezcano-Casado, Martínez-Rubio, 2019, section 4.
        Trivializations for Gradient-Based Optimization on Manifolds, Lezcano-Casado, 2019.

    Arguments:
        input_size: The number of features of the input.
        hidden_size: The number n of units.
        num_layers: The number of layers stacked.
        bias, batch_first, dropout, bidirectional: See :class:`~cayley.RNN`.
        nonlinearity: See :class:`~cayley.RNN`.
        options: Further keyword arguments of :class:`~cayley.RNN`.

    Example:
        >>> import torch
        >>> output, h_n = ExpRNN(1, 64)(torch.randn(100, 50, 1))
        >>> output.shape
        torch.Size([100, 50, 64])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        nonlinearity: str = "modrelu",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            recurrent=MatrixExponential,
            nonlinearity=nonlinearity,
            **with_initializers(options, weight_ih=small_uniform_, bias=nn.init.zeros_),
        )

    def rebase_(self) -> None:
        """Move every base B to the current W and set K to 0; W keeps its value.

        Call it after ``optimizer.step()``, every hundred steps or so: the exponential is then
        only ever used near 0, where it distorts gradients least.
        """
        for matrix in self.matrices():
            cast(MatrixExponential, matrix.map).rebase_(*matrix.stored)


class SpectralRNN(RNN):
    r"""Network whose singular values stay near 1 (Spectral RNN).

    .. math::
        h_t = \mathrm{LeakyReLU}(U x_t + W h_{t-1} + b), \qquad
        W = P \Sigma Q^\top, \quad 1 - r \le \sigma_j \le 1 + r

    P and Q are products of Householder reflections; b and :math:`h_0` start at 0.

    References:
        Stabilizing Gradients for Deep Neural Networks via Efficient SVD Parameterization, Zhang,
        Lei, Dhillon, 2018, section 4.

    Arguments:
        input_size: The number of features of the input.
        hidden_size: The number n of units.
        num_layers: The number of layers stacked.
        bias, batch_first, dropout, bidirectional: See :class:`~cayley.RNN`.
        reflections: The number of reflections of P and of Q, or n if that is fewer.
        margin: The r above.
        nonlinearity: See :class:`~cayley.RNN`.
        options: Further keyword arguments of :class:`~cayley.RNN`.

    Example:
        >>> import torch
        >>> layer = SpectralRNN(1, 64, margin=0.01)
        >>> sigma = torch.linalg.svdvals(layer.weight_hh_l0)
        >>> bool(((sigma - 1).abs() <= 0.01 + 1e-5).all())
        True
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        reflections: int = 16,
        margin: float = 0.01,
        nonlinearity: str = "leaky_relu",
        **options: Unpack[Options],
    ) -> None:
        check_integer("reflections", reflections)
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            recurrent=lambda n: SpectralSVD(n, reflections=min(reflections, n), margin=margin),
            nonlinearity=nonlinearity,
            **with_initializers(options, weight_ih=nn.init.xavier_uniform_, bias=nn.init.zeros_),
        )
