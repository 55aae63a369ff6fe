"""Three matrices as one, some of them structured."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from cayley.parametrizations import (
    ComplexScaledCayley,
    HouseholderProduct,
    Parametrization,
    ScaledCayley,
    SpectralSVD,
    StiefelPoint,
    StructuredMatrix,
)
from cayley.parametrizations.gates import GateMatrices
from cayley.parametrizations.neumann import NeumannCayley

N = 5
# factories: the precision is that of the test
VARIANTS: dict[str, dict[str, Callable[[int], Parametrization]]] = {
    "none": {},
    "candidate": {"candidate": ScaledCayley},
    "reset": {"reset": NeumannCayley},
    "two": {"candidate": NeumannCayley, "reset": lambda n: NeumannCayley(n, order=1)},
    "many tensors": {"update": SpectralSVD, "reset": HouseholderProduct},
}


@pytest.fixture(params=VARIANTS.values(), ids=list(VARIANTS))
def maps(request: pytest.FixtureRequest) -> dict[str, Parametrization]:
    return {gate: make(N) for gate, make in request.param.items()}


def free(map: Parametrization) -> list[Tensor]:
    return [(X + 0.1 * torch.randn_like(X)).requires_grad_() for X in map.sample()]


def test_names_are_in_the_order_of_the_gates() -> None:
    map = GateMatrices(N, {"candidate": ScaledCayley(N), "reset": SpectralSVD(N)})
    assert map.names == (*(f"reset_{name}" for name in SpectralSVD.names), "update", "candidate_A")
    assert map.unconstrained == ("update",)
    assert map.phases == ()
    matrix = StructuredMatrix(map)
    assert [name for name, _ in matrix.named_parameters()] == list(map.names)


def test_is_the_matrices_one_above_another(maps: dict[str, Parametrization]) -> None:
    map = GateMatrices(N, maps)
    X = free(map)
    named = dict(zip(map.names, X, strict=True))
    for gate, block in zip(("reset", "update", "candidate"), map(*X).chunk(3), strict=True):
        if gate in maps:
            own = [value for name, value in named.items() if name.startswith(f"{gate}_")]
            torch.testing.assert_close(block, copy.deepcopy(maps[gate])(*own))
        else:
            assert torch.equal(block, named[gate])


def test_right_inverse_and_gradients(maps: dict[str, Parametrization]) -> None:
    map, other = GateMatrices(N, maps), GateMatrices(N, maps)
    W = other(*free(other)).detach()
    torch.testing.assert_close(map(*map.right_inverse(W)), W)
    torch.testing.assert_close(map.project(W), W)
    assert gradcheck(map, free(map))


def test_defect_is_that_of_the_structured_blocks() -> None:
    map = GateMatrices(N, {"reset": ScaledCayley(N), "candidate": ScaledCayley(N)})
    W = map(*map.sample())
    assert map.defect(W) <= 1e-13
    W[N : 2 * N] += torch.randn(N, N)
    assert map.defect(W) <= 1e-13
    W[:N], W[2 * N :] = 2 * W[:N], torch.zeros(N, N)
    # 4 I − I and 0 − I
    assert float(map.defect(W)) == pytest.approx((9 * N + N) ** 0.5)
    projected = map.project(W + torch.randn_like(W))
    assert map.defect(projected) <= 1e-13
    assert GateMatrices(N, {}).defect(W) == 0


def test_free_matrices_are_drawn_as_nn_gru_draws_them() -> None:
    (_, update, _) = GateMatrices(100, {}).sample()
    assert update.abs().max() <= 0.1
    # the variance of U(−0.1, 0.1)
    assert float(update.var()) == pytest.approx(0.01 / 3, rel=0.05)


def test_a_refused_matrix_changes_nothing() -> None:
    matrix = StructuredMatrix(
        GateMatrices(N, {"reset": ScaledCayley(N), "candidate": ScaledCayley(N)})
    )
    before, W = copy.deepcopy(matrix.state_dict()), matrix()
    # the reset gate is fine and needs other signs; the candidate is not orthogonal
    bad = torch.cat((-torch.eye(N), torch.zeros(N, N), torch.ones(N, N)))
    with pytest.raises(ValueError, match="expected an orthogonal matrix"):
        matrix.assign(bad)
    assert all(torch.equal(value, before[key]) for key, value in matrix.state_dict().items())
    assert torch.equal(matrix(), W)


def test_maps_are_copied() -> None:
    one = NeumannCayley(N)
    map: Any = GateMatrices(N, {"reset": one, "candidate": one})
    map.reset.D.zero_()
    assert map.candidate.D.abs().min() == one.D.abs().min() == 1


def test_meta_device_deepcopy_and_pickle(maps: dict[str, Parametrization]) -> None:
    with torch.device("meta"):
        matrix = StructuredMatrix(GateMatrices(N, maps).to("meta"))
        assert matrix().shape == (3 * N, N)
    matrix.to_empty(device="cpu")
    matrix.reset_parameters()
    assert matrix.map.defect(matrix()) <= 1e-12
    for twin in (copy.deepcopy(matrix), pickle.loads(pickle.dumps(matrix))):
        assert torch.equal(twin(), matrix())
        assert twin.map.names == matrix.map.names


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"some of .*'candidate'.*got \['output'\]"):
        GateMatrices(N, {"output": ScaledCayley(N)})
    for map in (ScaledCayley(N + 1), ComplexScaledCayley(N), StiefelPoint(N)):
        with pytest.raises(ValueError, match=f"for 'reset' a real map of size {N}"):
            GateMatrices(N, {"reset": map})
    with pytest.raises(ValueError, match=r"shape \(15, 5\).*got \(5, 5\)"):
        GateMatrices(N, {}).right_inverse(torch.eye(N))
    with pytest.raises(TypeError, match="real matrix"):
        GateMatrices(N, {}).right_inverse(torch.zeros(3 * N, N, dtype=torch.complex128))
