"""The shared form against the matrix P Pᵀ, and the theorems behind it."""

import pytest
import torch
from preconditioners.explicit import P, preconditioned
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from cayley.preconditioners.joint import Bias, Block, Damping, Weight, joint, precondition
from cayley.preconditioners.statistics import Statistics


def problem(
    sizes: tuple[int, ...] = (5, 3), N: int = 50
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Gradients of a bias and of weights of 4 units, and rows."""
    rows = [torch.randn(N, n) * torch.rand(n) * 3 + torch.randn(n) for n in sizes]
    return torch.randn(4), [torch.randn(4, n) for n in sizes], rows


def statistics(rows: list[Tensor], eps: float, centred: bool) -> tuple[list[Tensor], list[Tensor]]:
    means = [H.mean(0) for H in rows]
    if centred:
        return means, [H.var(0, correction=0) + eps for H in rows]
    return means, [H.square().mean(0) + eps for H in rows]


@pytest.mark.parametrize("q2", [1.0, 2.5])
@pytest.mark.parametrize("sizes", [(5,), (5, 3), (2, 3, 4)])
def test_joint_is_the_product_with_P_Pt(sizes: tuple[int, ...], q2: float) -> None:
    g, grads, rows = problem(sizes=sizes)
    b, Ws = joint(g, grads, *statistics(rows, 0.1, True), q2)
    expected_b, expected = preconditioned(g, grads, rows, 0.1, q2)
    torch.testing.assert_close(b, expected_b, rtol=0, atol=1e-12)
    for W, other in zip(Ws, expected, strict=True):
        torch.testing.assert_close(W, other, rtol=0, atol=1e-12)


def test_without_a_bias_it_scales_and_does_not_centre() -> None:
    _, grads, rows = problem()
    b, Ws = joint(None, grads, *statistics(rows, 0.1, False))
    assert b is None
    for W, G, H in zip(Ws, grads, rows, strict=True):
        torch.testing.assert_close(W, G / (H.square().mean(0) + 0.1), rtol=0, atol=1e-12)


def test_the_arguments_are_left_as_they_are() -> None:
    g, grads, rows = problem()
    copies = g.clone(), [G.clone() for G in grads]
    joint(g, grads, *statistics(rows, 0.1, True))
    assert torch.equal(g, copies[0])
    assert all(torch.equal(G, copy) for G, copy in zip(grads, copies[1], strict=True))


def test_it_is_the_identity_for_standard_rows() -> None:
    g, grads, _ = problem(sizes=(5,))
    b, (W,) = joint(g, grads, [torch.zeros(5)], [torch.ones(5)])
    assert b is not None
    assert torch.equal(b, g)
    assert torch.equal(W, grads[0])


def test_it_is_linear_and_always_descends() -> None:
    for _ in range(200):
        g, grads, rows = problem(N=7)
        arguments = statistics(rows, 1e-3, True)
        b, Ws = joint(g, grads, *arguments)
        assert b is not None
        inner = b @ g + sum((W * G).sum() for W, G in zip(Ws, grads, strict=True))
        assert inner > 0
        scaled_b, scaled = joint(-3 * g, [-3 * G for G in grads], *arguments)
        torch.testing.assert_close(scaled_b, -3 * b)
        torch.testing.assert_close(scaled, [-3 * W for W in Ws])


def test_blocks_of_rows_biases_and_groups() -> None:
    x, h = torch.randn(40, 3) + 1, torch.randn(40, 2) - 1
    gradients = {"U": torch.randn(6, 3), "W": torch.randn(2, 2), "b": torch.randn(6)}
    gradients["c"] = gradients["b"].clone()
    blocks = [
        Block(
            (Weight("U", "x", slice(2)), Weight("W", "h")),
            (Bias("b", slice(2)), Bias("c", slice(2))),
        ),
        Block((Weight("U", "x", slice(4, 6)),)),
    ]
    found = precondition(
        blocks,
        gradients,
        {"x": Statistics.of(x), "h": Statistics.of(h)},
        Damping(0.2),
    )
    b, (U, W) = preconditioned(
        gradients["b"][:2], [gradients["U"][:2], gradients["W"]], [x, h], 0.2
    )
    torch.testing.assert_close(found["U"][:2], U)
    torch.testing.assert_close(found["W"], W)
    # the two biases together take the step of the one that the algorithm has
    torch.testing.assert_close(found["b"][:2] + found["c"][:2], b)
    assert torch.equal(found["U"][2:4], gradients["U"][2:4])
    _, (scaled,) = preconditioned(None, [gradients["U"][4:]], [x], 0.2)
    torch.testing.assert_close(found["U"][4:], scaled)
    assert torch.equal(found["b"][2:], gradients["b"][2:])


def test_damping_and_q() -> None:
    x = torch.randn(4, 10) * torch.arange(1, 11)
    gradients = {"W": torch.randn(3, 10), "b": torch.randn(3)}
    block = Block((Weight("W", "x"),), (Bias("b"),))
    found = precondition(
        [block], gradients, {"x": Statistics.of(x)}, Damping(1e-4, relative_eps=1e-2, q=True)
    )
    eps = 1e-2 * float(x.var(0, correction=0).max()) + 1e-4
    b, (W,) = preconditioned(gradients["b"], [gradients["W"]], [x], eps, q2=10 / 4)
    torch.testing.assert_close(found["W"], W)
    torch.testing.assert_close(found["b"], b)


def test_no_rows_change_nothing() -> None:
    gradients = {"W": torch.randn(3, 2), "b": torch.randn(3)}
    block = Block((Weight("W", "x"),), (Bias("b"),))
    nothing = {"x": Statistics.of(torch.full((4, 2), float("nan")))}
    for damping in (Damping(0.1), Damping(0.1, relative_eps=0.5, q=True)):
        found = precondition([block], gradients, nothing, damping)
        assert all(torch.equal(found[name], G) for name, G in gradients.items())


def test_half_precision_gradients_keep_their_type() -> None:
    x = torch.randn(50, 3) + 5
    exact = {"W": torch.randn(2, 3), "b": torch.randn(2)}
    block = Block((Weight("W", "x"),), (Bias("b"),))
    half = {name: G.bfloat16() for name, G in exact.items()}
    found = precondition([block], half, {"x": Statistics.of(x.float())}, Damping(0.1))
    assert {G.dtype for G in found.values()} == {torch.bfloat16}
    expected = precondition(
        [block],
        {name: G.double() for name, G in half.items()},
        {"x": Statistics.of(x)},
        Damping(0.1),
    )
    for name, G in found.items():
        torch.testing.assert_close(G.double(), expected[name], rtol=1e-2, atol=1e-4)


def condition(matrix: Tensor) -> float:
    values = torch.linalg.svdvals(matrix)
    return float(values[0] / values[-1])


def test_centring_never_worsens_and_scaling_is_near_the_best() -> None:
    """κ(ĤU) ≤ κ(Ĥ), and κ(ĤUD) ≤ √(n + 1) min over diagonals D' of κ(ĤUD')."""
    for _ in range(200):
        n = int(torch.randint(1, 6, ()))
        H = torch.randn(12, n) * torch.exp(2 * torch.randn(n)) + 3 * torch.randn(n)
        hat = torch.cat((torch.ones(12, 1), H), 1)
        mu, sigma = H.mean(0), H.std(0, correction=0)
        U = torch.eye(n + 1)
        U[0, 1:] = -mu
        centred = hat @ U
        assert condition(centred) <= condition(hat) * (1 + 1e-9)
        best = condition(hat @ P([H], 0.0))
        torch.testing.assert_close(hat @ P([H], 0.0), centred / torch.cat((torch.ones(1), sigma)))
        for _ in range(10):
            other = torch.exp(torch.randn(n + 1))
            assert best <= (n + 1) ** 0.5 * condition(centred * other) * (1 + 1e-9)


def row_block_condition(model: nn.Sequential, layer: int, x: Tensor, rows: Tensor | None) -> float:
    """Median over the units of a layer of κ of the Gauss–Newton block of [b, w], for softmax."""
    parameters = dict(model.named_parameters())
    names = (f"{layer}.bias", f"{layer}.weight")

    def logits(b: Tensor, W: Tensor) -> Tensor:
        return functional_call(model, parameters | dict(zip(names, (b, W), strict=True)), x)

    J_b, J_W = jacrev(logits, (0, 1))(*(parameters[name].detach() for name in names))
    p = model(x).detach().softmax(-1)
    S = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    conditions = []
    for unit in range(len(parameters[names[0]])):
        J = torch.cat((J_b[:, :, unit, None], J_W[:, :, unit]), -1)
        G = torch.einsum("nci,ncd,ndj->ij", J, S, J)
        if rows is not None:
            G = P([rows], 1e-6).T @ G @ P([rows], 1e-6)
        conditions.append(float(torch.linalg.cond(G.detach())))
    return sorted(conditions)[len(conditions) // 2]


def test_gauss_newton_blocks_of_an_ill_scaled_network_are_better_conditioned() -> None:
    model = nn.Sequential(nn.Linear(8, 10), nn.Tanh(), nn.Linear(10, 3))
    x = torch.randn(256, 8) * torch.logspace(-1, 1, 8) + 3
    before = row_block_condition(model, 0, x, None)
    after = row_block_condition(model, 0, x, x)
    assert after < before / 100
    hidden = model[:2](x).detach()
    before, after = (row_block_condition(model, 2, x, rows) for rows in (None, hidden))
    assert after < before
