"""Networks without recurrence: of rows, and of the nodes of a graph."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from torch import Tensor, nn

from cayley.lab.errors import RecipeError
from cayley.lab.settings import Range

if TYPE_CHECKING:
    from cayley.lab.tasks import Graph

__all__ = ["CONVOLUTIONS", "MLP", "GraphNetwork", "convolution"]

CONVOLUTIONS = ("GCN", "SAGE")
Norm = Literal["", "batch", "layer"]


class MLP(nn.Module):
    r"""Dense layers with ReLU between them.

    .. math:: H^{(k)} = \mathrm{ReLU}(W^{(k)} N(H^{(k-1)}) + b^{(k)})

    N, which the input of the first layer does not pass, is the identity or a normalisation. Weights
    are Glorot uniform, biases 0.

    Arguments:
        sizes: Features of the input, of each hidden layer, and outputs.
        norm: Empty, ``"batch"`` or ``"layer"``.
        momentum: The share of a batch in the running statistics of ``"batch"``.
        init_scale: What initial weights are multiplied by.
        dropout: After each hidden layer.

    Example:
        >>> [type(layer).__name__ for layer in MLP((3072, 100, 10), norm="batch").layers]
        ['Linear', 'ReLU', 'BatchNorm1d', 'Dropout', 'Linear']
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        norm: Norm = "",
        momentum: Annotated[float, Range(0, 1)] = 0.01,
        init_scale: Annotated[float, Range(0)] = 1.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            if layers:
                layers += [nn.ReLU(), normalization(norm, before, momentum), nn.Dropout(dropout)]
            linear = nn.Linear(before, after)
            nn.init.xavier_uniform_(linear.weight, gain=init_scale)
            nn.init.zeros_(linear.bias)
            layers.append(linear)
        self.layers = nn.Sequential(*layers)

    def forward(self, input: Tensor, state: None = None) -> tuple[Tensor, None]:
        """Answers (B, p) to rows (B, I); there is no state."""
        return self.layers(input), None


class GraphNetwork(nn.Module):
    """Graph convolutions of torch_geometric with ReLU and dropout between them.

    For two layers it is: norm 0, convolution 0, ReLU, dropout, norm 1, convolution 1, norm 2.

    Arguments:
        conv: ``"GCN"`` or ``"SAGE"``.
        sizes: Features of the nodes, of each hidden layer, and outputs.
        norm: Empty, ``"batch"`` or ``"layer"``.
        sites: Which norms there are: a 0 or 1 for each. Empty for none.
        dropout: After each hidden layer.
        options: Keyword arguments of the convolutions.
    """

    def __init__(
        self,
        conv: str,
        sizes: Sequence[int],
        *,
        norm: Norm = "",
        sites: str = "",
        dropout: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__()
        sites = sites or "0" * len(sizes)
        if len(sites) != len(sizes) or set(sites) - {"0", "1"} or ("1" in sites and not norm):
            raise RecipeError(
                f"model.sites: expected {len(sizes)} digits 0 or 1, and a norm if any is 1, got "
                f"{sites!r} and norm={norm!r}"
            )
        kind = convolution(conv)
        self.convs = nn.ModuleList(
            kind(before, after, **options) for before, after in pairwise(sizes)
        )
        self.norms = nn.ModuleList(
            normalization(norm if site == "1" else "", size)
            for site, size in zip(sites, sizes, strict=True)
        )
        self.between = nn.Sequential(nn.ReLU(), nn.Dropout(dropout))

    def forward(self, input: "Graph", state: None = None) -> tuple[Tensor, None]:
        """Answers (N, p) for all nodes; there is no state."""
        x = input.x
        for number, conv in enumerate(self.convs):
            x = x if number == 0 else self.between(x)
            x = conv(self.norms[number](x), input.edge_index)
        return self.norms[-1](x), None


def convolution(name: str) -> type[nn.Module]:
    """GCNConv or SAGEConv."""
    from torch_geometric.nn import GCNConv, SAGEConv

    return {"GCN": GCNConv, "SAGE": SAGEConv}[name]


def normalization(norm: str, features: int, momentum: float = 0.1) -> nn.Module:
    """A normalisation of rows by its name; empty for the identity."""
    if norm not in ("", "batch", "layer"):
        raise RecipeError(f'model.norm: expected "", "batch" or "layer", got {norm!r}')
    if norm == "batch":
        return nn.BatchNorm1d(features, momentum=momentum)
    return nn.LayerNorm(features) if norm else nn.Identity()
