"""The runs of a model's recurrences, recorded during its passes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from cayley.kernels import observation
from cayley.kernels.calls import LstmCall, NormalizedElmanCall
from cayley.kernels.observation import observed
from cayley.kernels.steps import previous_states
from cayley.layers import NETWORKS
from cayley.layers.recurrent import Recurrent

__all__ = [
    "LayerRun",
    "Runs",
    "check_seen",
    "join",
    "previous_rows",
    "recurrent_layers",
    "single",
    "watched",
]


# calls of recurrences that only run forwards: their layers reverse the input
NORMALIZED = (LstmCall, NormalizedElmanCall)


@dataclass
class LayerRun:
    """One run of one recurrence of a layer, with copies of tensors that training overwrites.

    Attributes:
        name: The name of the layer and of the recurrence in it, such as ``"rnn.l0"``.
        operator: The operator that computes the recurrence.
        call: Its arguments, detached.
        states: Its results, detached.
        backend: The back end that it ran on.
        reverse: Whether the recurrence reads its input from the end.
        gradients: Those of a loss with respect to the states, without the effect through later
            steps; None before a backward pass. For an LSTM or a normalised RNN that reads from the
            end, they are in the order of the recurrence, as are call and states.
        unsorted_indices: The place of each sequence among packed ones, which are sorted by length,
            (B); None if they have the order in which the layer got them.
    """

    name: str
    operator: Any
    call: Any
    states: Any
    backend: str
    reverse: bool
    gradients: Any = None
    unsorted_indices: Tensor | None = None

    @property
    def is_turned(self) -> bool:
        """Whether time runs forwards here and backwards in the layer, which reverses its input."""
        return self.reverse and isinstance(self.call, NORMALIZED)


Runs = list[LayerRun]


def previous_rows(run: LayerRun) -> Tensor:
    """The row that each step starts from, among the initial states and all states, (N).

    For B sequences, row b < B is the initial state of sequence b, and row B + i the i-th row of h.
    """
    call, h = run.call, run.states.h
    B, N = len(call.h0), h.shape[:-1].numel()
    ids = torch.arange(B + N, device=h.device)
    of_h = ids[B:].view(*h.shape[:-1], 1)
    backwards = False if isinstance(call, NORMALIZED) else call.reverse
    return previous_states(of_h, ids[:B, None], call.batch_sizes, backwards).reshape(-1)


def join(prefix: str, name: str) -> str:
    """The full name of a name inside a module.

    Example:
        >>> join("", "l0"), join("rnn", "l0"), join("rnn", "")
        ('l0', 'rnn.l0', 'rnn')
    """
    return ".".join(part for part in (prefix, name) if part)


def recurrent_layers(model: nn.Module) -> dict[str, Recurrent]:
    """The recurrent layers of this package in a model, by name; the model may be one itself.

    Example:
        >>> import cayley
        >>> [*recurrent_layers(nn.ModuleDict({"rnn": cayley.ScoRNN(2, 8)}))]
        ['rnn']
    """
    found = {name: one for name, one in model.named_modules() if isinstance(one, Recurrent)}
    if not found:
        others = [one for one in model.modules() if isinstance(one, nn.RNNBase)]
        kinds = sorted({type(one).__name__ for one in others}) or [type(model).__name__]
        also = ""
        if others:
            also = "; cayley.RNN and cayley.LSTM load the state_dict of nn.RNN and nn.LSTM"
        raise TypeError(
            f"expected a model with a recurrent layer of {sorted(NETWORKS)}, got none, but "
            f"{', '.join(kinds)}{also}"
        )
    return found


@contextmanager
def watched(model: nn.Module) -> Iterator[Runs]:
    """Context that records the runs of a model's recurrences, and the gradients that reach them.

    A run is complete after its backward pass, which may come after the context. The model's numbers
    do not change. Runs keep their states in memory, so drop them when they are no longer needed.

    Arguments:
        model: A model with recurrent layers of this package, called in eager mode.

    Example:
        >>> import cayley
        >>> layer = cayley.ScoRNN(2, 8)
        >>> with watched(layer) as runs:
        ...     layer(torch.randn(5, 3, 2))[0].sum().backward()
        >>> runs[0].name, runs[0].gradients.h.shape
        ('l0', torch.Size([5, 3, 8]))
    """
    runs: Runs = []
    layers = recurrent_layers(model)
    handles = []
    for name, layer in layers.items():
        watch = _Watch(name, layer, runs)
        handles.append(layer.register_forward_pre_hook(watch.begin, with_kwargs=True))
        handles.append(layer.register_forward_hook(watch.end, always_call=True))
    try:
        yield runs
    finally:
        for handle in handles:
            handle.remove()


class _Watch:
    """The hooks of one layer: between them its recurrences run one after another."""

    def __init__(self, name: str, layer: Recurrent, runs: Runs) -> None:
        self.name, self.layer, self.runs = name, layer, runs
        self.contexts: list[ExitStack] = []

    @torch._disable_dynamo
    def begin(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        suffixes = self.layer.suffixes()
        input = args[0] if args else kwargs["input"]
        order = input.unsorted_indices if isinstance(input, PackedSequence) else None

        def look(run: observation.Run) -> None:
            suffix, _, reverse = next(suffixes)
            kept = _kept(run, join(self.name, suffix), reverse)
            kept.unsorted_indices = order
            self.runs.append(kept)

        context = ExitStack()
        context.enter_context(observed(look))
        self.contexts.append(context)

    @torch._disable_dynamo
    def end(self, layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.contexts.pop().close()


def _kept(run: observation.Run, name: str, reverse: bool) -> LayerRun:
    """A run with copies of its own; a backward pass fills in its gradients."""
    operator, call, states, backend = run
    # states and x are new tensors already; parameters are copied, since optimizers overwrite them
    copied = _mapped(call, torch.clone)._replace(x=call.x.detach())
    kept = LayerRun(name, operator, copied, _mapped(states), backend, reverse)
    node = states[0].grad_fn
    if node is not None:
        gradients = operator.gradients

        def arrive(grads: tuple[Tensor | None, ...]) -> None:
            # empty tensors, which stand for missing ones, may get a gradient too
            found = (None if g is None or g.shape == (0,) else g.detach() for g in grads)
            kept.gradients = gradients(*found)

        node.register_prehook(arrive)
    return kept


def _mapped(record: Any, function: Callable[[Tensor], Tensor] | None = None) -> Any:
    """A record, and those in it, with its tensors detached and mapped."""

    def apply(value: Any) -> Any:
        if isinstance(value, Tensor):
            value = value.detach()
            return value if function is None else function(value)
        return _mapped(value, function) if isinstance(value, tuple) else value

    return type(record)(*(apply(value) for value in record))


def check_seen(runs: Runs) -> None:
    """Raise unless there were runs."""
    if not runs:
        raise ValueError(
            "expected a function that runs the recurrent layers of the model, but none was seen to "
            "run: call the model itself, without torch.compile, whose code does not call hooks"
        )


def single(runs: Runs) -> Mapping[str, LayerRun]:
    """The runs by name; raise if a layer ran more than once."""
    found = {run.name: run for run in runs}
    if len(found) < len(runs):
        names = [run.name for run in runs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"expected one forward pass of each layer, got {names.count(twice)} of {twice!r}: "
            "use cayley.diagnostics.watched, which keeps every run"
        )
    return found
