"""Every recurrence with every option, for the contract that its back ends keep."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cayley.activations import ACTIVATIONS
from cayley.kernels.cpu import elman as cpu_elman
from cayley.kernels.cuda import elman as cuda_elman
from cayley.kernels.rotations import FFT, find_pattern
from cayley.norms.windows import TimeWindow
from cayley.recurrences import (
    NormSite,
    States,
    composed,
    composed_loop,
    elman,
    elman_loop,
    gru,
    gru_loop,
    lstm,
    lstm_loop,
    rotated,
    rotated_loop,
)


class Case(NamedTuple):
    """A recurrence with its options.

    Attributes:
        inputs: The named tensors for T steps of B sequences of H units; those of sequences, (T, B,
            ·), are named x.
        loop: What defines it: a function of these tensors and ``batch_sizes``, of all outputs.
        operator: What runs on a back end.
        reversible: Whether both have an argument ``reverse``.
        kernels: The back ends that have kernels for it.
    """

    inputs: Callable[[int, int, int], dict[str, Tensor]]
    loop: Callable[..., tuple[Tensor, ...]]
    operator: Callable[..., tuple[Tensor, ...]]
    reversible: bool = True
    kernels: tuple[str, ...] = ("cpu", "cuda")


# which activations the kernels have
ACTIVATIONS_OF = {"cpu": cpu_elman.ACTIVATIONS, "cuda": cuda_elman.ACTIVATIONS}


@cache
def orthogonal(H: int, number: int) -> Tensor:
    """One of several random matrices, which large sizes take long to make."""
    generator = torch.Generator().manual_seed(number)
    A = torch.randn(H, H, generator=generator, dtype=torch.float64)
    return torch.linalg.qr(A)[0]


def elman_inputs(nonlinearity: str, T: int, B: int, H: int) -> dict[str, Tensor]:
    activation = ACTIVATIONS[nonlinearity]
    if activation.stacked:
        H += H % 2
    W = orthogonal(H, 0).to(torch.get_default_dtype(), copy=True)
    tensors = {"x": torch.randn(T, B, H), "h0": torch.randn(B, H), "W": W}
    if activation.threshold:
        tensors["b"] = 0.3 * torch.randn(activation.thresholds(H))
    return tensors


def rotated_inputs(layers: int, T: int, B: int, H: int) -> dict[str, Tensor]:
    n = (H + 1) // 2
    if layers == FFT:
        # with one unit there are no rotations, whose gradients the loop would have
        n = max(1 << (n.bit_length() - 1), 2)
    m = sum(layer.rotations for layer in find_pattern(n, layers))
    tensors = {"x": torch.randn(T, B, 2 * n), "h0": torch.randn(B, 2 * n)}
    tensors |= {"theta": torch.randn(m), "phi": torch.randn(m), "omega": torch.randn(n)}
    return {**tensors, "b": 0.3 * torch.randn(n)}


def composed_inputs(T: int, B: int, H: int) -> dict[str, Tensor]:
    n = (H + 1) // 2
    tensors = {"x": torch.randn(T, B, 2 * n), "h0": torch.randn(B, 2 * n)}
    tensors |= {"w": torch.randn(3, n), "v": torch.randn(2, 2, n)}
    # below 0: above it gradients of small states are so large that float32 is far off
    return {**tensors, "b": -0.3 * torch.rand(n)}


def permuted(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A recurrence with a composition, by one permutation of each size."""

    def with_permutation(*tensors: Tensor, **options: Any) -> Tensor:
        n = tensors[2].shape[1]
        permutation = torch.randperm(n, generator=torch.Generator().manual_seed(n))
        return function(*tensors, permutation.to(tensors[2].device), **options)

    return with_permutation


def gru_inputs(threshold: bool, T: int, B: int, H: int) -> dict[str, Tensor]:
    W = torch.cat([orthogonal(H, k) for k in range(3)]).to(torch.get_default_dtype())
    tensors = {"x": torch.randn(T, B, 3 * H), "h0": torch.randn(B, H), "W": W}
    if threshold:
        tensors["b"] = 0.3 * torch.randn(H)
    return tensors


class Norm(NamedTuple):
    """The normalisations of an LSTM: which of x, h and c, over what, and how."""

    sites: str = "xhc"
    over: str = "layer"
    window: int = 1
    past: bool = False
    given: bool = False
    bias: bool = True


LSTMS = {
    "none": Norm(""),
    "none, no bias": Norm("", bias=False),
    "layer": Norm(),
    "layer, no cell": Norm("xh"),
    "layer, h alone": Norm("h", bias=False),
    "layer, x alone": Norm("x"),
    "atn 2": Norm(window=2),
    "atn 3, no cell": Norm("xh", window=3, bias=False),
    "atn 3, going on": Norm(window=3, past=True),
    "atn 99": Norm(window=99),
    "atn 99, going on": Norm("hc", window=99, past=True),
    "batch": Norm(over="batch"),
    "atn 2 over batch": Norm(over="batch", window=2),
    "atn 99 over batch": Norm("xh", over="batch", window=99),
    "given": Norm(over="batch", given=True),
    "given, no cell": Norm("xh", given=True, bias=False),
}


