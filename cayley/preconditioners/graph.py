"""Rules for the layers of torch_geometric: GCNConv, SAGEConv and Linear."""

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch_geometric.nn import GCNConv, Linear, SAGEConv
from torch_geometric.nn.aggr import MeanAggregation, SumAggregation

from cayley.preconditioners.joint import Bias, Block, Weight
from cayley.preconditioners.linear import LinearRule
from cayley.preconditioners.rule import Layout, Observation, Rows, Rule, reached

__all__ = ["RULES", "GCNRule", "GraphLinearRule", "SAGERule", "aggregate"]

# features at a time: faster than all at once, and a sparse X never becomes dense as a whole
COLUMNS = 256


@torch.no_grad()
def aggregate(conv: GCNConv, x: Tensor, *graph: Any) -> Tensor:
    r"""The rows that the weight of a GCNConv multiplies.

    .. math:: Z = \hat D^{-1/2} \hat A \hat D^{-1/2} X

    They are what the layer itself would return with W = I and b = 0, for all its settings and all
    forms of graphs.

    Arguments:
        conv: The layer.
        x: X, dense (..., N, I) or sparse (N, I).
        graph: The other arguments of the layer.

    Returns:
        Z, (..., N, I), sparse if X is.

    Example:
        >>> conv = GCNConv(1, 5, normalize=False)
        >>> aggregate(conv, torch.tensor([[1.0], [3.0]]), torch.tensor([[0, 1], [1, 0]]))
        tensor([[3.],
                [1.]])
    """
    bare = copy.copy(conv)
    modules = {**conv._modules, "lin": nn.Identity()}
    # cached, so that the copy normalises the graph once for all blocks of columns
    vars(bare).update(_modules=modules, _parameters={"bias": None}, cached=True)
    if x.layout == torch.strided:
        return torch.cat([bare.forward(X, *graph) for X in x.split(COLUMNS, -1)], -1)
    X, features = x.to_sparse_coo(), x.shape[1]
    blocks = (
        X.narrow_copy(1, start, min(COLUMNS, features - start)).to_dense()
        for start in range(0, features, COLUMNS)
    )
    return torch.cat([bare.forward(block, *graph).to_sparse() for block in blocks], 1).coalesce()


class Aggregation:
    """:func:`aggregate` for one layer, computed again only if X or the graph has changed.

    For a trained X it is computed every time. Only writes through ``X.data`` are not noticed.

    Example:
        >>> conv, x = GCNConv(1, 5), torch.tensor([[1.0], [3.0]])
        >>> graph, aggregation = torch.tensor([[0, 1], [1, 0]]), Aggregation()
        >>> Z = aggregation(conv, x, graph)
        >>> aggregation(conv, x, graph) is Z, aggregation(conv, x.add_(1), graph) is Z
        (True, False)
    """

    def __init__(self) -> None:
        self._key: list[tuple[int, int]] = []
        self._inputs: list[Tensor] = []
        self._Z: Tensor | None = None

    def __call__(self, conv: GCNConv, *inputs: Any) -> Tensor:
        """Z."""
        given = [value for value in inputs if value is not None]
        if not all(isinstance(value, Tensor) and _can_return(value) for value in given):
            return aggregate(conv, *inputs)
        key = [(id(value), value._version) for value in given]
        if self._Z is None or key != self._key:
            # while the inputs are held, no other tensor can have their ids
            self._key, self._inputs, self._Z = key, given, aggregate(conv, *inputs)
        return self._Z


def _can_return(value: Tensor) -> bool:
    """Whether a tensor may come again, and its version counter shows whether it has changed."""
    # not for trained tensors: fused optimizers do not raise the counter
    return not value.requires_grad and not value.is_inference()


