"""Sound: samples of a file at a given rate, their short-time spectrum, and its inverse."""

import io
import math
import re
import struct

import torch
from torch import Tensor

from cayley.lab.errors import DataError
from cayley.lab.tasks.sources import explain_damage

__all__ = [
    "BINS",
    "FLOOR",
    "FRAME",
    "HOP",
    "log_power",
    "overlap_add",
    "read_sound",
    "resample",
    "spectrum",
]

FRAME = 256
HOP = 128
BINS = FRAME // 2 + 1
FLOOR = 1e-5


def read_sound(content: bytes, name: str) -> tuple[Tensor, int]:
    """The first channel of a sound file, from −1 to 1, float32, (N), and its rate in Hz.

    All formats of libsndfile are read: RIFF, NIST SPHERE (TIMIT), FLAC and others. A file that is
    shorter than its header says is an error here; libsndfile would return what there is.
    """
    try:
        import soundfile
    except ImportError as error:
        raise DataError(
            f"expected the package soundfile, which reads {name}, got none: pip install "
            "'cayley[speech]'"
        ) from error
    with explain_damage(f"{name} as sound"):
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            count, rate = file.frames, file.samplerate
            samples = file.read(dtype="float32", always_2d=True)
        missing = max(_missing_bytes(content), count - len(samples))
        if missing > 0:
            raise EOFError(f"the file is cut off: at least {missing} bytes are missing")
    return torch.from_numpy(samples[:, 0].copy()), rate


def _missing_bytes(content: bytes) -> int:
    """How many bytes of sound are missing, according to the header of a RIFF or SPHERE file."""
    if content[:4] == b"RIFF":
        place = 12
        while place + 8 <= len(content):
            kind, size = struct.unpack_from("<4sI", content, place)
            # a recorder that was not stopped properly leaves the largest possible number
            if kind == b"data" and size != 2**32 - 1:
                return place + 8 + size - len(content)
            place += 8 + size + size % 2
    if content[:7] == b"NIST_1A":
        header, _, _ = content.partition(b"end_head")
        fields = dict(re.findall(rb"(\w+) -i (\d+)", header))
        sizes = [int(fields.get(name, 1)) for name in (b"sample_count", b"channel_count")]
        begin = int(content[8:16])
        if b"pcm" in header and b"shorten" not in header:
            return begin + math.prod(sizes) * int(fields[b"sample_n_bytes"]) - len(content)
    return 0


def resample(x: Tensor, rate: int, wanted: int) -> Tensor:
    r"""Convert samples to another rate, with a low-pass filter of linear phase.

    .. math::
        y_n = \sum_k h_{n q - k p}\, x_k, \qquad
        h_j \propto \mathrm{sinc}\!\left(\frac{j}{\max(p, q)}\right) w_j, \quad
        |j| \le 10 \max(p, q), \quad \frac{p}{q} = \frac{\text{wanted}}{\text{rate}},

    with a Kaiser window w of β = 5, and :math:`\sum_j h_j = p`.

    Arguments:
        x: Samples, (N).
        rate: The rate of x, in Hz.
        wanted: The other rate, in Hz.

    Returns:
        (⌈N p/q⌉).

    Example:
        >>> resample(torch.ones(100), 16000, 8000)[20:24].round(decimals=3)
        tensor([1., 1., 1., 1.])
    """
    common = math.gcd(rate, wanted)
    p, q = wanted // common, rate // common
    if p == q:
        return x
    half = 10 * max(p, q)
    j = torch.arange(-half, half + 1, dtype=torch.float64)
    window = torch.kaiser_window(2 * half + 1, False, beta=5.0, dtype=torch.float64)
    h = torch.sinc(j / max(p, q)) * window
    h = p * h / h.sum()
    # y of phase r = n mod p is a convolution of stride q: n q − k p with k = q ⌊n/p⌋ + s
    s = torch.arange(-(half // p) - 1, ((p - 1) * q + half) // p + 2)
    tap = torch.arange(p).unsqueeze(1) * q - s * p
    inside = tap.abs() <= half
    filters = torch.where(inside, h[(tap + half).clamp(0, 2 * half)], 0).to(x.dtype)
    count = -(-len(x) * p // q)
    before, after = -int(s[0]), int(s[-1]) + q * (-(-count // p))
    padded = torch.nn.functional.pad(x, (before, after))
    phases = torch.nn.functional.conv1d(padded[None, None], filters.unsqueeze(1), stride=q)[0]
    return phases.t().flatten()[:count]


def spectrum(x: Tensor) -> Tensor:
    """Fourier transforms of frames of 256 samples, 128 apart, under a Hann window.

    Before and after the samples there is a frame of zeros.

    Arguments:
        x: Samples, (N).

    Returns:
        Complex, (F, 129).

    Example:
        >>> spectrum(torch.randn(1000)).shape
        torch.Size([10, 129])
    """
    padded = torch.nn.functional.pad(x, (FRAME, FRAME))
    window = torch.hann_window(FRAME, periodic=True, dtype=x.dtype, device=x.device)
    frames = padded.unfold(0, FRAME, HOP) * window
    return torch.fft.rfft(frames)


def overlap_add(X: Tensor, N: int) -> Tensor:
    """The samples of a spectrum: the inverse of :func:`spectrum`, as shifted windows add to 1.

    Arguments:
        X: Complex, (F, 129).
        N: The number of samples.

    Returns:
        (N).

    Example:
        >>> x = torch.randn(1000)
        >>> torch.testing.assert_close(overlap_add(spectrum(x), 1000), x)
    """
    halves = torch.fft.irfft(X, n=FRAME).view(-1, 2, HOP)
    sound = torch.nn.functional.pad(halves[:, 0], (0, 0, 0, 1))
    sound[1:] += halves[:, 1]
    return sound.flatten()[FRAME : FRAME + N]


def log_power(X: Tensor) -> Tensor:
    r"""The power of a spectrum in decibels, :math:`10 \log_{10}(10^{-5} + |X|^2)`.

    Example:
        >>> log_power(torch.tensor([0.0, 1.0])).round(decimals=3)
        tensor([-50.,   0.])
    """
    return 10 * (FLOOR + X.abs().square()).log10()
