"""Prime numbers, whose products are the sizes of Fourier transforms."""

import functools
import math

__all__ = ["LARGEST_PRIME", "prime_factors"]

LARGEST_PRIME = 61  # that kernels transform by: the sums of a prime p are p² instructions


@functools.cache
def prime_factors(n: int) -> tuple[int, ...]:
    """The prime factors of n, in ascending order.

    Example:
        >>> prime_factors(2170)
        (2, 5, 7, 31)
    """
    for p in range(2, math.isqrt(n) + 1):
        if n % p == 0:
            return (p, *prime_factors(n // p))
    return (n,) if n > 1 else ()
