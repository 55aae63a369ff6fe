"""Scores of sound: an estimate compared with the true recording."""

import warnings
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from cayley.lab.tasks.batch import Batch
from cayley.lab.tasks.metrics import Metric
from cayley.lab.tasks.speech.segsnr import segmental_snr

__all__ = ["PACKAGES", "RATES", "SCORES", "Score", "Unscored", "audio_metric", "score_recording"]

Score = Literal["segsnr_db", "stoi", "pesq"]
SCORES: tuple[Score, ...] = ("segsnr_db", "stoi", "pesq")
PACKAGES = ("pystoi", "pesq")
# the rates that pesq supports
RATES = (8_000, 16_000)


class Unscored(ValueError):
    """A recording for which a score is not defined, because it is silent or too short."""


def score_recording(score: Score, reference: Tensor, estimate: Tensor, rate: int) -> float:
    """A score of one recording; higher is better; :class:`Unscored` if it has none.

    - ``"segsnr_db"``: :func:`~cayley.lab.tasks.speech.segsnr.segmental_snr`;
    - ``"stoi"``: short-time objective intelligibility, 0 to 1, by the package pystoi;
    - ``"pesq"``: perceptual evaluation of speech quality, 1 to 5, narrow band, by the package pesq.

    References:
        An Algorithm for Intelligibility Prediction of Time-Frequency Weighted Noisy Speech, Taal,
        Hendriks, Heusdens, Jensen, 2011.
        Perceptual Evaluation of Speech Quality (PESQ), Rix, Beerends, Hollier, Hekstra, 2001.

    Arguments:
        score: Which.
        reference: The true samples, (N).
        estimate: The samples that are scored, (N).
        rate: In Hz.

    Example:
        >>> x = Tensor([0.5] * 8000)
        >>> score_recording("segsnr_db", x, x, 8000)
        100.0
    """
    if score == "segsnr_db":
        return float(segmental_snr(reference, estimate, rate))
    true, guessed = reference.cpu().double().numpy(), estimate.cpu().double().numpy()
    try:
        if score == "stoi":
            from pystoi import stoi

            with warnings.catch_warnings():
                # it would give 1e-5
                warnings.filterwarnings("error", "Not enough STFT frames", RuntimeWarning)
                try:
                    return float(stoi(true, guessed, rate))
                except RuntimeWarning as error:
                    raise Unscored(f"stoi: {error}") from error
        # pyrefly: ignore[missing-import]
        from pesq import BufferTooShortError, NoUtterancesError, pesq

        try:
            return float(pesq(rate, true, guessed, "nb"))
        except (BufferTooShortError, NoUtterancesError) as error:
            raise Unscored(f"pesq: {error}") from error
    except ImportError as error:
        raise ImportError(
            f"the score {score} needs the package {error.name}: pip install 'cayley[speech]', or "
            "leave it out of the metrics"
        ) from error


def audio_metric(
    score: Score, sound: Callable[[Tensor, Batch], list[tuple[Tensor, Tensor]]], rate: int
) -> Metric:
    """The mean score of recordings; those that have none are left out, with a warning.

    Arguments:
        score: Which.
        sound: Returns true and estimated recordings, (N) each, for an output and its batch.
        rate: In Hz.
    """

    def partial(output: Tensor, batch: Batch) -> Tensor:
        scores, missed = [], 0
        for true, guessed in sound(output, batch):
            try:
                scores.append(score_recording(score, true, guessed, rate))
            except Unscored:
                missed += 1
        return torch.tensor([[sum(scores), len(scores), missed]], dtype=torch.float64)

    def pool(rows: Tensor) -> float | None:
        total, count, missed = rows.sum(0).tolist()
        if missed:
            warnings.warn(
                f"{score}: {missed:.0f} of {missed + count:.0f} recordings are left out because "
                "they are silent or too short to be scored",
                stacklevel=2,
            )
        return total / count if count else None

    return Metric(score, "higher", partial, pool)
