"""Every recurrence with every option, for the contract that its back ends keep."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from cayley.activations import ACTIVATIONS
from cayley.recurrences import elman, elman_loop


class Case(NamedTuple):
    """A recurrence with its options.

    Attributes:
        inputs: The named tensors for T steps of B sequences of H units; those of sequences, (T, B,
            ·), are named x.
        loop: What defines it: a function of these tensors and ``batch_sizes``, of all outputs.
        operator: What runs on a back end.
        reversible: Whether both have an argument ``reverse``.
    """

    inputs: Callable[[int, int, int], dict[str, Tensor]]
    loop: Callable[..., tuple[Tensor, ...]]
    operator: Callable[..., tuple[Tensor, ...]]
    reversible: bool = True


def elman_inputs(nonlinearity: str, T: int, B: int, H: int) -> dict[str, Tensor]:
    activation = ACTIVATIONS[nonlinearity]
    if activation.saves_z:
        H += H % 2
    W, _ = torch.linalg.qr(torch.randn(H, H))
    tensors = {"x": torch.randn(T, B, H), "h0": torch.randn(B, H), "W": W}
    if activation.threshold:
        tensors["b"] = 0.3 * torch.randn(H // 2 if activation.saves_z else H)
    return tensors


def outputs(function: Callable[..., Tensor], **options: object) -> Callable[..., tuple[Tensor]]:
    return lambda *tensors, **more: (function(*tensors, **options, **more),)


def cases() -> Iterator[tuple[str, Case]]:
    for name in ACTIVATIONS:
        yield (
            f"elman-{name}",
            Case(
                partial(elman_inputs, name),
                outputs(elman_loop, nonlinearity=name),
                outputs(elman, nonlinearity=name),
            ),
        )


CASES = dict(cases())
