"""Steps of a sequence, in the dense layout (T, B, ·) or the packed one (N, ·).

In the packed layout the steps follow one another, and step t has ``batch_sizes[t]`` rows: sequences
are sorted by length, so that those that have ended are missing at the end.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "check_batch_sizes",
    "check_devices",
    "check_sequence",
    "empty_gradient",
    "last_states",
    "outer_products",
    "previous_states",
    "product_of_rows",
    "rows",
    "step_order",
    "step_sizes",
    "transposed",
]


def check_sequence(x: Tensor, h0: Tensor, batch_sizes: Tensor | None) -> None:
    """Raise unless x holds the steps of sequences with the initial states h0.

    Example:
        >>> check_sequence(torch.zeros(3, 2, 5), torch.zeros(2, 8), None)
    """
    if x.dim() != (3 if batch_sizes is None else 2) or x.shape[0] == 0:
        raise ValueError(
            "expected x of shape (T, B, ·), or (N, ·) with batch_sizes, of at least one step, got "
            f"{tuple(x.shape)}"
        )
    if batch_sizes is None and h0.shape[0] != x.shape[1]:
        raise ValueError(f"expected h0 of {x.shape[1]} rows, one per sequence, got {h0.shape[0]}")


def check_devices(x: Tensor, *others: Tensor | None) -> None:
    """Raise unless all tensors are on one device.

    Example:
        >>> check_devices(torch.zeros(3, 2, 5), None, torch.zeros(2, 8))
    """
    device = x.device
    for other in others:
        if other is not None and other.device != device:
            raise ValueError(
                f"expected all tensors on one device, got {device} and {other.device}: move them"
            )


def check_batch_sizes(batch_sizes: Tensor, N: int, B: int) -> None:
    """Raise unless these are batch sizes of N packed rows of B sequences.

    Example:
        >>> check_batch_sizes(torch.tensor([2, 2, 1]), 5, 2)
    """
    sizes = batch_sizes.tolist()
    if (
        batch_sizes.dtype != torch.int64
        or not batch_sizes.is_cpu
        or not batch_sizes.is_contiguous()
        or sizes != sorted(sizes, reverse=True)
        or (sizes[0], sum(sizes)) != (B, N)
        or sizes[-1] < 1
    ):
        raise ValueError(
            "expected batch_sizes of int64 on the CPU, contiguous, positive, never increasing, "
            f"beginning with the {B} rows of the initial state and with the sum {N}, got "
            f"{batch_sizes.dtype} {sizes} on {batch_sizes.device}"
        )


def step_sizes(x: Tensor, batch_sizes: Tensor | None) -> list[int]:
    """The number of sequences at each step.

    Example:
        >>> step_sizes(torch.zeros(3, 2, 5), None)
        [2, 2, 2]
    """
    if batch_sizes is not None:
        return batch_sizes.tolist()
    return [x.shape[1]] * x.shape[0]


def step_order(T: int, reverse: bool) -> Sequence[int]:
    """The steps in the order in which time runs."""
    return range(T)[::-1] if reverse else range(T)


def rows(h: Tensor, h0: Tensor, B: int) -> Tensor:
    """The states before a step of B sequences, from those after the previous step.

    Sequences that have ended are dropped; those that begin only now, as happens when time runs
    backwards, are added with their initial state.

    Example:
        >>> rows(torch.zeros(1, 2), torch.ones(3, 2), 2)
        tensor([[0., 0.],
                [1., 1.]])
    """
    if len(h) >= B:
        return h[:B]
    return torch.cat((h, h0[len(h) : B]))


def previous_states(h: Tensor, h0: Tensor, batch_sizes: Tensor | None, reverse: bool) -> Tensor:
    """The state before each step, in the layout of h."""
    if batch_sizes is None:
        return torch.cat((h[1:], h0[None]) if reverse else (h0[None], h[:-1]))
    # In h0 and h stacked, starts[t + 1] is where step t begins. Tables of steps are made on the CPU
    # and copied without waiting; those of all rows are made on the device.
    zero = batch_sizes.new_zeros(1)
    starts = torch.cat((zero, batch_sizes[:1], batch_sizes)).cumsum(0)
    following = torch.cat((batch_sizes[1:], zero))
    tables = torch.stack((batch_sizes, following, starts[:-2], starts[2:]))
    sizes, following, earlier, later = tables.to(h.device, non_blocking=True)
    t = torch.arange(len(sizes), device=h.device).repeat_interleave(sizes, output_size=len(h))
    sequence = torch.arange(len(h), device=h.device) - (later - sizes - len(h0))[t]
    index = earlier[t] + sequence
    if reverse:
        # in reverse, sequences that end here begin with their initial state
        index = torch.where(sequence < following[t], later[t] + sequence, sequence)
    return torch.cat((h0, h))[index]


def outer_products(
    delta: Tensor, h: Tensor, h0: Tensor, batch_sizes: Tensor | None, reverse: bool
) -> Tensor:
    r"""The sum over all steps :math:`\sum_t \delta_t h_{t-1}^\top`, a gradient of W.

    Dense steps may be those of several networks, (G, T, B, ·), with their initial states, where
    nothing is differentiated.

    Example:
        >>> delta, h, h0 = torch.ones(2, 1, 1), torch.tensor([[[3.0]], [[5.0]]]), torch.ones(1, 1)
        >>> outer_products(delta, h, h0, None, reverse=False)  # 1 · 1 + 1 · 3
        tensor([[4.]])
    """
    if batch_sizes is not None:
        return product_of_rows(delta, previous_states(h, h0, batch_sizes, reverse))
    # without copying h, which may be most of the memory in use
    T = h.shape[-3]
    first, others = (T - 1, 0) if reverse else (0, 1)
    of_first = delta.select(-3, first)
    rows = delta.narrow(-3, others, T - 1).flatten(-3, -2)
    before = h.narrow(-3, 1 - others, T - 1).flatten(-3, -2)
    if delta.dim() == 4:
        total = of_first.mT @ h0
        for own, a, b in zip(total, rows, before, strict=True):
            own.addmm_(a.mT, b)
        return total
    total = product_of_rows(of_first, h0)
    if torch.is_grad_enabled():
        return total + product_of_rows(rows, before)
    return total.addmm_(rows.mT, before)


def product_of_rows(a: Tensor, b: Tensor) -> Tensor:
    r"""The sum over rows :math:`\sum_k a_k b_k^\top`, for an a that is wider than b.

    On a CPU the result is transposed in memory: with the wider factor on the right the product is
    up to 1.6 times as fast. On a GPU it is not faster, and a gradient in the layout of its
    parameter need not be copied. The rows may be those of several networks, with one more dimension
    in front, where nothing is differentiated.

    Example:
        >>> product_of_rows(torch.ones(5, 3), torch.ones(5, 2))
        tensor([[5., 5.],
                [5., 5.],
                [5., 5.]])
    """
    if a.dim() == 3:
        # One product for each: of so many rows, a batched one takes up to three times as long.
        sums = a.new_empty(len(a), a.shape[2], b.shape[2])
        for own, rows, others in zip(sums, a, b, strict=True):
            torch.mm(rows.mT, others, out=own)
        return sums
    return a.mT @ b if a.is_cuda else (b.mT @ a).mT


def transposed(W: Tensor, B: int) -> Tensor:
    """Wᵀ for one product with B rows: on a CPU a contiguous copy pays off for more than two rows.

    On aarch64, torch's product of a few rows with a transposed view is a hundred times slower.

    Example:
        >>> W = torch.randn(3, 3)
        >>> transposed(W, 1).is_contiguous(), transposed(W, 8).is_contiguous()
        (False, True)
    """
    return W.mT if B <= 2 or W.is_cuda else W.mT.contiguous()


def empty_gradient(like: Tensor, matrix: Tensor | None) -> Tensor:
    """An empty tensor for a gradient in the layout of :func:`product_of_rows`; empty for None."""
    if matrix is None:
        return like.new_empty(0, 0)
    return like.new_empty(matrix.shape) if like.is_cuda else like.new_empty(matrix.shape[::-1]).mT


def last_states(h: Tensor, batch_sizes: Tensor | None, reverse: bool) -> Tensor:
    """The state of every sequence after its last step, (B, H)."""
    if batch_sizes is None:
        return h[0] if reverse else h[-1]
    B = int(batch_sizes[0])
    if reverse:
        return h[:B]
    sequence = torch.arange(B, device=batch_sizes.device)
    length = (batch_sizes > sequence[:, None]).sum(1)
    first_row = batch_sizes.cumsum(0) - batch_sizes
    return h[(first_row[length - 1] + sequence).to(h.device)]
