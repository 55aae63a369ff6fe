import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from cayley.lab.errors import DataError
from cayley.lab.tasks.graph.planetoid import Division, read_planetoid
from cayley.lab.tasks.sources import Source


def test_what_else_a_pickle_contains_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple:
            return (Path(tmp_path / "harm").touch, ())

    for part in ("x", "y", "tx", "ty", "allx", "ally", "graph"):
        (tmp_path / f"ind.pubmed.{part}").write_bytes(pickle.dumps(Evil(), protocol=2))
    (tmp_path / "ind.pubmed.test.index").write_text("0\n")
    with pytest.raises(DataError, match="expected a pickle of arrays and lists"):
        read_planetoid(Source(tmp_path), "pubmed")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("division", ["public", "full", "fastgcn"])
def test_the_real_cora(source: Source, division: Division) -> None:
    data = read_planetoid(source, "cora", division)
    assert data.x.shape == (2708, 1433)
    assert set(data.x.unique().tolist()) == {0.0, 1.0}
    assert int(data.x.sum()) == 49_216
    assert data.edge_index.shape == (2, 2 * 5278)
    assert torch.bincount(data.y).tolist() == [351, 217, 418, 818, 426, 298, 180]
    sizes = {split: len(nodes) for split, nodes in data.splits.items()}
    assert sizes == {"train": 140 if division == "public" else 1208, "valid": 500, "test": 1000}
    assert data.splits["test"].tolist() == list(range(1708, 2708))
    if division == "public":
        assert torch.bincount(data.y[data.splits["train"]]).tolist() == [20] * 7
    if division == "fastgcn":
        assert data.splits["train"].tolist() == list(range(1208))


def test_the_real_cora_is_that_of_pyg(source: Source) -> None:
    io = pytest.importorskip("torch_geometric.io")
    pytest.importorskip("scipy")
    assert source.folder is not None
    theirs = io.read_planetoid_data(str(source.folder / "cora"), "cora")
    ours = read_planetoid(source, "cora", "public")
    assert torch.equal(ours.x, theirs.x.to(ours.x.dtype))
    assert torch.equal(ours.y, theirs.y)
    edges = {tuple(edge) for edge in ours.edge_index.t().tolist()}
    assert edges == {tuple(edge) for edge in theirs.edge_index.t().tolist()}
    for split, mask in (
        ("train", theirs.train_mask),
        ("valid", theirs.val_mask),
        ("test", theirs.test_mask),
    ):
        assert ours.splits[split].tolist() == np.flatnonzero(mask.numpy()).tolist()
