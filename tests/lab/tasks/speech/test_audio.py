import io
import math
import struct
import sys
import wave
from collections.abc import Callable

import pytest
import torch

from cayley.lab.errors import DataError
from cayley.lab.tasks.speech.audio import log_power, overlap_add, read_sound, resample, spectrum

RATES = [(16_000, 8_000), (8_000, 16_000), (44_100, 8_000), (11_025, 8_000), (8_000, 8_000)]


def riff(samples: list[int], rate: int, channels: int = 1) -> bytes:
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return content.getvalue()


def sphere(samples: list[int], rate: int) -> bytes:
    """A file as TIMIT has them: a header of 1024 bytes of text, then 16-bit samples."""
    header = (
        "NIST_1A\n   1024\nchannel_count -i 1\n"
        f"sample_count -i {len(samples)}\nsample_rate -i {rate}\nsample_n_bytes -i 2\n"
        "sample_byte_format -s2 01\nsample_sig_bits -i 16\nsample_coding -s3 pcm\nend_head\n"
    )
    return header.encode().ljust(1024) + struct.pack(f"<{len(samples)}h", *samples)


def test_riff_and_sphere_are_read_alike() -> None:
    pytest.importorskip("soundfile")
    samples = [0, 1, -1, 32767, -32768, 12345]
    expected = torch.tensor(samples, dtype=torch.float32) / 32768
    for content in (riff(samples, 16_000), sphere(samples, 16_000)):
        x, rate = read_sound(content, "name")
        assert rate == 16_000
        assert torch.equal(x, expected)
    stereo, _ = read_sound(riff([1, 2, 3, 4], 8_000, channels=2), "name")
    assert (stereo * 32768).tolist() == [1, 3]


def flac(samples: list[int]) -> bytes:
    soundfile = pytest.importorskip("soundfile")
    content = io.BytesIO()
    soundfile.write(content, torch.tensor(samples, dtype=torch.int16).numpy(), 8_000, format="FLAC")
    return content.getvalue()


@pytest.mark.parametrize("write", [lambda x: riff(x, 8_000), lambda x: sphere(x, 8_000), flac])
@pytest.mark.parametrize("missing", [1, 2, 100, 5000])
def test_a_sound_that_is_cut_is_refused(write: Callable[[list[int]], bytes], missing: int) -> None:
    pytest.importorskip("soundfile")
    content = write([number * 7919 % 20_000 for number in range(10_000)])
    assert len(read_sound(content, "a.wav")[0]) == 10_000
    with pytest.raises(DataError, match=r"could not read a\.wav as sound"):
        read_sound(content[:-missing], "a.wav")


def test_what_follows_the_sound_in_a_file_does_not_matter() -> None:
    pytest.importorskip("soundfile")
    content = riff([1, 2, 3], 8_000) + b"LIST\x04\x00\x00\x00abcd"
    assert len(read_sound(content, "a.wav")[0]) == 3


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(DataError, match=r"expected the package soundfile.*cayley\[speech\]"):
        read_sound(riff([1], 8_000), "a.wav")


def test_what_is_no_sound_is_named() -> None:
    pytest.importorskip("soundfile")
    with pytest.raises(DataError, match=r"could not read a/b\.wav as sound"):
        read_sound(b"no sound at all", "a/b.wav")


@pytest.mark.parametrize(("rate", "wanted"), RATES)
def test_a_sine_stays_that_sine(rate: int, wanted: int) -> None:
    seconds = 0.2
    for frequency in (100.0, 1000.0, 2500.0):
        omega = 2 * math.pi * frequency
        x = torch.sin(omega * torch.arange(round(seconds * rate)) / rate)
        y = resample(x, rate, wanted)
        assert len(y) == -(-len(x) * wanted // rate)
        t = torch.arange(len(y)) / wanted
        inside = slice(len(y) // 4, -len(y) // 4)
        assert (y - torch.sin(omega * t))[inside].abs().max() < 5e-3


def test_frequencies_above_the_new_limit_vanish() -> None:
    x = torch.sin(2 * math.pi * 6000 / 16_000 * torch.arange(4000))
    assert resample(x, 16_000, 8_000)[200:-200].abs().max() < 5e-3


@pytest.mark.parametrize(("rate", "wanted"), RATES)
def test_resampling_is_that_of_scipy(rate: int, wanted: int) -> None:
    signal = pytest.importorskip("scipy.signal")
    for N in (1, 2, 999, 1000):
        x = torch.randn(N)
        common = math.gcd(rate, wanted)
        expected = signal.resample_poly(x.numpy(), wanted // common, rate // common)
        torch.testing.assert_close(resample(x, rate, wanted), torch.from_numpy(expected))


@pytest.mark.parametrize("N", [1, 127, 128, 129, 1000])
def test_spectrum_and_back(N: int) -> None:
    x = torch.randn(N)
    X = spectrum(x)
    assert X.shape[1] == 129
    torch.testing.assert_close(overlap_add(X, N), x)


def test_spectrum_is_that_of_torch() -> None:
    x = torch.randn(1000)
    padded = torch.nn.functional.pad(x, (256, 256))
    window = torch.hann_window(256, periodic=True)
    expected = torch.stft(padded, 256, 128, window=window, center=False, return_complex=True)
    torch.testing.assert_close(spectrum(x), expected.t())


def test_power_in_decibels() -> None:
    X = torch.tensor([0, 1j, 10, 3 + 4j])
    expected = [10 * math.log10(1e-5 + p) for p in (0, 1, 100, 25)]
    torch.testing.assert_close(log_power(X), torch.tensor(expected))
