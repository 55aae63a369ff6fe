"""Jacobians of the states of a sequence layer with respect to its inputs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from cayley.checks import check_integer

__all__ = ["jacobian_heatmap", "jacobians"]


def jacobians(
    layer: nn.Module,
    x: Tensor,
    *,
    units: slice | Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
    rows: int = 4096,
) -> Tensor:
    r"""Jacobians :math:`\partial h_\tau / \partial x_t` of a sequence layer, for all t.

    Every row of a Jacobian is a vector–Jacobian product. Since examples do not depend on one
    another, as many of them as ``rows`` allows, also for several τ, form the batch of one backward
    pass.

    Arguments:
        layer: A module that returns its output first, such as every recurrent layer of this package
            and of ``torch.nn``. It is run in evaluation mode, without dropout.
        x: The input, (T, B, I), (B, T, I) with ``batch_first``, or (T, I).
        units: Which features of the output; None for all.
        steps: The τ, counted from 0; None for all.
        rows: The largest number of sequences in one pass.

    Returns:
        (S, T, B, U, I) for S steps and U units.

    Example:
        >>> import cayley
        >>> J = jacobians(cayley.ScoRNN(2, 8), torch.randn(5, 3, 2), steps=[4])
        >>> J.shape
        torch.Size([1, 5, 3, 8, 2])
    """
    return torch.cat([*_jacobians(layer, x, units, steps, rows)])


def jacobian_heatmap(
    layer: nn.Module,
    x: Tensor,
    *,
    units: slice | Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
    rows: int = 4096,
) -> Tensor:
    r"""Norms :math:`\|\partial h_\tau / \partial x_t\|_2`, the mean over the batch.

    Arguments are those of :func:`jacobians`; the Jacobians are not all kept in memory at once.

    References:
        Orthogonal Recurrent Neural Networks and Batch Normalization in Deep Neural Networks
        (dissertation), Helfrich, 2020, section 2.7.

    Returns:
        (S, T): a row for each τ, a column for each t.

    Example:
        A state does not depend on what comes later.

        >>> import cayley
        >>> norms = jacobian_heatmap(cayley.ENRNN(2, 6, 4), torch.randn(5, 3, 2), units=slice(6))
        >>> bool(norms.triu(1).any()), bool((norms.tril() > 0).any())
        (False, True)
    """
    found = _jacobians(layer, x, units, steps, rows)
    return torch.cat([torch.linalg.matrix_norm(J, 2).mean(-1) for J in found])


def _jacobians(
    layer: nn.Module,
    x: Tensor,
    units: slice | Sequence[int] | None,
    steps: Sequence[int] | None,
    rows: int,
) -> Iterator[Tensor]:
    """Jacobians of some steps after others, (·, T, B, U, I)."""
    check_integer("rows", rows)
    if not isinstance(x, Tensor) or x.dim() not in (2, 3):
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(
            f"expected sequences of one length, (T, B, I) or (T, I), got {got}: give packed "
            "sequences one by one"
        )
    batch_first = bool(getattr(layer, "batch_first", False))
    x = x.unsqueeze(1) if x.dim() == 2 else x.transpose(0, 1) if batch_first else x
    T, B, I = x.shape  # noqa: E741
    with _evaluation(layer):
        with torch.no_grad():
            F = _output(layer, x[:, :1], batch_first).shape[-1]
        chosen = torch.arange(F)[slice(None) if units is None else units]
        taus = torch.arange(T)[slice(None) if steps is None else [*steps]]
        pairs, U, waiting = torch.cartesian_prod(taus, chosen), len(chosen), x.new_empty(0, T, B, I)
        for part in pairs.split(max(1, rows // max(B, 1))):
            P = len(part)
            with torch.enable_grad():
                leaf = x.detach().repeat(1, P, 1).requires_grad_()
                h = _output(layer, leaf, batch_first).view(T, P, B, F)
                picked = h[part[:, 0], torch.arange(P), :, part[:, 1]]
                (J,) = torch.autograd.grad(picked.sum(), leaf)
            waiting = torch.cat((waiting, J.view(T, P, B, I).transpose(0, 1)))
            whole = len(waiting) // U
            ready, waiting = waiting.tensor_split([whole * U])
            yield ready.view(whole, U, T, B, I).permute(0, 2, 3, 1, 4)


def _output(layer: nn.Module, x: Tensor, batch_first: bool) -> Tensor:
    output = layer(x.transpose(0, 1) if batch_first else x)
    output = output[0] if isinstance(output, tuple) else output
    if not isinstance(output, Tensor) or output.dim() != 3:
        raise TypeError(
            "expected a layer that maps (T, B, I) to (T, B, H), such as every recurrent layer of "
            f"cayley and torch.nn, got {type(layer).__name__}"
        )
    return output.transpose(0, 1) if batch_first else output


@contextmanager
def _evaluation(module: nn.Module) -> Iterator[None]:
    """Context with every module in evaluation mode; their own modes are restored afterwards."""
    modes: Mapping[nn.Module, bool] = {one: one.training for one in module.modules()}
    module.eval()
    try:
        # cuDNN has no gradient for its recurrences in evaluation
        with torch.backends.cudnn.flags(enabled=False):
            yield
    finally:
        for one, mode in modes.items():
            one.training = mode
