"""Graphs whose nodes have features and labels, and how they are read."""

import io
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import torch
from torch import Tensor

from cayley.lab.errors import DataError, RecipeError
from cayley.lab.tasks.batch import Split
from cayley.lab.tasks.counter import integers, key, permutation, uniform
from cayley.lab.tasks.sources import Resource, Source

__all__ = [
    "PHOTO",
    "TOLOKERS",
    "NodeData",
    "find_ogbn",
    "invent_nodes",
    "read_ogbn",
    "read_photo",
    "read_tolokers",
    "undirected",
]

PHOTO = Resource(
    "amazon_electronics_photo.npz",
    "https://github.com/shchur/gnn-benchmark/raw/master/data/npz/amazon_electronics_photo.npz",
)
TOLOKERS = Resource(
    "tolokers.npz",
    "https://github.com/yandex-research/heterophilous-graphs/raw/main/data/tolokers.npz",
    "dacf3ac94cec53d03cd2adb5255c08b33dee1656c33ca8164a464bd9450a1667",
)


@dataclass(frozen=True)
class NodeData:
    """A graph with labelled nodes.

    Attributes:
        x: Features, (N, I).
        edge_index: Edges from the first row's nodes to the second's, (2, E).
        y: Classes, int64, (N); or p yes-no labels, floating, (N, p).
        splits: The nodes of each split.
    """

    x: Tensor
    edge_index: Tensor
    y: Tensor
    splits: dict[Split, Tensor]


