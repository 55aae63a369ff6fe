import math
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from cayley.parametrizations import (
    GivensLayers,
    apply_rotations,
    fft_pattern,
    rotate,
    tunable_pattern,
)

Layers = int | Literal["fft"]


def pairs(n: int, layers: Layers) -> list[list[tuple[int, int]]]:
    """The pairs of each layer as the reference lists them, from 1 on."""
    if layers == "fft":
        result = []
        for i in range(1, round(math.log2(n)) + 1):
            p = n // 2**i
            result.append(
                [
                    (2 * p * k + j, p * (2 * k + 1) + j)
                    for k in range(2 ** (i - 1))
                    for j in range(1, p + 1)
                ]
            )
        return result
    return [[(i, i + 1) for i in range(1 + k % 2, n, 2)] for k in range(layers)]


def rotation(n: int, i: int, j: int, theta: Tensor, phi: Tensor) -> Tensor:
    F = torch.eye(n, dtype=torch.complex128)
    e = torch.exp(1j * phi)
    F[i - 1, i - 1], F[i - 1, j - 1] = e * theta.cos(), -e * theta.sin()
    F[j - 1, i - 1], F[j - 1, j - 1] = theta.sin() + 0j, theta.cos() + 0j
    return F


CASES: list[tuple[int, Layers]] = [
    *((n, layers) for n in (1, 2, 3, 6, 7, 8) for layers in (1, 2, 5)),
    *((n, "fft") for n in (1, 2, 4, 8, 16)),
]


@pytest.mark.parametrize(("n", "layers"), CASES)
def test_is_the_product_of_the_rotations(n: int, layers: Layers) -> None:
    map = GivensLayers(n, layers=layers)
    theta, phi, omega = map.sample()
    expected, r = torch.diag(torch.exp(1j * omega)), 0
    for layer in pairs(n, layers):
        for i, j in layer:
            expected = expected @ rotation(n, i, j, theta[r], phi[r])
            r += 1
    assert r == len(theta) == len(phi)
    W = map(theta, phi, omega)
    assert W.is_contiguous()
    torch.testing.assert_close(W, expected)


