"""The network with a long-term and a short-term state."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gradients import check_gradients, check_second_gradients
from processes import call_in_processes, free_port
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import cayley
from cayley.layers.enrnn import ENRNN


def count(*modules: nn.Module) -> int:
    parameters = {p for module in modules for p in module.parameters() if p.requires_grad}
    return sum(p.numel() for p in parameters)


@pytest.mark.parametrize(
    ("q", "s", "coupled", "m", "p", "expected"),
    [
        (96, 64, True, 2, 1, 15441),  # adding
        (172, 20, True, 10, 9, 22395),  # copying
        (374, 94, False, 129, 129, 199928),  # speech frames
    ],
)
def test_parameter_counts(q: int, s: int, coupled: bool, m: int, p: int, expected: int) -> None:
    layer = ENRNN(m, q, s, coupled=coupled)
    assert count(layer, nn.Linear(layer.output_size, p)) == expected


def test_parameter_count_of_the_characters() -> None:
    """The input is a linear embedding of 50 characters; U is fixed to the identity."""
    layer = ENRNN(1030, 310, 720, negative_ones=186, nonlinearity="relu", coupling="orthogonal")
    nn.init.eye_(layer.weight_ih_l0).requires_grad_(False)
    embedding, output = nn.Linear(50, 1030, bias=False), nn.Linear(1030, 50)
    assert count(embedding, layer, output) == 893575


def test_start() -> None:
    layer = ENRNN(3, 6, 5, negative_ones=2)
    assert layer.hidden_size == 11
    assert (layer.long_size, layer.short_size) == (6, 5)
    assert 0.005 < layer.weight_ih_l0.abs().max() <= 0.01
    assert not layer.bias_l0.any()
    W = layer.weight_hh_l0.detach()
    torch.testing.assert_close(W[:6, :6] @ W[:6, :6].T, torch.eye(6))
    assert torch.linalg.eigvals(W[6:, 6:]).abs().max() < 1
    assert not W[6:, :6].any()
    assert "long_size=6, short_size=5" in repr(layer)


def states(layer: ENRNN, x: Tensor) -> tuple[Tensor, Tensor]:
    """The equations of the two states, written out."""
    q = layer.long_size
    W, U, b = layer.weight_hh_l0, layer.weight_ih_l0, layer.bias_l0
    W_L, W_C, W_S = W[:q, :q], W[:q, q:], W[q:, q:]
    h_L, h_S = torch.zeros(x.shape[1], q), torch.zeros(x.shape[1], layer.short_size)
    for x_t in x:
        z_L = x_t @ U[:q].T + h_L @ W_L.T + h_S @ W_C.T
        z_S = x_t @ U[q:].T + h_S @ W_S.T
        if layer.nonlinearity == "modrelu":
            h_L, h_S = cayley.modrelu(z_L, b[:q]), cayley.modrelu(z_S, b[q:])
        else:
            h_L, h_S = (z_L + b[:q]).relu(), (z_S + b[q:]).relu()
    return h_L, h_S


@pytest.mark.parametrize("coupled", [True, False])
@pytest.mark.parametrize("nonlinearity", ["modrelu", "relu"])
def test_equations(coupled: bool, nonlinearity: str) -> None:
    layer: Any = ENRNN(3, 6, 4, coupled=coupled, nonlinearity=nonlinearity)
    with torch.no_grad():
        layer.weight_ih_l0.normal_()
        layer.bias_l0.normal_(std=0.1)
        layer.structured.weight_hh_l0.T.mul_(3)
    x = torch.randn(7, 2, 3)
    h_L, h_S = states(layer, x)
    torch.testing.assert_close(layer(x)[1][0], torch.cat((h_L, h_S), -1))
    # the long-term state never acts on the short-term one
    hx = torch.zeros(1, 2, 10)
    hx[..., :6] = torch.randn(6)
    torch.testing.assert_close(layer(x, hx)[0][..., 6:], layer(x)[0][..., 6:])


def test_without_a_short_state_it_is_scornn() -> None:
    layer, peer = ENRNN(3, 8, 0, negative_ones=3), cayley.ScoRNN(3, 8, negative_ones=3)
    state = {key.replace("map.long.", "map."): x for key, x in layer.state_dict().items()}
    peer.load_state_dict(state)
    x = torch.randn(5, 2, 3)
    output, expected = layer(x)[0], peer(x)[0]
    assert torch.equal(output, expected)
    assert torch.equal(layer.weight_hh_l0, peer.weight_hh_l0)
    torch.testing.assert_close(
        torch.autograd.grad(output.sum(), tuple(layer.parameters())),
        torch.autograd.grad(expected.sum(), tuple(peer.parameters())),
        rtol=1e-12,
        atol=1e-12,
    )
    assert layer.events == {}


def test_without_a_long_state() -> None:
    layer = ENRNN(3, 0, 8)
    output, _ = layer(torch.randn(5, 2, 3))
    output.square().sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_short_state_decays() -> None:
    """‖∂h^S_{t+τ} / ∂h^S_t‖ ≤ ‖W^S‖^τ, ‖∂h^S_{t+τ} / ∂x_t‖ ≤ ‖W^S‖^τ ‖U^S‖, for ‖W^S‖₂ < 1."""
    layer: Any = ENRNN(2, 4, 6, nonlinearity="relu")
    with torch.no_grad():
        T = torch.randn(6, 6)
        layer.structured.weight_hh_l0.T.copy_(0.8 * T / torch.linalg.matrix_norm(T, 2))
        layer.weight_ih_l0.uniform_(1, 2)  # all units stay active, which is the worst case
    W, U = layer.weight_hh_l0.detach(), layer.weight_ih_l0.detach()
    norm, of_input = (float(torch.linalg.matrix_norm(M, 2)) for M in (W[4:, 4:], U[4:]))
    assert norm == pytest.approx(0.8)
    h = torch.rand(1, 10)
    for tau in (1, 2, 5, 12):
        x = torch.rand(tau, 2) + 1
        J = torch.autograd.functional.jacobian(lambda h, x=x: layer(x, h)[1], h)[0, :, 0]
        assert 0 < torch.linalg.matrix_norm(J[4:, 4:], 2) <= norm**tau + 1e-12
        assert not J[4:, :4].any()
    x = torch.rand(13, 2) + 1
    J = torch.autograd.functional.jacobian(lambda x: layer(x, h)[1][0, 4:], x)
    for tau in range(13):
        by_input = torch.linalg.matrix_norm(J[:, 12 - tau], 2)
        assert 0 < by_input <= norm**tau * of_input + 1e-12
    # at once what U^S lets in, all of it
    assert float(torch.linalg.matrix_norm(J[:, 12], 2)) == pytest.approx(of_input)


def test_events_and_latch() -> None:
    layer: Any = ENRNN(2, 4, 100, num_layers=2)
    with torch.no_grad():
        layer.structured.weight_hh_l1.T[0, 0] = 1.5
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.randn(5, 2, 2))[0].square().mean().backward()
        optimizer.step()
    assert [matrix.map.short.latched.item() for matrix in layer.matrices()] == [False, True]
    assert layer.events.keys() == {"weight_hh_l0", "weight_hh_l1"}
    for events in layer.events.values():
        assert events["DIRECT"] >= 1
        assert sum(events.values()) == 3
    assert layer.events["weight_hh_l1"]["FOLLOWED"] == 2


def test_second_derivatives_of_the_parameters() -> None:
    layer: Any = ENRNN(2, 2, 3)
    with torch.no_grad():
        layer.structured.weight_hh_l0.T.mul_(4).add_(0.3 * torch.randn(3, 3))
        layer.weight_ih_l0.normal_()
    names, values = zip(*layer.named_parameters(), strict=True)
    x = torch.randn(3, 2, 2)

    def run(*values: Tensor) -> Tensor:
        named = dict(zip(names, values, strict=True))
        return torch.func.functional_call(layer, named, (x,))[0]

    check_gradients(run, values)
    check_second_gradients(run, values)
    assert layer.structured.weight_hh_l0.map.short.latched


def train(layer: Any, model: nn.Module, x: Tensor) -> list[bool]:
    optimizer = torch.optim.Adam(layer.parameters(), lr=3e-3)
    latched = []
    for _ in range(6):
        optimizer.zero_grad()
        # the states grow, and with them ρ(T)
        (-model(x)[0].square().mean()).backward()
        optimizer.step()
        latched.append(bool(layer.structured.weight_hh_l0.map.short.latched))
    return latched


def layer_and_input() -> tuple[ENRNN, Tensor]:
    torch.manual_seed(1)
    layer: Any = ENRNN(3, 4, 100)
    T = layer.structured.weight_hh_l0.T
    with torch.no_grad():
        layer.weight_ih_l0.normal_()
        T.mul_(0.995 / torch.linalg.eigvals(T).abs().max())
    return layer, torch.randn(10, 4, 3)


def work(rank: int, port: str, folder: str, broadcast: bool) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    layer, x = layer_and_input()
    model = DistributedDataParallel(layer, broadcast_buffers=broadcast)
    latched = train(layer, model, x[:, rank * 2 : rank * 2 + 2])
    torch.save((latched, layer.state_dict()), Path(folder) / str(rank))
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("broadcast", [True, False])
def test_latch_closes_in_every_process_at_the_same_step(tmp_path: Path, broadcast: bool) -> None:
    layer, x = layer_and_input()
    expected = train(layer, layer, x)
    assert not expected[0]
    assert expected[-1]
    port = free_port()
    ranks = [(rank, port, str(tmp_path), broadcast) for rank in range(2)]
    call_in_processes(__file__, "work", *ranks)
    first, second = (torch.load(tmp_path / str(rank)) for rank in range(2))
    assert first[0] == second[0] == expected
    for key, value in layer.state_dict().items():
        assert torch.equal(first[1][key], second[1][key]), key
        if "right" not in key and "left" not in key:  # bases of the same space may differ
            torch.testing.assert_close(first[1][key], value, rtol=1e-6, atol=1e-8)


def test_sizes_out_of_range() -> None:
    for sizes in ((0, 0), (-1, 3), (3, -1)):
        with pytest.raises(ValueError, match="long_size and short_size of at least 0"):
            ENRNN(2, *sizes)
    with pytest.raises(TypeError, match="short_size to be an int"):
        ENRNN(2, 3, 4.0)  # pyrefly: ignore[bad-argument-type]