class GCNRule(Rule):
    r"""The block [b, W] of GCNConv, whose rows are those of ÂX and not of X.

    .. math::
        x_i' = b + W z_i, \qquad Z = \hat D^{-1/2} \hat A \hat D^{-1/2} X

    A node counts at a layer if its output there affects the loss: at the last layer these are the
    training nodes, at the layer before also their neighbours.

    References:
        Normalization Techniques for Sequential and Graphical Data (dissertation), Pospisil, 2023,
        Algorithm 5.

    Example:
        >>> GCNRule().layout(GCNConv(2, 3, aggr="max")).left["bias"]
        "expected aggr 'add' or 'mean', which the weight passes through; got 'max'"
    """

    name = "GCNConv"
    types: ClassVar[tuple[type[nn.Module], ...]] = (GCNConv,)

    def __init__(self) -> None:
        self._aggregation = Aggregation()

    def layout(self, module: nn.Module) -> Layout:
        """One block of the weight of ``lin`` and the bias of the layer."""
        why = None
        if not isinstance(module.aggr_module, SumAggregation | MeanAggregation):
            why = (
                "expected aggr 'add' or 'mean', which the weight passes through; "
                f"got {module.aggr!r}"
            )
        for method in ("message", "message_and_aggregate", "aggregate", "update"):
            if getattr(type(module), method) is not getattr(GCNConv, method):
                why = f"expected the {method} of GCNConv, got that of {type(module).__name__}"
        if why is not None:
            return Layout((), {"lin.weight": why, "bias": why})
        return Layout((Block((Weight("lin.weight", "aggregated"),), (Bias("bias"),)),))

    def watch(
        self, module: nn.Module, record: Callable[[Observation], None]
    ) -> list[RemovableHandle]:
        """Hook the module, with a cache of its own that goes away with the hook."""
        return Rule.watch(GCNRule(), module, record)

    def observe(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Observation:
        """The rows of ÂX, computed when the gradient arrives."""
        assert isinstance(module, GCNConv)
        names = ("x", "edge_index", "edge_weight")[len(args) :]
        inputs = [*args, *(kwargs[name] for name in names if name in kwargs)]
        return Observation(
            (output,),
            lambda grads: {
                "aggregated": Rows(self._aggregation(module, *inputs), reached(grads[0]))
            },
        )


class SAGERule(Rule):
    r"""The joint block [b, W_l, W_r] of SAGEConv.

    .. math::
        x_i' = b + W_l z_i + W_r x_i, \qquad z_i = \mathrm{mean}_{j \in N(i)}\, x_j

    The rows z are those that ``lin_l`` receives, for any aggregation. Only nodes whose output
    affects the loss count; the outermost nodes of a sampled neighbourhood, whose own neighbours are
    missing, do not. A projection, σ(W x_j + b) before the aggregation, is a block [b, W] of its
    own.

    Note:
        Algorithm 6 of the reference preconditions [b₁, W₁] and [b₂, W₂] separately. SAGEConv has a
        single bias, for which that operator is neither symmetric nor definite: a step may increase
        the loss. The joint block is the preconditioner of the sum.

    References:
        Normalization Techniques for Sequential and Graphical Data (dissertation), Pospisil, 2023,
        Algorithm 6.

    Example:
        >>> [weight.name for weight in SAGERule().layout(SAGEConv(2, 3)).blocks[0].weights]
        ['lin_l.weight', 'lin_r.weight']
    """

    name = "SAGEConv"
    types: ClassVar[tuple[type[nn.Module], ...]] = (SAGEConv,)

    def layout(self, module: nn.Module) -> Layout:
        """The joint block, and that of a projection."""
        own = Block(
            (Weight("lin_l.weight", "neighbours"), Weight("lin_r.weight", "root")),
            (Bias("lin_l.bias"),),
        )
        projection = Block((Weight("lin.weight", "sources"),), (Bias("lin.bias"),))
        aggregation = [name for name, _ in module.named_parameters() if name.startswith("aggr_")]
        return Layout(
            (own, projection), dict.fromkeys(aggregation, "BNP serves no trained aggregation")
        )

    def watch(
        self, module: nn.Module, record: Callable[[Observation], None]
    ) -> list[RemovableHandle]:
        """Hook the linear maps of the module; a hook on the module itself marks it as in use."""
        sites = {"lin_l": "neighbours", "lin_r": "root", "lin": "sources"}
        handles = super().watch(module, record)
        for name, lin in module.named_children():
            if name in sites:
                site = sites[name]
                handles += LinearRule().watch(
                    lin, lambda seen, site=site: record(_renamed(seen, site))
                )
        return handles

    def observe(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Nothing: the inputs of its linear maps are not among its arguments."""


def _renamed(seen: Observation, site: str) -> Observation:
    """The observation of a linear map, with its rows under the name of a site."""
    # only the function: with the outputs the graph would keep itself alive
    rows = seen.rows
    return seen._replace(rows=lambda grads: {site: rows(grads)["input"]})


class GraphLinearRule(Rule):
    """The block [b, W] of torch_geometric's Linear, which is not an ``nn.Linear``.

    Example:
        >>> GraphLinearRule().serves(SAGEConv(2, 3, project=True).lin)
        True
    """

    name = "Linear"
    types: ClassVar[tuple[type[nn.Module], ...]] = (Linear,)

    def layout(self, module: nn.Module) -> Layout:
        """That of ``nn.Linear``."""
        return LinearRule().layout(module)

    def observe(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Observation:
        """That of ``nn.Linear``."""
        return LinearRule().observe(module, (*args, *kwargs.values()), {}, output)


RULES: tuple[Rule, ...] = (GCNRule(), SAGERule(), GraphLinearRule())
