"""The rule for the recurrent layers of this package."""

from typing import Any, ClassVar

from torch import nn

from cayley.layers.cells import Cell
from cayley.layers.elman import RNN
from cayley.layers.gru import NCGRU
from cayley.layers.lstm import LSTM
from cayley.layers.recurrent import Recurrent
from cayley.parametrizations.gates import GATES
from cayley.parametrizations.long_short import LongShort
from cayley.preconditioners.joint import ALL, Bias, Block, Weight
from cayley.preconditioners.recurrent import (
    Recurrence,
    check_single_layer,
    joint_block,
    observe_recurrences,
    separate_blocks,
)
from cayley.preconditioners.rule import Layout, Observation, Rows, Rule
from cayley.tracing import no_autocast

__all__ = ["LayerRule"]

STRUCTURED = (
    "W is a function of it: the preconditioned gradient of W, carried over to it, could ascend"
)
THRESHOLD = "a threshold of modReLU: it is not added to the products"


class LayerRule(Rule):
    r"""The blocks [b, W, U] of the recurrent layers of this package.

    U is always preconditioned, W if it is free, and both are centred if a bias is added to their
    products; the threshold of modReLU is not such a bias. If the two products are normalised
    separately there are two blocks, [b_x, U] and [b_h, W], without the biases in an Elman network.
    Of structured matrices, only the blocks that are free tensors themselves are preconditioned: the
    free gates of :class:`~cayley.NCGRU` and the coupling of :class:`~cayley.ENRNN`.

    Note:
        A structured W = f(A) is left alone. With J the derivative of f, the gradient of A is
        :math:`J^\top g`, and preconditioning g first would give :math:`J^\top P P^\top g`. But
        :math:`J J^\top P P^\top` is not symmetric, and since :math:`J J^\top` is singular its
        symmetric part has negative eigenvalues unless the two commute: for some gradients the step
        would increase the loss.

    References:
        Normalization Techniques for Sequential and Graphical Data (dissertation), Pospisil, 2023,
        Algorithm 4.

    Example:
        >>> import cayley
        >>> [weight.name for weight in LayerRule().layout(cayley.ScoRNN(2, 8)).blocks[0].weights]
        ['weight_ih_l0']
    """

    name = "Recurrent"
    types: ClassVar[tuple[type[nn.Module], ...]] = (RNN, NCGRU, LSTM)

    def serves(self, module: nn.Module) -> bool:
        """Whether the module is one of these layers, with their forward pass."""
        runs = (RNN.run, NCGRU.run, LSTM.run)
        runs_so = isinstance(module, Recurrent) and type(module).run in runs
        # not for cells: a cell sees one step only, and statistics need a sequence
        return super().serves(module) and runs_so and not isinstance(module, Cell)

    def layout(self, module: nn.Module) -> Layout:
        """The blocks of both directions, and why the other parameters are left out."""
        assert isinstance(module, Recurrent)
        check_single_layer(module)
        blocks: list[Block] = []
        left: dict[str, str] = {}
        for suffix, _, _ in module.suffixes():
            if isinstance(module, LSTM):
                apart = module.norm is not None
                blocks += separate_blocks(suffix) if apart else [joint_block(suffix)]
                left[f"bias_{suffix}"] = "it is added behind the normalisation"
            elif isinstance(module, NCGRU):
                blocks += _gru_blocks(module, suffix)
            elif isinstance(module, RNN):
                blocks += _elman_blocks(module, suffix)
                if module.norm is not None and module.nonlinearity != "modrelu":
                    left[f"bias_{suffix}"] = "it is added behind the normalisation"
            left[f"h0_{suffix}"] = "an initial state, which multiplies nothing"
        named = {place.name for block in blocks for place in (*block.weights, *block.biases)}
        for name, _ in module.named_parameters():
            if name.endswith(".candidate"):
                left[name] = "it multiplies r ⊙ h, and r comes from a structured matrix"
            elif name.startswith("structured."):
                left[name] = STRUCTURED
            elif name.startswith("bias"):
                left.setdefault(name, THRESHOLD)
            elif name.startswith(("gamma", "beta")):
                left[name] = "it belongs to a normalisation"
        return Layout(tuple(blocks), {n: why for n, why in left.items() if n not in named})

    def observe(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Observation:
        """The inputs and the states before the steps."""
        assert isinstance(module, Recurrent)
        return observe_recurrences(
            module,
            args,
            kwargs,
            output,
            initial=module.initial_state if module.trainable_h0 else None,
            rows=lambda recurrence: _rows(module, recurrence),
        )


def _elman_blocks(module: RNN, suffix: str) -> list[Block]:
    name = f"weight_hh_{suffix}"
    additive = module.nonlinearity != "modrelu" and module.norm is None
    if name not in module.structured:
        if module.norm is not None:
            return separate_blocks(suffix)
        block = joint_block(suffix)
        return [block if additive else Block(block.weights)]
    parts: list[tuple[slice, tuple[Weight, ...]]] = [(ALL, ())]
    if (map := _coupled(module, suffix)) is not None:
        C = Weight(f"structured.{name}.C", f"short_{suffix}")
        parts = [(slice(map.q), (C,)), (slice(map.q, None), ())]
    return [
        Block(
            (Weight(f"weight_ih_{suffix}", f"input_{suffix}", rows), *others),
            (Bias(f"bias_{suffix}", rows),) if additive else (),
        )
        for rows, others in parts
    ]


def _gru_blocks(module: NCGRU, suffix: str) -> list[Block]:
    n = module.hidden_size
    name = f"weight_hh_{suffix}"
    blocks: list[Block] = []
    for k, gate in enumerate(GATES):
        rows = slice(k * n, (k + 1) * n)
        weights = [Weight(f"weight_ih_{suffix}", f"input_{suffix}", rows)]
        if not module.orthogonal:
            site = "reset" if gate == "candidate" else "hidden"
            weights.append(Weight(name, f"{site}_{suffix}", rows))
        elif gate not in (*module.orthogonal, "candidate"):
            weights.append(Weight(f"structured.{name}.{gate}", f"hidden_{suffix}"))
        additive = gate != "candidate" or module.nonlinearity == "tanh"
        blocks.append(Block(tuple(weights), (Bias(f"bias_{suffix}", rows),) if additive else ()))
    return blocks


def _coupled(module: Recurrent, suffix: str) -> LongShort | None:
    """The map of a matrix with a free block that couples two states, if there is one."""
    maps = {
        name: matrix.map for name, matrix in zip(module.structured, module.matrices(), strict=True)
    }
    map = maps.get(f"weight_hh_{suffix}")
    return map if isinstance(map, LongShort) and map.coupled else None


def _rows(module: Recurrent, recurrence: Recurrence) -> dict[str, Rows]:
    """The inputs, the states, and the other rows that a weight of the layer multiplies."""
    result = recurrence.rows()
    suffix, x, h, reached = recurrence
    if isinstance(module, NCGRU) and not module.orthogonal:
        n = module.hidden_size
        U, W = (getattr(module, f"weight_{k}_{suffix}")[:n].to(h) for k in ("ih", "hh"))
        b = getattr(module, f"bias_{suffix}")[:n].to(h) if module.bias else None
        with no_autocast(h.device):
            r = (nn.functional.linear(x.to(h), U, b) + h @ W.mT).sigmoid()
        result[f"reset_{suffix}"] = Rows(r * h, reached)
    elif (map := _coupled(module, suffix)) is not None:
        result[f"short_{suffix}"] = Rows(h[..., map.q :], reached)
    return result
