"""Segmental signal-to-noise ratio, and which parts of a recording are speech."""

import math

import torch
from torch import Tensor

__all__ = ["active_speech", "segmental_snr"]

LIMIT = 100.0
MARGIN = 15.9
SMOOTHING = 0.03
HANGOVER = 0.2


def segmental_snr(
    reference: Tensor,
    estimate: Tensor,
    rate: int,
    *,
    frame: float = 0.01,
    hop: float | None = None,
    hann: bool = False,
    low: float = -LIMIT,
    high: float = LIMIT,
    active: bool = True,
) -> Tensor:
    r"""The mean over frames of the signal-to-noise ratio in decibels.

    .. math::
        \mathrm{SegSNR} = \frac{1}{M} \sum_m 10 \log_{10}
        \frac{\sum_n r_{mn}^2}{\sum_n (r_{mn} - e_{mn})^2}, \qquad
        \text{each term within } [\text{low}, \text{high}].

    The defaults are those of VOICEBOX, which the papers used: 10 ms without overlap, no window,
    ±100 dB, and only frames that are mostly speech. Loizou's form is ``frame=0.03,
    hop=0.0075, hann=True, low=-10, high=35, active=False``.

    Note:
        VOICEBOX also looks for a shift of up to one sample between the two; here they must be
        aligned, as our reconstructions are.

    References:
        VOICEBOX: Speech Processing Toolbox for MATLAB, Brookes, 1997, ``snrseg``.
        Speech Enhancement: Theory and Practice, Loizou, 2013, section 11.1.

    Arguments:
        reference: The true samples r, (N).
        estimate: The samples e that are to be scored, (N).
        rate: In Hz.
        frame: The length of a frame in seconds.
        hop: From one frame to the next in seconds; None for frames that do not overlap.
        hann: Whether frames are weighted by a Hann window.
        low: The lower limit for a single frame.
        high: The upper limit for a single frame.
        active: Whether only frames of speech count, see :func:`active_speech`.

    Returns:
        A scalar.

    Example:
        >>> r = torch.randn(8000)
        >>> segmental_snr(r, 0.9 * r, 8000).round(decimals=3)
        tensor(20.)
    """
    if reference.shape != estimate.shape or reference.dim() != 1:
        raise ValueError(
            f"expected two recordings of one length, (N), got {tuple(reference.shape)} and "
            f"{tuple(estimate.shape)}: cut the longer one"
        )
    length = round(frame * rate)
    step = length if hop is None else round(hop * rate)
    if len(reference) < length:
        raise ValueError(f"expected at least a frame of {length} samples, got {len(reference)}")
    weight = torch.ones(length, dtype=reference.dtype, device=reference.device)
    if hann:
        weight = torch.hann_window(length, False, dtype=weight.dtype, device=weight.device)
    signal = (reference.unfold(0, length, step) * weight).square().sum(-1)
    noise = ((reference - estimate).unfold(0, length, step) * weight).square().sum(-1)
    ratio = (10 * (signal / noise).log10()).clamp(low, high)
    # 0/0: a silent frame that is reproduced exactly
    ratio = torch.where(noise == 0, high, ratio)
    if active:
        speech = active_speech(reference, rate).to(weight.dtype).unfold(0, length, step).mean(-1)
        # a recording without any speech counts as a whole
        ratio = ratio[speech > 0.5] if bool((speech > 0.5).any()) else ratio
    return ratio.mean()


def active_speech(x: Tensor, rate: int) -> Tensor:
    r"""Which samples are speech, by the level that ITU-T P.56 calls active.

    The envelope q of x is |x| smoothed twice over 30 ms, and held up for 200 ms. A sample is active
    if q is at least c, where c is 15.9 dB below the level of the samples that are then active:

    .. math::
        10 \log_{10} \frac{\sum_n x_n^2}{\#\{n : q_n \ge c\}} - 20 \log_{10} c = 15.9 .

    References:
        Objective measurement of active speech level, ITU-T Recommendation P.56, 2011, method B.

    Arguments:
        x: Samples, (N).
        rate: In Hz.

    Returns:
        Boolean, (N).

    Example:
        >>> x = torch.cat((torch.randn(8000), torch.zeros(8000)))
        >>> active_speech(x, 8000).double().mean() < 0.7
        tensor(True)
    """
    energy = x.double().square().sum()
    if energy == 0:
        return torch.zeros_like(x, dtype=torch.bool)
    g = math.exp(-1 / (SMOOTHING * rate))
    taps = torch.arange(round(20 * SMOOTHING * rate), dtype=torch.float64, device=x.device)
    response = (1 - g) ** 2 * (taps + 1) * g**taps
    n = len(x) + len(taps)
    q = torch.fft.irfft(torch.fft.rfft(x.abs().double(), n) * torch.fft.rfft(response, n), n)
    hold = round(HANGOVER * rate)
    q = torch.nn.functional.pad(q[: len(x)], (hold, 0))
    q = torch.nn.functional.max_pool1d(q[None, None], hold + 1, stride=1)[0, 0]
    # thresholds 0.1 dB apart, from the loudest sample of the envelope down
    level = 20 * q.max().log10() - torch.arange(0, 120, 0.1, dtype=torch.float64, device=x.device)
    c = 10 ** (level / 20)
    count = len(q) - torch.searchsorted(q.sort().values, c)
    difference = 10 * (energy / count.clamp_min(1)).log10() - level
    # the lowest threshold within the margin, as a search from below finds it
    within = (difference <= MARGIN).nonzero()
    return q >= c[within[-1] if len(within) else 0]
