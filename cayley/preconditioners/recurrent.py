"""The rows of recurrent layers, and the rule for those of torch."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from cayley.preconditioners.joint import Bias, Block, Weight
from cayley.preconditioners.rule import Layout, Observation, Rows, Rule, reached

__all__ = [
    "Recurrence",
    "TorchRecurrentRule",
    "check_single_layer",
    "joint_block",
    "observe_recurrences",
    "separate_blocks",
]


class Recurrence(NamedTuple):
    r"""The rows that the weights of one direction of a layer multiplied.

    Attributes:
        suffix: The end of its parameters' names.
        x: The inputs :math:`x_t`, (T, B, I).
        h: The states :math:`h_{t-1}` before the steps, (T, B, H).
        reached: Which steps affect the loss, (T, B).
    """

    suffix: str
    x: Tensor
    h: Tensor
    reached: Tensor

    def rows(self) -> dict[str, Rows]:
        """The inputs and the states, each under a name of this direction."""
        return {
            f"input_{self.suffix}": Rows(self.x, self.reached),
            f"hidden_{self.suffix}": Rows(self.h, self.reached),
        }


def observe_recurrences(
    module: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    output: Any,
    *,
    initial: Callable[[str, int], Tensor] | None = None,
    rows: Callable[[Recurrence], dict[str, Rows]] = Recurrence.rows,
) -> Observation:
    r"""The observation of a forward pass of a layer with the contract of ``nn.RNN``.

    W multiplied the states *before* the steps, :math:`h_0, \dots, h_{T-1}`. A step affects the loss
    if its output does, or a later output or the last state of the same sequence. The time spent in
    Python does not grow with T.

    Arguments:
        module: The layer, a single one in one or two directions.
        args: The args of its forward pass.
        kwargs: The kwargs of its forward pass.
        output: The output of its forward pass.
        initial: A function of a suffix and B that returns the state before the first step if no
            ``hx`` is given, (B, H); None for 0.
        rows: The rows of the sites of one direction.
    """
    input = args[0] if args else kwargs["input"]
    hx = args[1] if len(args) > 1 else kwargs.get("hx")
    y, last = output
    packed = isinstance(input, PackedSequence)
    order, sizes = (input.sorted_indices, input.batch_sizes) if packed else (None, None)
    x, h = ((v.data if packed else v).detach() for v in (input, y))
    h0 = hx[0] if isinstance(hx, (tuple, list)) else hx
    h0 = None if h0 is None else h0.detach()
    suffixes = ("l0", "l0_reverse") if module.bidirectional else ("l0",)
    batch_first = module.batch_first

    def steps(sequence: Tensor) -> Tensor:
        """(T, B, ·) of any layout; sequences that have ended are 0."""
        if sizes is not None:
            return pad_packed_sequence(PackedSequence(sequence, sizes))[0]
        if sequence.dim() == 2:
            return sequence.unsqueeze(1)
        return sequence.transpose(0, 1) if batch_first else sequence

    def by_direction(state: Tensor) -> Tensor:
        """(directions, B, ·) in the order of the steps."""
        state = state.unsqueeze(1) if state.dim() == 2 else state
        return state if order is None else state.index_select(1, order)

    def directions(grads: Sequence[Any]) -> Iterator[Recurrence]:
        grad, *ends = grads
        xs, hs = steps(x), steps(h)
        gs = torch.zeros_like(hs) if grad is None else steps(grad)
        T, B, _ = hs.shape
        there = xs.new_ones((T, B), dtype=torch.bool)
        if sizes is not None:
            there = (torch.arange(B, device=sizes.device) < sizes[:, None]).to(xs.device)
        parts = zip(suffixes, *(v.chunk(len(suffixes), -1) for v in (hs, gs)), strict=True)
        for d, (suffix, h_d, g_d) in enumerate(parts):
            first = h_d.new_zeros(h_d.shape[1:])
            if h0 is not None:
                first = by_direction(h0)[d]
            elif initial is not None:
                first = initial(suffix, B).detach()
            after = reached(g_d).int()
            for end in ends:
                if end is not None:
                    after = after + reached(by_direction(end)[d])
            if d == 0:
                before = torch.cat((first[None].to(h_d), h_d[:-1]))
                after = after.flip(0).cumsum(0).flip(0)
            else:
                before = torch.cat((h_d[1:], first[None].to(h_d)))
                # a shorter sequence begins (in reverse) before the end of the others
                begins = there & ~torch.cat((there[1:], torch.zeros_like(there[:1])))
                before = torch.where(begins.unsqueeze(-1), first.to(h_d), before)
                after = after.cumsum(0)
            yield Recurrence(suffix, xs, before, (after > 0) & there)

    def collect(grads: Sequence[Any]) -> dict[str, Rows]:
        return {site: found for one in directions(grads) for site, found in rows(one).items()}

    states = (last,) if isinstance(last, Tensor) else tuple(last)
    return Observation((y.data if packed else y, *states), collect, (h,))


class TorchRecurrentRule(Rule):
    r"""The block [b, W, U] of ``nn.RNN`` and ``nn.LSTM``, and the blocks of ``nn.GRU``.

    Note:
        torch has two biases where Algorithm 4 has one, their sum. The sum takes the algorithm's
        step, half of it in each. Preconditioning [b_ih, U] and [b_hh, W] separately would add
        another gradient to its step.

        The candidate of ``nn.GRU`` is :math:`U x + b_{ih} + r \odot (W h + b_{hh})`: two sums, and
        a block for each.

    References:
        Normalization Techniques for Sequential and Graphical Data (dissertation), Pospisil, 2023,
        Algorithm 4.

    Example:
        >>> len(TorchRecurrentRule().layout(nn.GRU(2, 3)).blocks)
        3
    """

    name = "Recurrent"
    types: ClassVar[tuple[type[nn.Module], ...]] = (nn.RNN, nn.GRU, nn.LSTM)

    def layout(self, module: nn.Module) -> Layout:
        """A block for each sum of products, in each direction."""
        assert isinstance(module, nn.RNNBase)
        check_single_layer(module)
        blocks: list[Block] = []
        for suffix in ("l0", "l0_reverse") if module.bidirectional else ("l0",):
            H = module.hidden_size
            if not isinstance(module, nn.GRU):
                blocks.append(joint_block(suffix))
                continue
            gates, candidate = slice(2 * H), slice(2 * H, 3 * H)
            blocks.append(joint_block(suffix, gates))
            blocks += separate_blocks(suffix, candidate)
        projected = "it multiplies the state before its projection, which no hook can see"
        left = {f"weight_hr_{s}": projected for s in ("l0", "l0_reverse")}
        return Layout(tuple(blocks), left if module.proj_size else {})

    def observe(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Observation:
        """The inputs and the states before the steps."""
        return observe_recurrences(module, args, kwargs, output)


def joint_block(suffix: str, rows: slice = slice(None)) -> Block:
    """One block of both weights and both biases, named as torch does."""
    (x,), (h,) = (block.weights for block in separate_blocks(suffix, rows))
    (b_x,), (b_h,) = (block.biases for block in separate_blocks(suffix, rows))
    return Block((x, h), (b_x, b_h))


def separate_blocks(suffix: str, rows: slice = slice(None)) -> list[Block]:
    """A block of the input's weight and bias and one of the state's, named as torch does."""
    return [
        Block(
            (Weight(f"weight_{kind}_{suffix}", f"{site}_{suffix}", rows),),
            (Bias(f"bias_{kind}_{suffix}", rows),),
        )
        for kind, site in (("ih", "input"), ("hh", "hidden"))
    ]


def check_single_layer(module: Any) -> None:
    """Raise if the module has several stacked layers."""
    if module.num_layers > 1:
        name = type(module).__name__
        raise ValueError(
            f"BNP: expected {name} with num_layers=1, got {module.num_layers}: the inputs of its "
            f"upper layers cannot be seen from outside. Use {module.num_layers} modules of one "
            f"layer each, or leave it out: BNP(model, exclude={name})"
        )
