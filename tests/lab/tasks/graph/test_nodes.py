import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from cayley.lab.errors import DataError
from cayley.lab.tasks import Position
from cayley.lab.tasks.graph import Nodes
from cayley.lab.tasks.graph.datasets import invent_nodes
from cayley.lab.tasks.graph.nodes import DATASETS, Dataset
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
    with pytest.raises(ValueError, match="task.dataset: expected 'cora' or"):
        Nodes("karate")  # pyrefly: ignore[bad-argument-type]


@pytest.mark.parametrize("dataset", ["cora", "photo", "tolokers"])
def test_the_real_graphs_have_the_known_sizes(source: Source, dataset: Dataset) -> None:
    task = Nodes(dataset, source=source)
    batch: Any = task.batch("train", 1, Position(), dtype=torch.float32)
    assert batch.input.x.shape[1] == DATASETS[dataset].features
    assert task.loss(torch.zeros(len(batch.input.x), task.output_size), batch).item() == (
        pytest.approx(math.log(max(task.output_size, 2)), rel=1e-5)
    )
