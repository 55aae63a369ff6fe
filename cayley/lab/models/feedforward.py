"""Networks without recurrence: for rows, and for the nodes of a graph."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch import Tensor, nn

from cayley.lab.errors import RecipeError
from cayley.lab.settings import Range
from cayley.norms.atn import normalize
from cayley.norms.pooling import Pool
from cayley.norms.windows import mean_and_variance
from cayley.processes import world_size

if TYPE_CHECKING:
    from cayley.lab.tasks import Graph

__all__ = ["CONVOLUTIONS", "MLP", "BatchNorm", "GraphNetwork", "convolution"]

CONVOLUTIONS = ("GCN", "SAGE")
Norm = Literal["", "batch", "layer"]
Inference = Literal["running", "average"]
Variance = Literal["", "biased", "unbiased"]


class BatchNorm(nn.BatchNorm1d):
    r"""Batch normalisation of rows, with a choice of the statistics at inference.

    Training uses the mean :math:`\mu_B` and the biased variance :math:`\sigma_B^2` of the batch.
    Inference uses, with ``"running"``,

    .. math::
        \mu \leftarrow \rho \mu + (1 - \rho) \mu_B, \qquad
        \sigma^2 \leftarrow \rho \sigma^2 + (1 - \rho) \sigma_B^2

    from :math:`\mu = 0, \sigma^2 = 1` on, and with ``"average"`` the plain means of
    :math:`\mu_B` and :math:`\frac{N}{N-1} \sigma_B^2`, for N rows, over the batches since
    :meth:`restart_`, which training calls at the beginning of an epoch.

    Note:
        The reference prints 1/(x − 1) in front of the sum of variances over x batches and calls it
        unbiased; N/(N − 1) is what makes it so. :class:`torch.nn.BatchNorm1d` has that factor in
        its running statistics too.

    References:
        Helfrich, 2020, Algorithm 4 and equations 3.3 to 3.6.

    Arguments:
        features: The number of columns.
        inference: ``"running"`` or ``"average"``.
        momentum: The share 1 − ρ of a batch in the running statistics.
        variance: ``"biased"`` or ``"unbiased"``, for inference. Empty for the formulas above.

    Attributes:
        synchronized: Whether a batch is that of all processes of torch.distributed.

    Example:
        >>> norm = BatchNorm(1, inference="average", variance="biased")
        >>> for rows in ([[0.0], [2.0]], [[4.0], [8.0]]):
        ...     _ = norm(torch.tensor(rows))
        >>> norm.running_mean, norm.running_var
        (tensor([3.5000]), tensor([2.5000]))
    """

    def __init__(
        self,
        features: int,
        *,
        inference: Inference = "running",
        momentum: float = 0.01,
        variance: Variance = "",
    ) -> None:
        check_word("inference", inference, ("running", "average"))
        check_word("variance", variance, ("", "biased", "unbiased"))
        # without a momentum, torch takes plain means
        super().__init__(features, momentum=momentum if inference == "running" else None)
        self.variance = variance or ("biased" if inference == "running" else "unbiased")
        self.synchronized = False

    def restart_(self) -> None:
        """Start the averages again: the next batch replaces all before it."""
        assert self.num_batches_tracked is not None
        if self.momentum is None:
            self.num_batches_tracked.zero_()

    def forward(self, input: Tensor) -> Tensor:
        """Normalised rows (B, features)."""
        pooled = self.synchronized and world_size() > 1
        if not self.training or (self.variance == "unbiased" and not pooled):
            return super().forward(input)
        mean, var = self.running_mean, self.running_var
        assert mean is not None
        assert var is not None
        assert self.num_batches_tracked is not None
        if pooled:
            pool = Pool(input[None])
            batch_mean, batch_var = pool.statistics(*mean_and_variance(input, 0))
            output = normalize(input, batch_mean, batch_var, self.weight, self.bias, self.eps)
            batch_mean, batch_var = batch_mean[0].detach(), batch_var[0].detach()
            if self.variance == "unbiased":
                batch_var = batch_var * (pool.total / max(1, pool.total - 1))
        else:
            output = nn.functional.batch_norm(
                input, None, None, self.weight, self.bias, training=True, eps=self.eps
            )
            with torch.no_grad():
                batch_var, batch_mean = torch.var_mean(input, 0, correction=0)
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                share = 1 / self.num_batches_tracked.to(mean.dtype)
            else:
                share = torch.as_tensor(self.momentum, dtype=mean.dtype, device=mean.device)
            mean.lerp_(batch_mean.to(mean.dtype), share)
            var.lerp_(batch_var.to(var.dtype), share)
        return output


class MLP(nn.Module):
    r"""Dense layers with ReLU between them.

    .. math::
        H^{(k)} = \mathrm{ReLU}(W^{(k)} N(H^{(k-1)}) + b^{(k)}) \quad \text{or} \quad
        H^{(k)} = \mathrm{ReLU}(N(W^{(k)} H^{(k-1)}))

    N is the identity or a normalisation. In the first form it comes before each layer, including
    the first and the last. In the second it comes before each nonlinearity and has a shift of its
    own, so that hidden layers have no bias b. Weights are Glorot uniform, biases 0.

    References:
        Helfrich, 2020, equations 3.1 and 3.2.

    Arguments:
        sizes: Features of the input, of each hidden layer, and outputs.
        norm: Empty, ``"batch"`` or ``"layer"``.
        before: Where ``norm`` comes: before each ``"layer"`` or each ``"nonlinearity"``.
        momentum, inference, variance: For ``"batch"``, see :class:`BatchNorm`.
        init_scale: A factor of the initial weights.
        dropout: After each hidden layer.

    Example:
        >>> [type(layer).__name__ for layer in MLP((3072, 100, 10), norm="batch").layers]
        ['BatchNorm', 'Linear', 'ReLU', 'Dropout', 'BatchNorm', 'Linear']
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        norm: Norm = "",
        before: Literal["layer", "nonlinearity"] = "layer",
        momentum: Annotated[float, Range(0, 1)] = 0.01,
        inference: Inference = "running",
        variance: Variance = "",
        init_scale: Annotated[float, Range(0)] = 1.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_word("norm", norm, ("", "batch", "layer"))
        check_word("before", before, ("layer", "nonlinearity"))

        def normalize(features: int) -> list[nn.Module]:
            if norm == "batch":
                return [
                    BatchNorm(features, momentum=momentum, inference=inference, variance=variance)
                ]
            return [nn.LayerNorm(features)] if norm else []

        inner = bool(norm) and before == "nonlinearity"
        layers: list[nn.Module] = []
        for number, (size, after) in enumerate(pairwise(sizes), 1):
            last = number == len(sizes) - 1
            layers += [] if inner else normalize(size)
            linear = nn.Linear(size, after, bias=last or not inner)
            nn.init.xavier_uniform_(linear.weight, gain=init_scale)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
            layers.append(linear)
            if not last:
                layers += normalize(after) if inner else []
                layers += [nn.ReLU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers)

    def forward(self, input: Tensor, state: None = None) -> tuple[Tensor, None]:
        """Outputs (B, p) for rows (B, I); there is no state."""
        return self.layers(input), None


