import sys

import pytest
import torch

from cayley.lab.tasks.perception import SCORES, perceive


def speech() -> torch.Tensor:
    """Noise that comes and goes, loud enough to be taken for speech."""
    t = torch.arange(3 * 8000) / 8000
    return 0.1 * torch.randn(len(t)) * (1 + torch.sin(2 * torch.pi * 4 * t))


@pytest.mark.parametrize(("score", "best"), [("segsnr_db", 100.0), ("stoi", 1.0), ("pesq", 4.549)])
def test_the_true_recording_is_best_and_noise_is_worse(score: str, best: float) -> None:
    if score != "segsnr_db":
        pytest.importorskip("pystoi" if score == "stoi" else "pesq")
    x = speech()
    assert perceive(score, x, x, 8000) == pytest.approx(best, abs=1e-3)
    scores = [perceive(score, x, x + noise * torch.randn_like(x), 8000) for noise in (0.05, 0.5)]
    assert best > scores[0] > scores[1]


@pytest.mark.parametrize(("score", "package"), [("stoi", "pystoi"), ("pesq", "pesq")])
def test_a_missing_package_is_told(
    score: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"takes the package {package}.*cayley\[speech\]"):
        perceive(score, torch.zeros(10), torch.zeros(10), 8000)


def test_names() -> None:
    assert SCORES == ("segsnr_db", "stoi", "pesq")