@pytest.mark.parametrize(("n", "layers"), CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_fast_application_is_the_matrix(n: int, layers: Layers, dtype: torch.dtype) -> None:
    map = GivensLayers(n, layers=layers)
    X = map.sample()
    h = torch.randn(2, 3, n, dtype=dtype)
    Wh = apply_rotations(h, *X, pattern=map.pattern)
    torch.testing.assert_close(Wh, h.to(torch.complex128) @ map(*X).mT)
    torch.testing.assert_close(apply_rotations(h[0, 0], *X, pattern=map.pattern), Wh[0, 0])


def test_one_layer_leaves_the_others_alone() -> None:
    (_, layer) = tunable_pattern(6, layers=2)
    h = torch.randn(6, dtype=torch.complex128)
    y = rotate(h, torch.randn(2), torch.randn(2), layer)
    assert torch.equal(y[[0, 5]], h[[0, 5]])
    torch.testing.assert_close(y[1:3].norm(), h[1:3].norm())
    torch.testing.assert_close(y[3:5].norm(), h[3:5].norm())


@pytest.mark.parametrize("n", [2, 8, 64])
def test_fft_layers_use_every_coordinate_once_and_mix_all(n: int) -> None:
    assert len(fft_pattern(n)) == math.log2(n)
    for layer in fft_pattern(n):
        assert layer.offset == 0
        assert layer.blocks * 2 * layer.stride == n
    for layer in pairs(n, "fft"):
        assert sorted(sum(layer, ())) == list(range(1, n + 1))
    map = GivensLayers(n, layers="fft")
    assert map(*map.sample()).abs().min() > 0


def test_number_of_rotations() -> None:
    def count(n: int, layers: Layers) -> int:
        return len(GivensLayers(n, layers=layers).sample()[0])

    assert count(8, "fft") == 8 * 3 // 2
    assert count(512, 2) == 256 + 255
    # with ω, n layers have n² numbers
    assert [count(n, n) for n in (1, 2, 5, 6)] == [0, 1, 10, 15]


def test_sample_covers_the_circle() -> None:
    for X in GivensLayers(100, layers=10).sample():
        assert -math.pi <= X.min() < -2.5
        assert 2.5 < X.max() < math.pi


@pytest.mark.parametrize("layers", [2, 64, 256, "fft"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unitary_however_many_layers(layers: Layers, dtype: torch.dtype) -> None:
    n = 128
    map = GivensLayers(n, layers=layers)
    bound = {torch.float32: 1e-6, torch.float64: 1e-13}[dtype]
    assert map.defect(map(*map.sample(dtype=dtype))) <= bound * n**0.5


@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize("more", [2, 3, 6])
def test_right_inverse_takes_any_unitary_matrix(n: int, more: int) -> None:
    map = GivensLayers(n, layers=n + more)
    eye = torch.eye(n, dtype=torch.complex128)
    for W in (
        eye,
        -eye,
        1j * eye,
        eye.flip(0),
        eye[torch.randperm(n)],
        torch.fft.fft(eye, norm="ortho"),
        torch.linalg.qr(torch.randn(n, n)).Q,
        torch.linalg.qr(torch.randn(n, n, dtype=torch.complex128)).Q,
    ):
        X = map.right_inverse(W)
        assert [x.shape for x in X] == [x.shape for x in map.sample()]
        torch.testing.assert_close(map(*X), W + 0j, atol=1e-14 * n, rtol=0)


def test_right_inverse_in_single_precision() -> None:
    W = torch.linalg.qr(torch.randn(20, 20, dtype=torch.complex64)).Q
    map = GivensLayers(20, layers=22)
    X = map.right_inverse(W)
    assert all(x.dtype == torch.float32 for x in X)
    torch.testing.assert_close(map(*X), W, atol=2e-6, rtol=0)


@pytest.mark.parametrize(("layers", "dimension"), [(3, 11), (4, 13), (6, 16)])
def test_dimension_of_what_is_reached(layers: int, dimension: int) -> None:
    map = GivensLayers(4, layers=layers)
    J = torch.autograd.functional.jacobian(lambda *X: torch.view_as_real(map(*X)), map.sample())
    J = torch.cat([x.flatten(0, 2) for x in J], -1)
    assert torch.linalg.matrix_rank(J, rtol=1e-9) == dimension


@pytest.mark.parametrize("layers", [2, 6, 7, "fft"])
def test_few_layers_have_no_inverse(layers: Layers) -> None:
    n = 8 if layers == "fft" else 6
    with pytest.raises(NotImplementedError, match=f"use layers={n + 2}"):
        GivensLayers(n, layers=layers).right_inverse(torch.eye(n))


@pytest.mark.parametrize(("n", "below", "above"), [(3, 2, 4), (12, 8, 16), (513, 512, 1024)])
def test_fft_needs_a_power_of_two(n: int, below: int, above: int) -> None:
    with pytest.raises(ValueError, match=f"got {n}: use n = {below} or n = {above}"):
        GivensLayers(n, layers="fft")


@pytest.mark.parametrize("layers", [0, -1, 2.5, "FFT"])
def test_wrong_layers(layers: Any) -> None:
    with pytest.raises(ValueError, match='at least 1, or "fft", got'):
        GivensLayers(4, layers=layers)


def test_needs_no_buffers() -> None:
    assert not GivensLayers(6).state_dict()
    assert not list(GivensLayers(6).buffers())


def test_half_precision_is_refused() -> None:
    map = GivensLayers(4)
    with pytest.raises(TypeError, match="float32 or float64"):
        map(*map.sample(dtype=torch.bfloat16))


def test_repr() -> None:
    assert repr(GivensLayers(8, layers="fft")) == "GivensLayers(8, layers='fft')"
