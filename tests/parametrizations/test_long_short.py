"""The block matrix of a long-term and a short-term state."""

import copy
import pickle
from typing import Any

import pytest
import torch
from gradients import check_gradients, check_second_gradients
from torch import Tensor

from cayley.optim import parameter_groups
from cayley.parametrizations import ScaledCayley, StructuredMatrix
from cayley.parametrizations.long_short import LongShort, long_short

SHAPES = {
    "coupled": {"q": 4, "s": 3},
    "uncoupled": {"q": 4, "s": 3, "coupled": False},
    "eps": {"q": 2, "s": 4, "eps": 0.2},
    "long": {"q": 5, "s": 0},
    "short": {"q": 0, "s": 5},
}
every = pytest.mark.parametrize("sizes", SHAPES.values(), ids=SHAPES)


def free(map: LongShort, scale: float = 1.0) -> list[Tensor]:
    return [(scale * X + 0.1 * torch.randn_like(X)).requires_grad_() for X in map.sample()]


def sorted_eigenvalues(W: Tensor) -> Tensor:
    theta = torch.linalg.eigvals(W.detach())
    return theta[(theta.real + 1e-3 * theta.imag).argsort()]


def test_blocks() -> None:
    map: Any = LongShort(4, 3, negative_ones=1)
    assert map.names == ("A", "C", "T")
    A, C, T = free(map)
    W = map(A, C, T)
    assert torch.equal(W[:4, :4], map.long(A))
    assert torch.equal(W[:4, 4:], C)
    assert not W[4:, :4].any()
    assert torch.equal(W[4:, 4:], map.short(T))
    assert LongShort(4, 3, coupled=False).names == ("A", "T")
    assert LongShort(4, 0).names == ("A",)
    assert LongShort(0, 3).names == ("T",)


@every
@pytest.mark.parametrize("scale", [1.0, 5.0], ids=["free", "latched"])
def test_eigenvalues_are_those_of_the_blocks(sizes: dict, scale: float) -> None:
    map = LongShort(**sizes)
    W = map(*free(map, scale)).detach()
    W_L, _, _, W_S = map.blocks(W)
    expected = torch.cat((torch.linalg.eigvals(W_L), torch.linalg.eigvals(W_S)))
    distances = (sorted_eigenvalues(W)[:, None] - expected).abs()
    assert distances.min(0).values.max() < 1e-9
    assert distances.min(1).values.max() < 1e-9
    assert expected.abs().max() < 1 + 1e-12


@every
def test_lies_on_the_set_and_has_an_inverse(sizes: dict) -> None:
    map, other = LongShort(**sizes), LongShort(**sizes)
    W = map(*free(map, 5.0)).detach()
    assert map.defect(W) < 1e-13
    assert [X.shape for X in other.right_inverse(W)] == [X.shape for X in map.sample()]
    torch.testing.assert_close(other(*other.right_inverse(W)), W)
    torch.testing.assert_close(map.project(W), W)
    assert map.defect(map.project(torch.randn_like(W))) < 1e-12


@every
def test_gradients(sizes: dict) -> None:
    for scale in (1.0, 5.0):
        map = LongShort(**sizes)
        X = free(map, scale)
        check_gradients(map, X)
        check_second_gradients(map, X)


def test_without_a_short_state_it_is_scaled_cayley() -> None:
    map, cayley = LongShort(6, 0, negative_ones=2), ScaledCayley(6, negative_ones=2)
    (A,) = free(map)
    assert torch.equal(map(A), cayley(A))


def test_inverse_refuses_what_is_not_on_the_set_and_changes_nothing() -> None:
    map = LongShort(4, 3, negative_ones=1)
    X = free(map, 5.0)
    W = map(*X).detach()
    before = {key: value.clone() for key, value in map.state_dict().items()}
    below, long, short = W.clone(), W.clone(), W.clone()
    below[5, 2] = 0.1
    long[:4, :4] *= 1.1
    short[4:, 4:] *= 1.1
    for wrong, message in (
        (below, "zeros below W_L"),
        (long, "orthogonal"),
        (short, "spectral radius"),
        (W[1:], "shape"),
        (W * torch.nan, "zeros below"),
    ):
        with pytest.raises(ValueError, match=message):
            map.right_inverse(wrong)
    with pytest.raises(ValueError, match="zeros right of W_L"):
        LongShort(4, 3, coupled=False).right_inverse(W)
    for key, value in map.state_dict().items():
        assert torch.equal(before[key], value), key
    for wrong in (below, long, short):
        assert map.defect(wrong) > 0.05


