import sys
from typing import Any

import pytest
import torch

from cayley.lab.tasks.speech.perception import (
    SCORES,
    Score,
    Unscored,
    audio_metric,
    score_recording,
)


def speech() -> torch.Tensor:
    """Noise that comes and goes, loud enough to be taken for speech."""
    t = torch.arange(3 * 8000) / 8000
    return 0.1 * torch.randn(len(t)) * (1 + torch.sin(2 * torch.pi * 4 * t))


@pytest.mark.parametrize(("score", "best"), [("segsnr_db", 100.0), ("stoi", 1.0), ("pesq", 4.549)])
def test_the_true_recording_is_best_and_noise_is_worse(score: Score, best: float) -> None:
    if score != "segsnr_db":
        pytest.importorskip("pystoi" if score == "stoi" else "pesq")
    x = speech()
    assert score_recording(score, x, x, 8000) == pytest.approx(best, abs=1e-3)
    scores = [
        score_recording(score, x, x + noise * torch.randn_like(x), 8000) for noise in (0.05, 0.5)
    ]
    assert best > scores[0] > scores[1]


@pytest.mark.parametrize(("score", "package"), [("stoi", "pystoi"), ("pesq", "pesq")])
def test_a_missing_package_is_named(
    score: Score, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"needs the package {package}.*cayley\[speech\]"):
        score_recording(score, torch.zeros(10), torch.zeros(10), 8000)


@pytest.mark.parametrize("score", ["stoi", "pesq"])
def test_a_recording_without_a_score_does_not_lose_the_others(score: Score) -> None:
    pytest.importorskip("pystoi" if score == "stoi" else "pesq")
    x, short = speech(), speech()[:1600]
    with pytest.raises(Unscored, match=f"^{score}: "):
        score_recording(score, short, short, 8000)
    nobody: Any = None
    metric = audio_metric(score, lambda output, batch: [(x, x), (short, short)], 8000)
    with pytest.warns(UserWarning, match=f"{score}: 2 of 4 recordings are left out"):
        got = metric.pool(torch.cat([metric.partial(x, nobody)] * 2))
    assert got == score_recording(score, x, x, 8000)
    metric = audio_metric(score, lambda output, batch: [(short, short)], 8000)
    with pytest.warns(UserWarning, match=f"{score}: 1 of 1 recordings are left out"):
        assert metric.pool(metric.partial(x, nobody)) is None


def test_names() -> None:
    assert SCORES == ("segsnr_db", "stoi", "pesq")
