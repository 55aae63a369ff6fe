import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from cayley.lab.errors import DataError
from cayley.lab.tasks import SPLITS, Position, score_split
from cayley.lab.tasks.counter import key
from cayley.lab.tasks.sources import Source
from cayley.lab.tasks.text import Text
from cayley.lab.tasks.text.corpora import Level, Lines
from cayley.lab.tasks.text.text import segments, streams


@pytest.mark.parametrize("B", [1, 2, 3, 7, 50, 99])
def test_streams_hold_every_prediction_once_and_in_order(B: int) -> None:
    x, y = streams(torch.arange(100), B)
    assert x.shape == y.shape
    inputs, targets = x.t().flatten(), y.t().flatten()
    assert targets[:99].tolist() == list(range(1, 100))
    assert inputs[:99].tolist() == list(range(99))
    assert (targets[99:] == -100).all()


@pytest.mark.parametrize("K", [1, 3, 10, 11, 200])
def test_segments_cover_the_streams(K: int) -> None:
    cuts = segments(100, K)
    assert (cuts[0], cuts[-1]) == (0, 100)
    lengths = [b - a for a, b in itertools.pairwise(cuts)]
    assert lengths[:-1] == [K] * (len(lengths) - 1)
    assert 1 <= lengths[-1] <= K


def test_jitter_has_the_distribution_of_the_awd_lstm() -> None:
    K = 70
    cuts = torch.tensor(segments(10**6, K, stream=key("j")))
    assert (cuts[0], cuts[-1]) == (0, 10**6)
    lengths = cuts.diff()[:-1].double()
    assert lengths.min() >= 5
    half = lengths < 52
    n = len(lengths)
    assert abs(half.double().mean() - 0.05) < 4 * math.sqrt(0.05 * 0.95 / n)
    for group, centre in ((lengths[~half], K), (lengths[half], K // 2)):
        # truncation to integers takes half a step
        assert abs(group.mean() - (centre - 0.5)) < 4 * 5 / math.sqrt(len(group))
        assert abs(group.std() - 5) < 4 * 5 / math.sqrt(2 * len(group))


def test_a_carried_state_sees_each_stream_without_a_gap() -> None:
    """The state is the stream so far: what comes next must follow it."""
    task: Any = Text("characters", K=7, invented=True)
    text = task.encoded[1]["train"]
    said: Any = None
    for batch in task.batches("train", 3):
        said = batch.input if batch.fresh else torch.cat((said, batch.input))
    assert said.t().flatten()[: len(text) - 1].tolist() == text[:-1].tolist()


def test_jitter_changes_epochs_but_not_evaluation() -> None:
    task = Text("words", K=20, jitter=True, invented=True)
    shapes = [
        [len(b.input) for b in task.batches("train", 2, start=Position(e, 0), epochs=e + 1)]
        for e in range(3)
    ]
    assert len({tuple(shape) for shape in shapes}) > 1
    assert all(sum(shape) == 250 for shape in shapes)
    assert [len(batch.input) for batch in task.batches("test", 2)] == [20, 20, 10]


def test_own_text(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("the cat sat on the mat\n" * 50)
    task = Text("words", corpus="own", K=5, source=Source(path))
    # 45 of the 50 lines train: five words, of which one comes twice a line, and the end of line
    counts = Counter(task.encoded[1]["train"].tolist())
    assert sorted(counts.values()) == [45] * 5 + [90]
    assert task.input_size == 6
    assert task.needs == ()
    naive = score_split(task, lambda b, s: (task.naive(b), None), "test", 2)
    assert naive == pytest.approx(task.baseline("test"))


def test_too_many_streams_are_refused() -> None:
    with pytest.raises(ValueError, match="expected a batch of 1 to 99 streams"):
        next(Text(invented=True).batches("test", 100))
    with pytest.raises(ValueError, match=r"task\.K: expected an integer from 1 to"):
        Text(K=0)


@pytest.mark.parametrize("level", ["characters", "words"])
@pytest.mark.parametrize("lines", ["raw", "stripped"])
def test_the_real_treebank(source: Source, level: Level, lines: Lines) -> None:
    assert source.folder is not None
    task = Text(level, lines=lines, source=source)
    sizes = {
        # H 2.7 and P 3.4.2 print 5102k, 400k and 450k
        ("characters", "raw"): {"train": 5_101_618, "valid": 399_782, "test": 449_945},
        ("characters", "stripped"): {"train": 5_017_482, "valid": 393_042, "test": 442_423},
    }.get((level, lines), {"train": 929_589, "valid": 73_760, "test": 82_430})
    tokens = task.encoded[1]
    assert {split: len(part) for split, part in tokens.items()} == sizes
    assert len(task.encoded[0]) == task.input_size
    # the entropy of single tokens, from counts of the files
    counts = {}
    for split in ("train", "test"):
        text = (source.folder / "ptb" / f"ptb.{split}.txt").read_text()
        if level == "words":
            counts[split] = Counter(text.replace("\n", " <eos> ").split())
        else:
            text = text if lines == "raw" else text[1:].replace(" \n ", "\n").replace(" \n", "\n")
            counts[split] = Counter(text)
    total = sum(counts["train"].values()) + len(counts["train"])
    entropy = -sum(
        n * math.log((counts["train"][token] + 1) / total) for token, n in counts["test"].items()
    ) / sum(counts["test"].values())
    assert task.baseline("test")["cross_entropy"] == pytest.approx(entropy, rel=1e-4)


@pytest.mark.parametrize("carry", [True, False])
def test_the_state_is_carried_or_lost(carry: bool) -> None:
    task = Text(K=20, carry=carry, invented=True)
    for split in SPLITS:
        fresh = [batch.fresh for batch in task.batches(split, 2)]
        assert fresh == [True] + [not carry] * (len(fresh) - 1)


def test_texts_that_are_too_small(tmp_path: Path) -> None:
    for split, text in (("train", "hello world"), ("valid", ""), ("test", "hello")):
        (tmp_path / f"{split}.txt").write_text(text)
    task = Text(corpus="own", source=Source(tmp_path))
    assert [task.size(split) for split in SPLITS] == [10, 0, 4]
    assert not list(task.batches("valid", 1))
    for B in (0, 5):
        with pytest.raises(ValueError, match=f"expected a batch of 1 to 4 streams .* got {B}"):
            task.steps("test", B)
    (tmp_path / "train.txt").write_text("")
    with pytest.raises(DataError, match=r"at least two characters to train on in .*, got 0"):
        Text(corpus="own", source=Source(tmp_path)).size("train")
