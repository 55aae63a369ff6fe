"""What holds for every parametrisation."""

import copy
import functools
import pickle
from collections.abc import Callable

import pytest
import torch
from gradients import check_gradients, check_second_gradients
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call

from cayley.parametrizations import (
    MAPS,
    ComplexScaledCayley,
    EigenvalueNormalization,
    GivensLayers,
    HouseholderProduct,
    LongShort,
    NeumannCayley,
    Parametrization,
    ScaledCayley,
    Skew,
    SkewHermitian,
    SpectralSVD,
    StructuredMatrix,
)
from cayley.parametrizations.neumann import next_inverse, update_inverse_

# makes a map of the size asked for, or of the next that it can have: the tests read map.n
Factory = Callable[[int], Parametrization]


def next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


# beside the registered maps: other options of them, and the maps that these are made of
VARIANTS: dict[str, Factory] = {
    "skew": Skew,
    "skew-banded": lambda n: Skew(n, bandwidth=2),
    "skew-hermitian": SkewHermitian,
    "skew-hermitian-banded": lambda n: SkewHermitian(n, bandwidth=2),
    "cayley-no-signs": lambda n: ScaledCayley(n, negative_ones=0),
    "cayley-all-signs": lambda n: ScaledCayley(n, negative_ones=n),
    "cayley-circle": lambda n: ScaledCayley(n, init="circle"),
    "cayley-uniform": lambda n: ScaledCayley(n, init="uniform"),
    "cayley-banded": lambda n: ScaledCayley(n, bandwidth=2),
    "cayley-complex-banded": lambda n: ComplexScaledCayley(n, bandwidth=2),
    "cayley-complex-zero": lambda n: ComplexScaledCayley(n, init="zero"),
    "eigenvalue": EigenvalueNormalization,
    "eigenvalue-eps": lambda n: EigenvalueNormalization(n, eps=0.1),
    "long-short": lambda n: LongShort(n // 2, n - n // 2),
    "neumann-first-order": lambda n: NeumannCayley(n, order=1),
    "neumann-often": lambda n: NeumannCayley(n, order=3, refresh_every=5),
    # with a series in place of the inverse it would leave the set
    "neumann-as-printed": lambda n: NeumannCayley(n, tolerance=0.0, refine=False),
    "householder-few": lambda n: HouseholderProduct(n, reflections=min(n, 3)),
    "svd-few": lambda n: SpectralSVD(n, reflections=min(n, 3)),
    "svd-wide": lambda n: SpectralSVD(n, margin=0.5),
    "svd-no-margin": lambda n: SpectralSVD(n, margin=0.0),
    "givens-all": lambda n: GivensLayers(n, layers=n + 2),
    "givens-fft": lambda n: GivensLayers(next_power_of_two(n), layers="fft"),
}
ALL: dict[str, Factory] = {**MAPS, **VARIANTS}
# those whose inverse takes every matrix of the set, and some that take what they reach
ONTO = {name: make for name, make in ALL.items() if make(8).onto}
PARTIAL = {name: ALL[name] for name in ("skew-banded", "skew-hermitian-banded", "householder-few")}
# those that any optimiser keeps on a set that rounding can leave; what is not refined leaves it
KEPT = {
    name: make
    for name, make in ALL.items()
    if not make(8).on_manifold and not name.startswith("skew") and name != "neumann-as-printed"
}

every = pytest.mark.parametrize("make", ALL.values(), ids=ALL)
sizes = pytest.mark.parametrize("n", [1, 2, 5, 8])


def free(map: Parametrization, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Generic free tensors: the sample, moved a little where it may, so that none is special."""
    step = 0.0 if map.on_manifold else 0.1
    return [(X + step * torch.randn_like(X)).requires_grad_() for X in map.sample(dtype=dtype)]


@every
@sizes
def test_lies_on_the_set(make: Factory, n: int) -> None:
    map = make(n)
    for X in (map.sample(), free(map)):
        W = map(*X)
        assert W.shape == (map.n, map.n)
        assert W.is_complex() == map.is_complex
        assert map.defect(W) <= 1e-13 * map.n**0.5


@pytest.mark.parametrize("make", ONTO.values(), ids=ONTO)
@sizes
def test_right_inverse_of_a_map_that_reaches_everything(make: Factory, n: int) -> None:
    map, other = make(n), make(n)
    W = other(*free(other)).detach()
    X = map.right_inverse(W)
    torch.testing.assert_close(map(*((X,) if isinstance(X, Tensor) else X)), W)


@pytest.mark.parametrize("make", PARTIAL.values(), ids=PARTIAL)
def test_right_inverse_on_the_image(make: Factory) -> None:
    map = make(6)
    W = map(*free(map)).detach()
    X = map.right_inverse(W)
    torch.testing.assert_close(map(*((X,) if isinstance(X, Tensor) else X)), W)


@every
def test_right_inverse_refuses_what_is_not_on_the_set(make: Factory) -> None:
    map = make(6)
    W = torch.randn(map.n, map.n, dtype=torch.complex128 if map.is_complex else torch.float64)
    with pytest.raises((ValueError, NotImplementedError)):
        map.right_inverse(W)
    with pytest.raises((ValueError, NotImplementedError)):
        map.right_inverse(W * torch.nan)
    with pytest.raises((ValueError, NotImplementedError)):
        map.right_inverse(W[1:])


@every
@pytest.mark.parametrize("n", [4, 5])
def test_gradients(make: Factory, n: int) -> None:
    map = make(n)
    X = free(map)
    check_gradients(map, X)
    check_second_gradients(map, X)


@every
@pytest.mark.parametrize("trained", [True, False])
def test_tangents_pass_through_a_matrix(make: Factory, trained: bool) -> None:
    matrix = StructuredMatrix(make(4))
    X = {name: x.detach() for name, x in matrix.named_parameters()}
    v = {name: torch.randn_like(x) for name, x in X.items()}
    W = matrix()
    G = torch.randn_like(W)
    gradients = torch.autograd.grad(W, tuple(matrix.parameters()), G)
    pairs = zip(gradients, v.values(), strict=True)
    expected = torch.stack([(g.conj() * t).real.sum() for g, t in pairs]).sum()
    with forward_ad.dual_level():
        duals = {
            name: forward_ad.make_dual(x.clone().requires_grad_(trained), v[name])
            for name, x in X.items()
        }
        tangent = forward_ad.unpack_dual(functional_call(matrix, duals)).tangent
    assert tangent is not None
    torch.testing.assert_close((G.conj() * tangent).real.sum(), expected)


@every
def test_transforms_of_torch_func(make: Factory) -> None:
    map = make(4)
    X = tuple(free(map))
    W = map(*X)
    G = torch.randn_like(W)
    gradients = torch.autograd.grad(W, X, G)
    before = copy.deepcopy(map.state_dict())

    def loss(*X: Tensor) -> Tensor:
        return (G.conj() * map(*X)).real.sum()

    X = tuple(x.detach() for x in X)
    torch.testing.assert_close(torch.func.grad(loss, (*range(len(X)),))(*X), gradients)
    v = tuple(torch.randn_like(x) for x in X)
    _, tangent, *_ = torch.func.jvp(loss, X, v)
    pairs = zip(gradients, v, strict=True)
    expected = torch.stack([(g.conj() * t).real.sum() for g, t in pairs]).sum()
    torch.testing.assert_close(tangent, expected)
    torch.testing.assert_close(map.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("make", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("size", [1e3, 1e6])
def test_stays_on_the_set_with_large_free_entries(make: Factory, size: float) -> None:
    map = make(33).float()
    W = map(*(size * X.detach() for X in free(map, torch.float32)))
    assert map.defect(W) <= 1e-6 * map.n**0.5


@functools.cache
def trained(optimizer: str, dtype: torch.dtype) -> dict[str, StructuredMatrix]:
    """The matrices of all maps after a thousand steps of one optimizer, which costs less so.

    These optimizers step each number alone: one long tensor of all of them is stepped as each is.
    """
    matrices = {name: StructuredMatrix(make(16), dtype=dtype) for name, make in KEPT.items()}
    free = {name: [*matrix.parameters()] for name, matrix in matrices.items()}
    numbers = torch.cat([X.detach().flatten() for several in free.values() for X in several])
    numbers.grad = torch.zeros_like(numbers)
    stepper = getattr(torch.optim, optimizer)([numbers.requires_grad_()], lr=1e-2)
    values, gradients = (parts_like(free, long) for long in (numbers.detach(), numbers.grad))
    for step in range(1001):
        for name, matrix in matrices.items():
            map = matrix.map
            if isinstance(map, NeumannCayley):
                if step % 25:
                    # nothing is read between gradients but the inverse that follows the steps
                    map._inverse(values[name][0], update_inverse_, next_inverse)
                    continue
            # All that the other maps with a memory remember, at this size, is whether a spectral
            # radius was above 1; W of those without depends on X alone, and gradients may serve for
            # many steps.
            elif step % 250:
                continue
            with torch.no_grad():
                for X, value in zip(free[name], values[name], strict=True):
                    X.copy_(value)
            W = matrix(update=True)
            found = torch.autograd.grad((torch.randn_like(W) * W).sum().abs(), free[name])
            for gradient, one in zip(gradients[name], found, strict=True):
                gradient.copy_(one)
        if step < 1000:
            stepper.step()
    return matrices


def parts_like(free: dict[str, list[torch.nn.Parameter]], long: Tensor) -> dict[str, list[Tensor]]:
    """Parts of a long tensor in the shapes of others."""
    parts = iter(long.split([X.numel() for several in free.values() for X in several]))
    return {name: [next(parts).view_as(X) for X in several] for name, several in free.items()}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "RMSprop", "AdamW"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stays_on_the_set_for_a_thousand_steps(
    name: str, optimizer: str, dtype: torch.dtype
) -> None:
    matrix = trained(optimizer, dtype)[name]
    bound = {torch.float32: 1e-6, torch.float64: 1e-13}[dtype]
    assert matrix.map.defect(matrix()) <= bound * matrix.map.n**0.5


@every
def test_autocast_and_half_precision(make: Factory) -> None:
    map = make(6).float()
    X = map.sample(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        W = map(*X)
    assert W.dtype in (torch.float32, torch.complex64)
    assert torch.equal(W, map(*X))


@every
def test_meta_device_deepcopy_and_pickle(make: Factory) -> None:
    with torch.device("meta"):
        matrix = StructuredMatrix(make(6))
        assert matrix().device.type == "meta"
    matrix.to_empty(device="cpu")
    matrix.reset_parameters()
    assert matrix.map.defect(matrix()) <= 1e-12
    for twin in (copy.deepcopy(matrix), pickle.loads(pickle.dumps(matrix))):
        assert torch.equal(twin(), matrix())
        assert twin.state_dict().keys() == matrix.state_dict().keys()


@every
def test_default_device_makes_no_difference(make: Factory) -> None:
    results = []
    first = make(6)
    X = [x.detach() for x in free(first)]
    for device in ("cpu", "meta"):
        map = copy.deepcopy(first)
        leaves = [x.clone().requires_grad_() for x in X]
        with torch.device(device):
            W = map(*leaves)
            gradients = torch.autograd.grad(W.abs().sum(), leaves)
            parts = [W, *gradients, map.defect(W), map.project(W.detach())]
            if map.onto:
                inverse = map.right_inverse(W.detach())
                parts += [inverse] if isinstance(inverse, Tensor) else inverse
            results.append([*parts, *map.buffers()])
    torch.testing.assert_close(results[1], results[0])


@every
def test_compiles_in_one_graph(make: Factory) -> None:
    map = make(6)
    X = map.sample()
    compiled = torch.compile(map, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*X), map(*X))
