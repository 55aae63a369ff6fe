"""The normalisations inside a run, for all steps together."""

import torch
from torch import Tensor

from cayley.diagnostics.runs import LayerRun, previous_rows
from cayley.kernels.calls import LstmCall, Site, WindowedCall
from cayley.norms.atn import assorted_time_norm
from cayley.norms.layouts import packed_table
from cayley.norms.windows import TimeWindow

__all__ = ["apply_site", "pull_back", "recurrent_products", "standardize"]


def recurrent_products(run: LayerRun) -> Tensor:
    """W h_{t−1} of all steps, plus the recurrent bias of an LSTM, in the layout of h."""
    call, h = run.call, run.states.h
    before = torch.cat((call.h0, h.flatten(0, -2)))[previous_rows(run)]
    b = call.b if isinstance(call, LstmCall) else None
    a = before @ call.W.mT if b is None else torch.addmm(b, before, call.W.mT)
    return a.view(*h.shape[:-1], -1)


def standardize(site: Site, a: Tensor, statistics: Tensor, call: WindowedCall) -> Tensor:
    r"""The values :math:`(a - \mu)/\sqrt{\sigma^2 + \epsilon}` of a normalisation, before γ and β.

    Arguments:
        site: The normalisation.
        a: The values that it normalises, (T, B, F) or (N, F).
        statistics: The statistics of the run, (4, T, G, ·).
        call: The call that it belongs to.
    """
    if site.given is not None:
        mean, scale = site.given[0], (site.given[1] + call.eps).rsqrt()
    else:
        _, _, mean, scale = statistics
        mean = mean if site.reference is None else mean + site.reference
    mean, scale = (packed_table(table, call.batch_sizes) for table in (mean, scale))
    return (a - mean) * scale


def apply_site(site: Site | None, a: Tensor, statistics: Tensor, call: WindowedCall) -> Tensor:
    """The normalised values; the values themselves if there is no normalisation."""
    if site is None:
        return a
    return torch.addcmul(site.beta, standardize(site, a, statistics, call), site.gamma)


def pull_back(
    site: Site | None, a: Tensor, dy: Tensor, external: Tensor | None, call: WindowedCall
) -> Tensor:
    """The gradient with respect to the values that were normalised, from that of the result.

    Arguments:
        site: The normalisation; None for the identity.
        a: The values that it normalised, (T, B, F) or (N, F).
        dy: The gradient of its result, shaped as a.
        external: The gradient with respect to its statistics, (4, T, G, ·).
        call: The call that it belongs to.
    """
    if site is None:
        return dy
    dy = dy.view_as(a)
    if site.given is not None:
        var = packed_table(site.given[1], call.batch_sizes)
        return dy * site.gamma * (var + call.eps).rsqrt()
    past = None
    if site.past is not None and site.reference is not None and call.weights is not None:
        means, variances = site.past
        past = TimeWindow(site.reference, means, variances, call.weights)
    with torch.enable_grad():
        a = a.detach().requires_grad_()
        y, found = assorted_time_norm(
            *(a, site.gamma, site.beta),
            window=call.window,
            over="batch" if call.over_batch else "layer",
            eps=call.eps,
            batch_sizes=call.batch_sizes,
            past=past,
            reference=a.new_zeros(()) if site.reference is None else site.reference,
        )
        outputs, grads = [y], [dy]
        if external is not None:
            outputs += [found.m, found.v]
            grads += [*external[:2]]
        (result,) = torch.autograd.grad(outputs, a, grads)
    return result
