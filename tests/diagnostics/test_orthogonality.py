import math

import pytest
import torch
from torch import nn
from variants import NETWORKS, Make

import cayley
from cayley.diagnostics.orthogonality import (
    eigenvalue_normalisation,
    orthogonality_error,
    orthogonality_errors,
    recurrent_matrices,
    scaling_angles,
    spectra,
    spectrum,
)

every = pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
NOT_ORTHOGONAL = ("RNN", "RNN-atn", "RNN-modrelu", "SpectralRNN", "NCGRU-free")


def test_error_of_a_scaled_rotation() -> None:
    """(s² − 1) √n for s times an orthogonal matrix, also in half precision and complex."""
    W = torch.linalg.qr(torch.randn(5, 5))[0]
    torch.testing.assert_close(orthogonality_error(1.5 * W), torch.tensor(1.25 * 5**0.5))
    Z = torch.linalg.qr(torch.randn(5, 5, dtype=torch.complex128))[0]
    assert orthogonality_error(Z) < 1e-13
    assert orthogonality_error(torch.eye(3, dtype=torch.bfloat16)).dtype == torch.float64
    assert orthogonality_error(W[:2]) < 1e-13
    assert orthogonality_error(W[:, :2]) < 1e-13
    assert orthogonality_error(torch.stack((W, W))).shape == (2,)
    with pytest.raises(ValueError, match="expected matrices"):
        orthogonality_error(torch.ones(3))


def test_spectrum_of_a_known_matrix() -> None:
    W = torch.diag(torch.tensor([0.5, -3.0, 1.0]))
    found = spectrum(W)
    torch.testing.assert_close(found.eigenvalues.real, torch.tensor([-3.0, 1.0, 0.5]))
    torch.testing.assert_close(found.singular_values, torch.tensor([3.0, 1.0, 0.5]))
    torch.testing.assert_close(found.radius, torch.tensor(3.0))
    assert spectrum(W * torch.nan).singular_values.isnan().all()
    with pytest.raises(ValueError, match="square"):
        spectrum(torch.ones(2, 3))


@every
def test_every_network_has_its_matrices(make: Make) -> None:
    model = nn.ModuleDict({"rnn": make(3, 8, num_layers=2, bidirectional=True)})
    found = recurrent_matrices(model)
    blocks = {
        "ENRNN": ["long", "short"],
        "NCGRU": ["reset", "update", "candidate"],
        "LSTM": ["input", "forget", "candidate", "output"],
    }.get(type(model["rnn"]).__name__, [""])
    assert [*found] == [
        f"rnn.weight_hh_{suffix}{'.' if part else ''}{part}"
        for suffix in ("l0", "l0_reverse", "l1", "l1_reverse")
        for part in blocks
    ]
    assert all(W.shape[0] == W.shape[1] and not W.requires_grad for W in found.values())
    assert spectra(model).keys() == found.keys()


@every
def test_those_that_are_orthogonal_are(make: Make, request: pytest.FixtureRequest) -> None:
    layer = make(3, 8)
    name = request.node.callspec.id
    if name in NOT_ORTHOGONAL or name.startswith("LSTM"):
        with pytest.raises(TypeError, match=r"ENRNN, EURNN.*ScoRNN, ScuRNN or URNN\), got none in"):
            orthogonality_errors(layer)
        return
    errors = orthogonality_errors(layer)
    assert errors
    assert all(error < 1e-12 for error in errors.values())
    expected = {"ENRNN": {"long"}, "NCGRU": {"reset", "candidate"}}.get(type(layer).__name__)
    if name == "NCGRU-exact-candidate":
        expected = {"candidate"}
    if name.startswith("NCGRU-all"):
        expected = {"update", "reset", "candidate"}
    if expected is not None:
        assert {key.rpartition(".")[2] for key in errors} == expected


def test_reading_leaves_the_training_alone() -> None:
    layer = cayley.NCGRU(3, 8)
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    spectra(layer)
    orthogonality_errors(layer)
    for name, buffer in layer.named_buffers():
        assert torch.equal(buffer, before[name]), name


def test_angles() -> None:
    angles = scaling_angles(nn.Sequential(cayley.ScoRNN(3, 8, negative_ones=3)))["0.weight_hh_l0"]
    torch.testing.assert_close(angles, torch.tensor([0.0] * 5 + [math.pi] * 3))
    unitary = cayley.ScuRNN(3, 8)
    with torch.no_grad():
        unitary.get_parameter("structured.weight_hh_l0.theta").copy_(torch.linspace(-7, 7, 8))
    angles = scaling_angles(unitary)["weight_hh_l0"]
    assert angles.min() >= 0
    assert angles.max() < 2 * math.pi
    torch.testing.assert_close(angles.cos(), torch.linspace(-7, 7, 8).cos())
    assert [*scaling_angles(cayley.NCGRU(3, 8))] == [
        "weight_hh_l0.reset",
        "weight_hh_l0.candidate",
    ]
    assert [*scaling_angles(cayley.ENRNN(3, 4, 4))] == ["weight_hh_l0.long"]
    with pytest.raises(TypeError, match=r"ScoRNN or ScuRNN\), got \['LSTM'\]"):
        scaling_angles(cayley.LSTM(3, 8))


def test_latch_and_events() -> None:
    layer = cayley.ENRNN(3, 4, 2)
    with torch.no_grad():
        T = layer.get_parameter("structured.weight_hh_l0.T")
        T.copy_(torch.tensor([[0.0, -2.0], [2.0, 0.0]]))
    before = eigenvalue_normalisation(layer)["weight_hh_l0"]
    torch.testing.assert_close(before.radius, torch.tensor(2.0))
    assert not before.latched
    layer(torch.randn(5, 2, 3))
    after = eigenvalue_normalisation(layer)["weight_hh_l0"]
    assert after.latched
    assert after.events.tolist() == [*layer.events["weight_hh_l0"].values()]
    assert after.events.sum() == 1
    assert not before.latched, "a copy, not the buffer itself"
    with pytest.raises(TypeError, match=r"ENRNN with a short_size.*got \['ScoRNN'\]"):
        eigenvalue_normalisation(cayley.ScoRNN(3, 8))
