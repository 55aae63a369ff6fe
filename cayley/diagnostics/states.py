"""Norms and moments of states, before and after normalisation, and values that are not finite."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cayley.diagnostics.normalisations import recurrent_products, standardize
from cayley.diagnostics.runs import LayerRun, check_seen, join, single, watched
from cayley.kernels.calls import LstmCall, NormalizedElmanCall
from cayley.norms.layouts import padded, reversed_sequences, step_mask

__all__ = [
    "Moments",
    "count_nonfinite",
    "first_nonfinite",
    "hidden_statistics",
    "moments",
    "nonfinite_counts",
    "run_statistics",
]


class Moments(NamedTuple):
    """Mean, population variance and Euclidean norm over the units, (T, B) each.

    NaN stands for steps that a shorter sequence does not have.
    """

    mean: Tensor
    variance: Tensor
    norm: Tensor


@torch.no_grad()
def moments(values: Tensor, batch_sizes: Tensor | None = None) -> Moments:
    """The moments of every step of every sequence, over the units.

    Arguments:
        values: (T, B, F); with ``batch_sizes``, packed steps, (N, F).
        batch_sizes: The batch sizes of packed sequences, (T), on the CPU.

    Example:
        >>> moments(torch.tensor([[[3.0, 5.0]]]))
        Moments(mean=tensor([[4.]]), variance=tensor([[1.]]), norm=tensor([[5.8310]]))
    """
    found = torch.stack(
        (values.mean(-1), values.var(-1, correction=0), torch.linalg.vector_norm(values, dim=-1)),
        -1,
    )
    if batch_sizes is not None:
        rows = step_mask(batch_sizes, values.device)
        found = padded(found, rows).where(rows[..., None], torch.nan)
    return Moments(*found.unbind(-1))


def hidden_statistics(model: nn.Module, forward: Callable[[], object]) -> dict[str, Moments]:
    r"""Norms and moments of all states of a forward pass, before and after normalisation.

    For every recurrence there is ``"h"``; for an LSTM also ``"c"``; with a normalisation also
    ``"input.before"`` and ``"input.after"`` for the input's contribution, and the same for
    ``"recurrent"``, :math:`W h_{t-1} + b`, and ``"cell"``, all before γ and β.

    References:
        Normalization Techniques for Sequential and Graphical Data (dissertation), Pospisil, 2023,
        figures 3.9 to 3.11.

    Arguments:
        model: A model with recurrent layers of this package.
        forward: Runs the model; its result is ignored. A pass in training mode has its usual side
            effects.

    Returns:
        By name, such as ``"rnn.l0.h"``. Steps are in the order of the input, and so are packed
        sequences, before they were sorted.

    Example:
        >>> import cayley
        >>> layer, x = cayley.LSTM(2, 8, norm="layer"), torch.randn(5, 3, 2)
        >>> found = hidden_statistics(layer, lambda: layer(x))
        >>> [*found]  # doctest: +ELLIPSIS
        ['l0.h', 'l0.c', 'l0.input.before', 'l0.input.after', 'l0.recurrent.before', ...]
        >>> bool((found["l0.input.after"].mean.abs() < 1e-5).all())
        True
    """
    with watched(model) as runs, torch.no_grad():
        forward()
    check_seen(runs)
    found = {}
    for name, run in single(runs).items():
        found |= {join(name, key): value for key, value in run_statistics(run).items()}
    return found


@torch.no_grad()
def run_statistics(run: LayerRun) -> dict[str, Moments]:
    """The norms and moments of one run; see :func:`hidden_statistics`."""
    call, states, sizes = run.call, run.states, run.call.batch_sizes
    values = {"h": states.h}
    sources: dict[str, Callable[[], Tensor]] = {}
    if isinstance(call, (LstmCall, NormalizedElmanCall)):
        sources = {"input": lambda: call.x, "recurrent": lambda: recurrent_products(run)}
    if isinstance(call, LstmCall):
        values["c"] = states.c
        sources["cell"] = lambda: states.c
    for name, source in sources.items():
        site = getattr(call, name)
        if site is not None:
            values[f"{name}.before"] = a = source()
            values[f"{name}.after"] = standardize(site, a, getattr(states, name), call)
    if run.is_turned:
        values = {name: reversed_sequences(value, sizes) for name, value in values.items()}
    found = {name: moments(value, sizes) for name, value in values.items()}
    if (order := run.unsorted_indices) is not None:
        found = {name: Moments(*(one[:, order] for one in own)) for name, own in found.items()}
    return found


def count_nonfinite(values: Tensor) -> Tensor:
    """How many values are inf or NaN, int64, ().

    Example:
        >>> count_nonfinite(torch.tensor([1.0, torch.nan, -torch.inf]))
        tensor(2)
    """
    return (~values.detach().isfinite()).sum()


def nonfinite_counts(model: nn.Module) -> dict[str, Tensor]:
    """How many values of each parameter and of each existing gradient are inf or NaN.

    Returns:
        The counts under the parameter's name, and under that name with ``".grad"`` appended.

    Example:
        >>> nonfinite_counts(nn.Linear(2, 1))
        {'weight': tensor(0), 'bias': tensor(0)}
    """
    found = {}
    for name, parameter in model.named_parameters():
        found[name] = count_nonfinite(parameter)
        if parameter.grad is not None:
            found[f"{name}.grad"] = count_nonfinite(parameter.grad)
    return found


def first_nonfinite(steps: Tensor | Iterable[Tensor]) -> Tensor:
    """The first step with a value that is inf or NaN, −1 if there is none, int64, ().

    Arguments:
        steps: The values of every step, (T, ...), or one tensor per step.

    Example:
        >>> first_nonfinite(torch.tensor([1.0, 2.0, torch.inf, torch.nan]))
        tensor(2)
    """
    bad = torch.stack([count_nonfinite(step) > 0 for step in steps])
    return torch.where(bad.any(), bad.int().argmax(), -1)
