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

    A :class:`~contextvars.ContextVar` would also work for tasks, but torch.compile cannot read one.
    It can read an attribute of a thread, and compiles again if that has changed.
    """

    def __init__(self) -> None:
        self.backend = "auto"
        self.decomposing = False


_choice = _Choice()


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Context in which the kernels of one back end run.

    All back ends compute the same; they differ in speed and in the last bits. The choice applies to
    the recurrences, to the matrices of scaled Cayley transforms, and to the tracking of
    eigenvalues. A gradient is computed by the back end of its forward pass. The choice holds for
    the current thread; in other threads, such as the one in which autograd recomputes a checkpoint
    on a GPU, it is ``"auto"``.

    Arguments:
        name: ``"auto"`` for the kernel of the tensors' device, and torch operations if the kernel
            cannot run a call (with one warning for each reason, if they are slower);
            ``"reference"`` for torch operations; ``"cpu"`` or ``"cuda"`` for the kernel or an
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
    """Context in which traced operators are recorded as torch operations."""
    before, _choice.decomposing = _choice.decomposing, True
    try:
        yield
    finally:
        _choice.decomposing = before


def is_decomposing() -> bool:
    """Whether traced operators are recorded as torch operations, as they are for ONNX."""
    if _choice.decomposing:
        return True
    # torch.compile cannot trace this check, and its code is never exported to ONNX
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
        kernel: The back end that the kernel belongs to; None if the device has none.
        refusal: Why the kernel cannot run this call; None if it can. Functions that return such a
            reason are called ``refusal``.
        device: The device of the call's tensors.
        backend: The choice under which the call was made; None for the current one.
        preferred: Whether ``"auto"`` uses the kernel, because it is faster.
        otherwise: The beginning of the warning, given once for each reason, if a kernel cannot run
            a call under ``"auto"``. None if torch is as good: then there is no warning, and asking
            for a back end does not raise.

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
