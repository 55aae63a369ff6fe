"""Several optimizers as one."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from cayley.optim import AdagradTF, Optimizers, RMSpropTF


def parts(model: nn.Module) -> list[torch.optim.Optimizer]:
    first, second, third = (list(layer.parameters()) for layer in model.children())
    return [
        RMSpropTF(first, lr=1e-2, momentum=0.5),
        AdagradTF([{"params": second[:1], "lr": 1e-1}, {"params": second[1:]}], lr=1e-2),
        torch.optim.Adam(third, lr=1e-2),
    ]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1))


def backward(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model(torch.randn(8, 3, generator=generator)).square().mean().backward()


def assert_same(left: nn.Module, right: nn.Module) -> None:
    for p, q in zip(left.parameters(), right.parameters(), strict=True):
        assert torch.equal(p, q)


def test_equals_stepping_one_by_one() -> None:
    model = network()
    twin = copy.deepcopy(model)
    optimizer, others = Optimizers(*parts(model)), parts(twin)
    for seed in range(5):
        optimizer.zero_grad()
        backward(model, seed)
        optimizer.step()
        for other in others:
            other.zero_grad()
        backward(twin, seed)
        for other in others:
            other.step()
    assert_same(model, twin)


def test_the_groups_are_the_members_own() -> None:
    model = network()
    members = parts(model)
    optimizer = Optimizers(*members)
    assert len(optimizer.param_groups) == 4
    assert optimizer.param_groups[1] is members[1].param_groups[0]
    optimizer.param_groups[3]["lr"] = 0.5
    assert members[2].param_groups[0]["lr"] == 0.5
    # also after torch has put new dictionaries in their place, and when a member grows
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[3] is members[2].param_groups[0]
    members[0].add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    assert optimizer.param_groups[1] is members[0].param_groups[1]


def test_the_state_is_the_members_own() -> None:
    model = network()
    members = parts(model)
    optimizer = Optimizers(*members)
    assert optimizer.state == {}
    backward(model, 0)
    optimizer.step()
    assert set(optimizer.state) == set(model.parameters())
    weight: Any = model[0].weight
    assert optimizer.state[weight] is members[0].state[weight]


def test_a_scheduler_resumes_with_it_bit_for_bit() -> None:
    def build(model: nn.Module) -> tuple[Optimizers, CosineAnnealingLR]:
        optimizer = Optimizers(*parts(model))
        return optimizer, CosineAnnealingLR(optimizer, T_max=10)

    def train(
        model: nn.Module, optimizer: Optimizers, scheduler: CosineAnnealingLR, seeds: range
    ) -> None:
        for seed in seeds:
            optimizer.zero_grad()
            backward(model, seed)
            nn.utils.clip_grad_norm_(
                [p for group in optimizer.param_groups for p in group["params"]], 1.0
            )
            optimizer.step()
            scheduler.step()

    model = network()
    half = copy.deepcopy(model)
    optimizer, scheduler = build(model)
    train(model, optimizer, scheduler, range(8))
    first, first_scheduler = build(half)
    train(half, first, first_scheduler, range(4))
    saved = copy.deepcopy((half.state_dict(), first.state_dict(), first_scheduler.state_dict()))
    resumed = network()
    second, second_scheduler = build(resumed)
    for target, state in zip((resumed, second, second_scheduler), saved, strict=True):
        target.load_state_dict(state)
    train(resumed, second, second_scheduler, range(4, 8))
    assert_same(resumed, model)
    assert [g["lr"] for g in second.param_groups] == [g["lr"] for g in optimizer.param_groups]
    assert optimizer.param_groups[1]["lr"] == pytest.approx(10 * optimizer.param_groups[0]["lr"])


def test_hooks_of_the_members_run_too() -> None:
    model = network()
    members = parts(model)
    optimizer = Optimizers(*members)
    calls: list[Any] = []
    optimizer.register_step_post_hook(lambda *_: calls.append("all"))
    for i, member in enumerate(members):
        member.register_step_post_hook(lambda *_, i=i: calls.append(i))
    optimizer.step()
    assert calls == [0, 1, 2, "all"]


def test_defaults_are_what_all_members_have() -> None:
    model = network()
    assert set(Optimizers(*parts(model)).defaults) >= {"lr", "weight_decay"}
    assert "momentum" not in Optimizers(*parts(model)).defaults
    layers = [list(layer.parameters()) for layer in model.children()]
    optimizer = Optimizers(
        torch.optim.SGD(layers[0], lr=0.1, momentum=0.9), RMSpropTF(layers[1], momentum=0.9)
    )
    OneCycleLR(optimizer, max_lr=1.0, total_steps=4)
    assert [group["momentum"] for group in optimizer.param_groups] == [0.95, 0.95]


def test_nested() -> None:
    model = network()
    twin = copy.deepcopy(model)
    first, second, third = parts(model)
    nested, flat = Optimizers(first, Optimizers(second, third)), Optimizers(*parts(twin))
    for seed in range(3):
        for net, optimizer in ((model, nested), (twin, flat)):
            optimizer.zero_grad()
            backward(net, seed)
            optimizer.step()
        nested.load_state_dict(nested.state_dict())
    assert_same(model, twin)


def test_a_fused_member_under_a_scaler() -> None:
    model = network()
    twin = copy.deepcopy(model)

    def build(net: nn.Sequential) -> Optimizers:
        first, second, _ = parts(net)
        return Optimizers(first, second, torch.optim.Adam(net[2].parameters(), fused=True))

    optimizer, other = build(model), build(twin)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    x = torch.randn(8, 3)
    scaler.scale(model(x).square().mean()).backward()
    scaler.step(optimizer)
    twin(x).square().mean().backward()
    other.step()
    assert_same(model, twin)


def test_members_that_do_not_fit() -> None:
    model = network()
    first, second, _ = parts(model)
    with pytest.raises(ValueError, match="expected at least one optimizer"):
        Optimizers()
    with pytest.raises(TypeError, match="expected torch optimizers, got list as number 1"):
        Optimizers(first, [second])  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ValueError, match=r"of shape \(4, 4\) in numbers 1 and 2"):
        Optimizers(first, second, torch.optim.SGD(model[1].parameters(), lr=0.1))
    with pytest.raises(RuntimeError, match="added to a member"):
        Optimizers(first).add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def test_states_that_do_not_fit() -> None:
    first, second, third = parts(network())
    optimizer = Optimizers(first, second)
    with pytest.raises(ValueError, match="the state of 2 optimizers, got that of 3"):
        optimizer.load_state_dict(Optimizers(first, second, third).state_dict())
    with pytest.raises(ValueError, match=r"keys \['param_groups', 'state'\]"):
        optimizer.load_state_dict(first.state_dict())
    with pytest.raises(ValueError, match="the state of number 0, RMSpropTF, does not fit"):
        optimizer.load_state_dict(Optimizers(second, first).state_dict())


def test_a_state_is_loaded_as_a_whole_or_not_at_all() -> None:
    model = network()
    optimizer = Optimizers(*parts(model))
    backward(model, 1)
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    state["optimizers"][0]["param_groups"][0]["lr"] = 0.5
    state["optimizers"][1]["param_groups"].pop()
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="the state of number 1, AdagradTF, does not fit"):
        optimizer.load_state_dict(state)
    torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)
    state["optimizers"][1] = {}
    with pytest.raises(ValueError, match=r"number 1, AdagradTF, does not fit: .*param_groups"):
        optimizer.load_state_dict(state)
    torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)


def test_what_is_written_to_the_state_is_the_members() -> None:
    model = network()
    members = parts(model)
    optimizer = Optimizers(*members)
    backward(model, 0)
    optimizer.step()
    p = next(model.parameters())
    assert optimizer.state[p] is members[0].state[p]
    optimizer.state[p] = {"mine": 1}
    assert members[0].state[p] == {"mine": 1}
    assert optimizer.state.pop(p) == {"mine": 1}
    assert p not in members[0].state
    assert p not in optimizer.state
    # as in torch, one that has none gets an empty one
    assert optimizer.state[p] == {}
    assert len(optimizer.state) == 6
    optimizer.state.clear()
    assert not any(member.state for member in members)
    with pytest.raises(KeyError):
        optimizer.state[torch.zeros(1)]