def undirected(links: Tensor) -> Tensor:
    """Links in both directions, each once, sorted, without loops.

    Arguments:
        links: Pairs of nodes, (2, E).

    Example:
        >>> undirected(torch.tensor([[0, 1, 2, 2], [1, 0, 2, 1]]))
        tensor([[0, 1, 1, 2],
                [1, 0, 2, 1]])
    """
    both = torch.cat((links, links.flip(0)), 1)
    both = both[:, both[0] != both[1]]
    # one number per link: unique columns of a matrix take ten times as long
    N = int(links.max()) + 1
    number = (both[0] * N + both[1]).unique()
    return torch.stack((number // N, number % N))


def _arrays(source: Source, resource: Resource) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(source.read(resource)), allow_pickle=False) as arrays:
        # some copies contain pickled names of words and nodes, which are not needed
        return {name: arrays[name] for name in arrays.files if not name.endswith("_names")}


def read_photo(source: Source, fold: int = 0) -> NodeData:
    """Photographic goods on Amazon, linked if they are often bought together.

    There is no official split: a random 60 % train, 20 % validate, 20 % test.

    References:
        Pitfalls of Graph Neural Network Evaluation, Shchur, Mumme, Bojchevski, Günnemann, 2018.

    Arguments:
        source: Where the file is.
        fold: Which random split.
    """
    arrays = _arrays(source, PHOTO)
    N, width = arrays["attr_shape"].tolist()
    x = np.zeros((N, width), dtype=np.float32)
    x[_rows(arrays["attr_indptr"]), arrays["attr_indices"]] = arrays["attr_data"]
    links = np.stack((_rows(arrays["adj_indptr"]), arrays["adj_indices"].astype(np.int64)))
    order = permutation(key("photo", fold), N)
    train, valid, test = order.split([N * 6 // 10, N * 2 // 10, N - N * 6 // 10 - N * 2 // 10])
    return NodeData(
        torch.from_numpy(x),
        undirected(torch.from_numpy(links)),
        torch.from_numpy(arrays["labels"].astype(np.int64)),
        {"train": train, "valid": valid, "test": test},
    )


def _rows(indptr: np.ndarray) -> np.ndarray:
    return np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))


def read_tolokers(source: Source, fold: int = 0) -> NodeData:
    """Workers of a crowdsourcing platform, linked if they shared a task; some were banned.

    References:
        A Critical Look at the Evaluation of GNNs under Heterophily, Platonov, Kuznedelev,
        Diskin, Babenko, Prokhorenkova, 2023.

    Arguments:
        source: Where the file is.
        fold: Which of the ten official splits.
    """
    arrays = _arrays(source, TOLOKERS)
    folds = len(arrays["train_masks"])
    if not 0 <= fold < folds:
        raise RecipeError(f"task.fold: expected an integer from 0 to {folds - 1}, got {fold}")
    names: dict[Split, str] = {"train": "train_masks", "valid": "val_masks", "test": "test_masks"}
    return NodeData(
        torch.from_numpy(arrays["node_features"].astype(np.float32)),
        undirected(torch.from_numpy(arrays["edges"].astype(np.int64)).t()),
        torch.from_numpy(arrays["node_labels"].astype(np.float32)).unsqueeze(1),
        {s: torch.from_numpy(arrays[name][fold].nonzero()[0]) for s, name in names.items()},
    )


def find_ogbn(source: Source, dataset: str) -> None:
    """Raise unless the package ogb is installed and has a graph, or may download it."""
    try:
        import_module("ogb")
    except ImportError as error:
        raise DataError(
            f"expected the package ogb for the graph {dataset}, got none: pip install ogb"
        ) from error
    if source.folder is None:
        raise DataError(f"expected the folder in which ogb keeps {dataset}, got none")
    if not source.download and not (source.folder / dataset.replace("-", "_")).exists():
        raise DataError(
            f"expected the folder {dataset.replace('-', '_')} of the package ogb in "
            f"{source.folder}, got none: allow the download with download=True or --download"
        )


def read_ogbn(source: Source, dataset: str) -> NodeData:
    """A graph of the Open Graph Benchmark, with its official split, read by the package ogb.

    Nodes without features, those of ogbn-proteins, get the mean of the features of their edges.

    References:
        Open Graph Benchmark: Datasets for Machine Learning on Graphs, Hu, Fey, Zitnik, Dong, Ren,
        Liu, Catasta, Leskovec, 2020.

    Arguments:
        source: The folder in which the package keeps its data.
        dataset: ``"ogbn-proteins"`` or ``"ogbn-products"``.
    """
    find_ogbn(source, dataset)
    # pyrefly: ignore[missing-import]
    from ogb.nodeproppred import NodePropPredDataset

    loaded = NodePropPredDataset(dataset, root=str(source.folder))
    graph, labels = loaded[0]
    edge_index = torch.from_numpy(graph["edge_index"]).long()
    if graph["node_feat"] is None:
        features = torch.from_numpy(graph["edge_feat"]).float()
        x = features.new_zeros(graph["num_nodes"], features.shape[1])
        x.index_add_(0, edge_index[1], features)
        x /= torch.bincount(edge_index[1], minlength=len(x)).clamp_min(1).unsqueeze(1)
    else:
        x = torch.from_numpy(graph["node_feat"]).float()
    y = torch.from_numpy(labels)
    splits = loaded.get_idx_split()
    return NodeData(
        x,
        edge_index,
        y.flatten().long() if y.shape[1] == 1 else y.float(),
        {split: torch.as_tensor(splits[split]) for split in ("train", "valid", "test")},
    )


def invent_nodes(features: int, p: int, several: bool, N: int = 60) -> NodeData:
    """A random graph.

    Arguments:
        features: The number I of features.
        p: The number of classes, or of yes-no labels.
        several: Whether a node has several labels, each yes or no, or one class.
        N: The number of nodes.

    Example:
        >>> data = invent_nodes(5, 3, several=False)
        >>> data.x.shape, data.y.shape, len(data.splits["train"])
        (torch.Size([60, 5]), torch.Size([60]), 30)
    """
    x = uniform(
        key("nodes", "x"), torch.arange(N * features).view(N, -1), dtype=torch.float32
    ).round()
    links = integers(key("nodes", "links"), torch.arange(8 * N).view(2, -1), N)
    if several:
        y = uniform(key("nodes", "y"), torch.arange(N * p).view(N, p), dtype=torch.float32).round()
    else:
        y = integers(key("nodes", "y"), torch.arange(N), p)
    train, valid, test = permutation(key("nodes", "order"), N).split([N // 2, N // 4, N // 4])
    return NodeData(x, undirected(links), y, {"train": train, "valid": valid, "test": test})
