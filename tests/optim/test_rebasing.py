"""W, the loss and the course of the training through a change of D."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adadelta, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop, Rprop

import cayley
from cayley.optim import AdagradTF, Optimizers, RMSpropTF, attach_rebase, rebase_
from cayley.optim.rebasing import SQUARES
from cayley.parametrizations import ScaledCayley, StructuredMatrix

T, B, I, N = 6, 4, 3, 8  # noqa: E741

LAYERS: dict[str, Callable[[], cayley.RNN | cayley.NCGRU]] = {
    "ScoRNN": lambda: cayley.ScoRNN(I, N),
    "ENRNN": lambda: cayley.ENRNN(I, 5, 3),
    "NCGRU": lambda: cayley.NCGRU(I, N),
    "NCGRU-exact": lambda: cayley.NCGRU(I, N, order=None, orthogonal=("candidate",)),
    "RNN-neumann": lambda: cayley.RNN(I, N, recurrent="neumann", bidirectional=True),
}


def entries(model: nn.Module) -> list[Tensor]:
    return [p for name, p in model.named_parameters() if name.rpartition(".")[2].endswith("A")]


def scalings(model: nn.Module) -> list[Tensor]:
    return [D for name, D in model.named_buffers() if name.rpartition(".")[2] == "D"]


def grow(model: nn.Module, scale: float = 40.0) -> None:
    with torch.no_grad():
        for A in entries(model):
            A.add_(scale * torch.randn_like(A))


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_w_and_loss_stay_and_gradients_are_finite(make: Callable, dtype: torch.dtype) -> None:
    layer = make().to(dtype)
    grow(layer)
    x = torch.randn(T, B, I, dtype=dtype)
    W, loss = layer.weight_hh_l0.detach(), layer(x)[0].square().mean().detach()
    found = rebase_(layer)
    assert found
    assert all(found.values())
    rtol, atol = (1e-9, 1e-10) if dtype == torch.float64 else (1e-4, 1e-5)
    torch.testing.assert_close(layer.weight_hh_l0.detach(), W, rtol=rtol, atol=atol)
    after = layer(x)[0].square().mean()
    torch.testing.assert_close(after.detach(), loss, rtol=rtol, atol=atol)
    assert all((A.abs() <= 1).all() for A in entries(layer))
    after.backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters() if p.grad is not None)
    assert not any(rebase_(layer).values()), "nothing is left to do"


def test_small_entries_are_left_alone() -> None:
    layer = cayley.ScoRNN(I, N)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    assert rebase_(layer) == {"weight_hh_l0": torch.tensor(False)}
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name])
    with torch.no_grad():
        entries(layer)[0].fill_(torch.nan)
    assert not any(rebase_(layer).values())


def matrix_of(n: int = 6) -> StructuredMatrix:
    matrix = StructuredMatrix(ScaledCayley(n, negative_ones=0))
    grow(matrix, 5.0)
    return matrix


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda p: Adam(p, lr=1e-3, amsgrad=True), "exp_avg"),
        (lambda p: RMSprop(p, lr=1e-3, centered=True), "grad_avg"),
    ],
)
def test_averages_of_gradients_are_those_of_the_new_coordinates(make: Callable, key: str) -> None:
    matrix, target = matrix_of(), torch.randn(6, 6)
    optimizer = make(matrix.parameters())
    (matrix() * target).sum().backward()
    optimizer.step()
    # as if the average were the gradient of now
    (old,) = torch.autograd.grad((matrix() * target).sum(), matrix.free[0])
    optimizer.state[matrix.free[0]][key].copy_(old)
    assert rebase_(matrix, optimizer)[""]
    (new,) = torch.autograd.grad((matrix() * target).sum(), matrix.free[0])
    torch.testing.assert_close(optimizer.state[matrix.free[0]][key], new)
    squares = [v for k, v in optimizer.state[matrix.free[0]].items() if "sq" in k]
    assert all((v >= 0).all() and v.isfinite().all() for v in squares)


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda p: SGD(p, lr=1e-3, momentum=0.9), "momentum_buffer"),
        (lambda p: RMSprop(p, lr=1e-3, momentum=0.9), "momentum_buffer"),
        (lambda p: RMSpropTF(p, lr=1e-3, momentum=0.9), "velocity"),
    ],
)
def test_steps_move_w_as_before(make: Callable, key: str) -> None:
    matrix = matrix_of()
    optimizer = make(matrix.parameters())
    matrix().sum().backward()
    optimizer.step()

    def moved() -> Tensor:
        step = optimizer.state[matrix.free[0]][key]
        return torch.func.jvp(matrix.map.forward, (matrix.free[0].detach(),), (step,))[1]

    before = moved()
    rebase_(matrix, optimizer)
    torch.testing.assert_close(moved(), before)


def test_momentum_alone_moves_w_as_without_a_new_d() -> None:
    """By steps of SGD without a gradient, against differences of W."""
    torch.manual_seed(0)
    matrix = matrix_of()
    optimizer = SGD(matrix.parameters(), lr=1e-6, momentum=0.9)
    matrix().sum().backward()
    optimizer.step()
    twin = copy.deepcopy(matrix)
    other = SGD(twin.parameters(), lr=1e-6, momentum=0.9)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert rebase_(matrix, optimizer)[""]
    moved = []
    for one, own in ((matrix, optimizer), (twin, other)):
        before = one().detach()
        one.free[0].grad = torch.zeros_like(one.free[0])
        own.step()
        moved.append((one().detach() - before) / 1e-6)
    torch.testing.assert_close(*moved, rtol=1e-3, atol=1e-7)


STABLE: dict[str, Callable[..., Optimizer]] = {
    "SGD": lambda p: SGD(p, 0.01, momentum=0.9),
    "Nesterov": lambda p: SGD(p, 0.01, momentum=0.9, nesterov=True),
    "dampening": lambda p: SGD(p, 0.1, momentum=0.9, dampening=0.9),
    "Adam": lambda p: Adam(p, 0.3),
    "AMSGrad": lambda p: AdamW(p, 0.05, amsgrad=True),
    "NAdam": lambda p: NAdam(p, 0.05),
    "RMSprop": lambda p: RMSprop(p, 0.01, momentum=0.9),
    "RMSprop-centred": lambda p: RMSprop(p, 0.01, centered=True),
    "RMSpropTF": lambda p: RMSpropTF(p, 0.01, momentum=0.9, centered=True),
    "Adagrad": lambda p: Adagrad(p, 0.3),
    "AdagradTF": lambda p: AdagradTF(p, 0.3),
}


@pytest.mark.parametrize("make", STABLE.values(), ids=STABLE)
def test_carried_moments_stay_as_small_as_new_ones(make: Callable[..., Optimizer]) -> None:
    def train(moments: Any) -> float:
        torch.manual_seed(0)
        layer = cayley.ScoRNN(I, N, rebase=5)
        optimizer, (A,) = make([*layer.parameters()]), entries(layer)
        attach_rebase(layer, optimizer, moments=moments)
        largest = 0.0
        for _ in range(60):
            optimizer.zero_grad()
            (layer(torch.randn(T, B, I))[0][-1] * torch.randn(N)).sum().backward()
            optimizer.step()
            for key, value in optimizer.state[A].items():
                if isinstance(value, Tensor) and value.shape == A.shape:
                    size = value.abs().max().item()
                    largest = max(largest, size**0.5 if key in SQUARES else size)
        W = layer.weight_hh_l0.detach()
        torch.testing.assert_close(W @ W.mT, torch.eye(N))
        return largest

    assert train("carry") < 100 * train("reset")


@pytest.mark.parametrize(
    "make",
    [lambda p: RMSprop(p, centered=True), lambda p: RMSpropTF(p, 0.01, centered=True)],
)
def test_a_variance_stays_positive(make: Callable[..., Optimizer]) -> None:
    """Where gradients hardly vary, so that their mean square is hardly above their squared mean."""
    matrix = matrix_of()
    optimizer, A = make(matrix.parameters()), matrix.free[0]
    matrix().sum().backward()
    optimizer.step()
    state = optimizer.state[A]
    square, mean = ("square_avg", "grad_avg") if "grad_avg" in state else ("square", "mean")
    state[mean].copy_(torch.randn_like(A))
    state[square].copy_(1.01 * state[mean].square())
    assert rebase_(matrix, optimizer)[""]
    assert (state[square] > state[mean].square()).all()


def test_a_gradient_that_is_there_goes_over() -> None:
    matrix = matrix_of()
    matrix().sum().backward()
    rebase_(matrix)
    (expected,) = torch.autograd.grad(matrix().sum(), matrix.free[0])
    assert matrix.free[0].grad is not None
    torch.testing.assert_close(matrix.free[0].grad, expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: SGD(p, lr=1e-3, momentum=0.9),
        lambda p: Adam(p, lr=1e-3),
        lambda p: RMSpropTF(p, lr=1e-3),
        lambda p: Adagrad(p, lr=1e-3, initial_accumulator_value=0.5),
        lambda p: AdagradTF(p, lr=1e-3),
        lambda p: Optimizers(Adam(p, lr=1e-3)),
        lambda p: LBFGS([nn.Parameter(torch.zeros(1)), *p], lr=1e-3, max_iter=3),
    ],
)
def test_reset_is_a_new_beginning(make: Callable[..., Optimizer]) -> None:
    matrix = matrix_of()
    optimizer = make([*matrix.parameters()])

    def step(one: StructuredMatrix, own: Any) -> None:
        def closure() -> Tensor:
            own.zero_grad()
            loss = one().sum()
            loss.backward()
            return loss

        own.step(closure)

    for _ in range(3):
        step(matrix, optimizer)
    assert rebase_(matrix, optimizer, moments="reset")[""]
    twin = StructuredMatrix(ScaledCayley(6))
    twin.load_state_dict(matrix.state_dict())
    fresh = make([*twin.parameters()])
    for one, own in ((matrix, optimizer), (twin, fresh)):
        step(one, own)
    torch.testing.assert_close(matrix.free[0], twin.free[0])


def test_lbfgs_is_refused_at_once_unless_it_starts_again() -> None:
    matrix = matrix_of()
    optimizer, before = LBFGS(matrix.parameters()), matrix.free[0].detach().clone()
    for rebase in (attach_rebase, rebase_):
        with pytest.raises(ValueError, match='expected moments="reset" with LBFGS'):
            rebase(matrix, optimizer)
    torch.testing.assert_close(matrix.free[0].detach(), before, rtol=0, atol=0)
    assert rebase_(matrix, LBFGS([nn.Parameter(torch.zeros(1))]))[""]


def test_several_optimizers_carry_on() -> None:
    layer = cayley.NCGRU(I, N)
    grow(layer)
    recurrent = entries(layer)
    others = [p for p in layer.parameters() if all(p is not A for A in recurrent)]
    optimizer = Optimizers(Adam(recurrent, lr=1e-3), SGD(others, lr=1e-3, momentum=0.5))
    layer(torch.randn(T, B, I))[0].square().mean().backward()
    optimizer.step()
    kept = {
        id(p): {k: v.clone() for k, v in s.items() if isinstance(v, Tensor)}
        for p, s in optimizer.state.items()
    }
    found = rebase_(layer, optimizer)
    assert [*found] == ["weight_hh_l0.reset", "weight_hh_l0.candidate"]
    for A in recurrent:
        assert not torch.equal(optimizer.state[A]["exp_avg"], kept[id(A)]["exp_avg"])
        assert torch.equal(optimizer.state[A]["step"], kept[id(A)]["step"])
    for p in others:
        state = optimizer.state.get(p, {})
        if state.get("momentum_buffer") is not None:
            assert torch.equal(state["momentum_buffer"], kept[id(p)]["momentum_buffer"])


def test_auto_reaches_what_a_fixed_d_does_not() -> None:
    """The target −I has no Cayley transform with D = I: entries grow, and gradients vanish."""

    def train(rebase: bool) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        matrix = StructuredMatrix(ScaledCayley(4, negative_ones=0))
        optimizer = SGD(matrix.parameters(), lr=0.05, momentum=0.5)
        if rebase:
            attach_rebase(matrix, optimizer, 10)
        for _ in range(300):
            optimizer.zero_grad()
            loss = (matrix() + torch.eye(4)).square().sum()
            loss.backward()
            optimizer.step()
        return loss.detach(), matrix.free[0].detach().abs().max()

    fixed, grown = train(False)
    rebased, small = train(True)
    assert grown > 2
    assert small <= 1
    assert rebased < 1e-3 * fixed


def test_auto_looks_every_hundred_steps_and_at_the_start() -> None:
    matrix = matrix_of()
    optimizer = SGD(matrix.parameters(), lr=0.0)
    handle = attach_rebase(matrix, optimizer)
    assert matrix.free[0].abs().max() <= 1
    grow(matrix)
    matrix().sum().backward()
    for _ in range(99):
        optimizer.step()
    assert matrix.free[0].abs().max() > 1
    optimizer.step()
    assert matrix.free[0].abs().max() <= 1
    handle.remove()
    grow(matrix)
    for _ in range(200):
        optimizer.step()
    assert matrix.free[0].abs().max() > 1


def test_resumes_exactly() -> None:
    def made() -> tuple[StructuredMatrix, Optimizer]:
        torch.manual_seed(0)
        matrix = StructuredMatrix(ScaledCayley(4, negative_ones=0))
        optimizer = Adam(matrix.parameters(), lr=0.2)
        return matrix, optimizer

    def train(matrix: StructuredMatrix, optimizer: Optimizer, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            (matrix() + torch.eye(4)).square().sum().backward()
            optimizer.step()

    whole = made()
    attach_rebase(*whole, 7)
    train(*whole, 30)
    killed, resumed = made(), made()
    attach_rebase(*killed, 7)
    train(*killed, 12)
    for new, old in zip(resumed, killed, strict=True):
        new.load_state_dict(old.state_dict())
    attach_rebase(*resumed, 7)
    train(*resumed, 18)
    assert torch.equal(resumed[0].free[0], whole[0].free[0])
    assert (whole[0].get_buffer("map.D") < 0).any()


def test_a_checkpoint_holds_d() -> None:
    layer = cayley.ScoRNN(I, N)
    grow(layer)
    rebase_(layer)
    twin = cayley.ScoRNN(I, N)
    twin.load_state_dict(layer.state_dict())
    torch.testing.assert_close(twin.weight_hh_l0, layer.weight_hh_l0)


class Odd(Optimizer):
    """An optimizer that keeps something that nobody knows."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    # pyrefly: ignore[bad-override]
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["hunch"] = torch.ones_like(p)


