"""Citation graphs in the format of Planetoid, read without running code from pickles."""

import io
import pickle
from collections import defaultdict
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from cayley.lab.errors import DataError
from cayley.lab.tasks.batch import Split
from cayley.lab.tasks.graph.datasets import NodeData, undirected
from cayley.lab.tasks.sources import Resource, Source, explain_damage

__all__ = ["PARTS", "Division", "planetoid_files", "read_planetoid"]

Division = Literal["full", "public", "fastgcn"]

SITE = "https://github.com/kimiyoung/planetoid/raw/master/data/"
PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
CORA = dict(
    zip(
        PARTS,
        (
            "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
            "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
            "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
            "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
            "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
            "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
            "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
            "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
        ),
        strict=True,
    )
)
VALIDATION = 500


class _Sparse:
    """The content of a pickled ``scipy.sparse.csr_matrix``."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.shape = state.get("_shape", state.get("shape"))
        self.data, self.indices = state["data"], state["indices"]
        self.indptr = state["indptr"]

    def dense(self) -> Tensor:
        array = np.zeros(self.shape, dtype=np.float32)
        rows = np.repeat(np.arange(self.shape[0]), np.diff(self.indptr))
        array[rows, self.indices] = self.data
        return torch.from_numpy(array)


# the classes and functions that the files need, by their names in Python 2
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): np.zeros(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("scipy.sparse.csr", "csr_matrix"): _Sparse,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
    ("__builtin__", "object"): object,
    ("copy_reg", "_reconstructor"): lambda kind, base, state: object.__new__(kind),
}


class _Unpickler(pickle.Unpickler):
    """Reads arrays, sparse matrices and dictionaries of lists, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise DataError(
                f"expected a pickle of arrays and lists, got one that asks for {module}.{name}: "
                "fetch the file again"
            )
        return ALLOWED[module, name]


def planetoid_files(dataset: str) -> tuple[Resource, ...]:
    """The eight files of a graph."""
    sums = CORA if dataset == "cora" else {}
    names = (f"ind.{dataset}.{part}" for part in PARTS)
    return tuple(
        Resource(name, SITE + name, sums.get(part, ""))
        for part, name in zip(PARTS, names, strict=True)
    )


def read_planetoid(source: Source, dataset: str, division: Division = "full") -> NodeData:
    """A citation graph: words of papers, links between them, and their fields.

    Note:
        Links are taken in both directions, once each and without loops: 5278 of Cora's 5429.

    References:
        Revisiting Semi-Supervised Learning with Graph Embeddings, Yang, Cohen, Salakhutdinov, 2016.

    Arguments:
        source: Where the files are.
        dataset: ``"cora"``, ``"citeseer"`` or ``"pubmed"``.
        division: ``"public"`` trains on 20 nodes per class and validates on the 500 nodes after
            them; ``"full"`` validates on the same and trains on all others but the test nodes;
            ``"fastgcn"`` validates on the last 500 of these instead.
    """
    content = dict(zip(PARTS, map(source.read, planetoid_files(dataset)), strict=True))
    order = torch.tensor([int(line) for line in content.pop("test.index").split()])
    parts = {}
    for part, data in content.items():
        with explain_damage(f"ind.{dataset}.{part}"):
            parts[part] = _Unpickler(io.BytesIO(data), encoding="latin1").load()
    known = len(parts["ally"])
    N = len(parts["graph"])
    x = torch.zeros(N, parts["allx"].shape[1], dtype=torch.float32)
    y = torch.zeros(N, dtype=torch.int64)
    for rows, features, labels in (
        (torch.arange(known), parts["allx"], parts["ally"]),
        (order, parts["tx"], parts["ty"]),
    ):
        x[rows] = features.dense()
        y[rows] = torch.from_numpy(labels.argmax(1))
    links = [(i, j) for i, neighbours in parts["graph"].items() for j in neighbours]
    public = len(parts["y"])
    first = known - VALIDATION if division == "fastgcn" else public
    valid = torch.arange(first, first + VALIDATION)
    rest = torch.arange(public if division == "public" else known)
    splits: dict[Split, Tensor] = {
        "train": rest[~torch.isin(rest, valid)],
        "valid": valid,
        "test": order.sort().values,
    }
    return NodeData(x, undirected(torch.tensor(links).t()), y, splits)
