"""Which parameter goes to which group."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

import cayley
from cayley.optim import parameter_groups
from cayley.parametrizations import (
    ComplexScaledCayley,
    Parametrization,
    ScaledCayley,
    Skew,
    StiefelPoint,
    StructuredMatrix,
)


def unitary_linear(n: int, map: Parametrization) -> Any:
    """A layer of torch with a structured weight, as torch parametrises it."""
    linear = nn.Linear(n, n, bias=False, dtype=torch.complex128 if map.is_complex else None)
    with torch.no_grad():
        linear.weight.copy_(torch.eye(n))
    parametrize.register_parametrization(linear, "weight", map, unsafe=True)
    return linear


def by_name(groups: list[dict[str, Any]]) -> dict[str, list[Tensor]]:
    return {group["name"]: group["params"] for group in groups}


def same(left: list[Tensor], right: list[Any]) -> bool:
    return [id(p) for p in left] == [id(p) for p in right]


def test_structured_matrices() -> None:
    real, complex = StructuredMatrix(ScaledCayley(3)), StructuredMatrix(ComplexScaledCayley(3))
    linear = nn.Linear(3, 2)
    groups = parameter_groups(
        nn.ModuleList([real, linear, complex]),
        lr=1e-3,
        recurrent_lr=1e-4,
        phase_lr=1e-2,
        weight_decay=0.1,
    )
    assert [{k: v for k, v in group.items() if k != "params"} for group in groups] == [
        {"name": "rest", "lr": 1e-3, "weight_decay": 0.1, "stiefel": False},
        {"name": "recurrent", "lr": 1e-4, "weight_decay": 0.0, "stiefel": False},
        {"name": "phases", "lr": 1e-2, "weight_decay": 0.0, "stiefel": False},
    ]
    rest, recurrent, phases = (group["params"] for group in groups)
    assert same(rest, [linear.weight, linear.bias])
    assert same(recurrent, [real.A, complex.A])
    assert same(phases, [complex.theta])


def test_parametrised_layers_of_torch() -> None:
    real, complex = unitary_linear(3, ScaledCayley(3)), unitary_linear(3, ComplexScaledCayley(3))
    groups = by_name(parameter_groups(nn.ModuleList([real, complex, nn.Linear(2, 2)]), lr=1e-3))
    assert len(groups["rest"]) == 2
    A = complex.parametrizations.weight
    assert same(groups["recurrent"], [real.parametrizations.weight.original, A.original0])
    assert same(groups["phases"], [A.original1])


def test_pruned_and_parametrised_free_tensors_stay_in_their_group() -> None:
    pruned, halved = cayley.ScoRNN(3, 6), cayley.ScoRNN(3, 6)
    prune.l1_unstructured(pruned.structured["weight_hh_l0"], "A", 0.5)
    parametrize.register_parametrization(halved.structured["weight_hh_l0"], "A", nn.Softshrink())
    for layer in (pruned, halved):
        groups = parameter_groups(layer, lr=1e-3, recurrent_lr=1e-4, weight_decay=0.1)
        (A,) = (p for name, p in layer.named_parameters() if ".A" in name)
        assert same(by_name(groups)["recurrent"], [A])


def test_other_parametrisations_are_the_rest() -> None:
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    chained = nn.Linear(3, 3, bias=False)
    parametrize.register_parametrization(chained, "weight", nn.Identity())
    parametrize.register_parametrization(chained, "weight", nn.Identity())
    groups = by_name(parameter_groups(nn.ModuleList([normed, chained]), lr=1e-3))
    assert list(groups) == ["rest"]
    assert len(groups["rest"]) == 4


def test_a_parametrised_buffer_is_not_trained() -> None:
    module = nn.Linear(2, 2)
    module.register_buffer("W", torch.eye(3))
    parametrize.register_parametrization(module, "W", ScaledCayley(3), unsafe=True)
    assert list(by_name(parameter_groups(module, lr=1e-3))) == ["rest"]


def test_learning_rates_default_to_lr_and_may_be_zero() -> None:
    model = StructuredMatrix(ComplexScaledCayley(3))
    assert [group["lr"] for group in parameter_groups(model, lr=1e-3)] == [1e-3, 1e-3]
    rates = parameter_groups(model, lr=1e-3, recurrent_lr=0.0, phase_lr=0.0)
    assert [group["lr"] for group in rates] == [0.0, 0.0]


def test_every_trained_parameter_appears_once() -> None:
    shared, linear = StructuredMatrix(ComplexScaledCayley(3)), nn.Linear(3, 3)
    tied = nn.Linear(3, 3)
    tied.weight = linear.weight
    # the phases of one matrix are a plain parameter of another module too
    other = nn.Module()
    other.angles = shared.theta
    model = nn.ModuleDict({"o": other, "a": shared, "b": shared, "c": linear, "d": tied})
    linear.bias.requires_grad_(False)
    groups = by_name(parameter_groups(model, lr=1e-3))
    assert same(groups["rest"], [linear.weight, tied.bias])
    assert same(groups["recurrent"], [shared.A])
    assert same(groups["phases"], [shared.theta])


def test_empty_groups_and_frozen_parameters_are_left_out() -> None:
    matrix = StructuredMatrix(ComplexScaledCayley(3))
    matrix.theta.requires_grad_(False)
    assert list(by_name(parameter_groups(matrix, lr=1e-3))) == ["recurrent"]
    assert list(by_name(parameter_groups(nn.Linear(2, 2), lr=1e-3))) == ["rest"]
    assert parameter_groups(nn.Linear(2, 2).requires_grad_(False), lr=1e-3) == []


def test_a_point_of_the_manifold() -> None:
    point, linear = StructuredMatrix(StiefelPoint(3)), nn.Linear(3, 2)
    groups = parameter_groups(nn.ModuleList([linear, point]), lr=1e-3, recurrent_lr=1e-6)
    assert [(g["name"], g["lr"], g["stiefel"]) for g in groups] == [
        ("rest", 1e-3, False),
        ("recurrent", 1e-6, True),
    ]
    assert same(groups[1]["params"], [point.W])


def test_a_point_of_the_manifold_beside_other_matrices() -> None:
    point, parametrised = StructuredMatrix(StiefelPoint(3)), unitary_linear(3, StiefelPoint(3))
    matrix = StructuredMatrix(ComplexScaledCayley(3))
    groups = parameter_groups(
        nn.ModuleList([point, matrix, parametrised]), lr=1e-3, recurrent_lr=1e-6
    )
    assert [(g["name"], g["lr"], g["stiefel"]) for g in groups] == [
        ("recurrent", 1e-6, False),
        ("stiefel", 1e-6, True),
        ("phases", 1e-3, False),
    ]
    assert same(groups[1]["params"], [point.W, parametrised.parametrizations.weight.original])
    # a frozen one asks for nothing
    point.W.requires_grad_(False)
    groups = parameter_groups(nn.ModuleList([point, matrix]), lr=1e-3)
    assert not any(group["stiefel"] for group in groups)


@pytest.mark.parametrize("optimizer", [cayley.optim.StiefelSGD, cayley.optim.StiefelRMSprop])
def test_an_optimizer_of_the_manifold_takes_a_model_without_such_a_point(optimizer: type) -> None:
    layer = cayley.ScoRNN(3, 4)
    stepper = optimizer(parameter_groups(layer, lr=0.1, recurrent_lr=0.01))
    before = layer.weight_ih_l0.clone()
    layer(torch.randn(5, 2, 3))[0].square().sum().backward()
    stepper.step()
    assert not torch.equal(layer.weight_ih_l0, before)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_torch_s_optimizers_take_the_groups(optimizer: type) -> None:
    model = nn.ModuleList([StructuredMatrix(Skew(3)), nn.Linear(3, 1)])
    stepper = optimizer(parameter_groups(model, lr=1e-2, weight_decay=0.1), lr=1.0)
    torch.stack([p.square().sum() for p in model.parameters()]).sum().backward()
    stepper.step()
    assert [group["lr"] for group in stepper.param_groups] == [1e-2, 1e-2]
    assert [group["name"] for group in stepper.state_dict()["param_groups"]] == [
        "rest",
        "recurrent",
    ]


@pytest.mark.parametrize("name", ["lr", "recurrent_lr", "phase_lr", "weight_decay"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_options_out_of_range(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"expected a finite {name}"):
        parameter_groups(nn.Linear(2, 2), **{"lr": 1e-3, name: value})


def test_a_free_block_of_a_structured_matrix_belongs_to_the_rest() -> None:
    layer = cayley.NCGRU(3, 8)
    groups = {g["name"]: g["params"] for g in parameter_groups(layer, 1e-3, recurrent_lr=1e-4)}
    matrix = layer.structured["weight_hh_l0"]
    assert any(matrix.update is p for p in groups["rest"])
    assert {id(p) for p in groups["recurrent"]} == {id(matrix.reset_A), id(matrix.candidate_A)}


def test_weight_decay_of_the_optimizer_stays_unless_given() -> None:
    optimizer = torch.optim.AdamW(parameter_groups(cayley.ScoRNN(2, 8), 1e-3), weight_decay=0.5)
    decays = {group["name"]: group["weight_decay"] for group in optimizer.param_groups}
    assert decays == {"rest": 0.5, "recurrent": 0.0}
