import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from cayley.lab.errors import DataError
from cayley.lab.tasks.graph.datasets import (
    NodeData,
    invent_nodes,
    read_ogbn,
    read_photo,
    read_tolokers,
    undirected,
)
from cayley.lab.tasks.sources import Source


def check(data: NodeData) -> None:
    N = len(data.x)
    assert len(data.y) == N
    edges = {tuple(edge) for edge in data.edge_index.t().tolist()}
    assert len(edges) == data.edge_index.shape[1]
    assert all((j, i) in edges and i != j for i, j in edges)
    nodes = torch.cat(list(data.splits.values()))
    assert len(nodes.unique()) == len(nodes)
    assert 0 <= nodes.min() <= nodes.max() < N


def test_undirected() -> None:
    links = torch.randint(0, 9, (2, 40))
    pairs = {frozenset(pair) for pair in links.t().tolist() if pair[0] != pair[1]}
    expected = sorted([*pair] for p in pairs for pair in (sorted(p), sorted(p)[::-1]))
    assert undirected(links).t().tolist() == expected


@pytest.mark.parametrize("several", [False, True])
def test_an_invented_graph(several: bool) -> None:
    check(invent_nodes(4, 3, several))


def test_the_real_photo(source: Source) -> None:
    data, other = read_photo(source), read_photo(source, fold=1)
    check(data)
    assert data.x.shape == (7650, 745)
    assert data.edge_index.shape == (2, 238_162)
    assert torch.bincount(data.y).tolist() == [369, 1686, 703, 915, 882, 823, 1941, 331]
    assert [len(nodes) for nodes in data.splits.values()] == [4590, 1530, 1530]
    assert not torch.equal(data.splits["test"], other.splits["test"])


def test_the_real_tolokers(source: Source) -> None:
    data = read_tolokers(source, fold=3)
    assert data.x.shape == (11_758, 10)
    assert data.edge_index.shape == (2, 2 * 519_000)
    assert data.y.shape == (11_758, 1)
    assert int(data.y.sum()) == 2566
    assert sum(len(nodes) for nodes in data.splits.values()) == 11_758
    assert len(data.splits["train"]) == 5879
    with pytest.raises(ValueError, match=r"task\.fold: expected an integer from 0 to 9, got 10"):
        read_tolokers(source, fold=10)


class FakeDataset:
    """What the package ogb documents of its datasets, with three nodes."""

    def __init__(self, name: str, root: str) -> None:
        self.name, self.root = name, root

    def __getitem__(self, index: int) -> tuple[dict, np.ndarray]:
        assert index == 0
        proteins = self.name == "ogbn-proteins"
        graph = {
            "num_nodes": 3,
            "edge_index": np.array([[0, 1, 2, 1], [1, 0, 1, 2]]),
            "node_feat": None if proteins else np.eye(3, dtype=np.float32),
            "edge_feat": np.array([[1.0], [2.0], [5.0], [7.0]]) if proteins else None,
        }
        labels = np.array([[0, 1], [1, 1], [0, 0]]) if proteins else np.array([[2], [0], [1]])
        return graph, labels

    def get_idx_split(self) -> dict[str, np.ndarray]:
        return {"train": np.array([0]), "valid": np.array([2]), "test": np.array([1])}


@pytest.fixture
def ogb(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("ogb.nodeproppred")
    module.NodePropPredDataset = FakeDataset
    monkeypatch.setitem(sys.modules, "ogb", ModuleType("ogb"))
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", module)


@pytest.mark.usefixtures("ogb")
def test_graphs_of_the_benchmark(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected the folder ogbn_proteins"):
        read_ogbn(Source(tmp_path), "ogbn-proteins")
    with pytest.raises(DataError, match="got none"):
        read_ogbn(Source(), "ogbn-proteins")
    (tmp_path / "ogbn_proteins").mkdir()
    proteins = read_ogbn(Source(tmp_path), "ogbn-proteins")
    # the mean of the edges that lead to each node
    assert proteins.x.tolist() == [[2.0], [3.0], [7.0]]
    assert proteins.y.tolist() == [[0, 1], [1, 1], [0, 0]]
    assert proteins.y.is_floating_point()
    assert proteins.splits["valid"].tolist() == [2]
    products = read_ogbn(Source(tmp_path, download=True), "ogbn-products")
    assert products.y.tolist() == [2, 0, 1]
    assert torch.equal(products.x, torch.eye(3, dtype=torch.float32))


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ogb", None)
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", None)
    with pytest.raises(DataError, match="pip install ogb"):
        read_ogbn(Source(tmp_path), "ogbn-products")
