"""Layers of plane rotations: which pairs of coordinates they turn."""

from typing import NamedTuple

__all__ = ["FFT", "PRECISE", "Layer", "fft_pattern", "find_pattern", "tunable_pattern"]

FFT = 0
"""The number of layers that stands for the pattern of the fast Fourier transform."""

PRECISE = 64
"""Up to so many layers, their rounding errors need no correction: 7e-8 √(L n) in float32."""


class Layer(NamedTuple):
    """Which disjoint pairs of coordinates a layer rotates.

    From ``offset`` on there are ``blocks`` blocks of 2·``stride`` coordinates. In each of them
    coordinate j is paired with coordinate j + ``stride``, j < ``stride``. A view is enough to
    select them, so no list of indices has to be on the GPU.
    """

    offset: int
    blocks: int
    stride: int

    @property
    def rotations(self) -> int:
        """The number of pairs."""
        return self.blocks * self.stride


def tunable_pattern(n: int, layers: int) -> list[Layer]:
    """Neighbours: layers 1, 3, … pair (1, 2), (3, 4), …; layers 2, 4, … pair (2, 3), (4, 5), ….

    Example:
        >>> [layer.rotations for layer in tunable_pattern(4, layers=3)]
        [2, 1, 2]
    """
    return [Layer(k % 2, max(n - k % 2, 0) // 2, 1) for k in range(layers)]


def fft_pattern(n: int) -> list[Layer]:
    """Layers i = 1, …, log₂ n that pair coordinates n / 2^i apart, as the fast Fourier transform.

    Example:
        >>> fft_pattern(8)[1]
        Layer(offset=0, blocks=2, stride=2)
    """
    if n < 1 or n & (n - 1):
        below = 1 << (max(n, 1).bit_length() - 1)
        raise ValueError(
            f'layers="fft" expected a size n that is a power of two, got {n}: use n = {below} or '
            f"n = {2 * below}, or a number of layers, which works for any n"
        )
    return [Layer(0, 1 << i, n >> (i + 1)) for i in range(n.bit_length() - 1)]


def find_pattern(n: int, layers: int) -> list[Layer]:
    """A number of layers of neighbours, or for :data:`FFT` the pattern of the FFT.

    Example:
        >>> find_pattern(4, layers=FFT) == fft_pattern(4)
        True
    """
    if layers < 0:
        raise ValueError(f"expected a number of layers, or {FFT} for the FFT's, got {layers}")
    return fft_pattern(n) if layers == FFT else tunable_pattern(n, layers)
