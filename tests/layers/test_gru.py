"""NC-GRU: its loop, its counts, its neighbours, and the bounds on its Jacobian."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cayley import modrelu
from cayley.layers.gru import NCGRU
from cayley.parametrizations.neumann import NeumannCayley

T, B, I, N = 7, 3, 4, 6  # noqa: E741

VARIANTS: dict[str, dict[str, Any]] = {
    "two": {},
    "candidate": {"orthogonal": ("candidate",)},
    "reset-tanh": {"orthogonal": ("reset",), "nonlinearity": "tanh"},
    "update": {"orthogonal": ("update",)},
    "update-candidate": {"orthogonal": ("candidate", "update")},
    "all": {"orthogonal": ("reset", "update", "candidate")},
    "exact": {"order": None},
    "free-tanh": {"orthogonal": (), "nonlinearity": "tanh"},
    "free": {"orthogonal": ()},
    "no bias": {"bias": False},
    "as printed": {"refine": False, "tolerance": torch.inf},
}
every = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)


def layer_of(**options: Any) -> NCGRU:
    layer = NCGRU(I, N, **options)
    with torch.no_grad():  # thresholds start at 0, where modReLU is the identity
        for parameter in layer.parameters(recurse=False):
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def inverses(layer: NCGRU) -> list[NeumannCayley]:
    return [module for module in layer.modules() if isinstance(module, NeumannCayley)]


def gates(layer: NCGRU, x_t: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """r, u and c of one step, as the layer's docstring has them."""
    U_r, U_u, U_c = layer.weight_hh_l0.chunk(3)
    b_r, b_u, b = (layer.bias_l0 if layer.bias else torch.zeros(3 * N)).chunk(3)
    x_r, x_u, x_c = (x_t @ layer.weight_ih_l0.T).chunk(3, -1)
    r = torch.sigmoid(x_r + h @ U_r.T + b_r)
    u = torch.sigmoid(x_u + h @ U_u.T + b_u)
    z = x_c + (r * h) @ U_c.T
    return r, u, modrelu(z, b) if layer.nonlinearity == "modrelu" else torch.tanh(z + b)


@every
def test_is_the_loop_in_its_docstring(options: dict[str, Any]) -> None:
    layer = layer_of(**options)
    x, h = torch.randn(T, B, I), torch.randn(B, N)
    output, h_n = layer(x, h[None])
    for t, x_t in enumerate(x):
        _, u, c = gates(layer, x_t, h)
        h = (1 - u) * h + u * c
        torch.testing.assert_close(output[t], h)
    torch.testing.assert_close(h_n[0], h)


