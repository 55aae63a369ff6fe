import pytest
import torch

from cayley.lab.tasks.graph.neighbours import incoming, sample_neighbours


@pytest.fixture
def graph() -> torch.Tensor:
    """Random links between 50 nodes, some of which have none."""
    return torch.unique(torch.randint(0, 45, (2, 200)), dim=1)


def test_incoming_lists_the_edges_of_each_node(graph: torch.Tensor) -> None:
    begin, sources = incoming(graph, 50)
    for node in range(50):
        expected = graph[0, graph[1] == node].sort().values
        assert torch.equal(sources[begin[node] : begin[node + 1]].sort().values, expected)


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_all_neighbours_are_the_whole_surroundings(graph: torch.Tensor, hops: int) -> None:
    """With large fan-outs: every node within the hops, every edge to those within one less."""
    seeds = torch.tensor([3, 47, 11])
    nodes, edges = sample_neighbours(*incoming(graph, 50), seeds, (50,) * hops, stream=1)
    inner, reached = set(), set(seeds.tolist())
    for _ in range(hops):
        inner = set(reached)
        reached |= {i for i, j in graph.t().tolist() if j in inner}
    assert nodes.tolist() == sorted(reached)
    got = sorted([int(nodes[i]), int(nodes[j])] for i, j in edges.t())
    assert got == sorted([i, j] for i, j in graph.t().tolist() if j in inner)


def test_samples_are_edges_of_the_graph_and_few(graph: torch.Tensor) -> None:
    true = {tuple(edge) for edge in graph.t().tolist()}
    degree = torch.bincount(graph[1], minlength=50)
    for stream in range(20):
        seeds = torch.arange(0, 50, 7)
        nodes, edges = sample_neighbours(*incoming(graph, 50), seeds, (2, 3), stream=stream)
        pairs = [(int(nodes[i]), int(nodes[j])) for i, j in edges.t()]
        assert len(set(pairs)) == len(pairs)
        assert set(pairs) <= true
        assert set(seeds.tolist()) <= set(nodes.tolist())
        counts = torch.bincount(nodes[edges[1]], minlength=50)
        assert (counts <= 3).all()
        # none is left out where there are few, and at least one is drawn where there are many
        few = seeds[degree[seeds] <= 2]
        assert torch.equal(counts[few], degree[few])
        assert (counts[seeds[degree[seeds] > 0]] > 0).all()


@pytest.mark.slow
def test_every_neighbour_is_as_likely_as_any_other() -> None:
    star = torch.stack((torch.arange(1, 11), torch.zeros(10, dtype=torch.int64)))
    begin, sources = incoming(star, 11)
    counts = torch.zeros(11)
    trials = 3000
    for stream in range(trials):
        nodes, _ = sample_neighbours(begin, sources, torch.tensor([0]), (3,), stream=stream)
        counts[nodes] += 1
    # each is among three draws with chance 1 − 0.9³
    p = 1 - 0.9**3
    assert (counts[1:] - trials * p).abs().max() < 4 * (trials * p * (1 - p)) ** 0.5
