r"""The Elman recurrence with normalised products, and its gradient."""

from collections.abc import Collection
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from cayley.activations import ACTIVATIONS
from cayley.kernels.calls import (
    NormalizedElmanCall,
    NormalizedElmanGradients,
    NormalizedElmanStates,
    Site,
)
from cayley.kernels.operator import Found, Kernels, Operator
from cayley.kernels.steps import check_devices, check_sequence, outer_products, step_sizes
from cayley.norms.windows import measured_from, reference_with_past
from cayley.recurrences.lstm_call import NormSite, check_site, reference_of_input
from cayley.recurrences.lstm_forward import SiteSteps, normalized_input
from cayley.recurrences.lstm_gradient import SiteAdjoint, normalized, plus, with_references
from cayley.recurrences.scans import normalized_elman_scan

__all__ = ["NormalizedStates", "normalized_elman", "normalized_elman_loop"]


class NormalizedStates(NamedTuple):
    """The result of a run.

    Attributes:
        h: The states of all steps, in the layout of x.
        input, recurrent: For each normalisation its references, (B, 1), and for each step: mean and
            variance of the step, mean of its window and 1/√(σ² + ε), (4, T, B, 1), all means minus
            the reference. The last two are for information and have no gradient.
    """

    h: Tensor
    input: tuple[Tensor, Tensor]
    recurrent: tuple[Tensor, Tensor]


def normalized_elman_loop(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None = None,
    *,
    input: NormSite,
    recurrent: NormSite,
    window: int = 1,
    eps: float = 1e-5,
    nonlinearity: str = "tanh",
    batch_sizes: Tensor | None = None,
) -> NormalizedStates:
    r"""The recurrence as the loop that defines it; :func:`normalized_elman` computes the same.

    .. math:: h_t = \phi(N_x(x_t) + N_h(W h_{t-1}); b), \qquad t = 1, \dots, T

    Both N normalise by the statistics of the last K steps, over the units of each example: layer
    normalisation for K = 1, assorted-time normalisation for more.

    References:
        Normalization Techniques for Sequential and Graphical Data (dissertation), Pospisil, 2023,
        equations 3.3 and 3.9.
        Layer Normalization, Ba, Kiros, Hinton, 2016.

    Arguments:
        x: The input's contribution to each step, (T, B, H); with ``batch_sizes``, packed steps,
            (N, H).
        h0: The state before the first step, (B, H).
        W: The recurrent matrix, (H, H).
        b: The threshold of modReLU, (H). Any other bias belongs into the β of either N.
        input: The normalisation :math:`N_x`.
        recurrent: The normalisation :math:`N_h`.
        window: The number K of steps.
        eps: The ε of both normalisations.
        nonlinearity: A key of :data:`cayley.activations.ACTIVATIONS`, of real numbers.
        batch_sizes: How many sequences have a step t, never increasing, (T), on the CPU.

    Returns:
        The states of all steps, and the statistics.

    Example:
        >>> x, h0, W = torch.randn(3, 2, 4), torch.zeros(2, 4), torch.eye(4)
        >>> site = NormSite(torch.ones(4), torch.zeros(4))
        >>> h = normalized_elman_loop(x, h0, W, input=site, recurrent=site).h
        >>> torch.testing.assert_close(h[0], torch.layer_norm(x[0], (4,)).tanh())
    """
    call = _call(x, h0, W, b, input, recurrent, window, eps, nonlinearity, batch_sizes)
    return _states(_forward(call, by_definition=True), call)


def normalized_elman(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None = None,
    *,
    input: NormSite,
    recurrent: NormSite,
    window: int = 1,
    eps: float = 1e-5,
    nonlinearity: str = "tanh",
    batch_sizes: Tensor | None = None,
) -> NormalizedStates:
    """The recurrence of :func:`normalized_elman_loop` as one operator.

    Its gradient is written by hand, and costs the same for every window. There is no kernel for it:
    it runs as a loop of torch operations, and a warning says so once.

    Arguments and the result are those of :func:`normalized_elman_loop`.

    Example:
        >>> import cayley
        >>> x, h0, W = torch.randn(9, 2, 4), torch.zeros(2, 4), torch.randn(4, 4)
        >>> options = {"input": NormSite(torch.ones(4), torch.zeros(4)), "window": 3}
        >>> options["recurrent"] = options["input"]
        >>> with cayley.backend("reference"):
        ...     h = normalized_elman(x, h0, W, **options).h
        >>> torch.testing.assert_close(h, normalized_elman_loop(x, h0, W, **options).h)
    """
    call = _call(x, h0, W, b, input, recurrent, window, eps, nonlinearity, batch_sizes)
    return _states(_normalized_elman(call), call)


