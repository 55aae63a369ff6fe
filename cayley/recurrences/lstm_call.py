"""The arguments of :func:`~cayley.recurrences.lstm`, and the call of its operator."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cayley.kernels.calls import LstmCall, Site
from cayley.kernels.cuda.lstm.references import references, refusal
from cayley.kernels.dispatch import use_kernel
from cayley.kernels.projection import check_projection, project
from cayley.kernels.steps import check_devices, check_sequence
from cayley.norms.layouts import padded, step_mask
from cayley.norms.pooling import Pool
from cayley.norms.windows import (
    TimeWindow,
    measured_from,
    reference_of,
    reference_with_past,
)
from cayley.tracing import traced

__all__ = ["LstmArguments", "NormSite", "check_site", "lstm_call", "reference_of_input"]


class NormSite(NamedTuple):
    """One normalisation inside the recurrence.

    Attributes:
        gamma: γ, (F).
        beta: β, (F).
        past: The window before the first step, over the layer; None for an empty one.
        given: Mean and variance to use instead of the sequence's own at each step, (T, 1, F), or
            (T, B, F) if the sequences differ; steps after the end of a sequence are not used.
    """

    gamma: Tensor
    beta: Tensor
    past: TimeWindow | None = None
    given: tuple[Tensor, Tensor] | None = None


class LstmArguments(NamedTuple):
    """The arguments of :func:`~cayley.recurrences.lstm`."""

    x: Tensor
    h0: Tensor
    c0: Tensor
    W: Tensor
    b: Tensor | None
    U: Tensor | None
    c: Tensor | None
    input: NormSite | None
    recurrent: NormSite | None
    cell: NormSite | None
    window: int
    over: str
    eps: float
    batch_sizes: Tensor | None
    pool: Pool | None = None

    def sites(self) -> tuple[NormSite | None, NormSite | None, NormSite | None]:
        """The normalisations."""
        return self.input, self.recurrent, self.cell

    def check(self) -> None:
        """Raise unless they fit together."""
        x, h0, c0, W, b, H = self.x, self.h0, self.c0, self.W, self.b, self.W.shape[-1]
        wrong_x = self.U is None and x.shape[-1] != 4 * H
        if W.shape != (4 * H, H) or wrong_x or h0.shape[-1] != H or h0.shape != c0.shape:
            raise ValueError(
                "expected x (..., 4H), h0 and c0 (B, H) and W (4H, H), got "
                f"{tuple(x.shape)}, {tuple(h0.shape)}, {tuple(c0.shape)} and {tuple(W.shape)}"
            )
        check_projection(x, self.U, self.c, 4 * H)
        check_sequence(x, h0, self.batch_sizes)
        check_devices(x, h0, c0, W, b, self.U, self.c)
        if b is not None and b.shape != (4 * H,):
            raise ValueError(f"expected b of {4 * H} numbers, got {tuple(b.shape)}")
        T = x.shape[0] if self.batch_sizes is None else self.batch_sizes.shape[0]
        for site, features in zip(self.sites(), (4 * H, 4 * H, H), strict=True):
            if site is not None:
                check_devices(x, site.gamma, site.beta, *(site.past or ()), *(site.given or ()))
                check_site(site, T, h0.shape[0], features, self.window, self.over)


def check_site(site: NormSite, T: int, B: int, F: int, window: int, over: str) -> None:
    """Raise unless a normalisation fits T steps of B sequences with F features."""
    if not site.gamma.shape == site.beta.shape == (F,):
        raise ValueError(
            f"expected gamma and beta of {F} features, got {tuple(site.gamma.shape)} and "
            f"{tuple(site.beta.shape)}"
        )
    if site.given is not None:
        shapes = [tuple(table[:T].shape) for table in site.given]
        if shapes not in ([(T, 1, F)] * 2, [(T, B, F)] * 2):
            raise ValueError(f"expected given statistics ({T}, 1 or {B}, {F}), got {shapes}")
    if site.past is not None and window > 1:
        group = (B, 1) if over == "layer" else (1, F)
        steps = (window - 1, *group)
        shapes = [tuple(table.shape) for table in site.past]
        if shapes != [group, steps, steps, (*steps[:2], 1)]:
            raise ValueError(
                f"expected a past of a reference {group}, means and variances {steps} and weights "
                f"{(*steps[:2], 1)}, got {shapes}"
            )


def lstm_call(arguments: LstmArguments) -> LstmCall:
    """The call of the operator, with U and a single bias if neither product is normalised."""
    x, h0, c0, W, b, U, c, *_ = arguments
    window, over_batch = arguments.window, arguments.over == "batch"
    if arguments.input is not None or arguments.recurrent is not None:
        x, U = project(x, U, c), None
    elif c is not None:
        b = c if b is None else b + c
    batch_sizes, options = arguments.batch_sizes, (window, over_batch, arguments.eps)
    no_sites = (None, None, None)
    plain = LstmCall(x, h0, c0, W, b, *no_sites, None, U, batch_sizes, *options)
    T = x.shape[0] if batch_sizes is None else batch_sizes.shape[0]
    weights, sites = None, []
    for site, reference in zip(
        arguments.sites(), _references(plain, arguments.sites()), strict=True
    ):
        if site is None:
            sites.append(None)
            continue
        past = given = None
        if arguments.pool is not None and reference is not None:
            reference = arguments.pool.first(reference)
        if reference is not None and site.past is not None and window > 1:
            reference = reference_with_past(reference, site.past)
            _, means, variances, weights = measured_from(site.past, reference)
            past = torch.stack((means, variances))
        if site.given is not None:
            given = torch.stack([table[:T] for table in site.given])
        sites.append(Site(site.gamma, site.beta, reference, past, given))
    of_x, of_h, of_c = sites
    return LstmCall(x, h0, c0, W, b, of_x, of_h, of_c, weights, U, batch_sizes, *options)


def _references(call: LstmCall, sites: Sequence[NormSite | None]) -> Sequence[Tensor | None]:
    """The reference that each normalisation subtracts from its means: what all steps share.

    For x, which may be anything, see :func:`~cayley.norms.windows.reference_of`. Recurrent products
    share the bias and cells share nothing, whatever the state before the first step is. If there is
    only one step, only x needs a reference.
    """
    x, h0, b = call.x, call.h0, call.b
    of_x, of_h, of_c = (
        site is not None and site.given is None and (call.window > 1 or k == 0)
        for k, site in enumerate(sites)
    )
    if not (of_x or of_h or of_c):
        return None, None, None
    if (
        x.is_cuda
        and not call.over_batch
        and not traced(x)
        and use_kernel("cuda", refusal(call), x.device, otherwise=None)
    ):
        bias = b if of_h else None
        found = references(x, bias, len(h0), call.batch_sizes, of_input=of_x)
        return [None if site is None else one for one, site in zip(found, sites, strict=True)]
    cells = (1, h0.shape[1]) if call.over_batch else (h0.shape[0], 1)
    return (
        reference_of_input(x, call.batch_sizes, call.over_batch) if of_x else None,
        _reference_of_products(call) if of_h else None,
        h0.new_zeros(cells) if of_c else None,
    )


def reference_of_input(x: Tensor, batch_sizes: Tensor | None, over_batch: bool) -> Tensor:
    """The reference of the input's contribution, (B, 1), or (1, F) over the batch."""
    if batch_sizes is None:
        # the sum of one value, or 0 for an empty batch
        return reference_of(x[:, :1].sum(1, keepdim=True) if over_batch else x[..., :1])
    if over_batch:
        first_row = batch_sizes.cumsum(0) - batch_sizes
        return reference_of(x[first_row.to(x.device, non_blocking=True), None])
    rows = step_mask(batch_sizes, x.device)
    return reference_of(padded(x[:, :1], rows), rows[..., None])


def _reference_of_products(call: LstmCall) -> Tensor:
    """The reference of the recurrent products, (B, 1) or (1, 4H)."""
    b, (B, H) = call.b, call.h0.shape
    if b is None:
        return call.h0.new_zeros((1, 4 * H) if call.over_batch else (B, 1))
    if call.over_batch:
        return reference_of(b[None])[None]
    return reference_of(b.mean()[None]).expand(B, 1)