@pytest.mark.parametrize(
    ("orthogonal", "recurrent"),
    [
        (("reset", "candidate"), lambda n: n * n + n * (n - 1)),
        (("candidate",), lambda n: 2 * n * n + n * (n - 1) // 2),
        (("reset",), lambda n: 2 * n * n + n * (n - 1) // 2),
        (("update",), lambda n: 2 * n * n + n * (n - 1) // 2),
        (("reset", "update", "candidate"), lambda n: 3 * n * (n - 1) // 2),
        ((), lambda n: 3 * n * n),
    ],
)
def test_parameter_counts(orthogonal: tuple[str, ...], recurrent: Callable[[int], int]) -> None:
    for n, m in ((118, 10), (5, 3)):
        layer = NCGRU(m, n, orthogonal=orthogonal)
        count = sum(p.numel() for p in layer.parameters())
        assert count == 3 * n * m + recurrent(n) + 3 * n
        assert layer.weight_hh_l0.shape == (3 * n, n)


@every
def test_orthogonal_are_the_matrices_named(options: dict[str, Any]) -> None:
    layer = NCGRU(I, N, **options)
    eye = torch.eye(N)
    for gate, U in zip(("reset", "update", "candidate"), layer.weight_hh_l0.chunk(3), strict=True):
        defect = torch.linalg.matrix_norm(U.T @ U - eye)
        assert (defect < 1e-12) == (gate in layer.orthogonal)


def test_initial_values() -> None:
    layer: Any = NCGRU(10, 100, negative_ones=30, trainable_h0=True)
    gate_biases, threshold = layer.bias_l0.split((200, 100))
    assert (threshold == 0).all()
    assert (layer.h0_l0 == 0).all()
    for parameter in (layer.weight_ih_l0, gate_biases, layer.structured["weight_hh_l0"].update):
        assert parameter.abs().max() <= 0.1
        assert parameter.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.15)
    for U in layer.weight_hh_l0.chunk(3)[::2]:
        # rotations in planes, and the last 30 columns negated
        angles = torch.linalg.eigvals(U[:70, :70]).angle().abs()
        assert angles.max() <= torch.pi / 2
        assert round(U.det().item()) == 1
    assert (NCGRU(3, 100, nonlinearity="tanh").bias_l0 != 0).all()


def nn_gru_as_ours(peer: Any) -> NCGRU:
    """nn.GRU's weights in the layer without structure: z = 1 − u, biases added up."""
    layer = NCGRU(I, N, orthogonal=(), nonlinearity="tanh")
    sign = torch.tensor([1.0, -1.0, 1.0]).repeat_interleave(N)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(sign[:, None] * peer.weight_ih_l0)
        layer.weight_hh_l0.copy_(sign[:, None] * peer.weight_hh_l0)
        layer.bias_l0.copy_(sign * (peer.bias_ih_l0 + peer.bias_hh_l0))
    return layer


@pytest.mark.parametrize("agreement", ["reset gate at 1", "no candidate recurrence", "diagonal"])
def test_nn_gru_where_the_equations_agree(agreement: str) -> None:
    peer: Any = nn.GRU(I, N)
    candidate = slice(2 * N, None)
    with torch.no_grad():
        if agreement == "reset gate at 1":
            peer.bias_ih_l0[:N] = 50.0
        else:
            keep = torch.eye(N) if agreement == "diagonal" else torch.zeros(N, N)
            peer.weight_hh_l0[candidate] *= keep
            peer.bias_hh_l0[candidate] = 0.0
    layer = nn_gru_as_ours(peer)
    x, h = torch.randn(T, B, I), torch.randn(1, B, N)
    torch.testing.assert_close(layer(x, h), peer(x, h))
    ours, theirs = (torch.autograd.grad(f(x, h)[0].sum(), f.weight_ih_l0) for f in (layer, peer))
    sign = torch.tensor([1.0, -1.0, 1.0]).repeat_interleave(N)
    torch.testing.assert_close(sign[:, None] * ours[0], theirs[0])


def test_nn_gru_is_another_network_in_general() -> None:
    peer = nn.GRU(I, N)
    x, h = torch.randn(T, B, I), torch.randn(1, B, N)
    difference = nn_gru_as_ours(peer)(x, h)[0] - peer(x, h)[0]
    assert difference.abs().max() > 1e-3


@pytest.mark.parametrize("order", [1, 2, 3])
def test_exact_inverse_is_the_same_network(order: int) -> None:
    layer = layer_of(order=order)
    exact = layer_of(order=None)
    missing = exact.load_state_dict(layer.state_dict(), strict=False).missing_keys
    assert missing == []
    optimizers = [torch.optim.SGD(f.parameters(), lr=0.1, momentum=0.9) for f in (layer, exact)]
    for _ in range(20):
        x = torch.randn(T, B, I)
        for f, optimizer in zip((layer, exact), optimizers, strict=True):
            optimizer.zero_grad()
            f(x)[0].square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(layer(x)[0], exact(x)[0], rtol=1e-6, atol=1e-6)
    assert [int(map.updates) for map in inverses(layer)] == [21, 21]


def test_refresh_reaches_every_inverse() -> None:
    layer = NCGRU(I, N, num_layers=2, bidirectional=True)
    assert len(inverses(layer)) == 8
    x = torch.randn(T, B, I)
    for expected in (1, 2):
        layer.refresh_()
        layer(x)
        layer(x)
        assert all(map.refreshes == expected for map in inverses(layer))
    NCGRU(I, N, order=None).refresh_()


def test_assigning_the_stacked_matrix() -> None:
    layer = NCGRU(I, N)
    W = torch.cat([torch.linalg.qr(torch.randn(N, N))[0] for _ in range(3)])
    W[N : 2 * N] *= 3
    layer.weight_hh_l0 = W
    torch.testing.assert_close(layer.weight_hh_l0, W)
    with pytest.raises(ValueError, match="expected an orthogonal matrix"):
        layer.weight_hh_l0 = 3 * W
    torch.testing.assert_close(layer.weight_hh_l0, W)


def test_evaluation_during_training_changes_nothing() -> None:
    layer = layer_of()
    twin = copy.deepcopy(layer)
    x = torch.randn(T, B, I)
    optimizers = [torch.optim.Adam(f.parameters(), lr=1e-2) for f in (layer, twin)]
    for _ in range(4):
        for f, optimizer in zip((layer, twin), optimizers, strict=True):
            optimizer.zero_grad()
            f(x)[0].square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            twin.eval()(x)
        twin.train()
    for key, value in twin.state_dict().items():
        assert torch.equal(value, layer.state_dict()[key]), key


def jacobian(layer: NCGRU, x: Tensor, h: Tensor) -> float:
    """The spectral norm of ∂h_t/∂h_{t−1}, of one sequence."""
    J = torch.autograd.functional.jacobian(lambda h: layer(x, h[None])[1][0], h)
    return float(torch.linalg.matrix_norm(J, 2))


def alpha_beta(layer: NCGRU, x: Tensor, h: Tensor) -> tuple[float, float]:
    """The constants of Theorem 3 of the reference, with absolute values in the maxima."""
    r, u, c = (value.detach() for value in gates(layer, x[0], h))
    U_r, U_u, _ = norms(layer)
    largest = h.abs().max()
    alpha = (u * (1 - u)).max() * (largest + c.abs().max()) * U_u + (1 - u).max()
    beta = u.max() * ((r * (1 - r)).max() * U_r * largest + r.max())
    return float(alpha), float(beta)


def norms(layer: NCGRU) -> list[float]:
    """The spectral norms of U_r, U_u and U_c."""
    matrices = layer.weight_hh_l0.detach().chunk(3)
    return [float(torch.linalg.matrix_norm(U, 2)) for U in matrices]


@pytest.mark.parametrize("nonlinearity", ["modrelu", "tanh"])
def test_jacobian_bound(nonlinearity: str) -> None:
    """Theorem 3 of the reference."""
    for trial in range(60):
        layer = layer_of(nonlinearity=nonlinearity)
        with torch.no_grad():
            layer.bias_l0[: 2 * N] *= 10 * (trial % 3)
        x, h = torch.randn(1, I), 2 * torch.randn(N)
        alpha, beta = alpha_beta(layer, x, h)
        assert jacobian(layer, x, h) <= alpha + beta * norms(layer)[2] + 1e-12


def test_constants_of_the_bound_for_tanh() -> None:
    """Corollary 2: states of a tanh GRU stay in [−1, 1], so that the matrices bound α and β."""
    for trial in range(20):
        layer = layer_of(orthogonal=(), nonlinearity="tanh")
        with torch.no_grad():  # from gates half open to gates closed or open
            layer.bias_l0[: 2 * N] *= 10 * (trial % 3)
            layer.weight_hh_l0.mul_(1 + trial % 4)
        x = 3 * torch.randn(T, I)
        states = torch.cat((torch.zeros(1, N), layer(x)[0].detach()))
        U_r, U_u, U_c = norms(layer)
        for x_t, h in zip(x, states, strict=False):
            assert h.abs().max() <= 1
            alpha, beta = alpha_beta(layer, x_t[None], h)
            assert alpha <= U_u / 2 + 1
            assert beta <= U_r / 4 + 1
            bound = U_u / 2 + 1 + (U_r / 4 + 1) * U_c
            assert jacobian(layer, x_t[None], h) <= bound + 1e-12


def saturated(layer: NCGRU, r: Tensor, u: Tensor) -> NCGRU:
    """The layer with gates that are 0 where a sign is negative, and 1 where it is positive."""
    with torch.no_grad():
        layer.bias_l0[: 2 * N] = 60.0 * torch.cat((r, u))
    return layer


def test_jacobian_is_at_most_two_for_saturated_gates() -> None:
    """Corollaries 3 and 4, (4.14) and (4.21), for bounded states, which modReLU does not ensure."""
    found = []
    for _ in range(50):
        layer = saturated(NCGRU(I, N), torch.randn(N).sign(), torch.randn(N).sign())
        x, h = torch.randn(1, I), torch.rand(N) * 2 - 1
        found.append(jacobian(layer, x, h))
        assert sum(alpha_beta(layer, x, h)) <= 2 + 1e-12
    assert 1 < max(found) <= 2 + 1e-12


@pytest.mark.parametrize("r", [-1.0, 1.0])
@pytest.mark.parametrize("u", [-1.0, 1.0])
@pytest.mark.parametrize("orthogonal", [("reset", "candidate"), ("reset", "update", "candidate")])
def test_jacobian_is_at_most_one_where_all_gates_agree(
    r: float, u: float, orthogonal: tuple[str, ...]
) -> None:
    """Corollaries 3 and 4, (4.15) and (4.22): all of u, and all of r, near 0 or near 1."""
    found = []
    for _ in range(10):
        layer = NCGRU(I, N, orthogonal=orthogonal)
        saturated(layer, torch.full((N,), r), torch.full((N,), u))
        with torch.no_grad():  # thresholds that let some units through, and some not
            layer.bias_l0[2 * N :] = torch.randn(N)
        x, h = torch.randn(1, I), torch.rand(N) * 2 - 1
        found.append(jacobian(layer, x, h))
        assert sum(alpha_beta(layer, x, h)) <= 1 + 1e-12
    assert max(found) <= 1 + 1e-12
    # the state is kept as it is, or all of it passes through an orthogonal matrix, or none
    assert (max(found) > 0.5) == (u < 0 or r > 0)


def test_stays_orthogonal_in_training() -> None:
    layer = NCGRU(I, 40, dtype=torch.float32)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
    for _ in range(100):
        optimizer.zero_grad()
        x = torch.randn(5, B, I, dtype=torch.float32)
        layer(x)[0].square().sum().backward()
        optimizer.step()
    matrix: Any = layer.structured["weight_hh_l0"]
    assert matrix.map.defect(matrix()) <= 1e-5
    for map in inverses(layer):
        assert map.updates > map.refreshes


def test_bad_arguments_are_refused() -> None:
    for orthogonal in (("output",), ("candidate", "output"), "candidate", None):
        with pytest.raises(ValueError, match=r"'update', 'candidate'\), as a tuple, got"):
            NCGRU(I, N, orthogonal=orthogonal)  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ValueError, match=r'"modrelu" or "tanh", got \'relu\''):
        NCGRU(I, N, nonlinearity="relu")
    with pytest.raises(ValueError, match="order of at least 1"):
        NCGRU(I, N, order=0)
    for option in ("tolerance", "refresh_every"):
        one: dict[str, Any] = {option: 1}
        with pytest.raises(ValueError, match=f"{option}=None where the inverse is exact"):
            NCGRU(I, N, order=None, **one)
        with pytest.raises(ValueError, match=f"{option}=None where no matrix is orthogonal"):
            NCGRU(I, N, orthogonal=(), **one)
    with pytest.raises(ValueError, match="refine=True where the inverse is exact, got False"):
        NCGRU(I, N, order=None, refine=False)
    with pytest.raises(ValueError, match="negative_ones=None where no matrix is orthogonal"):
        NCGRU(I, N, orthogonal=(), negative_ones=1)
    with pytest.raises(ValueError, match="negative_ones from 0 to n = 6, got 7"):
        NCGRU(I, N, negative_ones=7)
    assert "orthogonal=('reset', 'candidate'), order=2" in repr(NCGRU(I, N))