def test_errors() -> None:
    for layer in (cayley.ScuRNN(I, N), cayley.LSTM(I, N), cayley.ScoRNN(I, N, bandwidth=2)):
        with pytest.raises(TypeError, match=r"ENRNN, NCGRU, ScoRNN.*ScuRNN trains its D"):
            rebase_(layer)
    matrix = matrix_of()
    with pytest.raises(ValueError, match="at least 1, which D can promise"):
        rebase_(matrix, limit=0.5)
    with pytest.raises(ValueError, match='"carry" or "reset"'):
        rebase_(matrix, moments="keep")  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ValueError, match='rebase="auto" or a number'):
        attach_rebase(matrix, SGD(matrix.parameters()), 1.5)  # pyrefly: ignore[bad-argument-type]
    other = nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match="not among the parameters of this SGD"):
        attach_rebase(matrix, SGD([other]))
    odd, before = Odd(matrix.parameters()), matrix.free[0].detach().clone()
    odd.step()
    with pytest.raises(ValueError, match=r"got 'hunch': use moments=\"reset\""):
        rebase_(matrix, odd)
    assert torch.equal(matrix.free[0], before)
    rebase_(matrix, odd, moments="reset")
    assert matrix.free[0].abs().max() <= 1


def test_an_optimizer_around_another_passes_it_on() -> None:
    """As accelerate's: it has no hooks, and none of an optimizer's fields but ``optimizer``."""

    class Wrapper(Optimizer):
        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer

    found = []
    for wrap in (lambda optimizer: optimizer, Wrapper):
        torch.manual_seed(0)
        matrix = matrix_of()
        optimizer = SGD(matrix.parameters(), lr=0.1)
        attach_rebase(matrix, wrap(optimizer), 2)
        for _ in range(4):
            optimizer.zero_grad()
            matrix()[0].sum().backward()
            optimizer.step()
        assert rebase_(matrix, wrap(optimizer)).keys()
        found.append(matrix.free[0].detach().clone())
    assert torch.equal(*found)


