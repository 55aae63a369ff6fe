"""What runs a call: a kernel of the device, or the torch operations that define it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cayley.notices import warn_once

__all__ = [
    "BACKENDS",
    "backend",
    "backend_in_force",
    "decomposing",
    "is_decomposing",
    "use_kernel",
]

BACKENDS = ("auto", "reference", "cpu", "cuda")


class _Choice(threading.local):
    """The back end that a thread has chosen.

    A :class:`~contextvars.ContextVar` would be that of a task, too, but torch.compile cannot read
    one; it reads an attribute of a thread, and compiles anew where that has changed.
    """

    def __init__(self) -> None:
        self.backend = "auto"
        self.decomposing = False


_choice = _Choice()


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Context in which kernels of one back end run.

    Every back end computes the same; they differ in speed, and in the last bits. It is chosen for
    the recurrences, for the matrices of a scaled Cayley transform, and for the following of
    eigenvalues. A gradient is computed by the back end of its forward pass. The choice is that of
    the thread that makes it; in others, such as that in which autograd computes anew what a
    checkpoint on a GPU has left out, it is ``"auto"``.

    Arguments:
        name: ``"auto"`` for the kernel of the tensors' device, and torch's operations where the
            kernel refuses a call, which is said once for each reason where they are slower;
            ``"reference"`` for torch's operations; ``"cpu"`` or ``"cuda"`` for the kernel or an
            error.

    Example:
        >>> import torch, cayley
        >>> layer, x = cayley.ScoRNN(2, 8), torch.randn(5, 3, 2)
        >>> with cayley.backend("reference"):
        ...     h, _ = layer(x)
        >>> torch.testing.assert_close(layer(x)[0], h)
    """
    if name not in BACKENDS:
        raise ValueError(f"expected a back end of {BACKENDS}, got {name!r}")
    before, _choice.backend = _choice.backend, name
    try:
        yield
    finally:
        _choice.backend = before


def backend_in_force() -> str:
    """The name given to :func:`backend`, ``"auto"`` outside of it."""
    return _choice.backend


@contextmanager
def decomposing() -> Iterator[None]:
    """Context in which operators that are traced are recorded as operations of torch."""
    before, _choice.decomposing = _choice.decomposing, True
    try:
        yield
    finally:
        _choice.decomposing = before


def is_decomposing() -> bool:
    """Whether operators that are traced are recorded as operations of torch: for ONNX they are."""
    if _choice.decomposing:
        return True
    # torch.compile cannot ask, and nobody makes ONNX of what it makes
    return not torch.compiler.is_dynamo_compiling() and torch.onnx.is_in_onnx_export()


def use_kernel(
    kernel: str | None,
    refusal: str | None,
    device: torch.device,
    *,
    backend: str | None = None,
    preferred: bool = True,
    otherwise: str | None = "a recurrence runs as a loop of torch operations",
) -> bool:
    """Whether a kernel runs a call, rather than torch's operations.

    Arguments:
        kernel: The back end that the kernel belongs to; None where the device has none.
        refusal: Why the kernel cannot run this call; None if it can. Functions that say so are
            called ``refusal``.
        device: That of the tensors of the call.
        backend: The choice under which the call was made; None for the one in force.
        preferred: Whether the kernel is the faster of the two, for ``"auto"``.
        otherwise: What happens where a kernel refuses a call under ``"auto"``, which is then said
            once for each reason; None where torch is as good: that needs no word, and no back end
            insists on the kernel.

    Example:
        >>> use_kernel("cpu", None, torch.device("cpu"))
        True
        >>> use_kernel("cpu", "there is no C code", torch.device("cpu"), backend="reference")
        False
    """
    if backend is None:
        backend = _choice.backend
    if backend == "reference":
        return False
    if backend not in ("auto", kernel):
        raise ValueError(
            f"expected tensors on the device of back end {backend!r}, got {device}: move them, "
            'or use cayley.backend("auto")'
        )
    if kernel is None:
        return False
    if refusal is None:
        return preferred or backend == kernel
    if otherwise is None:
        return False
    if backend == kernel:
        raise NotImplementedError(
            f"back end {kernel!r} cannot run this: {refusal}. "
            'cayley.backend("auto") leaves it to torch\'s operations'
        )
    warn_once(f"{otherwise}, not on the {kernel} kernel: {refusal}", key=refusal)
    return False
