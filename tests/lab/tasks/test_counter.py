import math

import torch

from cayley.lab.tasks.counter import integers, key, normal, permutation, random_bits, uniform

N = 200_000


def splitmix64(seed: int, count: int) -> list[int]:
    """SplitMix64 in plain integers, as its paper states it."""
    mask, state, out = 2**64 - 1, seed % 2**64, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        out.append(z ^ (z >> 31))
    return out


def test_bits_are_those_of_splitmix64() -> None:
    # the first of the published test vector for seed 1234567
    assert splitmix64(1234567, 1) == [6457827717110365317]
    for seed in (0, 1234567, -5, 2**63 - 1):
        bits = random_bits(seed, torch.arange(50))
        assert [b % 2**64 for b in bits.tolist()] == splitmix64(seed, 50)


def test_bits_do_not_depend_on_the_shape_and_leave_the_places_alone() -> None:
    place = torch.arange(60)
    bits = random_bits(3, place)
    assert torch.equal(random_bits(3, place.view(5, 12)).flatten(), bits)
    assert torch.equal(random_bits(3, place[17:18]), bits[17:18])
    assert torch.equal(place, torch.arange(60))


def test_keys_differ() -> None:
    words = [(seed, split, use) for seed in range(9) for split in "ab" for use in ("x", "y", 1)]
    assert len({key(*w) for w in words}) == len(words)
    assert key("a", "b") != key("ab")
    assert key(1) != key("1")
    assert all(-(2**63) <= key(*w) < 2**63 for w in words)


def test_uniform_moments_and_range() -> None:
    u = uniform(key("u"), torch.arange(N))
    assert u.min() >= 0
    assert u.max() < 1
    for power in range(1, 5):
        sigma = math.sqrt(1 / (2 * power + 1) - 1 / (power + 1) ** 2) / math.sqrt(N)
        assert abs(u.pow(power).mean() - 1 / (power + 1)) < 4 * sigma
    assert torch.equal(uniform(key("u"), torch.arange(9), dtype=torch.float32).double(), u[:9])


def test_neighbours_and_streams_are_uncorrelated() -> None:
    u = uniform(key("u"), torch.arange(N)) - 0.5
    v = uniform(key("v"), torch.arange(N)) - 0.5
    for other in (v, u.roll(1), u.roll(2), u.roll(784)):
        assert abs(12 * (u * other).mean()) < 4 / math.sqrt(N)


def test_integers_are_uniform() -> None:
    for n in (1, 2, 8, 9, 10_000):
        draws = integers(key("i", n), torch.arange(N), n)
        counts = torch.bincount(draws, minlength=n).double()
        assert len(counts) == n
        # χ² has mean n − 1 and variance 2 (n − 1)
        chi = ((counts - N / n).square() / (N / n)).sum()
        assert abs(chi - (n - 1)) <= 4 * math.sqrt(2 * (n - 1))


def test_normal_moments_and_tails() -> None:
    z = normal(key("z"), torch.arange(N))
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(z.pow(power).mean() - moment) < 4 * math.sqrt(variance / N)
    for bound in (1.0, 2.0, 3.0):
        p = math.erfc(bound / math.sqrt(2))
        share = (z.abs() > bound).double().mean()
        assert abs(share - p) < 4 * math.sqrt(p / N)
    assert z.isfinite().all()


def test_permutations_are_permutations_and_uniform() -> None:
    assert sorted(permutation(key("p"), 1000).tolist()) == list(range(1000))
    counts = torch.zeros(3, 3)
    for seed in range(3000):
        counts[torch.arange(3), permutation(key(seed), 3)] += 1
    assert (counts - 1000).abs().max() < 4 * math.sqrt(3000 * 2 / 9)