def lstm_inputs(norm: Norm, T: int, B: int, H: int) -> dict[str, Tensor]:
    tensors = {"x": torch.randn(T, B, 4 * H), "h0": torch.randn(B, H), "c0": torch.randn(B, H)}
    tensors["W"] = torch.randn(4 * H, H) / H**0.5
    if norm.bias:
        tensors["b"] = torch.randn(4 * H)
    for site in norm.sites:
        F = H if site == "c" else 4 * H
        tensors |= {f"gamma_{site}": 1 + 0.3 * torch.randn(F), f"beta_{site}": torch.randn(F)}
        if norm.past:
            steps = (norm.window - 1, B, 1)
            tensors |= {
                f"reference_{site}": torch.randn(B, 1),
                f"means_{site}": torch.randn(steps),
                f"variances_{site}": 0.1 + torch.rand(steps),
            }
    return tensors


def lstm_run(
    function: Callable[..., States],
    norm: Norm,
    *values: Tensor,
    batch_sizes: Tensor | None = None,
    **projection: Tensor,
) -> tuple[Tensor, ...]:
    """h, c, and means and variances of all steps."""
    x, h0, c0, W, *rest = values
    B = len(h0)
    T = len(x) if batch_sizes is None else len(batch_sizes)
    b = rest.pop(0) if norm.bias else None
    # of one sequence all steps are known, of the next only the last
    weights = x.new_zeros(norm.window - 1, B, 1)
    weights[:, ::2] = weights[-1:] = 1
    sites = {}
    for site, name in zip("xhc", ("input", "recurrent", "cell"), strict=True):
        if site not in norm.sites:
            continue
        gamma, beta = rest.pop(0), rest.pop(0)
        past = given = None
        if norm.past:
            past = TimeWindow(rest.pop(0), rest.pop(0), rest.pop(0), weights)
        if norm.given:
            rows = B if site == "x" else 1
            table = torch.linspace(-1, 1, T * rows * len(gamma), device=x.device, dtype=x.dtype)
            table = table.view(T, rows, len(gamma))
            given = table, table.square()
        sites[name] = NormSite(gamma, beta, past, given)
    assert not rest
    # few sequences or units have almost no variance
    states = function(
        *(x, h0, c0, W, b),
        **sites,
        window=norm.window,
        over=norm.over,
        eps=0.1,
        batch_sizes=batch_sizes,
        **projection,
    )
    return states.h, states.c, *(site[1][:2].clone() for site in states[2:] if site is not None)


def outputs(function: Callable[..., Tensor], **options: Any) -> Callable[..., tuple[Tensor]]:
    return lambda *tensors, **more: (function(*tensors, **options, **more),)


def projected(case: Case) -> Case:
    """The recurrence with U and c, of an input of a few features."""

    def inputs(T: int, B: int, H: int) -> dict[str, Tensor]:
        tensors = case.inputs(T, B, H)
        features, F = (1, 3, 17)[(T + B + H) % 3], tensors["x"].shape[-1]
        more = {"U": torch.randn(F, features) / features**0.5, "c": torch.randn(F)}
        return {**tensors, "x": torch.randn(T, B, features), **more}

    def run(function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
        def with_projection(*tensors: Tensor, **options: Any) -> tuple[Tensor, ...]:
            *others, U, c = tensors
            return function(*others, U=U, c=c, **options)

        return with_projection

    return case._replace(inputs=inputs, loop=run(case.loop), operator=run(case.operator))


def cases() -> Iterator[tuple[str, Case]]:
    for name in ACTIVATIONS:
        yield (
            f"elman-{name}",
            Case(
                partial(elman_inputs, name),
                outputs(elman_loop, nonlinearity=name),
                outputs(elman, nonlinearity=name),
                kernels=tuple(kind for kind, names in ACTIVATIONS_OF.items() if name in names),
            ),
        )
    for name, layers in (("neighbours", 3), ("fft", FFT)):
        yield (
            f"rotated-{name}",
            Case(
                partial(rotated_inputs, layers),
                outputs(rotated_loop, layers=layers),
                outputs(rotated, layers=layers),
            ),
        )
    yield (
        "composed",
        Case(
            composed_inputs,
            outputs(permuted(composed_loop)),
            outputs(permuted(composed)),
            # on a GPU large prime factors are refused
            kernels=("cpu",),
        ),
    )
    for name in ("modrelu", "tanh"):
        yield (
            f"gru-{name}",
            Case(partial(gru_inputs, name == "modrelu"), outputs(gru_loop), outputs(gru)),
        )
    for name, norm in LSTMS.items():
        yield (
            f"lstm-{name}",
            Case(
                partial(lstm_inputs, norm),
                partial(lstm_run, lstm_loop, norm),
                partial(lstm_run, lstm, norm),
                reversible=False,
            ),
        )


CASES = dict(cases())
# one normalised LSTM: what is normalised is projected before
CASES |= {
    f"{name}, U": projected(case)
    for name, case in CASES.items()
    if "lstm" not in name or name in ("lstm-none", "lstm-none, no bias", "lstm-atn 3, no cell")
}
