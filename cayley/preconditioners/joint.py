"""The preconditioner of one sum of products, which all rules use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cayley.preconditioners.statistics import RowStatistics
from cayley.tracing import no_autocast

__all__ = ["ALL", "Bias", "Block", "Damping", "Weight", "joint", "precondition", "precondition_"]

ALL = slice(None)


def joint(
    grad_b: Tensor | None,
    grads: Sequence[Tensor],
    means: Sequence[Tensor],
    variances: Sequence[Tensor],
    q2: Tensor | float = 1.0,
) -> tuple[Tensor | None, list[Tensor]]:
    r"""Precondition the gradient of :math:`a = b + \sum_k W_k h_k` by :math:`P P^\top`.

    .. math::
        P = \frac1q \begin{bmatrix} 1 & -\mu^\top \\ 0 & I \end{bmatrix}
            \begin{bmatrix} 1 & 0 \\ 0 & \mathrm{diag}(\tilde\sigma)^{-1} \end{bmatrix},
        \qquad
        G_k' = \frac{1}{q^2} (G_k - g_b \mu_k^\top)\, \mathrm{diag}(\tilde\sigma_k)^{-2},
        \qquad
        g_b' = \frac{1}{q^2} g_b - \sum_k G_k' \mu_k

    on each row [b, W₁, W₂, …], with μ and σ̃ of the rows h that it multiplies. A step along the
    result is a step of gradient descent on the same layer with the inputs
    :math:`(h_k - \mu_k)/\tilde\sigma_k`. Without a bias nothing can be centred, and P is only its
    diagonal.

    References:
        Batch Normalization Preconditioning for Neural Network Training, Lange, Helfrich, Ye, 2022.
        Normalization Techniques for Sequential and Graphical Data (dissertation), Pospisil, 2023,
        Algorithms 3 and 4.

    Arguments:
        grad_b: :math:`g_b`, (..., O); None without a bias.
        grads: :math:`G_k`, (..., O, n_k).
        means: :math:`\mu_k`, (..., n_k).
        variances: :math:`\tilde\sigma_k^2`, (..., n_k).
        q2: q².

    Returns:
        :math:`g_b'`, None without a bias, and the :math:`G_k'`.

    Example:
        >>> g, G = torch.tensor([1.0]), torch.tensor([[6.0]])
        >>> joint(g, [G], [torch.tensor([2.0])], [torch.tensor([4.0])])
        (tensor([-1.]), [tensor([[1.]])])
    """
    grad_b = None if grad_b is None else grad_b.clone()
    new = [G.clone() for G in grads]
    joint_(grad_b, new, means, variances, q2)
    return grad_b, new


def joint_(
    grad_b: Tensor | None,
    grads: Sequence[Tensor],
    means: Sequence[Tensor],
    variances: Sequence[Tensor],
    q2: Tensor | float = 1.0,
) -> None:
    """:func:`joint` in place."""
    for G, mean, variance in zip(grads, means, variances, strict=True):
        if grad_b is not None:
            G.addcmul_(grad_b.unsqueeze(-1), mean.unsqueeze(-2), value=-1)
        G.mul_((q2 * variance).reciprocal().unsqueeze(-2))
    if grad_b is not None:
        grad_b.div_(q2)
        with no_autocast(grad_b.device):
            for G, mean in zip(grads, means, strict=True):
                grad_b.sub_((G @ mean.unsqueeze(-1)).squeeze(-1))


class Weight(NamedTuple):
    """A weight that multiplies rows.

    Attributes:
        name: The name of the parameter, (O, n), or (O, n / groups, ...) for a convolution.
        site: The name of the place where its rows are observed.
        rows: The rows of the parameter that belong to the block.
        groups: The number of groups, as in a grouped convolution.
    """

    name: str
    site: str
    rows: slice = ALL
    groups: int = 1


class Bias(NamedTuple):
    """A bias that is added to a sum.

    Attributes:
        name: The name of the parameter, (O).
        rows: The entries that belong to the block.
    """

    name: str
    rows: slice = ALL


class Block(NamedTuple):
    """Weights whose products are added up, and the biases that are added to them.

    Several biases act as one: they have the same gradient, and share its step evenly.
    """

    weights: tuple[Weight, ...]
    biases: tuple[Bias, ...] = ()


@dataclass(frozen=True)
class Damping:
    r"""The terms that keep the division by a variance bounded.

    .. math:: \tilde\sigma^2 = \sigma^2 + \epsilon_1 \max \sigma^2 + \epsilon_2,
        \qquad q^2 = \max(n / N, 1)

    with n features in a block and N rows.

    Attributes:
        eps: ε₂, absolute.
        relative_eps: ε₁, relative to the largest variance of the site.
        q: Whether to divide by q²; otherwise it is 1.

    Example:
        >>> Damping(eps=0.5, relative_eps=0.25)(torch.tensor([0.0, 2.0]))
        tensor([1., 3.])
    """

    eps: float
    relative_eps: float = 0.0
    q: bool = False

    def __call__(self, variance: Tensor) -> Tensor:
        """σ̃²."""
        if self.relative_eps:
            variance = variance + self.relative_eps * variance.max()
        return variance + self.eps


def precondition(
    blocks: Sequence[Block],
    gradients: Mapping[str, Tensor],
    statistics: Mapping[str, RowStatistics],
    damping: Damping,
) -> dict[str, Tensor]:
    """Precondition the gradients of a module, block by block.

    A parameter without a gradient is ignored: without the gradient of a bias nothing is centred,
    and a weight is scaled by the second moments of its rows. A block without the gradient of a
    weight is left as it is, and so is everything if there were no rows.

    Arguments:
        blocks: How the module's parameters are grouped.
        gradients: By the parameter's name.
        statistics: The statistics of the rows, by site.
        damping: σ̃² and q².

    Returns:
        The new gradients.

    Example:
        >>> from cayley.preconditioners.statistics import Statistics
        >>> block = Block((Weight("weight", "input"),))
        >>> rows = {"input": Statistics.of(torch.tensor([[3.0, 1.0]]))}
        >>> precondition([block], {"weight": torch.ones(1, 2)}, rows, Damping(eps=1.0))
        {'weight': tensor([[0.1000, 0.5000]])}
    """
    result = {name: G.clone() for name, G in gradients.items()}
    precondition_(blocks, result, statistics, damping)
    return result


def precondition_(
    blocks: Sequence[Block],
    gradients: Mapping[str, Tensor],
    statistics: Mapping[str, RowStatistics],
    damping: Damping,
) -> None:
    """:func:`precondition` in place."""
    for block in blocks:
        weights = [weight for weight in block.weights if weight.name in gradients]
        biases = [bias for bias in block.biases if bias.name in gradients]
        if not weights:
            continue
        means, variances = zip(
            *(_scales(statistics[weight.site], damping, bool(biases)) for weight in weights),
            strict=True,
        )
        dtype = torch.promote_types(gradients[weights[0].name].dtype, means[0].dtype)
        places = [gradients[weight.name][weight.rows] for weight in weights]
        grads = [
            G.to(dtype).reshape(weight.groups, len(G) // weight.groups, -1)
            for G, weight in zip(places, weights, strict=True)
        ]
        means, variances = (
            [_spread(v.to(dtype), G) for v, G in zip(values, grads, strict=True)]
            for values in (means, variances)
        )
        entries = [gradients[bias.name][bias.rows] for bias in biases]
        grad_b = None
        if entries:
            mean = sum(entries[1:], entries[0]) / len(entries)
            # all weights of a block have the same number of groups
            grad_b = mean.to(dtype).view(weights[0].groups, -1)
        q2: Tensor | float = 1.0
        if damping.q:
            rows = statistics[weights[0].site].n.to(dtype)
            q2 = (sum(G.shape[-1] for G in grads) / rows).clamp_min(1).where(rows > 0, 1)
        joint_(grad_b, grads, means, variances, q2)
        for place, G in zip(places, grads, strict=True):
            if G.data_ptr() != place.data_ptr():
                place.copy_(G.reshape(place.shape))
        if grad_b is not None:
            for place in entries:
                place.copy_(grad_b.view(-1) / len(entries))


def _scales(statistics: RowStatistics, damping: Damping, centred: bool) -> tuple[Tensor, Tensor]:
    """μ and σ̃² of a site, (F); 0 and 1 if there were no rows."""
    variance = damping(statistics.variance if centred else statistics.second_moment)
    seen = statistics.n > 0
    # an average has a mean even then
    return statistics.mean.where(seen, 0), variance.where(seen, 1)


def _spread(v: Tensor, G: Tensor) -> Tensor:
    """Features in their groups, each for all positions of a kernel, (groups, n)."""
    groups, _, n = G.shape
    positions = n * groups // len(v)
    v = v.view(groups, -1)
    return v if positions == 1 else v.repeat_interleave(positions, -1)
