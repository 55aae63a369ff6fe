"""Speech frames: predict the spectrum of the next 16 ms."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from cayley.lab.settings import Range
from cayley.lab.tasks.batch import Batch, Split
from cayley.lab.tasks.examples import ExampleTask
from cayley.lab.tasks.metrics import Metric, mean
from cayley.lab.tasks.sources import NOWHERE, Resource, Source
from cayley.lab.tasks.speech.audio import BINS, overlap_add, spectrum
from cayley.lab.tasks.speech.perception import SCORES, audio_metric
from cayley.lab.tasks.speech.recordings import (
    FILES,
    Utterances,
    find_recordings,
    invent_recordings,
    read_recordings,
)
from cayley.lab.tasks.speech.speakers import Corpus
from cayley.lab.tasks.task import Answers, Reads

__all__ = ["Reduction", "Speech", "frame_error"]

Reduction = Literal["none", "padded", "valid"]
REDUCTIONS: tuple[Reduction, ...] = ("none", "padded", "valid")
SILENCE = -50.0


def frame_error(
    output: Tensor,
    target: Tensor,
    lengths: Tensor,
    reduction: Reduction,
    padded: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The squared error of frames, and the number of entries that it is a mean over.

    The papers have three mean squared errors, which must not be compared with each other:

    - ``"none"``: no mask, padding counts like speech;
    - ``"padded"``: errors in the padding are left out, but its entries are counted;
    - ``"valid"``: the mean without the padding.

    Arguments:
        output: Predictions, (T, B, F).
        target: The true frames, (T, B, F).
        lengths: The number of valid steps, (B).
        reduction: Which of the three.
        padded: The number of steps with the padding that counts, (B); None for T.

    Returns:
        Sum and count, scalars.

    Example:
        >>> output, target = torch.zeros(3, 2, 1), torch.ones(3, 2, 1)
        >>> for reduction in ("none", "padded", "valid"):
        ...     total, count = frame_error(output, target, torch.tensor([1, 3]), reduction)
        ...     print(reduction, int(total), int(count))
        none 6 6
        padded 4 6
        valid 4 4
    """
    T, B, F = target.shape
    padded = lengths.new_full((B,), T) if padded is None else padded
    steps = torch.arange(T, device=output.device).unsqueeze(1)
    within = steps < (padded if reduction == "none" else lengths)
    squares = torch.where(within.unsqueeze(-1), (output - target).square(), 0)
    count = (lengths if reduction == "valid" else padded).sum() * F
    return squares.sum(), count


