import io
import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cayley.lab.errors import DataError, RecipeError
from cayley.lab.tasks import Position
from cayley.lab.tasks.graph import Nodes
from cayley.lab.tasks.graph.datasets import invent_nodes
from cayley.lab.tasks.graph.nodes import DATASETS, Dataset
from cayley.lab.tasks.graph.planetoid import PARTS
from cayley.lab.tasks.sources import Source


def test_normalized_features_sum_to_1() -> None:
    batch: Any = Nodes(invented=True, normalize=True).batch("train", 1, Position())
    x = batch.input.x
    torch.testing.assert_close(x.sum(1), torch.ones(60))


@pytest.mark.parametrize("dataset", ["cora", "ogbn-proteins"])
def test_a_sampled_batch_wants_answers_at_its_nodes_only(dataset: Dataset) -> None:
    task: Any = Nodes(dataset, neighbours=(2, 2), invented=True)
    whole = replace(task, neighbours=())
    x, edges = whole.batch("train", 1, Position()).input
    true = {tuple(edge) for edge in edges.t().tolist()}
    y = task.nodes.y
    asked = []
    for batch in task.batches("train", 8):
        target = batch.target if batch.target.dim() == 1 else batch.target[:, 0]
        wanted = target >= 0
        assert wanted.sum() in (8, 30 % 8)
        assert torch.equal(batch.target[wanted], y[batch.index[wanted]].to(batch.target))
        asked += batch.index[wanted].tolist()
        assert torch.equal(batch.input.x, x[batch.index])
        pairs = batch.index[batch.input.edge_index].t().tolist()
        assert {tuple(pair) for pair in pairs} <= true
    assert sorted(asked) == task.nodes.splits["train"].sort().values.tolist()
    # evaluation reads all
    assert torch.equal(task.batch("test", 8, Position()).input.edge_index, edges)


def test_wrong_files_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "cayley.lab.tasks.graph.nodes.read_photo", lambda *_: invent_nodes(5, 8, False)
    )
    with pytest.raises(DataError, match="expected 745 features and 8 outputs of photo, got 5"):
        Nodes("photo").size("train")
    with pytest.raises(ValueError, match=r"task\.dataset: expected 'cora' or"):
        Nodes("karate")  # pyrefly: ignore[bad-argument-type]


def npz() -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, attr_shape=np.zeros(2), train_masks=np.zeros((10, 5)))
    return content.getvalue()


@pytest.mark.parametrize(
    ("dataset", "names", "content"),
    [
        ("photo", ["amazon_electronics_photo.npz"], npz()),
        ("tolokers", ["tolokers.npz"], npz()),
        (
            "pubmed",
            [f"ind.pubmed.{part}" for part in PARTS],
            pickle.dumps([1.5] * 9, protocol=2),
        ),
    ],
    ids=["photo", "tolokers", "pubmed"],
)
@pytest.mark.parametrize("length", [0, 3, 20, 200, None])
def test_files_that_are_cut_or_of_another_kind_are_named(
    dataset: Dataset, names: list[str], content: bytes, length: int | None, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).write_bytes(content[:length])
    (tmp_path / "ind.pubmed.test.index").write_text("0\n")
    task = Nodes(dataset, source=Source(tmp_path, check=False))
    with pytest.raises(DataError, match=rf"could not read .*{dataset}.*fetch"):
        task.size("train")


def test_a_fold_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = {name: np.zeros((10, 5)) for name in ("train_masks", "val_masks", "test_masks")}
    monkeypatch.setattr("cayley.lab.tasks.graph.datasets._arrays", lambda *_: masks)
    with pytest.raises(RecipeError, match=r"task\.fold: expected an integer from 0 to 9, got 10"):
        Nodes("tolokers", fold=10).size("train")


@pytest.mark.parametrize("dataset", ["cora", "photo", "tolokers"])
def test_the_real_graphs_have_the_known_sizes(source: Source, dataset: Dataset) -> None:
    task = Nodes(dataset, source=source)
    batch: Any = task.batch("train", 1, Position(), dtype=torch.float32)
    assert batch.input.x.shape[1] == DATASETS[dataset].features
    assert task.loss(torch.zeros(len(batch.input.x), task.output_size), batch).item() == (
        pytest.approx(math.log(max(task.output_size, 2)), rel=1e-5)
    )
