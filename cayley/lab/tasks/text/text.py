"""Predicting the next character or word, with the state carried along the text."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from cayley.lab.errors import DataError
from cayley.lab.settings import Range
from cayley.lab.tasks.batch import SPLITS, Batch, Position, Split, following
from cayley.lab.tasks.counter import integers, key, normal, uniform
from cayley.lab.tasks.frequencies import count_classes, frequency_logits, frequency_scores
from cayley.lab.tasks.metrics import (
    IGNORED,
    Metric,
    bits_per_character,
    crossentropy,
    perplexity,
)
from cayley.lab.tasks.resident import Resident
from cayley.lab.tasks.sources import NOWHERE, Resource, Source
from cayley.lab.tasks.task import Answers, Reads, Task
from cayley.lab.tasks.text.corpora import (
    PTB_FILES,
    Level,
    Lines,
    encode,
    find_ptb,
    read_own,
    read_ptb,
    tokenize,
)

__all__ = ["Text", "segments", "streams"]

PTB_VOCABULARY: dict[Level, int] = {"characters": 50, "words": 10_000}


def streams(tokens: Tensor, B: int) -> tuple[Tensor, Tensor]:
    """Cut a text into B streams of equal length, each continuing where the previous one ends.

    Every token but the first is predicted once; the last streams are padded with targets that do
    not count.

    Arguments:
        tokens: The text, int64, (N).
        B: The number of streams.

    Returns:
        Inputs and targets, int64, (⌈(N − 1)/B⌉, B).

    Example:
        >>> x, y = streams(torch.arange(6), 2)
        >>> x.t().tolist(), y.t().tolist()
        ([[0, 1, 2], [3, 4, 0]], [[1, 2, 3], [4, 5, -100]])
    """
    count = len(tokens) - 1
    _check_streams(B, count)
    length = -(-count // B)
    rest = B * length - count
    x = torch.nn.functional.pad(tokens[:-1], (0, rest))
    y = torch.nn.functional.pad(tokens[1:], (0, rest), value=IGNORED)
    return x.view(B, length).t().contiguous(), y.view(B, length).t().contiguous()


def _check_streams(B: int, count: int) -> None:
    if not 1 <= B <= count:
        raise ValueError(f"expected a batch of 1 to {count} streams for this text, got {B}")


def segments(length: int, K: int, *, stream: int | None = None) -> list[int]:
    """Where streams are cut for truncated backpropagation through time.

    Arguments:
        length: The length of the streams.
        K: The number of steps of a segment; the last may have fewer.
        stream: None to cut evenly. Otherwise the key of a stream of random numbers: each length is
            drawn from a normal distribution with mean K, or K/2 with probability 1/20, and
            deviation 5, as in the AWD-LSTM; no length but the last is less than 5.

    References:
        Regularizing and Optimizing LSTM Language Models, Merity, Keskar, Socher, 2018, section 4.1.

    Returns:
        The boundaries, from 0 to ``length``.

    Example:
        >>> segments(10, 4)
        [0, 4, 8, 10]
    """
    if stream is None:
        return [*range(0, length, K), length]
    place = torch.arange(length // 5 + 1)
    about = torch.where(uniform(key(stream, "half"), place) < 0.95, K, K // 2)
    lengths = (about + 5 * normal(key(stream, "length"), place)).long().clamp_min_(5)
    ends = lengths.cumsum(0)
    return [0, *ends[ends < length].tolist(), length]


_segments = lru_cache(maxsize=8)(segments)


@dataclass(frozen=True)
class Text(Task):
    """Predict the next character or word of a text.

    Each batch continues where the previous one ended, so the recurrent state is carried over,
    except into the first batch of an epoch (or, without ``carry``, into any). Every token but the
    first of the text is predicted once per epoch, for any batch size; the B streams differ from one
    long text only in their initial states.

    Arguments:
        level: What a token is.
        corpus: ``"ptb"`` for the Penn Treebank, ``"own"`` for a text of the user's own.
        lines: Whether lines of the Penn Treebank keep the spaces at their ends, see
            :func:`~cayley.lab.tasks.text.corpora.read_ptb`. For words it makes no difference.
        K: The number of steps of a batch: the gradient reaches no further.
        jitter: Whether the number of steps varies in training, see :func:`segments`.
        carry: Whether the state is carried from batch to batch; otherwise each starts at zero, as
            in some published code.
        vocabulary: The largest size of the vocabulary.
        source: Where the files are.
        invented: Whether to use random tokens instead of files.

    Example:
        >>> task = Text("characters", K=50, invented=True)
        >>> batches = list(task.batches("train", 4))
        >>> [batch.fresh for batch in batches], batches[0].input.shape, task.output_size
        ([True, False, False], torch.Size([50, 4]), 50)
    """

    level: Level = "characters"
    corpus: Literal["ptb", "own"] = "ptb"
    lines: Lines = "raw"
    K: Annotated[int, Range(1, 10**6)] = 50
    jitter: bool = False
    carry: bool = True
    vocabulary: Annotated[int, Range(2, 10**7)] | None = None
    source: Source = NOWHERE
    invented: bool = False

    reads: ClassVar[Reads] = "tokens"
    answers: ClassVar[Answers] = "each"
    naive_rule: ClassVar[str] = "the frequencies p of the training tokens: −Σ q ln p"

    @property
    def needs(self) -> tuple[Resource, ...]:
        """The files of the Penn Treebank, if it is the corpus."""
        return tuple(PTB_FILES.values()) if self.corpus == "ptb" else ()

    def find_data(self) -> None:
        """Look for the text."""
        if not self.invented:
            (find_ptb if self.corpus == "ptb" else read_own)(self.source)

    @cached_property
    def encoded(self) -> tuple[list[str], dict[Split, Tensor]]:
        """The different tokens, and the numbers of those of each split."""
        if self.invented:
            n = self.vocabulary or PTB_VOCABULARY[self.level]
            names = [chr(ord("!") + k) if self.level == "characters" else f"w{k}" for k in range(n)]
            return names, {
                split: integers(key("text", split), torch.arange(size), n)
                for split, size in (("train", 500), ("valid", 100), ("test", 100))
            }
        if self.corpus == "ptb":
            texts = {split: read_ptb(self.source, split, self.lines) for split in SPLITS}
        else:
            texts = read_own(self.source)
        tokens = {split: tokenize(text, self.level) for split, text in texts.items()}
        if len(tokens["train"]) < 2:
            raise DataError(
                f"expected a text of at least two {self.level} to train on in "
                f"{self.source.folder}, got {len(tokens['train'])}: choose another with --data"
            )
        return encode(tokens, self.vocabulary)

    @property
    def vocabulary_digest(self) -> str:
        """A digest of the tokens in the order of their numbers, for a text of the user's own."""
        if self.invented or self.corpus == "ptb":
            return ""
        return hashlib.sha256(json.dumps(self.encoded[0]).encode()).hexdigest()

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens, given by their numbers.

        Example:
            >>> Text("words", invented=True).decode([0, 2])
            'w0 w2'
        """
        words = [self.encoded[0][number] for number in tokens]
        if self.level == "characters":
            return "".join(words)
        return " ".join(words).replace(" <eos> ", "\n").replace(" <eos>", "\n")

    @cached_property
    def _streams(self) -> dict[tuple[Split, int], Resident]:
        return {}

    def streams(self, split: Split, B: int) -> Resident:
        """Inputs and targets of B streams."""
        if (split, B) not in self._streams:
            x, y = streams(self.encoded[1][split], B)
            self._streams[split, B] = Resident(x=x, y=y)
        return self._streams[split, B]

    def cuts(self, split: Split, B: int, seed: int, epoch: int) -> list[int]:
        """Where the streams are cut into batches."""
        _check_streams(B, self.size(split))
        length = -(-self.size(split) // B)
        stream = key("text", seed, epoch) if self.jitter and split == "train" else None
        return _segments(length, self.K, stream=stream)

    @property
    def input_size(self) -> int:
        """The number of different tokens, without reading the file if possible."""
        if self.corpus == "ptb" and self.vocabulary is None and self.source.check:
            return PTB_VOCABULARY[self.level]
        return len(self.encoded[0])

    @property
    def output_size(self) -> int:
        """The number of different tokens."""
        return self.input_size

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Bits per character or perplexity, and cross entropy."""
        return (bits_per_character if self.level == "characters" else perplexity), crossentropy

    def size(self, split: Split) -> int:
        """The number of predictions: of all tokens but the first."""
        return max(0, len(self.encoded[1][split]) - 1)

    def steps(self, split: Split, B: int, *, seed: int = 0, epoch: int = 0) -> int:
        """The number of batches of an epoch, which varies with it if lengths jitter."""
        return len(self.cuts(split, B, seed, epoch)) - 1

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
        """The batch at a position: input and target (K, B)."""
        data = self.streams(split, B).on(device)
        cuts = self.cuts(split, B, seed, position.epoch)
        after = following(position, len(cuts) - 1)
        part = slice(cuts[position.batch], cuts[position.batch + 1])
        # copies: writing into a batch must not change the text
        x, y = data["x"][part].clone(), data["y"][part].clone()
        fresh = position.batch == 0 or not self.carry
        return Batch(x, y, split, position, after, fresh=fresh)

    def naive(self, batch: Batch) -> Tensor:
        """The frequencies of the training tokens."""
        logits = frequency_logits(self.counts("train")).to(batch.target.device)
        return logits.expand(*batch.target.shape, -1)

    def counts(self, split: Split) -> Tensor:
        """How often each token is to be predicted."""
        return count_classes(self.encoded[1][split][1:], self.output_size)

    def baseline(self, split: Split) -> dict[str, float]:
        """Cross entropy of the frequencies, in the unit of each metric."""
        scores = frequency_scores(self.counts("train"), self.counts(split))
        return {metric.name: scores[metric.name] for metric in self.metrics}

    def tiny(self) -> "Text":
        """Random tokens, at most 20 steps per batch."""
        return replace(self, invented=True, K=min(self.K, 20))
