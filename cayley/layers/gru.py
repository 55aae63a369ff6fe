"""The gated recurrent layer with orthogonal gates (NC-GRU)."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from cayley.activations import ACTIVATIONS
from cayley.initializers import Initializer
from cayley.kernels.projection import projected_under_autocast
from cayley.kernels.steps import last_states, transposed
from cayley.layers.options import named_initializers
from cayley.layers.recurrent import Recurrent
from cayley.parametrizations.cayley import ScaledCayley
from cayley.parametrizations.gates import GATES, GateMatrices
from cayley.parametrizations.neumann import NeumannCayley
from cayley.parametrizations.orthogonal import make_map
from cayley.parametrizations.parametrization import PRECISIONS, full_precision
from cayley.parametrizations.rebase_option import Rebase
from cayley.parametrizations.structured import StructuredMatrix
from cayley.recurrences.gru import gru
from cayley.tracing import no_autocast

__all__ = ["NCGRU"]


class NCGRU(Recurrent):
    r"""Gated recurrent unit with orthogonal matrices by Neumann series (NC-GRU).

    .. math::
        r_t &= \sigma(W_r x_t + U_r h_{t-1} + b_r), \qquad
        u_t = \sigma(W_u x_t + U_u h_{t-1} + b_u), \\
        c_t &= \mathrm{modReLU}_b(W_c x_t + U_c (r_t \odot h_{t-1})), \\
        h_t &= (1 - u_t) \odot h_{t-1} + u_t \odot c_t

    It equals, for one layer and one direction::

        U_r, U_u, U_c = layer.weight_hh_l0.chunk(3)           # formed once
        b_r, b_u, b = layer.bias_l0.chunk(3)
        for x_t in input:
            x_r, x_u, x_c = (x_t @ layer.weight_ih_l0.T).chunk(3, -1)
            r = sigmoid(x_r + h @ U_r.T + b_r)
            u = sigmoid(x_u + h @ U_u.T + b_u)
            c = modrelu(x_c + (r * h) @ U_c.T, b)
            h = (1 - u) * h + u * c

    with ``tanh(… + b)`` instead of modReLU for ``nonlinearity="tanh"``. The orthogonal matrices are
    :math:`(I + A)^{-1} (I - A) D` with an inverse that is updated by Neumann series as A changes,
    see :class:`~cayley.parametrizations.NeumannCayley`; ``order=None`` computes it exactly and
    gives the same network. ``structured.weight_hh_l0`` holds their free tensors and the free
    matrices (``reset_A``, ``update``, ``candidate_A``). ``layer.weight_hh_l0`` reads all three
    matrices, (3n, n), and assigning to it sets them.

    Call :meth:`refresh_` at the beginning of every epoch to compute the inverses from scratch, as
    the paper does; without it, that happens when their measured error is too large.

    Note:
        u = 1 takes the candidate, as in the reference. ``nn.GRU`` has the gate z = 1 − u, which is
        this one with negated weights, and :math:`r \odot (U_c h)` where this layer has
        :math:`U_c (r \odot h)`. So the weights of an ``nn.GRU`` give the same numbers here only if
        r is 1, or if :math:`U_c` is diagonal and has no bias of its own. There is one bias for
        each gate: the threshold b replaces :math:`b_c`.

        The paper does not give the initial values of the other parameters. They are those of
        ``nn.GRU``, :math:`U(-1/\sqrt n, 1/\sqrt n)`, and b = 0.

        The recurrence runs in float32 or float64 even under autocast, which applies to the product
        with the input only.

    References:
        Orthogonal Gated Recurrent Unit with Neumann-Cayley Transformation, Mucllari,
        Zadorozhnyy, Pospisil, Nguyen, Ye, 2022.

    Arguments:
        input_size: The number m of features of the input.
        hidden_size: The number n of units.
        num_layers: The number of layers stacked.
        bias: Whether there are biases (and a threshold).
        batch_first: Whether input and output are (B, T, ·).
        dropout: Probability of dropout on the output of each layer but the last.
        bidirectional: Whether a second set of weights reads the sequence from its end.
        orthogonal: Which matrices are orthogonal: any of ``"reset"``, ``"update"`` and
            ``"candidate"``. The paper leaves that of the update gate free; the other choices are
            its ablation study.
        order: The order of the Neumann series; None for the exact inverse.
        negative_ones: How many entries of D are −1, the last ones. None for n // 2, or for none of
            them with ``rebase``.
        tolerance: The residual above which an inverse is computed from scratch; None for what the
            precision allows, see :class:`~cayley.parametrizations.NeumannCayley`.
        refresh_every: After how many updates an inverse is computed from scratch in any case.
        refine: Whether the matrices from Neumann series are moved to the nearest orthogonal ones,
            which the paper does not do.
        rebase: See :class:`~cayley.ScoRNN`.
        nonlinearity: The nonlinearity of the candidate: ``"modrelu"`` or ``"tanh"``.
        trainable_h0: Whether the state that is used when no ``hx`` is given is a parameter,
            ``h0_l0``; otherwise it is 0.
        initializers: Functions that fill a tensor in place, or their names, under some of
            ``"weight_ih"``, ``"bias"``, ``"h0"`` and, where no matrix is orthogonal,
            ``"weight_hh"``; see :class:`~cayley.RNN`.
        device, dtype: The device and dtype of the parameters.

    Shapes:
        As ``nn.GRU``: input (T, B, m), ``hx`` (layers · directions, B, n) ↦ output
        (T, B, directions · n), ``h_n`` (layers · directions, B, n).

    Example:
        >>> layer = NCGRU(10, 118, negative_ones=50)
        >>> output, h_n = layer(torch.randn(100, 32, 10))
        >>> output.shape, sum(p.numel() for p in layer.parameters())
        (torch.Size([100, 32, 118]), 31624)
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
        orthogonal: Sequence[str] = ("reset", "candidate"),
        order: int | None = 2,
        negative_ones: int | None = None,
        tolerance: float | None = None,
        refresh_every: int | None = None,
        refine: bool = True,
        rebase: Rebase | None = None,
        nonlinearity: str = "modrelu",
        trainable_h0: bool = False,
        initializers: Mapping[str, Initializer | str] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            state_sizes=(hidden_size,),
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            trainable_h0=trainable_h0,
        )
        check_orthogonal_gates(orthogonal)
        if nonlinearity not in ("modrelu", "tanh"):
            raise ValueError(
                f'expected the nonlinearity to be "modrelu" or "tanh", got {nonlinearity!r}'
            )
        self.orthogonal = tuple(gate for gate in GATES if gate in orthogonal)
        names = ("weight_ih", "bias", "h0", *(() if self.orthogonal else ("weight_hh",)))
        self._initializers = named_initializers(initializers or {}, names)
        self.order = order
        self.nonlinearity = nonlinearity
        n = hidden_size
        self.refine = refine
        unused: dict[str, object] = {}
        if order is None or not self.orthogonal:
            unused |= {"tolerance": tolerance, "refresh_every": refresh_every}
            unused["refine"] = None if refine else False
        if not self.orthogonal:
            unused |= {"negative_ones": negative_ones, "rebase": rebase}
        for name, value in unused.items():
            if value is not None:
                why = "the inverse is exact" if self.orthogonal else "no matrix is orthogonal"
                default = True if name == "refine" else None
                raise ValueError(f"expected {name}={default} where {why}, got {value}")
        if order is None:
            make = partial(ScaledCayley, negative_ones=negative_ones, rebase=rebase)
        else:
            make = partial(
                NeumannCayley,
                order=order,
                negative_ones=negative_ones,
                tolerance=tolerance,
                refresh_every=refresh_every,
                refine=refine,
                rebase=rebase,
            )
        template = make_map(make, n, device)
        for suffix, size, _ in self.suffixes():
            shapes: dict[str, tuple[int, ...]] = {"weight_ih": (3 * n, size)}
            if self.orthogonal:
                self.structured[f"weight_hh_{suffix}"] = StructuredMatrix(
                    GateMatrices(n, dict.fromkeys(self.orthogonal, template)),
                    device=device,
                    dtype=dtype,
                )
            else:
                shapes["weight_hh"] = (3 * n, n)
            if bias:
                shapes["bias"] = (3 * n,)
            if trainable_h0:
                shapes["h0"] = (n,)
            for name, shape in shapes.items():
                parameter = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
                self.register_parameter(f"{name}_{suffix}", parameter)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all parameters again, as when the layer was made."""
        bound = self.hidden_size**-0.5
        for name, parameter in self.named_parameters(recurse=False):
            kind = name.partition("_l")[0]
            if kind in self._initializers:
                self._initializers[kind](parameter)
                continue
            if kind == "h0":
                parameter.zero_()
                continue
            parameter.uniform_(-bound, bound)
            if name.startswith("bias") and self.nonlinearity == "modrelu":
                parameter[2 * self.hidden_size :].zero_()
        for matrix in self.matrices():
            matrix.reset_parameters()

    def refresh_(self) -> None:
        """Have the next forward pass in training compute the inverses by factorisation.

        With ``order=None`` every pass does.
        """
        for module in self.modules():
            if isinstance(module, NeumannCayley):
                module.refresh_()

    def run(
        self,
        suffix: str,
        x: Tensor,
        state: tuple[Tensor, ...] | None,
        batch_sizes: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, tuple[Tensor]]:
        """One layer in one direction; see :meth:`Recurrent.run`."""
        weight = getattr(self, f"weight_ih_{suffix}")
        additive, threshold = self._biases(suffix)
        x, U, c = projected_under_autocast(x, weight, additive)
        with full_precision(weight) if self.orthogonal else no_autocast(weight.device):
            W = self.recurrent_matrix(suffix)
            B = x.shape[1] if batch_sizes is None else int(batch_sizes[0])
            h = gru(
                x,
                self.initial_state(suffix, B) if state is None else state[0].to(W.dtype),
                W,
                threshold,
                U=U,
                c=c,
                batch_sizes=batch_sizes,
                reverse=reverse,
            )
        return h, (last_states(h, batch_sizes, reverse),)

    def advance(
        self, suffix: str, x: Tensor, state: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, ...]:
        """One step of one layer; see :meth:`Recurrent.advance`."""
        weight, n = getattr(self, f"weight_ih_{suffix}"), self.hidden_size
        if self.orthogonal and weight.dtype not in PRECISIONS:
            return super().advance(suffix, x, state)
        additive, b = self._biases(suffix)
        h = self.initial_state(suffix, x.shape[0]) if state is None else state[0]
        Wt = transposed(self.recurrent_matrix(suffix), x.shape[0])
        x_gates, x_c = nn.functional.linear(x, weight, additive).split((2 * n, n), -1)
        r, u = torch.addmm(x_gates, h, Wt[:, : 2 * n]).sigmoid().chunk(2, -1)
        activation = ACTIVATIONS["tanh" if b is None else "modrelu"]
        c = activation.apply(torch.addmm(x_c, r * h, Wt[:, 2 * n :]), b)
        return (torch.lerp(h, c, u),)

    def _biases(self, suffix: str) -> tuple[Tensor | None, Tensor | None]:
        """The bias to add to the product with the input, and the threshold of modReLU."""
        n = self.hidden_size
        zeros = getattr(self, f"weight_ih_{suffix}").new_zeros(n)
        modrelu = self.nonlinearity == "modrelu"
        if not self.bias:
            return None, zeros if modrelu else None
        bias = getattr(self, f"bias_{suffix}")
        if not modrelu:
            return bias, None
        return torch.cat((bias[: 2 * n], zeros)), bias[2 * n :]

    def extra_repr(self) -> str:
        """As ``nn.GRU`` prints it, with what is orthogonal and how."""
        parts = [super().extra_repr(), f"orthogonal={self.orthogonal}"]
        if self.orthogonal:
            parts.append(f"order={self.order}")
        if not self.refine:
            parts.append("refine=False")
        if self.nonlinearity != "modrelu":
            parts.append(f"nonlinearity={self.nonlinearity!r}")
        return ", ".join(parts)


def check_orthogonal_gates(orthogonal: Sequence[str]) -> None:
    """Raise unless every name is that of a gate."""
    listed = isinstance(orthogonal, Collection) and not isinstance(orthogonal, str)
    if not listed or not all(gate in GATES for gate in orthogonal):
        raise ValueError(
            f"expected orthogonal to hold some of {GATES}, as a tuple, got {orthogonal!r}"
        )
