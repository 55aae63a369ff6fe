"""How sound is heard: scores of an estimate beside the true recording."""

from typing import Literal

from torch import Tensor

from cayley.lab.tasks.segsnr import segmental_snr

__all__ = ["SCORES", "Score", "perceive"]

Score = Literal["segsnr_db", "stoi", "pesq"]
SCORES: tuple[Score, ...] = ("segsnr_db", "stoi", "pesq")


def perceive(score: Score, reference: Tensor, estimate: Tensor, rate: int) -> float:
    """A score of one recording; higher is better.

    - ``"segsnr_db"``: :func:`~cayley.lab.tasks.segsnr.segmental_snr`;
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
        >>> perceive("segsnr_db", x, x, 8000)
        100.0
    """
    if score == "segsnr_db":
        return float(segmental_snr(reference, estimate, rate))
    true, guessed = reference.cpu().double().numpy(), estimate.cpu().double().numpy()
    try:
        if score == "stoi":
            from pystoi import stoi

            return float(stoi(true, guessed, rate))
        # pyrefly: ignore[missing-import]
        from pesq import pesq

        return float(pesq(rate, true, guessed, "nb"))
    except ImportError as error:
        raise ImportError(
            f"the score {score} takes the package {error.name}: pip install 'cayley[speech]', or "
            "leave it out of the metrics"
        ) from error