@pytest.mark.parametrize(("q", "s"), [(8, 3), (3, 8), (5, 5)])
def test_couplings(q: int, s: int) -> None:
    _, C, _ = LongShort(q, s).sample()
    assert C.abs().max() <= (6 / (q + s)) ** 0.5
    _, C, _ = LongShort(q, s, coupling="orthogonal").sample()
    product = C.mT @ C if q >= s else C @ C.mT
    torch.testing.assert_close(product, torch.eye(min(q, s)))
    with pytest.raises(ValueError, match="coupling"):
        LongShort(q, s, coupling="nonsense")


def test_sizes_out_of_range() -> None:
    for q, s in ((0, 0), (-1, 3), (3, -1)):
        with pytest.raises(ValueError, match="at least 0"):
            LongShort(q, s)
    with pytest.raises(TypeError, match="int"):
        LongShort(3.0, 2)  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ValueError, match="negative_ones from 0 to n = 3, got 4"):
        LongShort(3, 2, negative_ones=4)
    with pytest.raises(ValueError, match="no negative_ones"):
        LongShort(0, 2, negative_ones=1)


def test_only_the_long_state_has_a_rate_of_its_own() -> None:
    matrix = StructuredMatrix(LongShort(4, 3))
    groups = parameter_groups(matrix, lr=1e-3, recurrent_lr=1e-4)
    assert [(group["name"], len(group["params"])) for group in groups] == [
        ("rest", 2),
        ("recurrent", 1),
    ]


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stays_on_the_set(sizes: dict, dtype: torch.dtype) -> None:
    matrix = StructuredMatrix(LongShort(**sizes), dtype=dtype)
    optimizer = torch.optim.Adam(matrix.parameters(), lr=1e-2)
    for step in range(300):
        # a matrix that is only read remembers nothing: gradients may serve for several steps
        if step % 10 == 0:
            optimizer.zero_grad()
            (torch.randn(matrix.map.n, matrix.map.n, dtype=dtype) * matrix()).sum().backward()
        optimizer.step()
    bound = {torch.float32: 1e-5, torch.float64: 1e-13}[dtype]
    matrix()
    assert matrix.map.defect(matrix()) <= bound


@every
def test_meta_copies_and_compile(sizes: dict) -> None:
    torch.compiler.reset()
    with torch.device("meta"):
        matrix = StructuredMatrix(LongShort(**sizes))
        assert matrix().device.type == "meta"
    matrix.to_empty(device="cpu")
    matrix.reset_parameters()
    for twin in (copy.deepcopy(matrix), pickle.loads(pickle.dumps(matrix))):
        assert torch.equal(twin(), matrix())
    map = LongShort(**sizes)
    X = free(map, 5.0)
    compiled = torch.compile(map, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*X), map(*X))


def test_function() -> None:
    W_L, W_C, W_S = torch.randn(2, 2), torch.randn(2, 3), torch.randn(3, 3)
    h_L, h_S = torch.randn(2), torch.randn(3)
    expected = torch.cat((W_L @ h_L + W_C @ h_S, W_S @ h_S))
    torch.testing.assert_close(long_short(W_L, W_C, W_S) @ torch.cat((h_L, h_S)), expected)


@pytest.mark.parametrize(
    ("q", "s", "coupled"), [(5, 4, True), (5, 4, False), (4, 0, True), (0, 4, True)]
)
def test_matrix_and_way_back_apart_from_any_graph(q: int, s: int, coupled: bool) -> None:
    blocks = LongShort(q, s, coupled=coupled)
    free = [3 * x for x in blocks.sample()]
    leaves = [x.clone().requires_grad_() for x in free]
    W, G = blocks(*leaves), torch.randn(q + s, q + s)
    found, pullback = blocks.with_pullback(*free)
    torch.testing.assert_close(found, W.detach())
    assert not found.requires_grad
    expected = torch.autograd.grad(W, leaves, G)
    for _ in range(2):  # as often as it is called
        for ours, theirs in zip(pullback(G), expected, strict=True):
            torch.testing.assert_close(ours, theirs)
