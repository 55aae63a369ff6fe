"""The recurrences as torch scans, for exporters that do not know our operators.

``torch.onnx.export`` turns them into ONNX ``Scan``, and ``torch.export`` inside :func:`decomposed`
into a program that runs without this package. The steps are those of the loops; windows are summed
from scratch at every step, as in :class:`~cayley.norms.running.DefinedWindow`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from cayley.activations import ACTIVATIONS
from cayley.kernels.calls import (
    ElmanCall,
    ElmanStates,
    GruCall,
    GruStates,
    LstmCall,
    LstmStates,
    NormalizedElmanCall,
    NormalizedElmanStates,
    Site,
    WindowedCall,
)
from cayley.kernels.dispatch import decomposing
from cayley.kernels.projection import project

__all__ = ["decomposed", "elman_scan", "gru_scan", "lstm_scan", "normalized_elman_scan"]

Tensors = tuple[Tensor, ...]
Call = TypeVar("Call", ElmanCall, GruCall, LstmCall, NormalizedElmanCall)
_Step = Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[Tensors, Tensors]]


@contextmanager
def decomposed() -> Iterator[None]:
    """Context in which recurrences are exported as torch scans, not as operators of this package.

    A program that is exported in it, for AOTInductor for example, needs no ``import cayley`` where
    it runs. It is slower than the operators, and has no gradient.

    Example:
        >>> import cayley
        >>> layer, x = cayley.ScoRNN(2, 8).freeze(), torch.randn(5, 3, 2)
        >>> with decomposed():
        ...     program = torch.export.export(layer, (x,))
        >>> "cayley" in str(program.graph)
        False
    """
    with decomposing():
        yield


def _scan(
    step: _Step, init: Sequence[Tensor], xs: Sequence[Tensor], reverse: bool = False
) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Run a step over the first axis of ``xs``: the last states, and the outputs of every step."""
    from torch._higher_order_ops.scan import scan

    def combine(carry: list[Tensor], x: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        after, given = step(carry, x)
        # a scan must not return the same tensor twice
        return [h.clone() for h in after], [y.clone() for y in given]

    return scan(combine, [h.clone() for h in init], [*xs], reverse=reverse)


def _constants(call: Call) -> Call:
    """A call of dense sequences, detached: an exported program has no gradient."""
    if call.batch_sizes is not None:
        raise NotImplementedError(
            "expected dense sequences in an exported program, got packed ones: pad them, and "
            "ignore the outputs after the end of each"
        )
    return _detached(call)


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    return type(value)(*map(_detached, value)) if isinstance(value, tuple) else value


def elman_scan(call: ElmanCall) -> ElmanStates:
    """What :func:`~cayley.recurrences.elman` computes, as a scan."""
    call = _constants(call)
    activation = ACTIVATIONS[call.nonlinearity]
    x, Wt, b = project(call.x, call.U, call.c), call.W.mT.contiguous(), call.b

    def step(carry: Sequence[Tensor], xs: Sequence[Tensor]) -> tuple[Tensors, Tensors]:
        h = activation.apply(xs[0] + carry[0] @ Wt, b)
        return (h,), (h,)

    _, (h,) = _scan(step, [call.h0], [x], call.reverse)
    return ElmanStates(h, h if activation.needs_z else h.new_empty(0))


def gru_scan(call: GruCall) -> GruStates:
    """What :func:`~cayley.recurrences.gru` computes, as a scan."""
    call = _constants(call)
    H, b = call.h0.shape[-1], call.b
    activation = ACTIVATIONS["tanh" if b is None else "modrelu"]
    x = project(call.x, call.U, call.c)
    Wt_gates, Wt_c = (part.mT.contiguous() for part in call.W.split((2 * H, H)))

    def step(carry: Sequence[Tensor], xs: Sequence[Tensor]) -> tuple[Tensors, Tensors]:
        (h,), (x_t,) = carry, xs
        r, u = (x_t[:, : 2 * H] + h @ Wt_gates).sigmoid().chunk(2, -1)
        c = activation.apply(x_t[:, 2 * H :] + (r * h) @ Wt_c, b)
        h = h + u * (c - h)
        return (h,), (h,)

    _, (h,) = _scan(step, [call.h0], [x], call.reverse)
    return GruStates(h, x)


class _SiteScan(NamedTuple):
    """A normalisation inside a scan.

    What a scan carries and reads has no axes of one element: the exporter to ONNX does not know
    that one is all that they ever have, and would not broadcast them.

    Attributes:
        site: The normalisation.
        window: The number K of steps.
        eps: The ε.
    """

    site: Site
    window: int
    eps: float

    @classmethod
    def of(cls, site: Site, call: WindowedCall) -> "_SiteScan":
        if call.over_batch and site.given is None:
            raise NotImplementedError(
                "a normalisation over the batch can be exported in evaluation mode only: train the "
                "layer, and call layer.eval() before the export"
            )
        if site.reference is not None:
            site = site._replace(reference=site.reference.squeeze(-1))
        return cls(site, call.window, call.eps)

    def init(self, B: int, weights: Tensor | None) -> list[Tensor]:
        """The statistics of the K − 1 steps before the first: means, variances, weights."""
        if self.window == 1 or self.site.given is not None:
            return []
        if self.site.past is not None and weights is not None:
            return [table.squeeze(-1) for table in (*self.site.past, weights)]
        return [self.site.gamma.new_zeros(self.window - 1, B) for _ in range(3)]

    def xs(self) -> list[Tensor]:
        """The given statistics of every step, (T, F) or (T, B, F)."""
        return [] if self.site.given is None else [table.squeeze(1) for table in self.site.given]

    def step(
        self, a: Tensor, past: Sequence[Tensor], given: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The normalised values, the window after the step, and the step's statistics."""
        gamma, beta, reference, *_ = self.site
        if given:
            mean, var = given
            return (a - mean) * (var + self.eps).rsqrt() * gamma + beta, [], []
        if reference is not None:
            a = a - reference[:, None]
        m = a.mean(1)
        v = (a - m[:, None]).square().mean(1)
        mean, var, after = m, v, []
        if past:
            after = [
                torch.cat((table, new[None]))
                for table, new in zip(past, (m, v, torch.ones_like(m)), strict=True)
            ]
            ms, vs, ws = after
            n = ws.sum(0)
            mean = (ws * ms).sum(0) / n
            var = (ws * (vs + (ms - mean).square())).sum(0) / n
            after = [table[1:] for table in after]
        scale = (var + self.eps).rsqrt()
        y = (a - mean[:, None]) * scale[:, None] * gamma + beta
        return y, after, [torch.stack((m, v, mean, scale))]


class _Sites:
    """The normalisations of a call, one after another in the tensors that a scan carries and reads.

    Nothing here changes from step to step, since a scan is traced once.
    """

    def __init__(self, sites: Sequence[Site | None], call: WindowedCall, B: int) -> None:
        self.scans = [None if site is None else _SiteScan.of(site, call) for site in sites]
        inits = [[] if s is None else s.init(B, call.weights) for s in self.scans]
        reads = [[] if s is None else s.xs() for s in self.scans]
        self.init = [tensor for part in inits for tensor in part]
        self.xs = [tensor for part in reads for tensor in part]
        # where the tensors of each normalisation begin
        self.carried = [sum(map(len, inits[:k])) for k in range(len(inits) + 1)]
        self.read = [sum(map(len, reads[:k])) for k in range(len(reads) + 1)]

    def apply(
        self, k: int, a: Tensor, past: Sequence[Tensor], given: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The k-th normalisation, as :meth:`_SiteScan.step`; no change if there is none."""
        scan = self.scans[k]
        if scan is None:
            return a, [], []
        past = past[self.carried[k] : self.carried[k + 1]]
        return scan.step(a, past, given[self.read[k] : self.read[k + 1]])

    def tables(self, found: Sequence[Tensor], like: Tensor) -> list[Tensor]:
        """The statistics of all steps, (4, T, B, 1) each, empty if there are none."""
        steps, tables = iter(found), []
        for scan in self.scans:
            empty = scan is None or scan.site.given is not None
            tables.append(like.new_empty(0) if empty else next(steps).transpose(0, 1)[..., None])
        return tables


def lstm_scan(call: LstmCall) -> LstmStates:
    """What :func:`~cayley.recurrences.lstm` computes, as a scan."""
    call = _constants(call)
    x, Wt, b = project(call.x, call.U, None), call.W.mT.contiguous(), call.b
    sites = _Sites((call.input, call.recurrent, call.cell), call, call.h0.shape[0])

    def step(carry: Sequence[Tensor], xs: Sequence[Tensor]) -> tuple[Tensors, Tensors]:
        h, c, *past = carry
        x_t, *given = xs
        x_t, x_past, x_found = sites.apply(0, x_t, past, given)
        a, h_past, h_found = sites.apply(1, h @ Wt if b is None else h @ Wt + b, past, given)
        i, f, g, o = (x_t + a).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        y, c_past, c_found = sites.apply(2, c, past, given)
        h = o.sigmoid() * y.tanh()
        return (h, c, *x_past, *h_past, *c_past), (h, c, *x_found, *h_found, *c_found)

    _, (h, c, *found) = _scan(step, [call.h0, call.c0, *sites.init], [x, *sites.xs])
    return LstmStates(h, c, x, *sites.tables(found, x))


def normalized_elman_scan(call: NormalizedElmanCall) -> NormalizedElmanStates:
    """What :func:`~cayley.recurrences.normalized_elman` computes, as a scan."""
    call = _constants(call)
    apply, b, Wt = ACTIVATIONS[call.nonlinearity].apply, call.b, call.W.mT.contiguous()
    sites = _Sites((call.input, call.recurrent), call, call.h0.shape[0])

    def step(carry: Sequence[Tensor], xs: Sequence[Tensor]) -> tuple[Tensors, Tensors]:
        h, *past = carry
        x_t, *given = xs
        x_t, x_past, x_found = sites.apply(0, x_t, past, given)
        a, h_past, h_found = sites.apply(1, h @ Wt, past, given)
        h = apply(x_t + a, b)
        return (h, *x_past, *h_past), (h, *x_found, *h_found)

    _, (h, *found) = _scan(step, [call.h0, *sites.init], [call.x, *sites.xs])
    return NormalizedElmanStates(h, h, *sites.tables(found, call.x))
