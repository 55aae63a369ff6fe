"""The layer of the LSTM recurrence, with a normalisation slot."""

from collections.abc import Mapping
from typing import Literal, Self, cast

import torch
from torch import Tensor, nn

from cayley.checks import check_integer, check_number
from cayley.initializers import Initializer
from cayley.kernels.projection import projected_under_autocast
from cayley.kernels.steps import last_states
from cayley.layers.options import named_initializers
from cayley.layers.recurrent import Recurrent
from cayley.layers.streams import StreamState, stream_size
from cayley.norms.atn import check_over
from cayley.norms.batch import MAX_STEPS, PopulationStatistics
from cayley.norms.layouts import reversed_sequences
from cayley.norms.pooling import find_pool
from cayley.parametrizations.parametrization import PRECISIONS
from cayley.recurrences.lstm import lstm
from cayley.recurrences.lstm_call import NormSite
from cayley.tracing import no_autocast, transforms_active

__all__ = ["LSTM"]

NORMS = (None, "layer", "batch", "atn")
INITIALIZED = ("weight_ih", "weight_hh", "bias")


class LSTM(Recurrent):
    r"""LSTM whose products and cells may be normalised; a drop-in for ``nn.LSTM``.

    .. math::
        [i; f; g; o] &= N_h(W h_{t-1} + b_h) + N_x(U x_t + b_x) \\
        c_t &= \sigma(f) \odot c_{t-1} + \sigma(i) \odot \tanh(g) \\
        h_t &= \sigma(o) \odot \tanh(N_c(c_t))

    It equals, for one layer and one direction with ``norm="layer"``::

        for x_t in input:
            a = (N_h(h @ layer.weight_hh_l0.T + layer.bias_hh_l0)
                 + N_x(x_t @ layer.weight_ih_l0.T + layer.bias_ih_l0))
            i, f, g, o = a.chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * N_c(c).tanh()

    With ``norm=None`` the layer *is* ``nn.LSTM``: the same parameters, numbers and initialisation.
    Otherwise :math:`N_h, N_x, N_c` have their own γ and β (``gamma_hh_l0``, ``gamma_ih_l0``,
    ``gamma_cell_l0``, …) unless ``affine=False``, the first two over all four gates together, and

    - ``"layer"`` normalises each example over its units;
    - ``"batch"`` normalises each unit over the examples that have this step and, in evaluation, by
      the statistics of the population at this step (:class:`~cayley.norms.PopulationStatistics`),
      to which a step of a single sequence does not count (see also
      :func:`~cayley.norms.synchronize`);
    - ``"atn"`` does either over the last K steps: assorted-time normalisation.

    Normalised layers start with W as four identity matrices, U orthogonal, biases and β at 0, and γ
    at 1, or at 0.1 over the batch.

    Note:
        The state is (h, c), with a third tensor if the next step needs more: the number of steps
        seen and, over the layer, the statistics of the last K − 1 of them at each N. With it,
        chunks and :meth:`step` give the same numbers as one run. Given (h, c) alone, the layer
        starts with an empty window, as the published code does at every segment of truncated
        backpropagation. Over the batch the third tensor only counts steps: in training, each call
        starts with an empty window.

        Gates are stacked in torch's order: input, forget, candidate, output. The papers stack them
        as forget, input, output, candidate.

    References:
        Long Short-Term Memory, Hochreiter, Schmidhuber, 1997.
        Layer Normalization, Ba, Kiros, Hinton, 2016.
        Recurrent Batch Normalization, Cooijmans, Ballas, Laurent, Gülçehre, Courville, 2017.
        Breaking Time Invariance: Assorted-Time Normalization for RNNs, Pospisil, Zadorozhnyy, Ye,
        2022.

    Arguments:
        input_size: The number I of features of the input.
        hidden_size: The number H of units.
        num_layers: The number of layers stacked.
        bias: Whether there are biases.
        batch_first: Whether input and output are (B, T, ·).
        dropout: Probability of dropout on the output of each layer but the last.
        bidirectional: Whether a second set of weights reads the sequence from its end.
        norm: None, ``"layer"``, ``"batch"`` or ``"atn"``.
        window: The number K of steps of ``"atn"``.
        over: What ``"atn"`` takes statistics over, ``"layer"`` or ``"batch"``.
        norm_cell: Whether cells are normalised; otherwise :math:`N_c` is the identity.
        affine: Whether the normalisations have γ and β; otherwise they are 1 and 0.
        bias_inside: Whether there are two biases inside of N as above, or one outside,
            :math:`N_h(W h) + N_x(U x) + b`, named ``bias_l0``.
        forget_bias: The initial value of the forget gate's bias. A normalisation would cancel a
            bias inside, so with one it is the initial :math:`\beta_h` or, without β, the bias
            outside. None leaves it as it is drawn.
        eps: The ε of all normalisations.
        max_steps: Over the batch, the number of time steps that have population statistics of their
            own; all later steps share those of the last.
        plain_state: Whether the state is always (h, c), for code that unpacks two tensors. The
            layer then keeps the third tensor itself, and uses it if the next call is given the
            state that this one returned, detached or not; with any other state the window starts
            empty. Traced code keeps nothing, and a call that goes on cannot be checkpointed.
        initializers: Functions that fill a tensor in place, or their names, under some of
            ``"weight_ih"``, ``"weight_hh"`` and ``"bias"``; see :class:`~cayley.RNN`.
        device, dtype: The device and dtype of the parameters.

    Shapes:
        As ``nn.LSTM``: input (T, B, I), ``hx`` two tensors (layers · directions, B, H) ↦ output
        (T, B, directions · H) and the last state, with the third tensor
        (layers · directions, B, S): S = 1 + 3 (2K − 1) for ``"atn"`` over the layer (2 in place of
        3 without :math:`N_c`), 1 over the batch.

    Example:
        >>> layer = LSTM(2, 60, norm="atn", window=25, batch_first=True)
        >>> output, (h_n, c_n, windows) = layer(torch.randn(5, 100, 2))
        >>> output.shape, h_n.shape
        (torch.Size([5, 100, 60]), torch.Size([1, 5, 60]))
        >>> output, _ = layer(torch.randn(5, 100, 2), (h_n, c_n))  # with an empty window
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
        norm: Literal["layer", "batch", "atn"] | None = None,
        window: int | None = None,
        over: Literal["layer", "batch"] = "layer",
        norm_cell: bool = True,
        affine: bool = True,
        bias_inside: bool = True,
        forget_bias: float | None = None,
        eps: float = 1e-5,
        max_steps: int = MAX_STEPS,
        plain_state: bool = False,
        initializers: Mapping[str, Initializer | str] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_norm(norm, window, over)
        check_number("LSTM", "eps", eps)
        check_integer("max_steps", max_steps)
        if norm is None and not affine:
            raise ValueError("affine=False needs a normalisation: expected norm, got None")
        if forget_bias is not None and (norm is None or not affine):
            if not bias:
                raise ValueError(
                    "forget_bias is the value of a bias: expected bias=True, got False"
                )
            if norm is not None and bias_inside:
                raise ValueError(
                    "forget_bias would be cancelled by the normalisation: expected affine=True or "
                    "bias_inside=False, got neither"
                )
        sites = 0 if norm is None else 2 + norm_cell
        over = "batch" if norm == "batch" else over
        K = window or 1
        extra = stream_size(sites, K, over)
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            state_sizes=(hidden_size, hidden_size, *([extra] if extra else [])),
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            streams=extra > 0,
            plain_state=plain_state,
        )
        self.norm = norm
        self.window = K
        self.over: Literal["layer", "batch"] = over
        self.norm_cell = norm is not None and norm_cell
        self.affine = affine
        self.bias_inside = bias_inside
        self.forget_bias = forget_bias
        self.eps = eps
        self.max_steps = max_steps
        self._initializers = named_initializers(initializers or {}, INITIALIZED)
        self.population = nn.ModuleDict()
        H = hidden_size
        for suffix, size, _ in self.suffixes():
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (4 * H, size)}
            shapes["weight_hh"] = (4 * H, H)
            if bias:
                two = norm is None or bias_inside
                shapes |= dict.fromkeys(("bias_ih", "bias_hh") if two else ("bias",), (4 * H,))
            for site, features in self._sites():
                if affine:
                    shapes |= {f"gamma_{site}": (features,), f"beta_{site}": (features,)}
                if over == "batch":
                    self.population[f"{site}_{suffix}"] = PopulationStatistics(
                        features, max_steps=max_steps, device=device, dtype=dtype
                    )
            for name, shape in shapes.items():
                parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
                self.register_parameter(f"{name}_{suffix}", parameter)
        self.reset_parameters()

    def _sites(self) -> list[tuple[str, int]]:
        """Name and number of features of each normalisation, in the order of the state."""
        H = self.hidden_size
        if self.norm is None:
            return []
        return [("ih", 4 * H), ("hh", 4 * H), *([("cell", H)] if self.norm_cell else [])]

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all parameters again, as when the layer was made; clear population statistics."""
        H = self.hidden_size
        for name, parameter in self.named_parameters(recurse=False):
            kind, _, suffix = name.partition("_l")
            shared = "bias" if kind.startswith("bias") else kind
            if shared in self._initializers:
                self._initializers[shared](parameter)
            elif self.norm is None:
                nn.init.uniform_(parameter, -(H**-0.5), H**-0.5)
            elif kind == "weight_ih":
                # there is no QR decomposition in half precision
                dtype = torch.promote_types(parameter.dtype, torch.float32)
                parameter.copy_(nn.init.orthogonal_(torch.empty_like(parameter, dtype=dtype)))
            elif kind == "weight_hh":
                parameter.copy_(torch.eye(H, device=parameter.device).repeat(4, 1))
            elif kind.startswith("gamma"):
                nn.init.constant_(parameter, 0.1 if self.over == "batch" else 1.0)
            else:
                nn.init.zeros_(parameter)
        if self.forget_bias is not None:
            for suffix, _, _ in self.suffixes():
                names = ("bias_ih", "bias_hh")
                if self.norm is not None:
                    names = ("beta_hh",) if self.affine else ("bias",)
                for name, value in zip(names, (self.forget_bias, 0.0), strict=False):
                    getattr(self, f"{name}_{suffix}")[H : 2 * H] = value
        for suffix, _, _ in self.suffixes():
            for site, _ in self._sites() if self.over == "batch" else []:
                self._population(site, suffix).reset()

    def run(
        self,
        suffix: str,
        x: Tensor,
        state: tuple[Tensor, ...] | None,
        batch_sizes: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One layer in one direction; see :meth:`Recurrent.run`."""
        weight = getattr(self, f"weight_ih_{suffix}")
        if reverse:
            x = reversed_sequences(x, batch_sizes)
        if self.norm is not None and weight.dtype not in PRECISIONS:
            raise TypeError(
                f"LSTM: expected parameters in float32 or float64 with norm={self.norm!r}, got "
                f"{weight.dtype}: keep them in float32 and use torch.autocast"
            )
        b_x, b_h, b = self._biases(suffix)
        x, U, b_x = projected_under_autocast(x, weight, b_x)
        with no_autocast(weight.device):
            B = x.shape[1] if batch_sizes is None else int(batch_sizes[0])
            if state is None:
                state = (weight.new_zeros(B, self.hidden_size),) * 2
            h0, c0, *extra = (tensor.to(weight.dtype) for tensor in state)
            names = [site for site, _ in self._sites()]
            stream = extra[0] if extra else None
            pool = None
            if self.over == "batch" and self.training:
                pool = find_pool(self._population("ih", suffix), x, batch_sizes)
            windows = StreamState(names, self.window, self.over, stream, x, batch_sizes, pool)
            sites = {site: self._site(site, suffix, windows) for site in names}
            if b is not None:
                hh = sites["hh"]
                sites["hh"] = NormSite(hh.gamma, hh.beta + b, hh.past, hh.given)
            states = lstm(
                x,
                h0,
                c0,
                getattr(self, f"weight_hh_{suffix}"),
                b_h,
                U=U,
                c=b_x,
                input=sites.get("ih"),
                recurrent=sites.get("hh"),
                cell=sites.get("cell"),
                window=self.window,
                over=self.over,
                eps=self.eps,
                batch_sizes=batch_sizes,
                pool=pool,
            )
            windows.take(ih=states.input, hh=states.recurrent, cell=states.cell)
            if self.over == "batch" and self.training:
                sequences = windows.examples if batch_sizes is None else batch_sizes
                for site, (mean, var) in windows.statistics(self.eps).items():
                    population = self._population(site, suffix)
                    try:
                        population.update(mean, var, sequences, windows.start())
                    except RuntimeError as error:
                        if not transforms_active():
                            raise
                        raise RuntimeError(
                            "a normalisation over the batch writes population statistics in "
                            "training, which a transform of torch.func, such as vmap or grad, "
                            "cannot do: pass the buffers to functional_call too, call "
                            "layer.eval(), or normalise over the layer"
                        ) from error
        h_n, c_n = (last_states(v, batch_sizes, False) for v in (states.h, states.c))
        y = reversed_sequences(states.h, batch_sizes) if reverse else states.h
        return y, (h_n, c_n, *windows.state())

    def _keeps_more(self) -> bool:
        """Always; but over the batch, steps are counted. See :meth:`Recurrent._keeps_more`."""
        return self.over != "batch"

    def advance(
        self, suffix: str, x: Tensor, state: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, ...]:
        """One step of one layer; see :meth:`Recurrent.advance`."""
        if self.norm is not None:
            return super().advance(suffix, x, state)
        weights = [getattr(self, f"{name}_{suffix}") for name in ("weight_ih", "weight_hh")]
        biases = ("bias_ih", "bias_hh") if self.bias else ()
        weights += [getattr(self, f"{name}_{suffix}") for name in biases]
        if state is None:
            state = (weights[0].new_zeros(x.shape[0], self.hidden_size),) * 2
        return torch.lstm_cell(x, state, *weights)

    def freeze(self) -> Self:
        """Keep all matrices and population statistics; see :meth:`Recurrent.freeze`."""
        super().freeze()
        for population in self.population.values():
            cast(PopulationStatistics, population).freeze()
        return self

    def _site(self, site: str, suffix: str, windows: StreamState) -> NormSite:
        if self.affine:
            gamma, beta = (getattr(self, f"{name}_{site}_{suffix}") for name in ("gamma", "beta"))
        else:
            features = dict(self._sites())[site]
            weight = getattr(self, f"weight_hh_{suffix}")
            gamma, beta = weight.new_ones(features), weight.new_zeros(features)
        if self.over == "layer":
            return NormSite(gamma, beta, past=windows.past.get(site))
        if self.training and windows.examples > 0:
            return NormSite(gamma, beta)
        return NormSite(gamma, beta, given=self._population(site, suffix)(windows.steps()))

    def _population(self, site: str, suffix: str) -> PopulationStatistics:
        return cast(PopulationStatistics, self.population[f"{site}_{suffix}"])

    def _biases(self, suffix: str) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The biases inside N_x and N_h, and the one outside; without N the first is their sum."""
        if not self.bias:
            return None, None, None
        if self.norm is not None and not self.bias_inside:
            return None, None, getattr(self, f"bias_{suffix}")
        b_x, b_h = (getattr(self, f"{name}_{suffix}") for name in ("bias_ih", "bias_hh"))
        return (b_x + b_h, None, None) if self.norm is None else (b_x, b_h, None)

    def extra_repr(self) -> str:
        """As ``nn.LSTM`` prints it, with the normalisation."""
        parts = [super().extra_repr()]
        if self.norm is not None:
            parts.append(f"norm={self.norm!r}")
            if self.norm == "atn":
                parts.append(f"window={self.window}, over={self.over!r}")
            if not self.norm_cell:
                parts.append("norm_cell=False")
            if not self.affine:
                parts.append("affine=False")
            if not self.bias_inside:
                parts.append("bias_inside=False")
            if self.eps != 1e-5:
                parts.append(f"eps={self.eps}")
            if self.max_steps != MAX_STEPS:
                parts.append(f"max_steps={self.max_steps}")
        if self.plain_state:
            parts.append("plain_state=True")
        if self.forget_bias is not None:
            parts.append(f"forget_bias={self.forget_bias}")
        return ", ".join(parts)


def check_norm(norm: str | None, window: int | None, over: str) -> None:
    """Raise unless the normalisation exists and has what it needs."""
    if norm not in NORMS:
        raise ValueError(f"expected norm to be one of {list(NORMS)}, got {norm!r}")
    check_over(over)
    if norm == "atn":
        if window is None:
            raise ValueError("norm='atn' needs the number of steps of its window: pass window=K")
        check_integer("window", window)
    elif window is not None or over != "layer":
        raise ValueError(
            f"window and over are settings of norm='atn', got window={window}, over={over!r} with "
            f"norm={norm!r}: leave them out, or use norm='atn'"
        )