OPTIONS: dict[str, Callable[..., cayley.RNN | cayley.NCGRU]] = {
    "ScoRNN": partial(cayley.ScoRNN, I, N, negative_ones=1, init="circle"),
    "ENRNN": partial(cayley.ENRNN, I, 5, 3, negative_ones=2),
    "NCGRU": partial(cayley.NCGRU, I, N, negative_ones=2),
    "NCGRU-exact": partial(cayley.NCGRU, I, N, negative_ones=2, order=None),
    "ScoRNNCell": partial(cayley.ScoRNNCell, I, N, negative_ones=2, init="circle"),
}


@pytest.mark.parametrize("make", OPTIONS.values(), ids=OPTIONS)
def test_the_option_chooses_d_at_the_start(make: Callable) -> None:
    """For the W that the layer would have had without it."""
    torch.manual_seed(3)
    plain = make()
    torch.manual_seed(3)
    layer = make(rebase="auto")
    torch.testing.assert_close(layer.weight_hh_l0, plain.weight_hh_l0, rtol=0, atol=1e-12)
    assert all((A.abs() <= 1).all() for A in entries(layer))
    assert "rebase='auto'" in repr(layer)
    if "init" in repr(plain):
        assert any((A.abs() > 1).any() for A in entries(plain)), "something was to be done"


