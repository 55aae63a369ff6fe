"""Sampling the neighbourhood of a few nodes out of a large graph."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cayley.lab.tasks.counter import key, uniform

__all__ = ["incoming", "sample_neighbours"]


def incoming(edge_index: Tensor, N: int) -> tuple[Tensor, Tensor]:
    """The edges of a graph, sorted by their target nodes.

    Arguments:
        edge_index: (2, E).
        N: The number of nodes.

    Returns:
        Where the edges to each node begin, (N + 1), and their source nodes, (E).

    Example:
        >>> incoming(torch.tensor([[2, 0, 1], [1, 1, 0]]), 3)
        (tensor([0, 1, 3, 3]), tensor([1, 2, 0]))
    """
    order = edge_index[1].argsort(stable=True)
    degree = torch.bincount(edge_index[1], minlength=N)
    return torch.nn.functional.pad(degree.cumsum(0), (1, 0)), edge_index[0][order]


def sample_neighbours(
    begin: Tensor, sources: Tensor, seeds: Tensor, fanouts: Sequence[int], *, stream: int
) -> tuple[Tensor, Tensor]:
    """The nodes from which some seeds are reached over sampled edges.

    In each hop, a node that has been reached uses all its incoming edges if there are at most k,
    and otherwise k of them drawn at random.

    Note:
        The k are drawn with replacement and duplicates are dropped, so there may be fewer; the mean
        over them is still unbiased.

    References:
        Inductive Representation Learning on Large Graphs, Hamilton, Ying, Leskovec, 2017.

    Arguments:
        begin: Where the edges to each node begin, see :func:`incoming`, (N + 1).
        sources: Where they come from, (E).
        seeds: Different nodes, (B).
        fanouts: The number k of each hop.
        stream: The key of a stream of random numbers.

    Returns:
        The nodes, in increasing order, (N'), and the edges between them, renumbered, (2, E').

    Example:
        >>> begin, sources = incoming(torch.tensor([[2, 0, 1], [1, 1, 0]]), 3)
        >>> sample_neighbours(begin, sources, torch.tensor([0]), (5,), stream=1)
        (tensor([0, 1]), tensor([[1],
                [0]]))
    """
    reached = torch.zeros(len(begin) - 1, dtype=torch.bool, device=seeds.device)
    reached[seeds] = True
    front, taken = seeds, []
    for hop, k in enumerate(fanouts):
        degree = (begin[front + 1] - begin[front]).unsqueeze(1)
        slots = torch.arange(k, device=front.device)
        lots = uniform(key(stream, hop), front.unsqueeze(1) * k + slots, dtype=torch.float64)
        drawn = (lots * degree).long().sort(1).values
        slots = torch.where(degree <= k, slots, drawn)
        keep = slots < degree
        keep[:, 1:] &= slots[:, 1:] != slots[:, :-1]
        source = sources[(begin[front].unsqueeze(1) + slots)[keep]]
        taken.append(torch.stack((source, front.unsqueeze(1).expand_as(slots)[keep])))
        new = torch.zeros_like(reached)
        new[source] = True
        front = (new & ~reached).nonzero().flatten()
        reached |= new
    number = reached.cumsum(0) - 1
    return reached.nonzero().flatten(), number[torch.cat(taken, 1)]
