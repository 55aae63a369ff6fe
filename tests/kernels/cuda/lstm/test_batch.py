"""Statistics over the batch: the kernels, emulated on the CPU, against the loop in float64."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from emulator import COMPILER, H200, emulated
from torch import Tensor

from cayley.kernels.calls import LstmCall, LstmGradients, LstmStates
from cayley.kernels.cuda.lstm import batch, recurrence
from cayley.kernels.cuda.lstm.batch_layout import BatchLayout
from cayley.recurrences import NormSite, lstm_loop
from cayley.recurrences.lstm_call import LstmArguments, lstm_call

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux"),
    pytest.mark.slow,
]

NAMES = ("input", "recurrent", "cell")


class Case(NamedTuple):
    """Sizes, the layout's units, threads, rows, parts and items, and what is normalised how.

    Packed, the sequences end one after another from the second step on.
    """

    T: int
    B: int
    H: int
    layout: tuple[int, int, int, int, int]
    norms: str = "xhc"
    window: int = 1
    bias: bool = True
    packed: bool = False
    given: str = ""

    @property
    def batch_sizes(self) -> Tensor | None:
        return (self.B - torch.arange(self.T)).clamp(min=1) if self.packed else None


# one warp a unit or several, of which some have no rows; one row a lane or several; rows of a
# product in one turn or several; blocks with a unit less than the others; inputs that a lane reads
# by one, two and four
ONE, TWO, FOUR, MANY = (1, 64, 1, 1, 1), (2, 128, 2, 2, 1), (4, 128, 1, 1, 2), (2, 256, 2, 4, 1)
CASES = [
    Case(4, 5, 8, ONE),
    Case(4, 5, 7, TWO),
    Case(3, 40, 6, FOUR),
    Case(3, 70, 5, MANY, packed=True),
    Case(1, 2, 3, TWO),
    Case(1, 1, 1, ONE),
    Case(3, 1, 2, TWO, "hc"),
    Case(5, 4, 6, TWO, packed=True),
    *(Case(4, 3, 6, ONE, norms, bias=False) for norms in ("x", "h", "c", "xh")),
    Case(6, 5, 6, TWO, window=3),
    Case(6, 5, 6, ONE, window=99, packed=True),
    Case(9, 4, 5, TWO, "hc", window=2, packed=True),
    Case(38, 3, 2, ONE, "xc", window=36),
    Case(4, 5, 6, TWO, given="step"),
    Case(4, 5, 6, TWO, "xh", given="row", packed=True),
    Case(4, 3, 6, ONE, "c", given="step"),
]


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    with emulated():
        yield


def tensors_of(case: Case) -> dict[str, Tensor]:
    """All that has a gradient, as float32 holds it."""
    T, B, H = case.T, case.B, case.H
    sizes = case.batch_sizes
    steps = (T, B) if sizes is None else (int(sizes.sum()),)
    tensors = {"x": torch.randn(*steps, 4 * H) + 2, "h0": torch.randn(B, H)}
    tensors |= {"c0": torch.randn(B, H), "W": torch.randn(4 * H, H) / H**0.5}
    if case.bias:
        tensors["b"] = torch.randn(4 * H)
    for name, features in zip("xhc", (4 * H, 4 * H, H), strict=True):
        if name in case.norms:
            tensors[f"gamma {name}"] = 1 + 0.3 * torch.randn(features)
            tensors[f"beta {name}"] = 0.3 * torch.randn(features)
    return {name: tensor.float().double() for name, tensor in tensors.items()}


def arguments_of(case: Case, tensors: dict[str, Tensor]) -> dict[str, Any]:
    sites: dict[str, Any] = {}
    for argument, name in zip(NAMES, "xhc", strict=True):
        if name in case.norms:
            gamma, beta = tensors[f"gamma {name}"], tensors[f"beta {name}"]
            given = None
            if case.given:
                shape = (case.T, case.B if case.given == "row" else 1, len(gamma))
                table = torch.linspace(-1, 1, shape[0] * shape[1] * shape[2]).view(shape)
                table = table.float().to(gamma.dtype)
                given = table, table.square()
            sites[argument] = NormSite(gamma, beta, given=given)
    plain = {name: tensors.get(name) for name in ("x", "h0", "c0", "W", "b")}
    options = {"window": case.window, "over": "batch", "eps": 0.1, "batch_sizes": case.batch_sizes}
    return {**plain, **sites, **options}


def call_of(arguments: dict[str, Any]) -> LstmCall:
    others = {name: arguments.get(name) for name in LstmArguments._fields}
    return lstm_call(LstmArguments(**others))


def compare(ours: Any, theirs: Any, what: str) -> None:
    error = (ours.double() - theirs).norm() / theirs.norm().clamp(min=1)
    assert error <= 4e-6, f"{what} is off by {error:.1g}"


def gradients_of(case: Case, states: Any) -> list[Tensor]:
    """Those of h, c, and mean and variance of every step."""
    generator = torch.Generator().manual_seed(case.T)
    values = [states.h, states.c, *(site[1] for site in states[2:] if site is not None)]
    found = [torch.randn(v.shape, generator=generator).float().double() for v in values]
    for gradient in found[2:]:
        gradient[2:] = 0
    return found


def check(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = BatchLayout(case.H, *case.layout)
    monkeypatch.setattr(batch, "best_batch_layout", lambda *_: layout)
    tensors = tensors_of(case)
    leaves = {name: tensor.requires_grad_() for name, tensor in tensors.items()}
    exact = lstm_loop(**arguments_of(case, leaves))
    gradients = gradients_of(case, exact)
    outputs = [exact.h, exact.c, *(site[1] for site in exact[2:] if site is not None)]
    theirs = torch.autograd.grad(outputs, list(leaves.values()), gradients)
    single = {name: tensor.detach().float() for name, tensor in tensors.items()}
    call = call_of(arguments_of(case, single))
    assert batch.joins_rows(call)
    states = recurrence.lstm(call)
    compare(states.h, exact.h.detach(), "h")
    compare(states.c, exact.c.detach(), "c")
    for name, own in zip(NAMES, states.statistics(), strict=True):
        site = getattr(exact, name)
        assert (own.numel() == 0) == (site is None)
        if site is not None:
            compare(own, site[1].detach(), f"statistics of {name}")
    names = [name for name in NAMES if getattr(exact, name) is not None]
    grad_h, grad_c, *external = (v.float() for v in gradients)
    of_states = LstmGradients(grad_h, grad_c, None, **dict(zip(names, external, strict=True)))
    needed = [gradient_name(name) for name in tensors]
    found = recurrence.lstm_backward(of_states, states, call, needed)
    for name, gradient in zip(tensors, theirs, strict=True):
        compare(found[gradient_name(name)], gradient, f"the gradient of {name}")


def gradient_name(name: str) -> str:
    """That of a tensor of a case among those that an operator gives."""
    kind, _, site = name.partition(" ")
    return f"{dict(zip('xhc', NAMES, strict=True))[site]}_{kind}" if site else kind


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_loop(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    check(case, monkeypatch)
