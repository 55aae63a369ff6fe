"""What holds for every optimizer of the package."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import cayley
from cayley.optim import AdagradTF, Optimizers, RMSpropTF, StiefelRMSprop, StiefelSGD

Groups = list[dict[str, Any]]


def plain(groups: Groups) -> Groups:
    """The groups without a key that only the Stiefel optimizers know."""
    return [{k: v for k, v in group.items() if k != "stiefel"} for group in groups]


ALL: dict[str, Callable[[Groups], Optimizer]] = {
    "rmsprop-tf": lambda groups: RMSpropTF(plain(groups), lr=1e-2),
    "rmsprop-tf-momentum": lambda groups: RMSpropTF(
        plain(groups), lr=1e-2, momentum=0.9, centered=True, weight_decay=1e-2
    ),
    "adagrad-tf": lambda groups: AdagradTF(plain(groups), lr=1e-2),
    "stiefel-sgd": lambda groups: StiefelSGD(groups, lr=1e-2),
    "stiefel-rmsprop": lambda groups: StiefelRMSprop(groups, lr=1e-2, weight_decay=1e-2),
    "optimizers": lambda groups: Optimizers(
        StiefelRMSprop(groups[:1], lr=1e-2), torch.optim.Adam(plain(groups[1:]), lr=1e-2)
    ),
}
# those that are one optimizer, with groups of their own
SINGLE = {name: make for name, make in ALL.items() if name != "optimizers"}

every = pytest.mark.parametrize("make", ALL.values(), ids=ALL)
single = pytest.mark.parametrize("make", SINGLE.values(), ids=SINGLE)


class Model(nn.Module):
    """A unitary matrix, an orthogonal one, real and complex numbers; the loss is smooth."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.linalg.qr(torch.randn(4, 4, dtype=torch.complex128)).Q)
        self.R = nn.Parameter(torch.linalg.qr(torch.randn(3, 3)).Q)
        self.x = nn.Parameter(torch.randn(5))
        self.z = nn.Parameter(torch.randn(2, 3, dtype=torch.complex128))
        self.targets = [torch.randn_like(p) for p in self.parameters()]

    def forward(self) -> Tensor:
        pairs = zip(self.parameters(), self.targets, strict=True)
        return torch.stack([(p - target).abs().square().sum() for p, target in pairs]).sum()

    def groups(self) -> Groups:
        return [
            {"params": [self.W, self.R], "lr": 1e-1, "stiefel": True},
            {"params": [self.x, self.z], "stiefel": False},
        ]


