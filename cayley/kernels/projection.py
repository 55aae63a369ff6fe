"""The contribution of the input to every step of a recurrence."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from cayley.kernels.steps import product_of_rows
from cayley.tracing import autocast_enabled

__all__ = [
    "check_projection",
    "project",
    "projected_under_autocast",
    "projection_gradients",
]


def project(x: Tensor, U: Tensor | None, c: Tensor | None) -> Tensor:
    """U x + c of all steps, as ``nn.functional.linear``, with a faster gradient; x without U.

    The gradient is faster on a CPU: U is transposed on the right of the product, so that its
    gradient has the wide factor on the right too, and the bias is one more column of U, so that its
    gradient needs no separate sum.

    Example:
        >>> x, U, c = torch.randn(5, 3, 2), torch.randn(8, 2), torch.randn(8)
        >>> torch.testing.assert_close(project(x, U, c), nn.functional.linear(x, U, c))
    """
    if U is None:
        return x
    if x.is_cuda:
        return nn.functional.linear(x, U, c)
    if c is not None:
        x, U = nn.functional.pad(x, (0, 1), value=1.0), torch.cat((U, c[:, None]), 1)
    return x @ U.mT.contiguous()


def projection_gradients(
    delta: Tensor, x: Tensor, U: Tensor | None, needed: Collection[str]
) -> dict[str, Tensor | None]:
    """Gradients with respect to x, U and c of :func:`project`, from that of its result.

    All of them may be those of several networks, with one more dimension in front.

    Arguments:
        delta: The gradient of the result, (T, B, F) or (N, F).
        x: The input, (T, B, I) or (N, I); not read without U.
        U: The matrix, (F, I), or None.
        needed: Which of the three are needed; the others are None.

    Example:
        >>> x, U, delta = torch.randn(5, 3, 2), torch.randn(8, 2), torch.randn(5, 3, 8)
        >>> found = projection_gradients(delta, x, U, ("x", "c"))
        >>> torch.testing.assert_close(found["c"], delta.sum((0, 1)))
        >>> found["U"] is None
        True
    """
    if U is None:
        return {"x": delta if "x" in needed else None}
    networks = U.dim() - 2
    rows = delta.flatten(networks, -2)
    return {
        "x": (rows @ U).view(*delta.shape[:-1], U.shape[-1]) if "x" in needed else None,
        "U": product_of_rows(rows, x.flatten(networks, -2)) if "U" in needed else None,
        "c": rows.sum(-2) if "c" in needed else None,
    }


def check_projection(x: Tensor, U: Tensor | None, c: Tensor | None, F: int) -> None:
    """Raise unless U and c map x to F features.

    Example:
        >>> check_projection(torch.zeros(5, 3, 2), torch.zeros(8, 2), None, 8)
    """
    if U is None:
        if c is not None:
            raise ValueError("expected c with U only, got U=None: add c to x")
    elif U.shape != (F, x.shape[-1]) or (c is not None and c.shape != (F,)):
        raise ValueError(
            f"expected U of shape ({F}, {x.shape[-1]}) and c of shape ({F},) or none, got "
            f"{tuple(U.shape)} and {None if c is None else tuple(c.shape)}"
        )


def projected_under_autocast(
    x: Tensor, U: Tensor, c: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """x, U and c for a recurrence; under autocast only the projected x, in autocast's precision.

    Example:
        >>> x, U = torch.randn(5, 3, 2), torch.randn(8, 2)
        >>> with torch.autocast("cpu"):
        ...     projected_under_autocast(x, U, None)[0].shape
        torch.Size([5, 3, 8])
    """
    if autocast_enabled(x.device):
        return project(x, U, c).to(U.dtype), None, None
    return x, U, c