def _call(
    x: Tensor,
    h0: Tensor,
    W: Tensor,
    b: Tensor | None,
    input: NormSite,
    recurrent: NormSite,
    window: int,
    eps: float,
    nonlinearity: str,
    batch_sizes: Tensor | None,
) -> NormalizedElmanCall:
    """The call of the operator, after its arguments have been checked."""
    B, H = h0.shape
    activation = ACTIVATIONS.get(nonlinearity)
    if activation is None or activation.stacked:
        known = sorted(name for name, one in ACTIVATIONS.items() if not one.stacked)
        raise ValueError(f"expected a nonlinearity of {known}, got {nonlinearity!r}")
    if (b is not None) != activation.threshold or (b is not None and b.shape != (H,)):
        got = "none" if b is None else tuple(b.shape)
        raise ValueError(
            f"expected {activation.thresholds(H)} thresholds b for {nonlinearity}, got {got}"
        )
    if x.shape[-1] != H or W.shape != (H, H):
        raise ValueError(
            f"expected x (..., {H}) and W ({H}, {H}) for h0 (B, {H}), got {tuple(x.shape)} and "
            f"{tuple(W.shape)}"
        )
    check_sequence(x, h0, batch_sizes)
    check_devices(x, h0, W, b)
    T = x.shape[0] if batch_sizes is None else batch_sizes.shape[0]
    references = (
        reference_of_input(x, batch_sizes, False),
        # states are near 0, and so are their products
        x.new_zeros(B, 1),
    )
    weights: Tensor | None = None
    sites: list[Site] = []
    for site, reference in zip((input, recurrent), references, strict=True):
        check_site(site, T, B, H, window, "layer")
        past = None
        if site.past is not None and window > 1:
            reference = reference_with_past(reference, site.past)
            _, means, variances, weights = measured_from(site.past, reference)
            past = torch.stack((means, variances))
        sites.append(Site(site.gamma, site.beta, reference, past))
    of_x, of_h = sites
    tensors = (x, h0, W, of_x, of_h, b, weights, batch_sizes)
    return NormalizedElmanCall(*tensors, window, eps, nonlinearity)


def _states(states: NormalizedElmanStates, call: NormalizedElmanCall) -> NormalizedStates:
    of_x, of_h = (site.reference for site in (call.input, call.recurrent))
    assert of_x is not None
    assert of_h is not None
    return NormalizedStates(states.h, (of_x, states.input), (of_h, states.recurrent))


def _forward(call: NormalizedElmanCall, *, by_definition: bool = False) -> NormalizedElmanStates:
    """The result of a call; ``by_definition`` sums every window from scratch."""
    apply, N_h = (
        ACTIVATIONS[call.nonlinearity].apply,
        SiteSteps(call.recurrent, call, by_definition),
    )
    y, statistics = normalized_input(call.x, call.input, call)
    sizes = step_sizes(y, call.batch_sizes)
    # a contiguous transpose makes each of the T products faster
    Wt = call.W.mT.contiguous()
    hs, kept = [], []
    h = call.h0
    for t, y_t in enumerate(y.reshape(-1, y.shape[-1]).split(sizes)):
        z, a = N_h.step(t, h[: sizes[t]] @ Wt)
        h = apply(y_t + a, call.b)
        hs.append(h)
        kept.append(z)
    h, z = (torch.cat(steps).view(y.shape) for steps in (hs, kept))
    return NormalizedElmanStates(h, z, statistics, N_h.statistics())


def _gradient(
    gradients: NormalizedElmanGradients,
    states: NormalizedElmanStates,
    call: NormalizedElmanCall,
    needed: Collection[str],
) -> Found:
    """Gradients of a call, from its last step to its first."""
    activation, h, h0 = ACTIVATIONS[call.nonlinearity], states.h, call.h0
    sizes = step_sizes(h, call.batch_sizes)

    def steps(tensor: Tensor) -> tuple[Tensor, ...]:
        return tensor.reshape(-1, h.shape[-1]).split(sizes)

    z_x = normalized(call.x, states.input, call.input, call)
    N_x = SiteAdjoint(call.input, call, sizes, steps(z_x), states.input, gradients.input)
    N_h = SiteAdjoint(
        *(call.recurrent, call, sizes, steps(states.kept), states.recurrent, gradients.recurrent)
    )
    gs, hs = steps(gradients.h), steps(h)
    dxs, das, deltas = ([h0[:0]] * len(sizes) for _ in range(3))
    grad_b = None if call.b is None else torch.zeros_like(call.b)
    # nothing comes from beyond the last step
    carry = h0[:0]
    for t in reversed(range(len(sizes))):
        deltas[t], db = activation.pullback(plus(gs[t], carry), hs[t], None, call.b)
        if grad_b is not None and db is not None:
            grad_b = grad_b + db.sum(0)
        dxs[t], das[t] = N_x.step(t, deltas[t]), N_h.step(t, deltas[t])
        carry = das[t] @ call.W
    da = torch.cat(das).view_as(h)
    found: Found = {
        "x": torch.cat(dxs).view_as(h),
        "h0": carry,
        "W": outer_products(da, h, h0, call.batch_sizes, False) if "W" in needed else None,
        "b": grad_b,
    }
    for name, site in {"input": N_x, "recurrent": N_h}.items():
        found |= {f"{name}_{key}": value for key, value in site.parameters(deltas).items()}
    return found


def _shapes(call: NormalizedElmanCall) -> NormalizedElmanStates:
    x, B = call.x, call.h0.shape[0]
    T = x.shape[0] if call.batch_sizes is None else call.batch_sizes.shape[0]
    h, kept = (x.new_empty(x.shape) for _ in range(2))
    return NormalizedElmanStates(h, kept, *(x.new_empty(4, T, B, 1) for _ in range(2)))


def _refusal(
    call: NormalizedElmanCall, gradients: NormalizedElmanGradients | None = None
) -> str | None:
    """Why no kernel computes a call."""
    return "it has no normalisation for an Elman recurrence, only for an LSTM"


_loop = Kernels(_refusal, _forward, with_references(_gradient))

_normalized_elman = Operator(
    "normalized_elman",
    call=NormalizedElmanCall,
    states=NormalizedElmanStates,
    gradients=NormalizedElmanGradients,
    loop=_forward,
    gradient=with_references(_gradient),
    shapes=_shapes,
    kernels={"cpu": _loop, "cuda": _loop},
    scan=normalized_elman_scan,
    definition=partial(_forward, by_definition=True),
    constants=("batch_sizes", "weights", "input_given", "recurrent_given"),
)
