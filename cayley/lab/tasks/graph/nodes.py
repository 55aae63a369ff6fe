"""Classifying the nodes of a graph by their features and those of their neighbours."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from cayley.lab.errors import DataError, RecipeError
from cayley.lab.settings import Range
from cayley.lab.tasks.batch import (
    SPLITS,
    Batch,
    Graph,
    Position,
    Split,
    check_batch_size,
    following,
)
from cayley.lab.tasks.counter import key
from cayley.lab.tasks.examples import example_numbers
from cayley.lab.tasks.frequencies import count_classes, frequency_logits, frequency_scores
from cayley.lab.tasks.graph.datasets import (
    PHOTO,
    TOLOKERS,
    NodeData,
    find_ogbn,
    invent_nodes,
    read_ogbn,
    read_photo,
    read_tolokers,
)
from cayley.lab.tasks.graph.labels import label_loss, roc_auc
from cayley.lab.tasks.graph.neighbours import incoming, sample_neighbours
from cayley.lab.tasks.graph.planetoid import Division, planetoid_files, read_planetoid
from cayley.lab.tasks.metrics import IGNORED, Metric, accuracy, crossentropy
from cayley.lab.tasks.resident import Resident
from cayley.lab.tasks.sources import NOWHERE, Resource, Source, explain_damage
from cayley.lab.tasks.task import Answers, Reads, Task

__all__ = ["DATASETS", "Dataset", "Nodes"]

Dataset = Literal[
    "cora", "citeseer", "pubmed", "photo", "tolokers", "ogbn-proteins", "ogbn-products"
]


@dataclass(frozen=True)
class Shape:
    """Features, outputs, and whether outputs are separate yes-no labels."""

    features: int
    outputs: int
    several: bool = False


DATASETS: dict[Dataset, Shape] = {
    "cora": Shape(1433, 7),
    "citeseer": Shape(3703, 6),
    "pubmed": Shape(500, 3),
    "photo": Shape(745, 8),
    "tolokers": Shape(10, 1, several=True),
    "ogbn-proteins": Shape(8, 112, several=True),
    "ogbn-products": Shape(100, 47),
}
CITATIONS: tuple[Dataset, ...] = ("cora", "citeseer", "pubmed")
FOLDED: tuple[Dataset, ...] = ("photo", "tolokers")


@dataclass(frozen=True)
class Nodes(Task):
    """Classify the nodes of a graph, which is read as a whole unless neighbours are sampled.

    The network sees the whole graph; a split is the set of nodes whose outputs count. With
    ``neighbours`` a training batch is a sample of the graph around B training nodes, while
    validation and test still read all of it.

    Note:
        Results on photo and tolokers, open graphs of the same kinds as ogbn-products and
        ogbn-proteins, are not results on those.

    Arguments:
        dataset: Which graph.
        division: How a citation graph is divided, see
            :func:`~cayley.lab.tasks.graph.planetoid.read_planetoid`.
        fold: Which split of photo or tolokers.
        neighbours: The largest number of neighbours of a node in each hop; empty for the whole
            graph.
        normalize: Whether the features of each node are divided by their sum.
        source: Where the files are.
        invented: Whether to use a random graph instead of files.

    Example:
        >>> batch = next(Nodes("cora", invented=True).batches("train", 1))
        >>> batch.input.x.shape, (batch.target >= 0).sum()
        (torch.Size([60, 1433]), tensor(30))
    """

    dataset: Dataset = "cora"
    division: Division = "full"
    fold: Annotated[int, Range(0, 999)] = 0
    neighbours: tuple[Annotated[int, Range(1, 10_000)], ...] = ()
    normalize: bool = False
    source: Source = NOWHERE
    invented: bool = False

    reads: ClassVar[Reads] = "graph"
    answers: ClassVar[Answers] = "nodes"
    naive_rule: ClassVar[str] = (
        "the most frequent class of the training nodes: its share; with yes-no labels, the same "
        "score for every node: an area of 1/2"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fold and self.dataset not in FOLDED:
            raise RecipeError(
                f"task.fold: expected 0, as {self.dataset} has one split, got {self.fold}"
            )
        if self.division != "full" and self.dataset not in CITATIONS:
            raise RecipeError(
                f"task.division: expected 'full', as {self.dataset} is not a citation graph, got "
                f"{self.division!r}"
            )

    @property
    def shape(self) -> Shape:
        """Sizes of the dataset."""
        return DATASETS[self.dataset]

    @property
    def needs(self) -> tuple[Resource, ...]:
        """The files of the dataset; the package ogb handles its own."""
        if self.dataset in FOLDED:
            return (PHOTO if self.dataset == "photo" else TOLOKERS,)
        return () if self.dataset.startswith("ogbn") else planetoid_files(self.dataset)

    def find_data(self) -> None:
        """Look for the files of the dataset."""
        if self.invented:
            return
        if self.dataset.startswith("ogbn"):
            find_ogbn(self.source, self.dataset)
        else:
            self.source.find(self.needs)

    @cached_property
    def nodes(self) -> NodeData:
        """The graph."""
        shape = self.shape
        if self.invented:
            return invent_nodes(shape.features, shape.outputs, shape.several)
        with explain_damage(f"the files of {self.dataset}"):
            if self.dataset == "photo":
                data = read_photo(self.source, self.fold)
            elif self.dataset == "tolokers":
                data = read_tolokers(self.source, self.fold)
            elif self.dataset.startswith("ogbn"):
                data = read_ogbn(self.source, self.dataset)
            else:
                data = read_planetoid(self.source, self.dataset, self.division)
        outputs = data.y.shape[1] if shape.several else int(data.y.max()) + 1
        if (data.x.shape[1], outputs) != (shape.features, shape.outputs):
            raise DataError(
                f"expected {shape.features} features and {shape.outputs} outputs of "
                f"{self.dataset}, got {data.x.shape[1]} and {outputs}: fetch the files again"
            )
        return data

    @cached_property
    def data(self) -> Resident:
        """Features, edges, and the targets of each split."""
        nodes = self.nodes
        x = nodes.x / nodes.x.sum(1, keepdim=True).clamp_min(1e-12) if self.normalize else nodes.x
        targets = {}
        for split in SPLITS:
            nothing = torch.nan if self.shape.several else IGNORED
            target = torch.full_like(nodes.y, nothing)
            target[nodes.splits[split]] = nodes.y[nodes.splits[split]]
            targets[f"{split} target"] = target
        begin, sources = incoming(nodes.edge_index, len(x)) if self.neighbours else (x[:0],) * 2
        return Resident(
            x=x,
            edge_index=nodes.edge_index,
            begin=begin,
            sources=sources,
            seeds=nodes.splits["train"],
            **targets,
        )

    @property
    def input_size(self) -> int:
        """The features of a node."""
        return self.shape.features

    @property
    def output_size(self) -> int:
        """Classes or labels."""
        return self.shape.outputs

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Accuracy and cross entropy of classes, area under the curve of yes-no labels."""
        return (roc_auc,) if self.shape.several else (accuracy, crossentropy)

    def size(self, split: Split) -> int:
        """The number of nodes whose outputs count."""
        return len(self.nodes.splits[split])

    def steps(self, split: Split, B: int, *, seed: int = 0, epoch: int = 0) -> int:
        """One, unless neighbours are sampled."""
        check_batch_size(B)
        return -(-self.size(split) // B) if self._samples(split) else 1

    def _samples(self, split: Split) -> bool:
        return bool(self.neighbours) and split == "train"

    def batch(
        self,
        split: Split,
        B: int,
        position: Position,
        *,
        seed: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Batch:
        """The graph, or a sample of it around B nodes; B is ignored without ``neighbours``.

        Note:
            A whole graph is not copied, since a copy would take longer than a step of a small
            network: do not write into it.
        """
        after = following(position, self.steps(split, B))
        data = self.data.on(device)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        target = data[f"{split} target"]
        target = target.to(dtype) if self.shape.several else target
        if not self._samples(split):
            graph = Graph(data["x"].to(dtype), data["edge_index"])
            return Batch(graph, target, split, position, after)
        number = example_numbers(self.size(split), B, position, seed=seed, shuffle=True)
        seeds = data["seeds"][number.to(device=device)]
        stream = key("neighbours", seed, position.epoch, position.batch)
        nodes, edges = sample_neighbours(
            data["begin"], data["sources"], seeds, self.neighbours, stream=stream
        )
        # other training nodes in the sample lack neighbours: they count in other batches
        wanted = torch.isin(nodes, seeds)
        wanted = wanted.unsqueeze(1) if self.shape.several else wanted
        nothing = torch.nan if self.shape.several else IGNORED
        answers = target[nodes].masked_fill(~wanted, nothing)
        graph = Graph(data["x"][nodes].to(dtype), edges)
        return Batch(graph, answers, split, position, after, index=nodes)

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """Cross entropy, mean over the nodes whose outputs count."""
        if self.shape.several:
            return label_loss(output, batch.target)
        return super().loss(output, batch)

    def naive(self, batch: Batch) -> Tensor:
        """The frequencies of the training nodes' classes, or zeros."""
        if self.shape.several:
            return torch.zeros_like(batch.target)
        logits = frequency_logits(self.counts("train")).to(batch.target.device)
        return logits.expand(len(batch.target), -1)

    def counts(self, split: Split) -> Tensor:
        """How often each class occurs."""
        return count_classes(self.nodes.y[self.nodes.splits[split]], self.output_size)

    def baseline(self, split: Split) -> dict[str, float]:
        """The scores of the frequencies, or an area of 1/2."""
        if self.shape.several:
            return {"roc_auc": 0.5}
        scores = frequency_scores(self.counts("train"), self.counts(split))
        return {metric.name: scores[metric.name] for metric in self.metrics}

    def tiny(self) -> "Nodes":
        """A random graph of 60 nodes."""
        return replace(self, invented=True)
