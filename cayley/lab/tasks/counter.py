"""Counter-based random numbers: each is a function of a key and a place alone."""

import hashlib
import math

import torch
from torch import Tensor

__all__ = ["integers", "key", "normal", "permutation", "random_bits", "uniform"]

# the increment and the multipliers of SplitMix64, as signed 64-bit numbers
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
FIRST = 0xBF58476D1CE4E5B9 - 2**64
SECOND = 0x94D049BB133111EB - 2**64


def key(*words: str | int) -> int:
    """The key of a stream of random numbers, as a signed 64-bit integer.

    Arguments:
        words: What distinguishes this stream from all others, such as a seed, a split and a use.

    Example:
        >>> key(5544, "train", "digits") == key(5544, "test", "digits")
        False
    """
    digest = hashlib.sha256(repr(words).encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def random_bits(key: int, place: Tensor) -> Tensor:
    r"""64 random bits for every place of a stream.

    .. math::
        z = k + (i + 1)\, g, \quad
        z \leftarrow (z \oplus z \gg 30)\, m_1, \quad
        z \leftarrow (z \oplus z \gg 27)\, m_2, \quad
        z \leftarrow z \oplus z \gg 31 \pmod{2^{64}}.

    A generator of torch would give different numbers on another device or with another batch size,
    and its state would have to be stored; a place is a small integer, and the same everywhere.

    References:
        Fast Splittable Pseudorandom Number Generators, Steele, Lea, Flood, 2014.

    Arguments:
        key: The key k of the stream.
        place: The places i, int64, of any shape.

    Returns:
        Bits as int64, of the shape and on the device of ``place``.

    Example:
        >>> few, more = torch.arange(3), torch.arange(5)
        >>> torch.equal(random_bits(1, few), random_bits(1, more)[:3])
        True
    """
    z = (place + 1).mul_(GOLDEN).add_(key)
    for shift, multiplier in ((30, FIRST), (27, SECOND)):
        z.bitwise_xor_(_shift(z, shift)).mul_(multiplier)
    return z.bitwise_xor_(_shift(z, 31))


def _shift(z: Tensor, count: int) -> Tensor:
    """Shift right and fill with zeros, where ``>>`` of int64 would fill with the sign."""
    return (z >> count).bitwise_and_((1 << (64 - count)) - 1)


def uniform(key: int, place: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """Uniform numbers in [0, 1): multiples of 2⁻²⁴, which both float32 and float64 hold exactly.

    Example:
        >>> uniform(1, torch.arange(1000)).mean().round(decimals=1)
        tensor(0.5000)
    """
    dtype = torch.get_default_dtype() if dtype is None else dtype
    return _shift(random_bits(key, place), 40).to(dtype).mul_(2.0**-24)


def integers(key: int, place: Tensor, n: int) -> Tensor:
    """Uniform integers in {0, …, n − 1}, int64; n < 2³¹, uniform up to n · 2⁻³².

    Example:
        >>> sorted(set(integers(1, torch.arange(100), 3).tolist()))
        [0, 1, 2]
    """
    return _shift(random_bits(key, place), 32).mul_(n) >> 32


def normal(key: int, place: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    r"""Standard normal numbers, by Box and Muller: :math:`\sqrt{-2 \ln u}\, \cos 2 \pi v`.

    Example:
        >>> normal(1, torch.arange(1000)).var().round(decimals=1)
        tensor(1.)
    """
    bits = random_bits(key, place)
    u = _shift(bits, 32).double().add_(1).mul_(2.0**-32)
    v = bits.bitwise_and_(2**32 - 1).double().mul_(2.0**-32)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    return u.log_().mul_(-2).sqrt_().mul_(v.mul_(2 * math.pi).cos_()).to(dtype)


def permutation(key: int, n: int) -> Tensor:
    """A random order of 0, …, n − 1, int64, (n).

    Example:
        >>> sorted(permutation(1, 4).tolist())
        [0, 1, 2, 3]
    """
    return random_bits(key, torch.arange(n)).argsort(stable=True)