def train(model: Model, optimizer: Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model().backward()
        optimizer.step()


def values(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def assert_same(left: nn.Module, right: nn.Module) -> None:
    for p, q in zip(left.parameters(), right.parameters(), strict=True):
        assert torch.equal(p, q)


@every
def test_the_loss_falls(make: Callable[[Groups], Optimizer]) -> None:
    model = Model()
    start = model().item()
    train(model, make(model.groups()), 50)
    assert model() < start


@every
def test_resumes_bit_for_bit(make: Callable[[Groups], Optimizer]) -> None:
    model = Model()
    twin = copy.deepcopy(model)
    train(model, make(model.groups()), 8)

    first = make(twin.groups())
    train(twin, first, 4)
    file = io.BytesIO()
    torch.save({"model": twin.state_dict(), "optimizer": first.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    resumed = Model()
    resumed.targets = twin.targets
    second = make(resumed.groups())
    resumed.load_state_dict(saved["model"])
    second.load_state_dict(saved["optimizer"])
    train(resumed, second, 4)
    assert_same(resumed, model)


@every
def test_the_learning_rate_is_the_group_s(make: Callable[[Groups], Optimizer]) -> None:
    model = Model()
    optimizer = make(model.groups())
    for group in optimizer.param_groups:
        if group["params"][0] is model.W:
            assert group["lr"] == 1e-1
            group["lr"] = 0.0
    before = values(model)
    train(model, optimizer, 3)
    for (name, p), old in zip(model.named_parameters(), before, strict=True):
        assert torch.equal(p, old) == (name in "WR")


@every
def test_a_tensor_is_a_learning_rate_that_changes_in_place(
    make: Callable[[Groups], Optimizer],
) -> None:
    model = Model()
    twin = copy.deepcopy(model)
    optimizer = make(model.groups())
    other = make([{**group, "lr": torch.tensor(0.5)} for group in twin.groups()])
    for rate in (1e-2, 1e-3):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for group in other.param_groups:
            group["lr"].fill_(rate)
        train(model, optimizer, 2)
        train(twin, other, 2)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q)


@single
def test_a_tensor_that_is_no_learning_rate(make: Callable[[Groups], Optimizer]) -> None:
    for lr, message in (
        (torch.tensor(-1.0), "a finite lr of at least 0, got -1"),
        (torch.ones(2), r"lr as a float or a tensor \(\), got a tensor \(2,\)"),
    ):
        groups = [{**group, "lr": lr} for group in Model().groups()]
        with pytest.raises(ValueError, match=f"expected {message}"):
            make(groups)
        with pytest.raises(ValueError, match=f"expected {message}"):
            cayley.parameter_groups(Model(), lr=lr)


@every
def test_without_a_gradient_nothing_moves(make: Callable[[Groups], Optimizer]) -> None:
    model = Model()
    optimizer = make(model.groups())
    train(model, optimizer, 2)
    state = copy.deepcopy(optimizer.state_dict())
    before = values(model)
    optimizer.zero_grad()
    optimizer.step()
    for p, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, old)
    assert repr(optimizer.state_dict()) == repr(state)


@every
def test_closure(make: Callable[[Groups], Optimizer]) -> None:
    model = Model()
    twin = copy.deepcopy(model)
    train(twin, make(twin.groups()), 1)
    optimizer = make(model.groups())
    losses = []

    def closure() -> Any:
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        losses.append(model())
        losses[-1].backward()
        return losses[-1]

    assert optimizer.step(closure) is losses[0]
    assert len(losses) == 1
    assert_same(model, twin)
    assert optimizer.step() is None


@every
def test_schedulers(make: Callable[[Groups], Optimizer]) -> None:
    model = Model()
    optimizer = make(model.groups())
    start = [group["lr"] for group in optimizer.param_groups]
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    for _ in range(3):
        train(model, optimizer, 1)
        scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [lr / 8 for lr in start]
    torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1.0, total_steps=5, cycle_momentum="momentum" in optimizer.defaults
    )


@every
def test_grad_scaler(make: Callable[[Groups], Optimizer]) -> None:
    model = Model()
    # torch's scaler knows no complex gradients
    model.W.requires_grad_(False)
    model.z.requires_grad_(False)
    twin = copy.deepcopy(model)
    train(twin, make(twin.groups()), 1)
    optimizer = make(model.groups())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaler.scale(model()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert_same(model, twin)

    optimizer.zero_grad()
    (scaler.scale(model()) * torch.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    assert_same(model, twin)
    assert scaler.get_scale() == 2.0**9


@every
def test_hooks_run_once(make: Callable[[Groups], Optimizer]) -> None:
    model = Model()
    optimizer = make(model.groups())
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    train(model, optimizer, 1)
    assert calls == ["before", "after"]

    optimizer.register_state_dict_pre_hook(lambda _: calls.append("save"))
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "more": 1})
    optimizer.register_load_state_dict_pre_hook(
        lambda _, state: {k: v for k, v in state.items() if k != "more"}
    )
    optimizer.register_load_state_dict_post_hook(lambda _: calls.append("loaded"))
    state = optimizer.state_dict()
    assert state["more"] == 1
    optimizer.load_state_dict(state)
    assert calls[2:] == ["save", "loaded"]


@every
def test_deepcopy_and_pickle(make: Callable[[Groups], Optimizer]) -> None:
    model = Model()
    optimizer = make(model.groups())
    train(model, optimizer, 2)
    pairs = [copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer)))]
    train(model, optimizer, 2)
    for twin, twin_optimizer in pairs:
        train(twin, twin_optimizer, 2)
        assert_same(twin, model)


@every
def test_zero_grad(make: Callable[[Groups], Optimizer]) -> None:
    model = Model()
    optimizer = make(model.groups())
    model().backward()
    optimizer.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())


# torch's Adam refuses lazy conjugates
@single
def test_gradients_of_any_strides(make: Callable[[Groups], Optimizer]) -> None:
    model = Model()
    twin = copy.deepcopy(model)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        G = torch.randn_like(p)
        p.grad = G
        # the same numbers, transposed in memory, and a lazy conjugate where complex
        q.grad = G.mT.conj().contiguous().mT.conj() if G.dim() == 2 else G
    assert twin.z.grad is not None
    assert twin.z.grad.is_conj()
    make(model.groups()).step()
    make(twin.groups()).step()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q)


@single
def test_sparse_gradients_are_refused(make: Callable[[Groups], Optimizer]) -> None:
    weight = nn.Embedding(4, 4, sparse=True).weight
    optimizer = make([{"params": [weight], "stiefel": False}])
    nn.functional.embedding(torch.tensor([1]), weight, sparse=True).sum().backward()
    with pytest.raises(RuntimeError, match="expected a dense gradient"):
        optimizer.step()


@single
@pytest.mark.parametrize("name", ["lr", "weight_decay"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), [0.1], "0.1"])
def test_options_out_of_range(make: Callable[[Groups], Optimizer], name: str, value: Any) -> None:
    model = Model()
    groups = model.groups()
    optimizer = make(groups[:1])
    error = ValueError if isinstance(value, float) else TypeError
    with pytest.raises(error, match=f"expected .*{name}"):
        optimizer.add_param_group({**groups[1], name: value})
    assert len(optimizer.param_groups) == 1
    with pytest.raises(error, match=f"expected .*{name}"):
        make([{**groups[1], name: value}])


@single
def test_a_frozen_start_counts_for_nothing(make: Callable[[Groups], Optimizer]) -> None:
    """A parameter that gets its first gradient late starts as fresh as any other."""
    model = Model()
    twin = copy.deepcopy(model)
    optimizer = make(model.groups())
    for p in model.parameters():
        p.requires_grad_(p is model.x)
    train(model, optimizer, 3)
    for p in model.parameters():
        p.requires_grad_(p is not model.x)
    train(model, optimizer, 2)
    train(twin, make(twin.groups()), 2)
    for name in ("W", "R", "z"):
        assert torch.equal(model.get_parameter(name), twin.get_parameter(name))
