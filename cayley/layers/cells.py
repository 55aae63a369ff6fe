"""Cells: one step of each network, with the contract of ``nn.RNNCell`` or ``nn.LSTMCell``."""

from collections import OrderedDict
from inspect import signature
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from cayley.layers.elman import RNN
from cayley.layers.enrnn import ENRNN
from cayley.layers.gru import NCGRU
from cayley.layers.lstm import LSTM
from cayley.layers.networks import (
    EURNN,
    ORNN,
    URNN,
    ExpRNN,
    FullURNN,
    ScoRNN,
    ScuRNN,
    SpectralRNN,
)
from cayley.layers.recurrent import Recurrent, State

__all__ = [
    "Cell",
    "ENRNNCell",
    "EURNNCell",
    "ExpRNNCell",
    "FullURNNCell",
    "LSTMCell",
    "NCGRUCell",
    "ORNNCell",
    "RNNCell",
    "ScoRNNCell",
    "ScuRNNCell",
    "SpectralRNNCell",
    "URNNCell",
    "make_cell",
]

Network = TypeVar("Network", bound=Recurrent)

# options that only make sense for layers over sequences, with the values that a cell stands for
SEQUENTIAL = {"num_layers": 1, "batch_first": False, "dropout": 0.0, "bidirectional": False}

# where a module holds the hooks around a call
HOOKS = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    *("_backward_hooks", "_backward_pre_hooks"),
)


