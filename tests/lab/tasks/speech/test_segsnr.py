import math

import numpy as np
import pytest
import torch

from cayley.lab.tasks.speech.segsnr import active_speech, segmental_snr


def plain(
    r: np.ndarray,
    e: np.ndarray,
    length: int,
    step: int,
    w: np.ndarray,
    low: float,
    high: float,
) -> float:
    """The formula of the book, frame by frame."""
    values = []
    for start in range(0, len(r) - length + 1, step):
        s = sum((w[n] * r[start + n]) ** 2 for n in range(length))
        d = sum((w[n] * (r[start + n] - e[start + n])) ** 2 for n in range(length))
        values.append(min(max(10 * math.log10(s / d), low), high))
    return sum(values) / len(values)


def test_both_forms_against_the_plain_formula() -> None:
    rng = np.random.default_rng(0)
    r = rng.standard_normal(2005) * np.repeat(rng.uniform(0.01, 3, 401), 5)
    e = r + 0.5 * rng.standard_normal(2005)
    ours = (torch.from_numpy(r), torch.from_numpy(e), 8000)
    assert float(segmental_snr(*ours, active=False)) == pytest.approx(
        plain(r, e, 80, 80, np.ones(80), -100, 100)
    )
    loizou = segmental_snr(*ours, frame=0.03, hop=0.0075, hann=True, low=-10, high=35, active=False)
    assert float(loizou) == pytest.approx(plain(r, e, 240, 60, np.hanning(240), -10, 35))


@pytest.mark.parametrize("gain", [0.0, 0.5, 0.9, 1.1, 2.0, -1.0])
def test_a_scaled_signal_has_one_ratio_everywhere(gain: float) -> None:
    r = torch.randn(4000)
    expected = -20 * math.log10(abs(1 - gain))
    assert float(segmental_snr(r, gain * r, 8000)) == pytest.approx(expected, abs=1e-9)


def test_limits() -> None:
    r = torch.randn(800)
    assert segmental_snr(r, r, 8000) == 100
    assert segmental_snr(r, r, 8000, high=35) == 35
    silent = torch.zeros(800)
    assert segmental_snr(silent, r, 8000) == -100
    assert segmental_snr(silent, silent, 8000) == 100


def test_only_speech_counts() -> None:
    """Twice as loud: 0 dB in every frame, but far off in most of the near silence around."""
    r = 1e-3 * torch.randn(24_000)
    r[8000:16_000] = torch.randn(8000)
    e = 2 * r
    far = torch.cat((torch.arange(7000), torch.arange(20_000, 24_000)))
    e[far] += 5.0
    assert float(segmental_snr(r, e, 8000)) == pytest.approx(0, abs=1e-9)
    whole = float(segmental_snr(r, e, 8000, active=False))
    assert whole == pytest.approx(20 * math.log10(1e-3 / 5) * len(far) / len(r), rel=0.01)


def test_active_part_of_a_burst_and_its_level() -> None:
    """A burst is active as long as it lasts, and 0.2 s and the fall of the envelope more."""
    rate = 8000
    x = torch.zeros(3 * rate)
    x[rate : 2 * rate] = torch.sin(2 * math.pi * 440 / rate * torch.arange(rate))
    active = active_speech(x, rate)
    assert not active[:rate].any()
    assert active[rate + 400 : 2 * rate].all()
    ends = int(active.nonzero().max()) / rate
    assert 2.2 < ends < 2.4
    # the defining equation: 15.9 dB between active level and threshold, to the 0.1 dB of the search
    level = 10 * math.log10(float(x.square().sum()) / int(active.sum()))
    assert -5.5 < level < -3.0


def test_activity_does_not_depend_on_the_gain() -> None:
    x = torch.randn(8000) * torch.linspace(0, 1, 8000).square()
    for gain in (1e-3, 100.0):
        assert torch.equal(active_speech(gain * x, 8000), active_speech(x, 8000))
    assert not active_speech(torch.zeros(100), 8000).any()


def test_wrong_lengths_are_named() -> None:
    with pytest.raises(ValueError, match=r"got \(10,\) and \(11,\): cut the longer one"):
        segmental_snr(torch.zeros(10), torch.zeros(11), 8000)
    with pytest.raises(ValueError, match="expected at least a frame of 80 samples"):
        segmental_snr(torch.zeros(10), torch.zeros(10), 8000)
