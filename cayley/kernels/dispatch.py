"""Which back end runs a recurrence: the loop that defines it, or a kernel of the device."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from cayley.notices import warn_once

__all__ = ["BACKENDS", "backend", "backend_in_force", "runs_on"]

BACKENDS = ("auto", "reference", "cpu", "cuda")

_in_force = "auto"


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Context in which recurrences run on one back end.

    Every back end computes the same recurrence; they differ in speed, and in the last bits. A
    gradient is computed by the back end of its forward pass. The choice is for the whole process.

    Arguments:
        name: ``"auto"`` for the kernel of the tensors' device, and the loop where the kernel cannot
            serve a call, which is said once for each reason; ``"reference"`` for the loop;
            ``"cpu"`` or ``"cuda"`` for the kernel or an error.

    Example:
        >>> import torch, cayley
        >>> layer, x = cayley.ScoRNN(2, 8), torch.randn(5, 3, 2)
        >>> with cayley.backend("reference"):
        ...     h, _ = layer(x)
        >>> torch.testing.assert_close(layer(x)[0], h)
    """
    global _in_force
    if name not in BACKENDS:
        raise ValueError(f"expected a back end of {BACKENDS}, got {name!r}")
    before, _in_force = _in_force, name
    try:
        yield
    finally:
        _in_force = before


def backend_in_force() -> str:
    """The name given to :func:`backend`, ``"auto"`` outside of it."""
    return _in_force


def runs_on(kernel: str, backend: str, x: Tensor, refusal: str | None) -> bool:
    """Whether the kernel runs a call, rather than the loop.

    Arguments:
        kernel: The device of the kernel, or ``"reference"`` where the device of x has none.
        backend: The choice that was in force when the recurrence was called.
        x: An input of the call.
        refusal: Why the kernel cannot serve this call; None if it can.
    """
    if backend == "reference":
        return False
    if backend not in ("auto", kernel):
        raise ValueError(
            f"expected tensors on the device of back end {backend!r}, got {x.device}: move them, "
            'or use cayley.backend("auto")'
        )
    if refusal is None:
        return True
    if backend == kernel:
        raise NotImplementedError(
            f'back end {kernel!r} cannot run this: {refusal}. cayley.backend("auto") falls back to '
            "the loop"
        )
    warn_once(
        f"a recurrence runs as a loop of torch operations, not on the {kernel} kernel: {refusal}",
        key=refusal,
    )
    return False