class Cell(Recurrent):
    """One step of a network of one layer, with the parameters and the ``state_dict`` of that layer.

    :func:`make_cell` combines this class with a network.
    """

    network: ClassVar[type[Recurrent]]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        network = self.network
        names = [*signature(network.__init__).parameters][1:]
        sizes = names.index("num_layers")
        # the order of nn.RNNCell
        given = dict(zip(("bias", "nonlinearity"), arguments[sizes:], strict=False))
        if len(arguments) > sizes + 2 or given.keys() & options.keys():
            raise TypeError(
                f"{type(self).__name__}: expected {', '.join(names[:sizes])}, then bias, and "
                f"everything else by name, got {arguments} and {options}"
            )
        if options.get("plain_state"):
            raise TypeError(
                f"{type(self).__name__} returns its whole state: use cayley.{network.__name__} for "
                "plain_state"
            )
        for name, value in SEQUENTIAL.items():
            if options.pop(name, value) != value:
                raise TypeError(
                    f"{type(self).__name__} is one step of one layer, and has no {name}: use "
                    f"cayley.{network.__name__}"
                )
        super().__init__(*arguments[:sizes], **given, **options)

    @classmethod
    def of(cls, layer: Recurrent) -> Self:
        """The cell of a layer; the two share their parameters.

        Arguments:
            layer: A layer of this cell's network, with ``num_layers=1`` and one direction.
        """
        network = cls.network
        if type(layer) not in (network, cls) or layer.num_layers * layer.num_directions != 1:
            raise TypeError(
                f"expected a cayley.{network.__name__} of one layer and one direction, got "
                f"{type(layer).__name__}({layer.extra_repr()})"
            )
        if computed := [name for name in layer._parameters if name.endswith("_orig")]:
            raise TypeError(
                f"expected a layer whose weights are its parameters, got {computed}, from which "
                "they are computed by pruning: end that first, with torch.nn.utils.prune.remove"
            )
        cell = cls.__new__(cls)
        # parameters, buffers and modules are held in dictionaries, which both now share
        cell.__dict__.update(layer.__dict__)
        # but a hook of the layer expects its results, not those of a step
        cell.__dict__.update((name, OrderedDict()) for name in HOOKS if name in layer.__dict__)
        return cell

    # pyrefly: ignore[bad-override]
    def forward(self, input: Tensor, hx: State | None = None) -> State:
        """One step.

        Arguments:
            input: (B, I), or (I) without a batch.
            hx: The state, (B, H), or (H) without a batch; a tuple of such tensors where the
                network's state is one. None for zeros, or the trained state.

        Returns:
            The state after the step, shaped as ``hx``.
        """
        if not isinstance(input, Tensor) or input.dim() not in (1, 2):
            got = f"{input.dim()} dimensions" if isinstance(input, Tensor) else repr(type(input))
            raise ValueError(
                f"{type(self).__name__}: Expected input to be 1D or 2D, the input of one step, (I) "
                f"or (B, I), got {got}"
            )
        if (
            self._is_lean
            and isinstance(hx, Tensor)
            and hx.dim() == 2
            and not torch.is_grad_enabled()
        ):
            found = self.lean_step(input, hx)
            if found is not None:
                return found[1]
        unbatched = input.dim() == 1
        x = input.unsqueeze(0) if unbatched else input
        self._check_input(x, rank=2)
        if hx is not None:
            tensors = (hx,) if isinstance(hx, Tensor) else tuple(hx)
            if wrong := [h.dim() for h in tensors if h.dim() != input.dim()]:
                raise ValueError(
                    f"{type(self).__name__}: expected a state of {input.dim()} dimensions, as the "
                    f"input has, got {wrong[0]}"
                )
            for h, size in zip(tensors, self.state_sizes, strict=False):
                if h.shape != (shape := (*input.shape[:-1], size)):
                    raise RuntimeError(
                        f"{type(self).__name__}: expected hidden size {shape}, got {tuple(h.shape)}"
                    )
            hx = tuple(h.unsqueeze(0) for h in tensors)
        states = self._split(hx, x.shape[0], unbatched)
        if self._needs_kernel():
            _, (state,) = self._layers(x.unsqueeze(0), states, None)
        else:
            state = self.advance("l0", x, None if states is None else states[0])
        if unbatched:
            state = tuple(h[0] for h in state)
        return state[0] if len(state) == 1 else state

    # pyrefly: ignore[bad-override]
    plain_forward = forward

    def step(self, x_t: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """The output of a step and the state after it; a call returns the state alone."""
        after: State = self(x_t, state)
        return after if isinstance(after, Tensor) else after[0], after


def make_cell(network: type[Network]) -> type[Network]:
    """The cell class of a network: it takes the network's arguments, and a call is one step.

    Example:
        >>> import torch
        >>> cell = make_cell(ScoRNN)(3, 8)
        >>> h = torch.zeros(5, 8)
        >>> for x_t in torch.randn(10, 5, 3):
        ...     h = cell(x_t, h)
        >>> h.shape
        torch.Size([5, 8])
    """
    name = network.__name__
    of_torch = "LSTMCell" if network is LSTM else "RNNCell"
    doc = f"""One step of :class:`~cayley.{name}`, with the contract of ``nn.{of_torch}``.

    ``cell(input, hx)`` gives the state after the step. Parameters and ``state_dict`` are those of a
    :class:`~cayley.{name}` of one layer: either loads what the other has saved, and
    ``{name}Cell.of(layer)`` shares them. In training every call forms W again: put a loop of steps
    inside ``with cell.held():``, and call ``cell.freeze()`` for evaluation.

    Arguments:
        arguments: The sizes that :class:`~cayley.{name}` takes, then ``bias``.
        options: Its keyword arguments, except those about sequences: ``num_layers``,
            ``batch_first``, ``dropout``, ``bidirectional``.

    Shapes:
        input (B, I), ``hx`` (B, H) ↦ (B, H), all without B for one sequence; a state of several
        tensors is a tuple of them.
    """
    members = {"__doc__": doc, "__module__": __name__, "network": network}
    return type(f"{name}Cell", (Cell, network), members)


ENRNNCell = make_cell(ENRNN)
EURNNCell = make_cell(EURNN)
ExpRNNCell = make_cell(ExpRNN)
FullURNNCell = make_cell(FullURNN)
LSTMCell = make_cell(LSTM)
NCGRUCell = make_cell(NCGRU)
ORNNCell = make_cell(ORNN)
RNNCell = make_cell(RNN)
ScoRNNCell = make_cell(ScoRNN)
ScuRNNCell = make_cell(ScuRNN)
SpectralRNNCell = make_cell(SpectralRNN)
URNNCell = make_cell(URNN)