@dataclass(frozen=True)
class Speech(ExampleTask):
    r"""Predict the logarithmic power spectrum of the next frame of speech.

    Recordings are resampled to 8 kHz and cut into frames of 256 samples, 128 apart, with a Hann
    window; a frame is :math:`10 \log_{10}(10^{-5} + |X|^2)`, 129 numbers in decibels.

    Note:
        In the published code the last valid step predicts a frame of padding; here it predicts the
        last frame. The errors ``none`` and ``padded`` count padding: that of each ``minibatch``
        of validation and test, so that they do not depend on how many recordings a batch has.

    References:
        Full-Capacity Unitary Recurrent Neural Networks, Wisdom, Powers, Hershey, Le Roux, Atlas,
        2016, section 5.3.

    Arguments:
        corpus: ``"timit"``, ``"nltk"`` (its free sample), ``"fsdd"`` (Free Spoken Digits), or
            ``"own"`` for a folder of sound files; see
            :func:`~cayley.lab.tasks.speech.speakers.assign_splits`.
        reduction: The mean squared error that is trained and reported, see :func:`frame_error`.
        pad: Whether recordings are padded to the longest of the batch, or of the split.
        minibatch: How many consecutive recordings of validation and test are padded together if
            ``pad`` is the batch. In training it is the batch itself.
        rate: In Hz.
        shuffle: Whether each epoch of training has an order of its own.
        source: Where the recordings are, in folders or zip archives.
        invented: Whether to use sums of sines instead of files.

    Example:
        >>> task = Speech(invented=True)
        >>> batch = next(task.batches("train", 3))
        >>> batch.input.shape[1:], batch.lengths.shape
        (torch.Size([3, 129]), torch.Size([3]))
    """

    corpus: Corpus = "timit"
    reduction: Reduction = "valid"
    pad: Literal["batch", "split"] = "batch"
    minibatch: Annotated[int, Range(1, 10**6)] = 28
    rate: Annotated[int, Range(1_000, 192_000)] = 8_000
    shuffle: bool = True
    source: Source = NOWHERE
    invented: bool = False

    reads: ClassVar[Reads] = "features"
    answers: ClassVar[Answers] = "each"
    naive_rule: ClassVar[str] = "the frame before once more: the mean of (x_{t+1} − x_t)²"

    @property
    def needs(self) -> tuple[Resource, ...]:
        """The archive of the corpus, or a hint how to get it."""
        return FILES[self.corpus]

    def find_data(self) -> None:
        """Look for the recordings."""
        downloads = self.source.download and any(file.url for file in self.needs)
        if not self.invented and not downloads:
            find_recordings(self.source, self.corpus)

    @cached_property
    def _utterances(self) -> dict[Split, Utterances]:
        return {}

    def utterances(self, split: Split) -> Utterances:
        """The recordings of a split."""
        if split not in self._utterances:
            if self.invented:
                waves = invent_recordings(split)
            else:
                files = find_recordings(self.source, self.corpus)[split]
                waves = read_recordings(files, self.rate)
            self._utterances[split] = Utterances.of(waves)
        return self._utterances[split]

    @property
    def input_size(self) -> int:
        """The bins of a spectrum."""
        return BINS

    @property
    def output_size(self) -> int:
        """The bins of a spectrum."""
        return BINS

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The chosen mean squared error, then all three by name."""

        def error(name: str, reduction: Reduction) -> Metric:
            def partial(output: Tensor, batch: Batch) -> Tensor:
                pair = self.error(output, batch, reduction)
                return torch.stack([x.double() for x in pair]).unsqueeze(0)

            return Metric(name, "lower", partial, mean)

        named = (error(f"mse_{reduction}", reduction) for reduction in REDUCTIONS)
        return error("mse", self.reduction), *named

    @property
    def audio_metrics(self) -> tuple[Metric, ...]:
        """Scores of the predicted sound; they are slow, so they are computed on request only."""
        return tuple(audio_metric(name, self.sound, self.rate) for name in SCORES)

    def size(self, split: Split) -> int:
        """The number of recordings."""
        return len(self.utterances(split).waves)

    def examples(
        self, split: Split, index: Tensor, seed: int, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Input and target (T, B, 129) and the number of valid steps (B)."""
        utterances = self.utterances(split)
        data = utterances.frames.on(index.device)
        first, lengths = data["first"][index], data["count"][index] - 1
        if split == "train" and self.pad == "batch":
            T = int(lengths.max())
        else:
            T = int(self.padded(split)[index.cpu()].max())
        steps = torch.arange(T + 1, device=index.device).unsqueeze(1)
        place = first + steps.minimum(lengths)
        # faster by far than indexing with a matrix
        frames = data["frames"].index_select(0, place.flatten()).view(*place.shape, -1).to(dtype)
        frames.masked_fill_((steps > lengths).unsqueeze(-1), SILENCE)
        return frames[:-1], frames[1:], lengths

    def padded(self, split: Split) -> Tensor:
        """The number of steps of each recording with its padding, (N); not for training.

        It is that of the longest recording of its minibatch, or of the split.
        """
        steps = self.utterances(split).frames.tensors["count"] - 1
        size = self.minibatch if self.pad == "batch" else max(1, len(steps))
        return torch.cat([part.max().expand(len(part)) for part in steps.split(size)])

    def error(self, output: Tensor, batch: Batch, reduction: Reduction) -> tuple[Tensor, Tensor]:
        """Sum and count of the squared error of a batch, see :func:`frame_error`."""
        assert batch.lengths is not None
        assert batch.index is not None
        padded = None
        if batch.split != "train":
            padded = self.padded(batch.split).to(batch.index.device)[batch.index]
        return frame_error(output, batch.target, batch.lengths, reduction, padded)

    def sound(self, output: Tensor, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """The true recordings of a batch, and those made from the predictions, (N) each.

        A frame has the predicted power and the true phase; the first frame, which is not predicted,
        is the true one.
        """
        assert batch.index is not None
        assert batch.lengths is not None
        waves = self.utterances(batch.split).waves
        pairs = []
        for b, (number, length) in enumerate(
            zip(batch.index.tolist(), batch.lengths.tolist(), strict=True)
        ):
            wave = waves[number].double()
            X = spectrum(wave)
            modulus = 10 ** (output[:length, b].to(wave) / 20)
            guessed = torch.cat((X[:1], torch.polar(modulus, X[1:].angle())))
            pairs.append((wave, overlap_add(guessed, len(wave))))
        return pairs

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """The chosen mean squared error."""
        total, count = self.error(output, batch, self.reduction)
        return total / count

    def weight(self, batch: Batch) -> Tensor:
        """The entries that the loss is the mean over."""
        return self.error(batch.target, batch, self.reduction)[1]

    def naive(self, batch: Batch) -> Tensor:
        """The frame that was read."""
        assert isinstance(batch.input, Tensor)
        return batch.input

    def baseline(self, split: Split) -> dict[str, float]:
        """The mean squared change from frame to frame."""
        utterances = self.utterances(split)
        frames, count = utterances.frames.tensors["frames"], utterances.frames.tensors["count"]
        squares = [x.double().diff(dim=0).square().sum() for x in frames.split(count.tolist())]
        total = float(torch.stack(squares).sum())
        padded = self.padded(split)
        entries = BINS * int(padded.sum())
        # without a mask, the last frame is followed by silence: one more change
        ends = frames[count.cumsum(0) - 1].double()[count - 1 < padded]
        scores = {
            "none": (total + float((ends - SILENCE).square().sum())) / entries,
            "padded": total / entries,
            "valid": total / float(BINS * (count - 1).sum()),
        }
        named = {f"mse_{reduction}": scores[reduction] for reduction in REDUCTIONS}
        return {"mse": scores[self.reduction], **named}

    def tiny(self) -> "Speech":
        """Six sums of sines per split."""
        return replace(self, invented=True)
