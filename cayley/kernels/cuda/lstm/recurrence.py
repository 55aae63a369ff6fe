"""The LSTM recurrence and its gradient as CUDA kernels; see :mod:`cayley.recurrences.lstm`.

One kernel runs all steps, including normalisations over the layer. A block computes one row of the
batch, with the weights in its registers and in shared memory, which also holds the windows; if that
does not suffice, a team of blocks computes some rows or, with many rows and units, steps are
launched one by one, see :mod:`~cayley.kernels.cuda.lstm.steps`. With more rows than multiprocessors
a block may have several, see :mod:`~cayley.kernels.cuda.lstm.many_rows`. Sizes, and which products
are normalised, are constants of the compiled code. Packed sequences are read as they are.

What does not depend on the recurrence step by step has separate kernels, which take all steps at
once: before the recurrence the statistics of the input, and after its gradient the gradients of the
input and the parameters.

The tensors of a call, and those of its results, may be those of G networks, along one more
dimension in front of all others, if a block computes one row or two: then each launch is for all
networks.

Statistics over the batch, and given ones, are in :mod:`~cayley.kernels.cuda.lstm.batch`.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any, cast

from torch import Tensor

from cayley.kernels.calls import LstmCall, LstmGradients, LstmStates, Site
from cayley.kernels.cuda.lstm import batch
from cayley.kernels.cuda.lstm.kernels import fits_blocks, has_room, launch, lstm_kernels
from cayley.kernels.cuda.lstm.many_rows import inputs_of, many_rows_lstm
from cayley.kernels.cuda.lstm.references import references
from cayley.kernels.cuda.runtime.chip import no_room
from cayley.kernels.cuda.runtime.half_products import outer_products_on_cuda
from cayley.kernels.cuda.runtime.networks import MOST_NETWORKS, arrays_of
from cayley.kernels.cuda.runtime.nvrtc import tensor_refusal
from cayley.kernels.cuda.runtime.packed import step_table
from cayley.kernels.cuda.runtime.parts import parts
from cayley.kernels.cuda.runtime.projection import project_on_cuda
from cayley.kernels.cuda.runtime.row_products import LITTLE, RowProduct, row_products
from cayley.kernels.memory import readable
from cayley.kernels.projection import projection_gradients
from cayley.kernels.steps import product_of_rows

__all__ = [
    "NO_SITES",
    "contributed_lstm",
    "lstm",
    "lstm_backward",
    "refusal",
    "takes_networks",
]

# up to so many chunks of a sequence, each computes the references by itself
FEW_CHUNKS = 8
NOTHING = Site(*[cast(Any, None)] * len(Site._fields))
NO_SITES = (None, None, None)


def refusal(
    call: LstmCall, gradients: LstmGradients | None = None, *, c: Tensor | None = None
) -> str | None:
    """Why the kernels cannot compute a call, or its gradient; None if they can.

    Arguments:
        call: The call.
        gradients: The gradients of its results; None for the call itself.
        c: A bias that is added to U x.
    """
    tensors = [call.x, call.c0, call.W, call.b, call.weights, call.U, c, *(gradients or ())]
    for site in call.sites():
        if site is not None:
            tensors += site
    if reason := tensor_refusal(call.h0, *tensors):
        return reason
    if batch.joins_rows(call):
        return batch.refusal(call)
    H, K = call.h0.shape[-1], _window_steps(call)
    if not has_room(H, K, call.sites() != NO_SITES, call.h0.device.index):
        also = f" and windows of {K} steps" if K > 1 else ""
        return no_room(f"{4 * H} × {H} weights{also}", call.h0.device)
    return None


def takes_networks(call: LstmCall, networks: int) -> bool:
    """Whether one launch runs several networks with calls like this one, which is not refused."""
    if call.batch_sizes is not None or networks > MOST_NETWORKS or batch.joins_rows(call):
        return False
    H, K, normed = call.h0.shape[-1], _window_steps(call), call.sites() != NO_SITES
    return fits_blocks(H, K, normed, call.h0.device.index)


def lstm(call: LstmCall, out: LstmStates | None = None) -> LstmStates:
    """The states, cells and statistics of a call, in ``out`` if it is given."""
    if (states := many_rows_lstm(call, out=out)) is not None:
        return states
    *networks, _, _ = call.h0.shape
    contribution = project_on_cuda(call.x, call.U, None)
    if not networks:
        # what an operator returns has the strides that tracers expect
        contribution = contribution.contiguous()
    if out is not None:
        packed = call.batch_sizes is not None
        apart = call.sites() != NO_SITES and (packed or batch.joins_rows(call))
        states, _ = contributed_lstm(call, contribution, out=None if apart else out)
        if apart:
            for place, value in zip(out, states, strict=True):
                place.copy_(value)
        return out
    h, c, kept, *statistics = contributed_lstm(call, contribution)[0]
    # the results of an operator have to be different tensors
    statistics = (v if v.dim() > 1 else v.new_empty(*networks, 0) for v in statistics)
    return LstmStates(h, c, kept, *statistics)


def contributed_lstm(
    call: LstmCall, contribution: Tensor, *, derive: bool = False, out: LstmStates | None = None
) -> tuple[LstmStates, tuple[Tensor, ...]]:
    """The states, cells and statistics of a call, from the contribution of the input.

    Arguments:
        call: The call, of one network or of several, whose x and U are not read.
        contribution: The contribution of the input, (T, B, 4H) or (N, 4H).
        derive: Whether to derive the references, as :func:`~.references.references` does, instead
            of using those of the call; only for one network.
        out: Where to write the states of a call; not for statistics over the batch, given ones, or
            those of packed sequences.

    Returns:
        The states, and the derived references, each (B, 1), or over the batch (1, F). They are 0
        where none is needed: for what is not normalised, for recurrent products without a window,
        and for cells.
    """
    if batch.joins_rows(call):
        return batch.batch_lstm(call, contribution, derive=derive)
    K = _window_steps(call)
    *networks, B, H = call.h0.shape
    several, packed = bool(networks), call.batch_sizes is not None
    x, h0, c0, W, b, weights = _contiguous(
        *(contribution, call.h0, call.c0, call.W, call.b, call.weights), several=several
    )
    table, T = step_table(call.batch_sizes, x[0] if several else x, B)
    normed = _normed(call)
    kernels = lstm_kernels(H, K, normed, packed, call.eps, x.device.index, several)
    if out is None:
        h, c = (x.new_empty(*x.shape[:-1], H) for _ in range(2))
        kept = x.new_empty(x.shape)
        # 0 for sequences that have ended
        new = x.new_zeros if packed else x.new_empty
        rows = iter(new(sum(normed), *networks, 4, T, B, 1).unbind() if any(normed) else ())
        # one tensor in the place of all statistics that are missing; if none is, it is not used
        nothing = x if all(normed) else x.new_empty(0)
        of_x, of_h, of_c = (next(rows) if there else nothing for there in normed)
    else:
        h, c, kept, of_x, of_h, of_c = out
    # without a window only x, which may be anything, needs a reference
    bias = b if derive and normed[1] and call.window > 1 else None
    before = B > 0 and (normed[0] or bias is not None)
    sites = N_x, _, _ = _read(call, several)
    chunks = -(-T // kernels.length) if normed[0] else 0
    found: tuple[Tensor, ...] = ()
    derived = None
    if derive and before and chunks > FEW_CHUNKS:
        # otherwise every chunk of a row would read all of its steps
        found = references(x, bias, B, call.batch_sizes, of_input=True)
    elif derive:
        derived = (x.new_empty if before else x.new_zeros)(3, B, 1)
    if before:
        reference = found[0] if found else N_x.reference
        given = (x, bias, reference, N_x.past, weights, derived)
        launch(
            *(kernels.before, B * (chunks + (derived is not None)), networks, given, (of_x,)),
            *(table, T, B, K, kernels.length),
        )
    if derived is not None:
        found = derived.unbind()
    if B > 0:
        given = (x, h0, c0, W, b, *_as_read(sites, found), weights, of_x)
        made = (h, c, kept, of_h, of_c)
        kernels.forward(h0, given, made, call.batch_sizes, table, T, B, K)
    return LstmStates(h, c, kept, of_x, of_h, of_c), found


def lstm_backward(
    gradients: LstmGradients,
    states: LstmStates,
    call: LstmCall,
    needed: Collection[str],
    contribution: Tensor | None = None,
) -> dict[str, Tensor | None]:
    """Gradients of a call; for x, h0, c0, W, b, U and c only those that are needed.

    Arguments:
        gradients: The gradients of the states.
        states: The results of the call.
        call: The call, of one network or of several.
        needed: The names of arguments that need a gradient; ``"c"`` is the bias added to U x.
        contribution: The contribution of the input, U x + c; None if it is not read, since the call
            has U and only the cell is normalised.
    """
    *networks, B, H = call.h0.shape
    several, packed = bool(networks), call.batch_sizes is not None
    if contribution is None:
        # with U, it is not read, and has the same shape as what is kept
        contribution = call.x if call.U is None else states.kept
        if not several:
            contribution = contribution.contiguous()
    if batch.joins_rows(call):
        return batch.batch_lstm_backward(gradients, states, call, needed, contribution)
    K = _window_steps(call)
    input, U = call.x, call.U
    G = math.prod(networks)
    x, h0, c0, W, weights = _contiguous(
        *(contribution, call.h0, call.c0, call.W, call.weights), several=several
    )
    grad_h, grad_c, external_x, external_h, external_c = _contiguous(
        gradients.h, gradients.c, *gradients.statistics(), several=several
    )
    # the kernels have made these tensors, so contiguous() is enough
    h, c, kept, statistics_x, statistics_h, statistics_c = (v.contiguous() for v in states)
    table, T = step_table(call.batch_sizes, x[0] if several else x, B)
    N = h.numel() // (G * H)  # rows of all steps of a network
    normed = of_x, of_h, _ = _normed(call)
    sites = N_x, N_h, N_c = _read(call, several)
    kernels = lstm_kernels(H, K, normed, packed, call.eps, x.device.index, several)
    inputs = inputs_of(U)
    many = kernels.many_rows(B, G, "backward", inputs)
    # per block: the gradients of γ and β of the cell, and those of the other parameters; or with
    # several rows a block: those of b and U
    kinds = (H, H, *(4 * H,) * 6) if of_x or of_h else (H, H)
    blocks = B * -(-T // kernels.length) if of_x or of_h else B
    if many is not None:
        kinds, blocks = (4 * H,) * (1 + inputs), many.sums
    # windows read d at steps whose dx is already written, so both need their own memory
    apart = of_x and of_h and K > 1
    dx, da, d, partial, room_h0, room_c0 = parts(
        x,
        0 if "x" in needed else G * N * 4 * H,
        G * N * 4 * H if of_x or of_h else 0,
        G * N * 4 * H if apart else 0,
        G * blocks * sum(kinds),
        0 if "h0" in needed else G * B * H,
        0 if "c0" in needed else G * B * H,
    )
    if "x" in needed:
        dx = x.new_empty(x.shape)
    grad_h0 = x.new_empty(h0.shape) if "h0" in needed else room_h0
    grad_c0 = x.new_empty(c0.shape) if "c0" in needed else room_c0
    if not apart:
        d = da if of_x and not of_h else dx
    # past statistics that are not used have no gradient
    past_x, past_h, past_c = (
        None if site.past is None else x.new_zeros(site.past.shape) for site in (N_x, N_h, N_c)
    )
    if many is not None:
        (own_input,) = _contiguous(input if inputs else None, several=several)
        given = (own_input, grad_h, grad_c, c, kept, c0, W)
        made = (dx, grad_h0, grad_c0, partial)
        launch(many.kernel, many.blocks, networks, given, made, T, B)
    elif B > 0:
        given = (
            *(x, grad_h, grad_c, external_h, external_c, c, kept),
            *(statistics_x, statistics_h, statistics_c, c0, W, *_as_read(sites), weights),
        )
        made = (d, da, grad_h0, grad_c0, partial, past_h, past_c)
        steps = (table, T, B, K, sum(kinds))
        kernels.backward(h0, given, made, call.batch_sizes, blocks, *steps)
    if B > 0 and (of_x or of_h):
        of_input = (N_x.gamma, N_x.reference, N_x.past, weights)
        given = (x, kept, external_x, statistics_x, *of_input)
        made = (d, da, dx, past_x, partial)
        steps = (table, T, B, K, kernels.length, sum(kinds))
        launch(kernels.after, blocks, networks, given, made, *steps)
    delta = da if of_x or of_h else dx  # the gradient of W h + b
    if any(normed) or many is not None:
        summed, shape = partial, (blocks, sum(kinds))
    else:
        summed, shape = dx, (N, 4 * H)
    blocks_sum_U = many is not None and inputs == 1
    absent = ("U",) if U is None or blocks_sum_U else ()
    wanted = [name for name in ("W", "U") if name in needed and name not in absent]
    products, total = _sums(call, h, N, delta, dx, summed, shape, wanted)
    found: dict[str, Any] = {
        "h0": grad_h0 if "h0" in needed else None,
        "c0": grad_c0 if "c0" in needed else None,
        **products,
        "input_past": past_x,
        "recurrent_past": past_h,
        "cell_past": past_c,
    }
    if of_x or of_h:
        names = ("cell_gamma", "cell_beta", "input_gamma", "input_beta")
        names += ("recurrent_gamma", "recurrent_beta", "b", "c")
        found |= zip(names, total.split(kinds, -1), strict=True)
    elif any(normed):
        found |= zip(("cell_gamma", "cell_beta"), total.split(kinds, -1), strict=True)
        found["b"] = found["c"] = dx.view(*networks, N, 4 * H).sum(-2)
    elif blocks_sum_U:
        found["b"], of_U = total.split(kinds, -1)
        found["c"], found["U"] = found["b"], of_U[..., None]
    else:
        found["b"] = found["c"] = total
    if isinstance(dx, Tensor):
        found["x"] = projection_gradients(dx, input, U, ("x",))["x"]
    return found


def _sums(
    call: LstmCall,
    h: Tensor,
    N: int,
    delta: Any,
    dx: Any,
    summed: Any,
    shape: tuple[int, int],
    wanted: Collection[str],
) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients that are sums over all steps, in a fixed order.

    Arguments:
        call: The call, of one network or of several.
        h: Its states.
        N: The number of rows of all steps, of one network.
        delta: The gradient of W h + b.
        dx: That of the contribution of the input.
        summed: Another array.
        shape: Its rows and columns, of one network.
        wanted: Those of ``"W"`` and ``"U"`` to compute.

    Returns:
        Their gradients by name, and the sum of the rows of the other array.
    """
    x, h0, (*networks, B, H) = call.x, call.h0, call.h0.shape
    found: dict[str, Tensor] = {}
    if call.batch_sizes is None and 0 < N * 4 * H * (H + x.shape[-1]) <= LITTLE:
        products = []
        if "W" in wanted:
            (first,), shared = arrays_of((h0,), bool(networks))
            sizes, found["W"] = (4 * H, H), h.new_empty(*networks, 4 * H, H)
            products.append(
                RowProduct(delta, h, found["W"], sizes, sizes, first, shared=4 * shared)
            )
        if "U" in wanted:
            (rows,), shared = arrays_of((x,), bool(networks))
            sizes = (4 * H, x.shape[-1])
            found["U"] = h.new_empty(*networks, *sizes)
            products.append(RowProduct(dx, rows, found["U"], sizes, sizes, shared=2 * shared))
        total, G = h.new_empty(*networks, shape[1]), math.prod(networks)
        row_products(h.device.index, N, products, summed, total, shape, B, G)
        return found, total
    if "W" in wanted:
        steps = delta.view(*h.shape[:-1], 4 * H)
        found["W"] = outer_products_on_cuda(steps, h, h0, call.batch_sizes, False)
    if "U" in wanted:
        rows = x.flatten(len(networks), -2)
        found["U"] = product_of_rows(dx.view(*networks, N, 4 * H), rows)
    return found, summed.view(*networks, *shape).sum(-2)


