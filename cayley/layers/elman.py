"""The layer of the Elman recurrence, with a free or a structured recurrent matrix."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor, nn

from cayley.activations import ACTIVATIONS, nonpositive
from cayley.cache import Cache
from cayley.checks import check_integer, check_number
from cayley.initializers import Initializer
from cayley.kernels.observation import is_observed
from cayley.kernels.projection import project, projected_under_autocast
from cayley.kernels.rotations import FFT
from cayley.kernels.steps import last_states, transposed
from cayley.layers.frozen import FrozenStep
from cayley.layers.options import check_nonlinearity, check_norm, named_initializers
from cayley.layers.recurrent import Recurrent, has_hooks
from cayley.layers.streams import StreamState, stream_size
from cayley.norms.layouts import reversed_sequences
from cayley.parametrizations import (
    GivensLayers,
    Parametrization,
    StructuredMatrix,
    UnitaryComposition,
)
from cayley.parametrizations.orthogonal import MapFactory, make_map
from cayley.parametrizations.parametrization import PRECISIONS, full_precision
from cayley.parametrizations.structured import acting_on_reals
from cayley.recurrences import NormSite, composed, elman, normalized_elman, rotated
from cayley.recurrences.composed import prefers_factors
from cayley.recurrences.rotated import prefers_rotations
from cayley.tracing import is_eager, no_autocast

__all__ = ["RNN"]

# what is normalised: the products with the input, and those with the state
SITES = ("ih", "hh")


class RNN(Recurrent):
    r"""Elman network whose recurrent matrix may have structure; a drop-in for ``nn.RNN``.

    .. math:: h_t = \phi(U x_t + W h_{t-1}; b)

    It equals, for one layer and one direction::

        W = layer.weight_hh_l0                                # formed once
        for x_t in input:
            h = activation(x_t @ layer.weight_ih_l0.T + h @ W.T)

    with the bias added inside, or taken as the threshold of modReLU. With a normalisation it is

    .. math:: h_t = \phi(N_x(U x_t) + N_h(W h_{t-1}) + b)

    where N normalises each example over its units, ``"layer"``, and over the last K steps too,
    ``"atn"``: assorted-time normalisation. Each has its own γ and β (``gamma_ih_l0``,
    ``gamma_hh_l0``, …), which start at 1 and 0. There is no fused kernel for it; a warning says so
    once.

    With ``recurrent=None`` and tanh or ReLU the layer *is* ``nn.RNN``: the same parameters, numbers
    and initialisation, two biases included. Otherwise there is one bias a layer, ``bias_l0``.
    A structured matrix is stored by its free tensors (``structured.weight_hh_l0.A``, …);
    ``layer.weight_hh_l0`` reads the matrix, and assigning a matrix to it sets the free tensors.

    Note:
        A *complex* recurrent matrix acts on states of n complex units, which the layer holds as 2n
        real features [Re h, Im h]: its output has 2n features, and W acts as [[R, −C], [C, R]].

        The matrix is formed in float32 or float64, and the recurrence runs in that precision even
        under autocast, which applies to the product with the input only: an orthogonal recurrence
        never forgets a rounding error. The output is then float32, as with ``layer_norm``.

        With ``norm="atn"`` the state is (h, windows), where the second tensor holds the statistics
        of the last K − 1 steps: with it, chunks and :meth:`step` give the same numbers as one run.
        Given h alone, the layer starts with an empty window.

    References:
        Finding Structure in Time, Elman, 1990.
        Layer Normalization, Ba, Kiros, Hinton, 2016.
        Breaking Time Invariance: Assorted-Time Normalization for RNNs, Pospisil, Zadorozhnyy, Ye,
        2022; equations 3.3 and 3.9 of Pospisil's dissertation (2023).

    Arguments:
        input_size: The number I of features of the input.
        hidden_size: The number n of units.
        num_layers: The number of layers stacked.
        nonlinearity: A key of :data:`cayley.activations.ACTIVATIONS`; with a complex matrix one
            that has a complex form, such as ``"modrelu"``.
        bias: Whether there is a bias (a threshold, with modReLU).
        batch_first: Whether input and output are (B, T, ·).
        dropout: Probability of dropout on the output of each layer but the last.
        bidirectional: Whether a second set of weights reads the sequence from its end.
        recurrent: What makes the recurrent matrix: a function from n to a parametrisation, such as
            its class or a :func:`functools.partial` of it; the name of one, a key of
            :data:`cayley.parametrizations.MAPS`; a parametrisation, of which each layer and
            direction gets a copy; or None for a free matrix.
        trainable_h0: Whether the state that is used when no ``hx`` is given is a parameter,
            ``h0_l0``; otherwise it is 0.
        nonpositive_bias: Whether the threshold of modReLU is :math:`-|b|`, which is never positive,
            see :func:`~cayley.activations.nonpositive`: the complex modReLU then has no
            singularity.
        norm: None, ``"layer"`` or ``"atn"``, of real recurrences.
        window: The number K of steps of ``"atn"``.
        affine: Whether the normalisations have γ and β; otherwise they are 1 and 0.
        eps: The ε of both normalisations.
        plain_state: Whether the windows of ``"atn"`` are kept in the layer, so that the state is h
            alone; see :class:`~cayley.LSTM`.
        initializers: Functions that fill a tensor in place, under some of ``"weight_ih"``,
            ``"weight_hh"``, ``"bias"`` and ``"h0"``, to replace the network's own; or their names,
            keys of :data:`cayley.initializers.INITIALIZERS`, such as ``"zeros_"``. The layer keeps
            them, so a layer can be pickled only if they can.
        device, dtype: Those of the parameters; dtype is real even with a complex matrix.

    Shapes:
        As ``nn.RNN``: input (T, B, I), ``hx`` (layers · directions, B, H) ↦ output
        (T, B, directions · H), ``h_n`` (layers · directions, B, H), where H is n, or 2n with a
        complex matrix. With ``norm="atn"`` and K > 1 a second tensor of the state,
        (layers · directions, B, S) with S = 1 + 2 (2K − 1).

    Example:
        >>> layer = RNN(3, 8, recurrent="cayley", nonlinearity="modrelu", batch_first=True)
        >>> output, h_n = layer(torch.randn(5, 100, 3))
        >>> output.shape, h_n.shape
        (torch.Size([5, 100, 8]), torch.Size([1, 5, 8]))
        >>> W = layer.weight_hh_l0
        >>> torch.testing.assert_close(W.T @ W, torch.eye(8))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        recurrent: Parametrization | MapFactory | str | None = None,
        trainable_h0: bool = False,
        nonpositive_bias: bool = False,
        norm: Literal["layer", "atn"] | None = None,
        window: int | None = None,
        affine: bool = True,
        eps: float = 1e-5,
        plain_state: bool = False,
        initializers: Mapping[str, Initializer | str] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_integer("hidden_size", hidden_size)
        if dtype is not None and dtype.is_complex:
            raise TypeError(
                f"{type(self).__name__}: expected a real dtype, got {dtype}: for complex units use "
                "a complex recurrent matrix, as cayley.ScuRNN does, with a real dtype"
            )
        template = None if recurrent is None else make_map(recurrent, hidden_size, device)
        is_complex = template is not None and template.is_complex
        check_norm(norm, window, affine, is_complex)
        check_number("RNN", "eps", eps)
        K = window or 1
        extra = 0 if norm is None else stream_size(len(SITES), K, "layer")
        H = 2 * hidden_size if is_complex else hidden_size
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            state_sizes=(H, *([extra] if extra else [])),
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            trainable_h0=trainable_h0,
            streams=extra > 0,
            plain_state=plain_state,
        )
        self.norm = norm
        self.window = K
        self.affine = affine
        self.eps = eps
        check_nonlinearity(nonlinearity, is_complex)
        self.nonlinearity = nonlinearity
        self.is_complex = is_complex
        stacked = is_complex and nonlinearity == "modrelu"
        self._activation = "modrelu_stacked" if stacked else nonlinearity
        self._threshold = ACTIVATIONS[self._activation].threshold
        if nonpositive_bias and not self._threshold:
            raise ValueError(
                "nonpositive_bias is about the threshold of modReLU: expected "
                f"nonlinearity='modrelu', got {nonlinearity!r}"
            )
        self.nonpositive_bias = nonpositive_bias
        self._initializers = named_initializers(initializers or {})
        self._is_structured = template is not None
        self._frozen: Cache[FrozenStep] = Cache()
        # nn.RNN has two biases, of which only the sum matters; we have one, except as nn.RNN
        self._two_biases = template is None and norm is None and not self._threshold
        bias_names = ("bias_ih", "bias_hh") if self._two_biases else ("bias",)
        for suffix, size, _ in self.suffixes():
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (H, size), "weight_hh": (H, H)}
            if template is not None:
                del shapes["weight_hh"]
                self.structured[f"weight_hh_{suffix}"] = StructuredMatrix(
                    template, device=device, dtype=dtype
                )
            if bias:
                shapes |= dict.fromkeys(bias_names, (hidden_size if self._threshold else H,))
            for site in SITES if norm is not None and affine else ():
                shapes |= {f"gamma_{site}": (H,), f"beta_{site}": (H,)}
            if trainable_h0:
                shapes["h0"] = (H,)
            for name, shape in shapes.items():
                parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
                self.register_parameter(f"{name}_{suffix}", parameter)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all parameters again, as when the layer was made."""
        bound = self.hidden_size**-0.5
        uniform = partial(nn.init.uniform_, a=-bound, b=bound)
        initializers: dict[str, Initializer] = {
            "weight_ih": uniform,
            "weight_hh": uniform,
            "bias": nn.init.zeros_ if self._threshold else uniform,
            "h0": nn.init.zeros_,
            "gamma": nn.init.ones_,
            "beta": nn.init.zeros_,
            **self._initializers,
        }
        for name, parameter in self.named_parameters(recurse=False):
            kind = name.partition("_l")[0]
            shared = next((k for k in ("bias", "gamma", "beta") if kind.startswith(k)), kind)
            initializers[shared](parameter)
        for matrix in self.matrices():
            matrix.reset_parameters()

    def run(
        self,
        suffix: str,
        x: Tensor,
        state: tuple[Tensor, ...] | None,
        batch_sizes: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One layer in one direction; see :meth:`Recurrent.run`."""
        if self.norm is not None:
            return self._run_normalized(suffix, x, state, batch_sizes, reverse)
        weight = getattr(self, f"weight_ih_{suffix}")
        additive, threshold = self._biases(suffix)
        x, U, c = projected_under_autocast(x, weight, additive)
        with full_precision(weight) if self._is_structured else no_autocast(weight.device):
            B = x.shape[1] if batch_sizes is None else int(batch_sizes[0])
            h0 = self.initial_state(suffix, B) if state is None else state[0]
            if (by_factors := self._by_factors(suffix, x)) is not None:
                h = by_factors(
                    x,
                    h0.to(weight.dtype),
                    b=threshold,
                    U=U,
                    c=c,
                    batch_sizes=batch_sizes,
                    reverse=reverse,
                )
            else:
                W = self._stacked_matrix(suffix)
                h = elman(
                    x,
                    h0.to(W.dtype),
                    W,
                    threshold,
                    U=U,
                    c=c,
                    nonlinearity=self._activation,
                    batch_sizes=batch_sizes,
                    reverse=reverse,
                    is_complex=self.is_complex,
                )
        return h, (last_states(h, batch_sizes, reverse),)

    def advance(
        self, suffix: str, x: Tensor, state: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, ...]:
        """One step of one layer; see :meth:`Recurrent.advance`."""
        weight = getattr(self, f"weight_ih_{suffix}")
        if self.norm is not None or (self._is_structured and weight.dtype not in PRECISIONS):
            return super().advance(suffix, x, state)
        additive, threshold = self._biases(suffix)
        h = self.initial_state(suffix, x.shape[0]) if state is None else state[0]
        z = nn.functional.linear(x, weight, additive)
        z = torch.addmm(z, h, transposed(self._stacked_matrix(suffix), x.shape[0]))
        return (ACTIVATIONS[self._activation].apply(z, threshold),)

    def _has_lean_step(self) -> bool:
        """Whether there is a :meth:`lean_step`; see :meth:`Recurrent._has_lean_step`."""
        plain = self.bias and self.norm is None and not self.nonpositive_bias
        return self._is_structured and plain

    def lean_step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor] | None:
        """One step of a frozen layer; see :meth:`Recurrent.lean_step`."""
        parameters = self._parameters
        U, b = parameters.get("weight_ih_l0"), parameters.get("bias_l0")
        if U is None or b is None or self._needs_forward():
            return None
        frozen = self._frozen.value
        if frozen is None or not frozen.is_current(U, b):
            matrix = cast(StructuredMatrix, self.structured["weight_hh_l0"])
            if not matrix.is_frozen:
                return None
            frozen = self._frozen.value = FrozenStep.of(self._activation, U, matrix, b)
        return frozen(x, state)

    def _keeps_more(self) -> bool:
        """Whether z is kept beside h; see :meth:`Recurrent._keeps_more`."""
        return ACTIVATIONS[self._activation].needs_z

    def _stacked_matrix(self, suffix: str) -> Tensor:
        """W as it acts on real features, (H, H)."""
        return acting_on_reals(self.recurrent_matrix(suffix))

    def _by_factors(self, suffix: str, x: Tensor) -> Callable[..., Tensor] | None:
        """The recurrence that applies the factors of W one by one; None if W is formed.

        Where that takes less time. Observers and transforms get the recurrence with W.
        """
        # first, since most layers have another one
        if self._activation != "modrelu_stacked":
            return None
        matrix = self.structured._modules.get(f"weight_hh_{suffix}")
        map = getattr(matrix, "map", None)
        # a class of one's own may make W otherwise
        if type(map) not in (UnitaryComposition, GivensLayers):
            return None
        matrix = cast(StructuredMatrix, matrix)
        # torch's pruning computes free tensors in a hook
        changed = matrix.is_frozen or has_hooks(matrix) or has_hooks(matrix.map)
        if changed or is_observed() or not is_eager(x, *matrix.free):
            return None
        if isinstance(map, GivensLayers):
            theta, phi, omega = matrix.free
            layers = FFT if map.layers == "fft" else map.layers
            if not prefers_rotations(omega, layers):
                return None
            return partial(rotated, theta=theta, phi=phi, omega=omega, layers=layers)
        assert isinstance(map, UnitaryComposition)
        w, v = matrix.free
        # last, since tracers cannot follow the search for a plan
        if not prefers_factors(w):
            return None
        return partial(composed, w=w, v=v, permutation=map.permutation)

    def _run_normalized(
        self,
        suffix: str,
        x: Tensor,
        state: tuple[Tensor, ...] | None,
        batch_sizes: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """:meth:`run` with a normalisation, whose windows follow the order of the recurrence."""
        weight = getattr(self, f"weight_ih_{suffix}")
        if weight.dtype not in PRECISIONS:
            raise TypeError(
                f"RNN: expected parameters in float32 or float64 with norm={self.norm!r}, got "
                f"{weight.dtype}: keep them in float32 and use torch.autocast"
            )
        if reverse:
            x = reversed_sequences(x, batch_sizes)
        additive, threshold = self._biases(suffix)
        x, U, _ = projected_under_autocast(x, weight, None)
        with full_precision(weight) if self._is_structured else no_autocast(weight.device):
            W = self.recurrent_matrix(suffix)
            B = x.shape[1] if batch_sizes is None else int(batch_sizes[0])
            h0, *extra = (
                (self.initial_state(suffix, B),)
                if state is None
                else (tensor.to(W.dtype) for tensor in state)
            )
            stream = extra[0] if extra else None
            windows = StreamState([*SITES], self.window, "layer", stream, x, batch_sizes)
            of_x, of_h = (self._site(site, suffix, windows) for site in SITES)
            if additive is not None:
                of_x = of_x._replace(beta=of_x.beta + additive)
            states = normalized_elman(
                project(x, U, None),
                h0,
                W,
                threshold,
                input=of_x,
                recurrent=of_h,
                window=self.window,
                eps=self.eps,
                nonlinearity=self._activation,
                batch_sizes=batch_sizes,
            )
            windows.take(ih=states.input, hh=states.recurrent)
        h_n = last_states(states.h, batch_sizes, False)
        y = reversed_sequences(states.h, batch_sizes) if reverse else states.h
        return y, (h_n, *windows.state())

    def _site(self, site: str, suffix: str, windows: StreamState) -> NormSite:
        past = windows.past.get(site)
        if self.affine:
            gamma, beta = (getattr(self, f"{name}_{site}_{suffix}") for name in ("gamma", "beta"))
            return NormSite(gamma, beta, past)
        weight, H = getattr(self, f"weight_ih_{suffix}"), self.hidden_size
        return NormSite(weight.new_ones(H), weight.new_zeros(H), past)

    def _biases(self, suffix: str) -> tuple[Tensor | None, Tensor | None]:
        """The bias to add to z, and the threshold of the activation; at most one is not None."""
        if not self.bias:
            U = getattr(self, f"weight_ih_{suffix}")
            return None, U.new_zeros(self.hidden_size) if self._threshold else None
        if self._two_biases:
            return getattr(self, f"bias_ih_{suffix}") + getattr(self, f"bias_hh_{suffix}"), None
        b = getattr(self, f"bias_{suffix}")
        if not self._threshold:
            return b, None
        return None, nonpositive(b) if self.nonpositive_bias else b

    def extra_repr(self) -> str:
        """As ``nn.RNN`` prints it, with the nonlinearity."""
        parts = [super().extra_repr()]
        if self.nonlinearity != "tanh":
            parts.append(f"nonlinearity={self.nonlinearity!r}")
        if self.nonpositive_bias:
            parts.append("nonpositive_bias=True")
        if self.norm is not None:
            parts.append(f"norm={self.norm!r}")
            if self.norm == "atn":
                parts.append(f"window={self.window}")
            if not self.affine:
                parts.append("affine=False")
            if self.eps != 1e-5:
                parts.append(f"eps={self.eps}")
        return ", ".join(parts)