@pytest.mark.parametrize(
    "make",
    [partial(cayley.ENRNN, I, 5, 3), partial(cayley.NCGRU, I, N), partial(cayley.ScoRNN, I, N)],
)
def test_with_the_option_d_starts_as_the_identity(make: Callable) -> None:
    """Unless it is told otherwise, and nothing is to be done for the paper's A."""
    with_option, without = scalings(make(rebase="auto")), scalings(make())
    assert with_option
    assert all((D == 1).all() for D in with_option)
    assert all((D == -1).sum() == len(D) // 2 for D in without)


@pytest.mark.parametrize("make", OPTIONS.values(), ids=OPTIONS)
def test_the_option_says_what_an_optimizer_does(make: Callable) -> None:
    layer = make(rebase=3)
    optimizer = SGD(layer.parameters(), lr=0.0)
    attach_rebase(layer, optimizer)
    grow(layer)
    W, state = layer.weight_hh_l0.detach().clone(), copy.deepcopy(layer.state_dict())
    for _ in range(2):
        layer.weight_hh_l0.sum().backward()  # reading W changes nothing
        optimizer.step()
    assert all(torch.equal(value, state[name]) for name, value in layer.state_dict().items())
    optimizer.step()
    assert all((A.abs() <= 1).all() for A in entries(layer))
    torch.testing.assert_close(layer.weight_hh_l0.detach(), W, rtol=0, atol=1e-10)


def test_layers_without_the_option_are_left_alone_beside_those_with_it() -> None:
    model = nn.ModuleList([cayley.ScoRNN(I, N, rebase=2), cayley.ScoRNN(I, N)])
    optimizer = SGD(model.parameters(), lr=0.0)
    attach_rebase(model, optimizer)
    grow(model)
    for _ in range(2):
        optimizer.step()
    first, second = entries(model)
    assert (first.abs() <= 1).all()
    assert (second.abs() > 1).any()


def test_an_option_without_an_optimizer_warns_in_the_tenth_step() -> None:
    def train(layer: nn.Module, steps: int) -> None:
        for _ in range(steps):
            layer(torch.randn(2, 1, I))

    layer = cayley.NCGRU(I, N, rebase="auto")
    train(layer, 9)
    with pytest.warns(UserWarning, match=r"no effect on training.*attach_rebase\(model, optimizer"):
        train(layer, 1)
    train(layer, 95)

    attached = cayley.NCGRU(I, N, rebase="auto")
    optimizer = SGD(attached.parameters(), lr=0.0)
    handle = attach_rebase(attached, optimizer)
    train(attached, 10)
    twin = copy.deepcopy(attached)  # which the optimizer does not train
    handle.remove()
    for ended in (attached, twin):
        with pytest.warns(UserWarning, match="no effect on training"):
            train(ended, 90)


def test_errors_of_the_option() -> None:
    with pytest.raises(ValueError, match='expected rebase="auto" or a number of steps, got True'):
        cayley.ScoRNN(I, N, rebase=True)
    with pytest.raises(ValueError, match="expected rebase to be at least 1, got 0"):
        cayley.ScoRNN(I, N, rebase=0)
    with pytest.raises(ValueError, match="expected bandwidth=None with rebase='auto', got 2"):
        cayley.ScoRNN(I, N, bandwidth=2, rebase="auto")
    with pytest.raises(ValueError, match="expected rebase=None without a W_L"):
        cayley.ENRNN(I, 0, 3, rebase="auto")
    with pytest.raises(ValueError, match="expected rebase=None where no matrix is orthogonal"):
        cayley.NCGRU(I, N, orthogonal=(), rebase="auto")


def test_an_optimizer_of_several_models_counts_its_steps_once() -> None:
    models = [cayley.ScoRNN(I, N) for _ in range(3)]
    for model in models[:2]:
        grow(model, 20.0)
    optimizer = SGD([p for model in models for p in model.parameters()], lr=0.0)
    handles = [attach_rebase(model, optimizer, 2) for model in models]
    assert all((entries(model)[0].abs() <= 1).all() for model in models), "chosen at once, for each"
    for model in models:
        grow(model, 20.0)
    for step in (1, 2):
        optimizer.step()
        beyond = [bool((entries(model)[0].abs() > 1).any()) for model in models]
        assert beyond == [step == 1] * 3
    assert optimizer.param_groups[0]["rebase_steps"] == 2
    handles[0].remove()
    optimizer.step()
    assert optimizer.param_groups[0]["rebase_steps"] == 3


def test_a_state_from_before_is_counted_from_zero() -> None:
    model = cayley.ScoRNN(I, N)
    before = Adam(model.parameters()).state_dict()
    optimizer = Adam(model.parameters())
    attach_rebase(model, optimizer, 2)
    optimizer.load_state_dict(before)
    optimizer.step()
    assert optimizer.param_groups[0]["rebase_steps"] == 1


def test_weights_of_any_module_are_rebased() -> None:
    layer: Any = cayley.orthogonal_(nn.Linear(N, N), map=partial(ScaledCayley, rebase=1))
    optimizer = Adam(cayley.parameter_groups(layer, lr=1e-3))
    attach_rebase(layer, optimizer)
    A = layer.parametrizations.weight.original
    with torch.no_grad():
        A.mul_(20)
    before = layer.weight.detach().clone()
    layer(torch.randn(2, N)).sum().backward()
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    assert (A.abs() <= 1).all()
    torch.testing.assert_close(layer.weight.detach(), before, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("make", "key"), [(Adadelta, "acc_delta"), (Rprop, "prev")])
def test_a_state_that_cannot_be_carried_is_refused_in_the_first_step(
    make: Callable[..., Optimizer], key: str
) -> None:
    layer = cayley.ScoRNN(I, N)
    optimizer = make(layer.parameters())
    handle = attach_rebase(layer, optimizer)
    layer(torch.randn(T, B, I))[0].sum().backward()
    with pytest.raises(ValueError, match=f"got '{key}'"):
        optimizer.step()
    handle.remove()
    attach_rebase(layer, optimizer, moments="reset")
    optimizer.step()


@pytest.mark.parametrize("count", [1, 2, 6])
def test_infinite_entries_stay_what_they_are(count: int) -> None:
    """As non-finite entries give a W that is not finite either."""
    layer = cayley.ScoRNN(I, N)
    (A,) = entries(layer)
    with torch.no_grad():
        A[:count] = torch.inf
    before = A.clone()
    assert not any(rebase_(layer).values())
    assert torch.equal(A, before)
    assert layer.weight_hh_l0.isnan().any()