def _window_steps(call: LstmCall) -> int:
    """The number of steps that a window can have; 1 if nothing is normalised."""
    if call.window == 1 or call.sites() == NO_SITES:
        return 1
    if any(site is not None and site.past is not None for site in call.sites()):
        return call.window
    sizes = call.batch_sizes
    return min(call.window, call.x.shape[-3] if sizes is None else len(sizes))


def _contiguous(*tensors: Tensor | None, several: bool = False) -> list[Any]:
    """The tensors as kernels read them; with several networks, one that all share is not copied."""
    if not several:
        return [None if tensor is None else readable(tensor) for tensor in tensors]
    return [
        readable(tensor[0]).expand(tensor.shape)
        if tensor is not None and tensor.stride(0) == 0
        else readable(tensor)
        for tensor in tensors
    ]


def _normed(call: LstmCall) -> tuple[bool, ...]:
    """Whether the input, the recurrent product and the cell are normalised."""
    return call.input is not None, call.recurrent is not None, call.cell is not None


def _read(call: LstmCall, several: bool) -> list[Site]:
    """The normalisations as kernels read them; null pointers for what is missing."""
    return [
        NOTHING if site is None else Site(*_contiguous(*site, several=several))
        for site in call.sites()
    ]


def _as_read(sites: Sequence[Site], references: Sequence[Tensor] = ()) -> list[Tensor | None]:
    """γ, β and reference of each normalisation, and the past of N_h and N_c.

    Arguments:
        sites: The normalisations.
        references: The references to use instead of theirs, if there are any.
    """
    N_x, N_h, N_c = sites
    of_x, of_h, of_c = references or (N_x.reference, N_h.reference, N_c.reference)
    return [
        *(N_x.gamma, N_x.beta, of_x),
        *(N_h.gamma, N_h.beta, of_h, N_h.past),
        *(N_c.gamma, N_c.beta, of_c, N_c.past),
    ]
