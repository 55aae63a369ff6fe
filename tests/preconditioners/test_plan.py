"""Which modules are served, and what is said about the others."""

from typing import Any

import pytest
import torch
from gradients import grad_of
from torch import nn

import cayley
from cayley.preconditioners import BNP


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.head = nn.Linear(4, 2)
        self.conv = nn.Conv1d(1, 1, 1)


def served(**settings: Any) -> set[str]:
    report = BNP(Net(), **settings).report()
    return {name.rpartition(".")[0] for name, text in report.items() if ": [" in text}


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, {"encoder.0", "encoder.2", "head", "conv"}),
        ({"include": "encoder"}, {"encoder.0", "encoder.2"}),
        ({"include": "encoder.*"}, {"encoder.0", "encoder.2"}),
        ({"include": ["*.2", nn.Conv1d]}, {"encoder.2", "conv"}),
        ({"exclude": "encoder"}, {"head", "conv"}),
        ({"exclude": nn.Linear}, {"conv"}),
        ({"include": nn.Linear, "exclude": ("head", "encoder.0")}, {"encoder.2"}),
    ],
)
def test_include_and_exclude(settings: dict[str, Any], names: set[str]) -> None:
    assert served(**settings) == names


def test_two_preconditioners_share_a_model() -> None:
    model = Net()
    first = BNP(model, include="encoder", eps=0.1)
    second = BNP(model, exclude="encoder")
    assert first.report()["head.weight"] == "not among those to include"
    assert second.report()["encoder.0.weight"] == "excluded"


def test_parametrised_weights_are_left() -> None:
    layer = nn.Linear(4, 4)
    cayley.orthogonal_(layer, map="cayley")
    model = nn.Sequential(layer, nn.Linear(4, 2))
    bnp = BNP(model)
    report = bnp.report()
    free = [text for name, text in report.items() if name.startswith("0.parametrizations")]
    assert free == ["the weight is a function of it, and its preconditioned gradient could ascend"]
    assert report["0.bias"] == "its weight is not preconditioned"
    model(torch.randn(5, 4)).square().sum().backward()
    before = {name: grad_of(p).clone() for name, p in layer.named_parameters()}
    bnp.step()
    assert all(torch.equal(grad_of(p), before[name]) for name, p in layer.named_parameters())


def test_complex_weights_are_left() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, dtype=torch.complex128))
    assert BNP(model).report()["1.weight"] == "it is complex"


def test_a_module_in_two_places_is_one() -> None:
    layer = nn.Linear(3, 3)
    model, x = nn.Sequential(layer, nn.Tanh(), layer), torch.randn(6, 3)
    bnp = BNP(model, momentum=0.5)
    model(x).square().sum().backward()
    bnp.step()
    rows = torch.cat((x, layer(x).tanh())).detach()
    averages = bnp.state_dict()["0"]["input"]["averages"]
    torch.testing.assert_close(averages[0] / 0.5, rows.mean(0))


def test_a_module_in_two_places_has_both_names() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model.again = model[0]
    settings: list[dict[str, Any]] = [{"exclude": "again"}, {"include": "2"}]
    for chosen in settings:
        report = BNP(model, **chosen).report()
        assert ": [" not in report["0.weight"]
        assert ": [" in report["2.weight"]
    assert ": [" in BNP(model, include="again").report()["0.weight"]