class GraphNetwork(nn.Module):
    """Graph convolutions of torch_geometric with ReLU and dropout between them.

    For two layers it is: norm 0, convolution 0, ReLU, dropout, norm 1, convolution 1, norm 2.

    Arguments:
        conv: ``"GCN"`` or ``"SAGE"``.
        sizes: Features of the nodes, of each hidden layer, and outputs.
        norm: Empty, ``"batch"`` or ``"layer"``.
        sites: A digit 0 or 1 for each norm, whether it is there. Empty for none.
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
        """Outputs (N, p) for all nodes; there is no state."""
        x = input.x
        for number, conv in enumerate(self.convs):
            x = x if number == 0 else self.between(x)
            x = conv(self.norms[number](x), input.edge_index)
        return self.norms[-1](x), None


def convolution(name: str) -> type[nn.Module]:
    """GCNConv or SAGEConv."""
    from torch_geometric.nn import GCNConv, SAGEConv

    return {"GCN": GCNConv, "SAGE": SAGEConv}[name]


def normalization(norm: str, features: int) -> nn.Module:
    """A normalisation of nodes by its name; empty for the identity."""
    check_word("norm", norm, ("", "batch", "layer"))
    if norm == "batch":
        return nn.BatchNorm1d(features)
    return nn.LayerNorm(features) if norm else nn.Identity()


def check_word(name: str, value: str, valid: Sequence[str]) -> None:
    """Raise unless a setting of the model is one of these words."""
    if value not in valid:
        words = ", ".join(f'"{word}"' for word in valid[:-1]) + f' or "{valid[-1]}"'
        raise RecipeError(f"model.{name}: expected {words}, got {value!r}")
