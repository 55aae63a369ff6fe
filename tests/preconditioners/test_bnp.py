"""The preconditioner in training loops."""

import copy
import io
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
import torch
from gradients import grad_of
from preconditioners.explicit import backward, gradients, preconditioned
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import cayley
from cayley.diagnostics import condition_numbers, gradient_norms
from cayley.preconditioners import BNP, presets

EPS = 0.05


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


def expected(model: nn.Sequential, x: Tensor) -> dict[str, Tensor]:
    """P Pᵀ of the gradients that the layers of a sequence have now, for a batch x."""
    result = {}
    for i, layer in enumerate(model):
        if isinstance(layer, nn.Linear):
            b, (W,) = preconditioned(layer.bias.grad, [grad_of(layer.weight)], [x.detach()], EPS)
            result |= {f"{i}.weight": W, f"{i}.bias": b}
        x = layer(x)
    return result


def assert_gradients(model: nn.Module, values: dict[str, Tensor]) -> None:
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, values[name], rtol=1e-11, atol=1e-12, msg=name)


def loss(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return model(x).square().sum()


def test_a_step_preconditions_every_layer() -> None:
    model, x = mlp(), torch.randn(12, 4) * 3 + 1
    bnp = BNP(model, eps=EPS)
    loss(model, x).backward()
    values = expected(model, x)
    bnp.step()
    assert_gradients(model, values)


def test_gradients_go_down_on_average_as_those_of_descent() -> None:
    """An ill-scaled regression that plain gradient descent cannot solve in as many steps."""
    x = torch.randn(200, 4) * torch.tensor([0.1, 1.0, 3.0, 10.0]) + torch.tensor([5.0, 0, -3, 20])
    y = (x - x.mean(0)) / x.std(0) @ torch.randn(4, 1) + 1
    errors = {}
    for method in ("plain", "bnp"):
        torch.manual_seed(1)
        model = nn.Linear(4, 1)
        best = float("inf")
        # the greatest step that gradient descent on either problem allows is below 1
        for lr in (1e-4, 1e-3, 1e-2, 0.1, 0.5) if method == "plain" else (0.5,):
            candidate = copy.deepcopy(model)
            optimizer = torch.optim.SGD(candidate.parameters(), lr=lr)
            if method == "bnp":
                BNP(candidate, eps=1e-6).attach(optimizer)
            for _ in range(30):
                optimizer.zero_grad()
                error = nn.functional.mse_loss(candidate(x), y)
                error.backward()
                optimizer.step()
            best = min(best, float(error.detach())) if error.isfinite() else best
        errors[method] = best
    assert errors["bnp"] < 1e-3 * errors["plain"]


# micro-batches


def test_accumulation_pools_statistics_and_equals_the_batch() -> None:
    model, x = mlp(), torch.randn(30, 4) + torch.arange(30)[:, None] / 10
    bnp = BNP(model, eps=EPS)
    for part in x.split([7, 3, 20]):
        loss(model, part).backward()
    values = expected(model, x)
    bnp.step()
    assert_gradients(model, values)


def test_static_input_buffers_may_be_overwritten_between_micro_batches() -> None:
    layer, parts = nn.GRU(3, 4), torch.randn(2, 5, 2, 3)
    bnp = BNP(layer, eps=EPS)
    for part in parts:
        loss(lambda x: layer(x)[0], part).backward()
    bnp.step()
    values = gradients(layer)
    layer.zero_grad()
    buffer = torch.empty_like(parts[0])
    for part in parts:
        buffer.copy_(part)
        loss(lambda x: layer(x)[0], buffer).backward()
    buffer.zero_()
    bnp.step()
    assert_gradients(layer, values)


# which passes count


def test_a_second_step_changes_nothing() -> None:
    model, x = mlp(), torch.randn(12, 4)
    bnp = BNP(model, eps=EPS)
    loss(model, x).backward()
    bnp.step()
    once = gradients(model)
    bnp.step()
    assert_gradients(model, once)


def test_a_step_without_gradients_is_nothing() -> None:
    model = mlp()
    bnp = BNP(model)
    bnp.step()
    model(torch.randn(3, 4))
    bnp.step()
    assert not gradients(model)


def test_only_passes_that_are_backpropagated_count() -> None:
    model, x = mlp(), torch.randn(12, 4)
    bnp = BNP(model, eps=EPS)
    teacher = copy.deepcopy(model)
    abandoned = model(torch.randn(20, 4) + 50)
    kept = loss(model, x)
    with torch.no_grad():
        model(torch.randn(20, 4) - 50)
    teacher(torch.randn(20, 4) + 30).sum().backward()
    kept.backward()
    values = expected(model, x)
    bnp.step()
    assert_gradients(model, values)
    assert abandoned.requires_grad


def test_several_forwards_before_one_backward() -> None:
    model, x = mlp(), torch.randn(12, 4)
    bnp = BNP(model, eps=EPS)
    total: Any = sum(loss(model, part) for part in x.split(3))
    total.backward()
    values = expected(model, x)
    bnp.step()
    assert_gradients(model, values)


def test_evaluation_mode_makes_no_difference() -> None:
    model, x = mlp().eval(), torch.randn(12, 4)
    bnp = BNP(model, eps=EPS)
    loss(model, x).backward()
    values = expected(model, x)
    bnp.step()
    assert_gradients(model, values)


def test_a_graph_that_is_used_twice_counts_once() -> None:
    model, x = mlp(), torch.randn(12, 4)
    bnp = BNP(model, eps=EPS)
    error = loss(model, x)
    error.backward(retain_graph=True)
    error.backward()
    loss(model, x[:3]).backward()
    values = expected(model, torch.cat((x, x[:3])))
    bnp.step()
    assert_gradients(model, values)


def test_two_losses_of_different_rows_count_all_rows() -> None:
    model, x = mlp(), torch.randn(12, 4)
    bnp = BNP(model, eps=EPS)
    output = model(x).square()
    output[:9].sum().backward(retain_graph=True)
    output[5:].sum().backward(retain_graph=True)
    output[:3].sum().backward()
    values = expected(model, x)
    bnp.step()
    assert_gradients(model, values)


def test_a_graph_that_is_used_again_after_a_step_counts_again() -> None:
    layer, x = nn.Linear(4, 2), torch.randn(12, 4)
    bnp = BNP(layer, eps=EPS)
    error = loss(layer, x)
    error.backward(retain_graph=True)
    bnp.step()
    first = gradients(layer)
    layer.zero_grad()
    error.backward()
    bnp.step()
    assert_gradients(layer, first)


def test_an_optimizer_step_without_bnp_leaves_nothing_behind() -> None:
    model, x = mlp(), torch.randn(12, 4)
    bnp = BNP(model, eps=EPS)
    for _ in range(3):
        loss(model, torch.randn(20, 4) + 40).backward()
        model.zero_grad()
    total: Any = sum(loss(model, part) for part in x.split(4))
    total.backward()
    values = expected(model, x)
    bnp.step()
    assert_gradients(model, values)


@pytest.mark.parametrize("again", [False, True])
def test_rows_of_gradients_that_were_set_to_zero_are_dropped(again: bool) -> None:
    """As the generator's step of a GAN leaves them in the discriminator."""
    model, x = mlp(), torch.randn(12, 4)
    bnp = BNP(model, eps=EPS)
    error = loss(model, x)
    loss(model, torch.randn(20, 4) + 40).backward()
    if again:
        # rows that have been dropped count when their graph is used again
        error.backward(retain_graph=True)
    model.zero_grad(set_to_none=False)
    error.backward()
    loss(model, x[:3]).backward()
    values = expected(model, torch.cat((x, x[:3])))
    bnp.step()
    assert_gradients(model, values)


@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.Conv1d(4, 4, 1), nn.GRU(4, 4)])
def test_an_input_that_is_changed_in_place_is_an_error(layer: nn.Module) -> None:
    """Where autograd keeps a copy: under autocast."""
    model = copy.deepcopy(layer).float()
    bnp = BNP(model)

    def run(change: bool) -> Tensor:
        h = torch.randn(4, 4, dtype=torch.float32).exp()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(h)
        if change:
            h += 1
        return (y[0] if isinstance(y, tuple) else y).square().sum()

    error = run(change=True)
    name = type(model).__name__
    with pytest.raises(RuntimeError, match=f"got one of {name} that was changed in place"):
        error.backward()
    for p in model.parameters():
        p.grad = None
    run(change=False).backward()
    bnp.step()


def test_the_input_of_a_frozen_weight_may_change() -> None:
    layer = nn.Linear(3, 2)
    layer.weight.requires_grad_(False)
    bnp, x = BNP(layer), torch.randn(5, 3)
    y = layer(x)
    x += 1
    y.sum().backward()
    bnp.step()
    torch.testing.assert_close(grad_of(layer.bias), torch.full((2,), 5.0))


def test_without_an_average_yet_a_gradient_that_is_not_finite_is_not_scaled() -> None:
    layer = nn.Linear(3, 2)
    bnp = BNP(layer, momentum=0.9)
    layer(torch.randn(5, 3)).square().sum().backward()
    grad_of(layer.weight)[0, 0] = float("nan")
    before = gradients(layer)
    bnp.step()
    after = gradients(layer)
    torch.testing.assert_close(after["weight"], before["weight"], rtol=0, atol=0, equal_nan=True)
    # the bias of the same output may be NaN, too
    torch.testing.assert_close(after["bias"][1:], before["bias"][1:], rtol=0, atol=0)


def test_gradient_penalties_differentiate_through_a_preconditioned_model() -> None:
    model, x = mlp(), torch.randn(12, 4, requires_grad=True)
    bnp = BNP(model, eps=EPS)
    (g,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    g.square().sum().backward()
    before = gradients(model)
    bnp.step()
    after = gradients(model)
    assert sum((before[name] * after[name]).sum() for name in after) > 0


def test_set_to_none_or_zero_and_unused_branches() -> None:
    model, x = mlp(), torch.randn(12, 4)
    branch = nn.Linear(3, 3)
    both = nn.ModuleList((model, branch))
    bnp = BNP(both, eps=EPS)
    for set_to_none in (True, False, False, True):
        both.zero_grad(set_to_none)
        loss(model, x).backward()
        values = expected(model, x)
        bnp.step()
        assert_gradients(model, values)
        assert branch.weight.grad is None
    assert "not reached" in bnp.report()["1.weight"]


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_frozen_parameter_keeps_its_gradient_of_zero(frozen: str) -> None:
    layer, x = nn.Linear(3, 2), torch.randn(8, 3) + 3
    bnp = BNP(layer, eps=EPS)
    loss(layer, x).backward()
    bnp.step()
    # the gradient stays, and would be taken for that of a trained parameter
    layer.zero_grad(set_to_none=False)
    layer.get_parameter(frozen).requires_grad_(False)
    loss(layer, x).backward()
    values = gradients(layer)
    if frozen == "bias":
        values["weight"] = values["weight"] / (x.square().mean(0) + EPS)
    bnp.step()
    assert not grad_of(layer.get_parameter(frozen)).any()
    assert_gradients(layer, values)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("kind", ["mlp", "gru", "scornn"])
def test_activation_checkpointing(kind: str, use_reentrant: bool) -> None:
    model = {"mlp": mlp, "gru": lambda: nn.GRU(4, 6), "scornn": lambda: cayley.ScoRNN(4, 6)}[kind]()
    x = torch.randn(9, 5, 4, requires_grad=True)

    def run(x: Tensor) -> Tensor:
        output = model(x)
        return output if kind == "mlp" else output[0]

    bnp = BNP(model, eps=EPS, momentum=0.5)
    run(x).square().sum().backward()
    bnp.step()
    values, state = gradients(model), bnp.state_dict()
    model.zero_grad()
    bnp.remove()
    bnp = BNP(model, eps=EPS, momentum=0.5)
    checkpoint(run, x, use_reentrant=use_reentrant).square().sum().backward()
    bnp.step()
    assert_gradients(model, values)
    torch.testing.assert_close(bnp.state_dict(), state)


def test_the_graph_is_freed() -> None:
    class Token:
        pass

    for model, x in ((mlp(), torch.randn(3, 4)), (nn.LSTM(4, 2), torch.randn(5, 3, 4))):
        bnp = BNP(model)
        for through in (True, False):
            token = Token()
            alive = weakref.ref(token)
            input = x.clone().requires_grad_()
            input.register_hook(lambda grad, token=token: None)
            output = model(input)
            output = output[0] if isinstance(output, tuple) else output
            if through:
                output.sum().backward()
            del token, input, output
            assert alive() is None, f"{type(model).__name__}, backward: {through}"
        bnp.step()


# modules


def test_a_cell_of_linear_layers_is_one_layer_over_all_steps() -> None:
    U, W = nn.Linear(3, 4), nn.Linear(4, 4, bias=False)
    cell = nn.ModuleList((U, W))
    x = torch.randn(150, 6, 3) + 1
    bnp = BNP(cell, eps=EPS)
    h, states = torch.zeros(6, 4), []
    for x_t in x:
        states.append(h)
        h = (U(x_t) + W(h)).tanh()
    h.square().sum().backward()
    before = gradients(cell)
    bnp.step()
    b, (new_U,) = preconditioned(before["0.bias"], [before["0.weight"]], [x.flatten(0, 1)], EPS)
    rows = torch.cat(states).detach()
    torch.testing.assert_close(U.weight.grad, new_U)
    torch.testing.assert_close(U.bias.grad, b)
    torch.testing.assert_close(W.weight.grad, before["1.weight"] / (rows.square().mean(0) + EPS))


def test_modules_that_share_all_parameters_are_one() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight, second.bias = first.weight, first.bias
    model, x = nn.Sequential(first, nn.Tanh(), second), torch.randn(10, 4)
    bnp = BNP(model, eps=EPS)
    loss(model, x).backward()
    before = gradients(first)
    bnp.step()
    rows = torch.cat((x, model[:2](x).detach()))
    b, (W,) = preconditioned(before["bias"], [before["weight"]], [rows], EPS)
    torch.testing.assert_close(first.weight.grad, W)
    torch.testing.assert_close(first.bias.grad, b)


def test_parameters_that_belong_to_others_too_are_left() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(7, 4)
            self.middle = nn.Linear(4, 4)
            self.decoder = nn.Linear(4, 7)
            self.decoder.weight = self.embedding.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.decoder(self.middle(self.embedding(x)).tanh())

    model = Tied()
    bnp = BNP(model)
    loss(model, torch.randint(7, (9,))).backward()
    before = gradients(model)
    bnp.step()
    after = gradients(model)
    assert {name for name in after if not torch.equal(after[name], before[name])} == {
        "middle.weight",
        "middle.bias",
    }
    assert "belongs to another module too" in bnp.report()["decoder.bias"]
    assert bnp.report()["embedding.weight"] == "no rule for Embedding"


def test_attention_is_reported_as_not_served() -> None:
    model = nn.TransformerEncoderLayer(8, 2, dim_feedforward=12, dropout=0.0)
    bnp = BNP(model)
    report = bnp.report()
    for name in ("self_attn.in_proj_weight", "self_attn.out_proj.weight"):
        assert "reads its weights without calling its modules" in report[name]
    assert report["linear1.weight"].startswith("Linear: [")
    assert report["norm1.weight"] == "no rule for LayerNorm"
    loss(model, torch.randn(5, 3, 8)).backward()
    weight = model.self_attn.out_proj.weight
    before = grad_of(weight).clone()
    bnp.step()
    assert torch.equal(grad_of(weight), before)


def test_a_weight_that_is_used_by_a_function_is_left_with_one_warning() -> None:
    model: Any = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(3, 2)})
    x = torch.randn(9, 4)
    bnp = BNP(model, eps=EPS)
    for _ in range(2):
        model.zero_grad()
        hidden = model["a"](x)
        nn.functional.linear(hidden, model["b"].weight).square().sum().backward()
        before = model["b"].weight.grad.clone()
        if _ == 0:
            with pytest.warns(UserWarning, match="b has a gradient, but no forward pass"):
                bnp.step()
        else:
            bnp.step()
        assert torch.equal(model["b"].weight.grad, before)


def test_functions_in_place_behind_a_layer() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 2))
    x = torch.randn(12, 4)
    bnp = BNP(model, eps=EPS)
    loss(model, x).backward()
    values = expected(model, x)
    bnp.step()
    assert_gradients(model, values)


def test_lazy_modules() -> None:
    model, x = nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.LazyLinear(2)), torch.randn(12, 4)
    bnp = BNP(model, eps=EPS)
    bnp.step()
    loss(model, x).backward()
    values = expected(model, x)
    bnp.step()
    assert_gradients(model, values)


def test_moved_and_cast_models() -> None:
    model, x = mlp(), torch.randn(12, 4)
    bnp = BNP(model, eps=EPS, momentum=0.9)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        model.to(dtype)
        model.zero_grad()
        loss(model, x.to(dtype)).backward()
        state = bnp.state_dict()["0"]["input"]
        bnp.step()
        assert {grad_of(p).dtype for p in model.parameters()} == {dtype}
        assert all(grad_of(p).isfinite().all() for p in model.parameters())
        # the averages go on, in a precision that is at least float32
        averages = bnp.state_dict()["0"]["input"]["averages"]
        assert averages.dtype == torch.promote_types(dtype, torch.float32)
        if state["weight"]:
            old = state["averages"] / state["weight"]
            new = averages / bnp.state_dict()["0"]["input"]["weight"]
            torch.testing.assert_close(new, old, rtol=0.05, atol=0.01)


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_a_model_made_on_the_meta_device(momentum: float | None) -> None:
    model, x = mlp(), torch.randn(12, 4)
    twin = copy.deepcopy(model).to("meta")
    pairs = [(one, BNP(one, eps=EPS, momentum=momentum)) for one in (model, twin)]
    for _, bnp in pairs:
        # averages without values, which become those at the start
        bnp.state_dict()
    twin.to_empty(device="cpu").load_state_dict(model.state_dict())
    for one, bnp in pairs:
        loss(one, x).backward()
        bnp.step()
    assert_gradients(twin, gradients(model))


def test_a_module_that_is_replaced_is_an_error() -> None:
    model = mlp()
    bnp = BNP(model)
    model[2] = nn.Linear(6, 5)
    with pytest.raises(RuntimeError, match="2 has been replaced by another module"):
        bnp.step()
    growing = nn.Sequential(nn.Linear(2, 2))
    bnp = BNP(growing)
    growing.append(nn.Linear(2, 2))
    assert bnp.report()["1.weight"] == "it came after BNP was made: make a new BNP"


def _symmetric(layer: nn.Module) -> None:
    class Symmetric(nn.Module):
        def forward(self, A: Tensor) -> Tensor:
            return A + A.mT

    nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())


def _pruned(layer: nn.Module) -> None:
    prune.l1_unstructured(layer, "weight", 0.5)


@pytest.mark.parametrize("change", [_symmetric, _pruned])
@pytest.mark.parametrize("after_backward", [False, True])
def test_a_weight_that_is_no_parameter_any_more_is_an_error(
    change: Callable[[nn.Module], None], after_backward: bool
) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(12, 4)
    bnp = BNP(model, eps=EPS)
    error = "weight of 1 is no parameter of it any more: .* make a new BNP"
    if after_backward:
        loss(model, x).backward()
        change(model[1])
        before = gradients(model)
        with pytest.raises(RuntimeError, match=error):
            bnp.step()
        torch.testing.assert_close(gradients(model), before)
    else:
        change(model[1])
        with pytest.raises(RuntimeError, match=error):
            loss(model, x).backward()
    with pytest.raises(RuntimeError, match=error):
        bnp.report()
    bnp.remove()
    model.zero_grad()
    bnp = BNP(model, eps=EPS)
    loss(model, x).backward()
    bnp.step()
    assert bnp.report()["0.weight"] == "Linear: [weight, bias]"


# copies


def test_copies_and_pickles_of_the_model_are_free_of_it() -> None:
    model, x = mlp(), torch.randn(12, 4)
    bnp = BNP(model, eps=EPS)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
    ]
    for other in copies:
        loss(other, torch.randn(30, 4) + 20).backward()
    loss(model, x).backward()
    values = expected(model, x)
    bnp.step()
    assert_gradients(model, values)
    for other in copies:
        other.zero_grad()
        bnp_of_copy = BNP(other, eps=EPS)
        loss(other, x).backward()
        bnp_of_copy.step()
        assert_gradients(other, values)
    for function in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="belongs to one model"):
            function(bnp)


def test_remove_takes_everything_off() -> None:
    model, x = mlp(), torch.randn(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    bnp = BNP(model).attach(optimizer)
    with pytest.raises(ValueError, match="already preconditioned by another BNP"):
        BNP(model)
    bnp.remove()
    assert all(not module._forward_hooks for module in model.modules())
    loss(model, x).backward()
    before = gradients(model)
    optimizer.step()
    assert_gradients(model, before)
    with pytest.raises(RuntimeError, match="after remove"):
        bnp.step()


# numbers that are no numbers


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so_and_spoils_no_average(bad: float) -> None:
    model: Any = mlp()
    x = torch.randn(12, 4)
    bnp = BNP(model, eps=EPS, momentum=0.9)
    loss(model, x).backward()
    bnp.step()
    state = bnp.state_dict()
    poisoned = x.clone()
    poisoned[3, 1] = bad
    model.zero_grad()
    loss(model, poisoned).backward()
    bnp.step()
    assert not model[0].weight.grad.isfinite().all()
    torch.testing.assert_close(bnp.state_dict()["0"], state["0"], rtol=0, atol=0)
    state = bnp.state_dict()
    # finite rows, but a gradient that overflowed
    model.zero_grad()
    loss(model, x).backward()
    model[2].weight.grad[0, 0] = bad
    bnp.step()
    assert not model[2].weight.grad.isfinite().all()
    torch.testing.assert_close(bnp.state_dict()["2"], state["2"], rtol=0, atol=0)
    assert not torch.equal(bnp.state_dict()["0"]["input"]["weight"], state["0"]["input"]["weight"])


def test_empty_batches_and_batches_of_one() -> None:
    model = mlp()
    bnp = BNP(model, eps=EPS)
    loss(model, torch.randn(0, 4)).backward()
    bnp.step()
    assert all(not grad_of(p).any() for p in model.parameters())
    model.zero_grad()
    x = torch.randn(1, 4)
    loss(model, x).backward()
    values = expected(model, x)
    bnp.step()
    assert_gradients(model, values)


# optimizers


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_attached_and_called_are_the_same(make: Callable[..., torch.optim.Optimizer]) -> None:
    start = mlp()
    results = []
    for attached in (True, False):
        model = copy.deepcopy(start)
        optimizer = make(model.parameters(), lr=0.01)
        bnp = BNP(model, eps=EPS)
        if attached:
            assert bnp.attach(optimizer) is bnp
        for seed in range(4):
            x = torch.randn(9, 4, generator=torch.Generator().manual_seed(seed))
            optimizer.zero_grad()
            loss(model, x).backward()
            if not attached:
                bnp.step()
            optimizer.step()
        results.append(model.state_dict())
    for name, value in results[0].items():
        torch.testing.assert_close(value, results[1][name])


def test_several_optimizers_as_one() -> None:
    model, x = mlp(), torch.randn(12, 4)
    optimizer = cayley.optim.Optimizers(
        torch.optim.SGD(model[0].parameters(), lr=0.0),
        torch.optim.Adam([*model[2].parameters(), *model[4].parameters()], lr=0.0),
    )
    BNP(model, eps=EPS).attach(optimizer)
    loss(model, x).backward()
    values = expected(model, x)
    optimizer.step()
    assert_gradients(model, values)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("attached", [False, True])
def test_a_closure_is_preconditioned(attached: bool, named: bool) -> None:
    """As Lightning trains: the gradients are computed inside of ``optimizer.step``."""
    model, x = mlp(), torch.randn(12, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    bnp = BNP(model, eps=EPS)

    def closure() -> Tensor:
        optimizer.zero_grad()
        error = loss(model, x)
        error.backward()
        values.update(expected(model, x))
        if not attached:
            bnp.step()
        return error

    values: dict[str, Tensor] = {}
    if attached:
        bnp.attach(optimizer)
    error: Any = optimizer.step(closure=closure) if named else optimizer.step(closure)
    assert_gradients(model, values)
    torch.testing.assert_close(error, loss(model, x))


def test_an_optimizer_around_another_passes_bnp_on() -> None:
    """As accelerate's: it is an ``Optimizer``, and has none of its fields but ``optimizer``."""

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer

        def step(self, closure: Any = None) -> Any:
            self.optimizer.step(closure)

    model, x = mlp(), torch.randn(12, 4)
    optimizer = Wrapper(torch.optim.SGD(model.parameters(), lr=0.0))
    BNP(model, eps=EPS).attach(optimizer)
    loss(model, x).backward()
    values = expected(model, x)
    optimizer.step()
    assert_gradients(model, values)


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    model: Any = mlp()
    with pytest.raises(ValueError, match=r"2\.weight is not a parameter of this SGD"):
        BNP(model).attach(torch.optim.SGD(model[0].parameters(), lr=0.1))
    # nobody holds that one, and the model is free
    bnp = BNP(model, eps=EPS)
    with pytest.raises(ValueError, match=r"2\.weight is not a parameter of this SGD"):
        bnp.attach(torch.optim.SGD(model[0].parameters(), lr=0.1))
    with pytest.raises(ValueError, match="already preconditioned by another BNP"):
        BNP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    bnp.attach(optimizer)
    loss(model, torch.randn(12, 4)).backward()
    before = gradients(model)
    optimizer.step()
    assert not torch.equal(model[0].weight.grad, before["0.weight"])


def test_a_bnp_that_is_gone_leaves_the_model_free() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    BNP(model)
    assert all(not module._forward_hooks for module in model.modules())
    BNP(model).attach(optimizer)
    with pytest.raises(ValueError, match="already preconditioned by another BNP"):
        BNP(model)
    del optimizer
    BNP(model)


@pytest.mark.parametrize("set_to_none", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("way", ["attached", "before unscale_", "after unscale_"])
def test_grad_scaler_with_an_overflow(way: str, fused: bool, set_to_none: bool) -> None:
    torch.set_default_dtype(torch.float32)
    model, x = mlp(), torch.randn(12, 4)
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10**6)
    bnp = BNP(model, eps=EPS, momentum=0.5)
    if way == "attached":
        bnp.attach(optimizer)

    def train(overflow: bool) -> None:
        optimizer.zero_grad(set_to_none)
        # a batch of its own, whose rows the next step must not see
        error = loss(model, x + 40) * float("inf") if overflow else loss(model, x)
        scaler.scale(error).backward()
        if way == "before unscale_":
            bnp.step()
        if way != "attached":
            scaler.unscale_(optimizer)
        if way == "after unscale_":
            bnp.step()
        scaler.step(optimizer)
        scaler.update()

    train(overflow=True)
    for p, before in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(p, before)
    train(overflow=False)
    train(overflow=False)

    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    other = BNP(reference, eps=EPS, momentum=0.5).attach(plain)
    for _ in range(2):
        plain.zero_grad()
        loss(reference, x).backward()
        plain.step()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(bnp.state_dict(), other.state_dict())


def test_clipping_before_or_after() -> None:
    model, x = mlp(), torch.randn(12, 4)
    bnp = BNP(model, eps=EPS)
    loss(model, x).backward()
    values = expected(model, x)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    bnp.step()
    assert_gradients(model, {name: g * (0.1 / (norm + 1e-6)) for name, g in values.items()})
    model.zero_grad()
    loss(model, x).backward()
    bnp.step()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    total = torch.stack([grad_of(p).square().sum() for p in model.parameters()]).sum().sqrt()
    assert 0.0999 < total <= 0.1


def test_autocast_reaches_neither_statistics_nor_step() -> None:
    torch.set_default_dtype(torch.float32)
    model, x = nn.Linear(4, 3), torch.randn(50, 4) + 30
    results = []
    for inside in (True, False):
        model.zero_grad()
        bnp = BNP(model, eps=EPS)
        with torch.autocast("cpu", torch.bfloat16):
            error = loss(model, x)
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            error.backward()
            bnp.step()
        bnp.remove()
        results.append(gradients(model))
    for name, g in results[0].items():
        assert torch.equal(g, results[1][name])


# torch's own, at the break of the graph that a hook is
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_models() -> None:
    model, x = mlp(), torch.randn(12, 4)
    compiled: Any = torch.compile(model, backend="eager")
    bnp = BNP(compiled, eps=EPS)
    assert list(bnp.report()) == [name for name, _ in model.named_parameters()]
    loss(compiled, x).backward()
    values = expected(model, x)
    bnp.step()
    assert_gradients(model, values)


@pytest.fixture
def hooks_unchecked() -> Iterator[None]:
    """As torch is set up, and without the code of other tests."""
    torch.compiler.reset()
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=True):
        yield
    torch.compiler.reset()


@pytest.mark.usefixtures("hooks_unchecked")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_run_of_the_same_classes_before() -> None:
    model, x = mlp(), torch.randn(12, 4)
    for run in (model, mlp()):
        loss(torch.compile(run, backend="eager"), x).backward()
    model.zero_grad()
    bnp = BNP(model, eps=EPS)
    loss(torch.compile(model, backend="eager"), x).backward()
    values = expected(model, x)
    bnp.step()
    assert_gradients(model, values)


@pytest.mark.usefixtures("hooks_unchecked")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_run_of_the_same_classes_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first use of torch.compile comes after BNP: one step is lost, and a warning says so."""
    model, x = mlp(), torch.randn(12, 4)
    with monkeypatch.context() as not_imported:
        not_imported.delitem(sys.modules, "torch._dynamo")
        bnp = BNP(model, eps=EPS)
    loss(torch.compile(mlp(), backend="eager"), x).backward()
    compiled = torch.compile(model, backend="eager")
    loss(compiled, x).backward()
    before = gradients(model)
    with pytest.warns(UserWarning, match="code is dropped now, and the next pass will be seen"):
        bnp.step()
    assert_gradients(model, before)
    model.zero_grad()
    loss(compiled, x).backward()
    values = expected(model, x)
    bnp.step()
    assert_gradients(model, values)


def test_a_gradient_of_the_input_does_not_enter_the_statistics() -> None:
    model, x = mlp(), torch.randn(12, 4)
    bnp = BNP(model, eps=EPS)
    loss(model, x).backward()
    values = expected(model, x)
    other = (5 + torch.randn(30, 4)).requires_grad_()
    torch.autograd.grad(loss(model, other), other)
    bnp.step()
    assert_gradients(model, values)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.filterwarnings("ignore:a recurrence runs as a loop")  # in double precision
@pytest.mark.parametrize("set_to_none", [False, True])
@pytest.mark.parametrize("kind", ["mlp", "conv", "lstm", "scornn"])
def test_on_the_gpu_as_on_the_cpu_without_waiting_for_it(kind: str, set_to_none: bool) -> None:
    model, x = {
        "mlp": (mlp(), torch.randn(300, 4)),
        "conv": (nn.Conv2d(3, 4, 3, groups=1), torch.randn(5, 3, 9, 9)),
        "lstm": (nn.LSTM(4, 6, bidirectional=True), torch.randn(7, 5, 4)),
        "scornn": (cayley.ScoRNN(4, 6), torch.randn(7, 5, 4)),
    }[kind]
    results = []
    for device in ("cpu", "cuda"):
        net = copy.deepcopy(model).to(device)
        bnp = BNP(net, eps=EPS, momentum=0.9)
        output = net(x.to(device))
        error = (output[0] if isinstance(output, tuple) else output).square().sum()
        error.backward()
        net.zero_grad(set_to_none)
        error = net(x.to(device))
        error = (error[0] if isinstance(error, tuple) else error).square().sum()
        torch.cuda.set_sync_debug_mode("error" if kind != "scornn" else "default")
        try:
            error.backward()
            bnp.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        results.append({name: g.cpu() for name, g in gradients(net).items()})
    for name, g in results[0].items():
        torch.testing.assert_close(results[1][name], g, rtol=1e-9, atol=1e-10)


# settings and state


def test_running_statistics_by_algorithm_3() -> None:
    layer = nn.Linear(6, 3)
    bnp = BNP(layer, **presets.POSPISIL_2023)
    mean, variance = torch.zeros(6), torch.ones(6)
    for _ in range(4):
        x = torch.randn(4, 6) * 2 + 1
        layer.zero_grad()
        backward(layer(x))
        G_w, G_b = grad_of(layer.weight).clone(), grad_of(layer.bias).clone()
        mean = 0.99 * mean + 0.01 * x.mean(0)
        variance = 0.99 * variance + 0.01 * x.var(0, correction=0)
        sigma2 = variance + 1e-2 * variance.max() + 1e-4
        q2 = 6 / 4
        G_w = (G_w - G_b[:, None] * mean) / sigma2 / q2
        G_b = G_b / q2 - G_w @ mean
        bnp.step()
        torch.testing.assert_close(layer.weight.grad, G_w, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(layer.bias.grad, G_b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("start", ["batch", "identity"])
def test_state_resumes_exactly(start: Literal["batch", "identity"]) -> None:
    batches = torch.randn(6, 9, 4)
    start_model = mlp()
    results = []
    for interrupted in (False, True):
        model = copy.deepcopy(start_model)
        bnp = BNP(model, eps=EPS, momentum=0.8, start=start)
        for i, x in enumerate(batches):
            if interrupted and i == 3:
                file = io.BytesIO()
                torch.save(bnp.state_dict(), file)
                file.seek(0)
                bnp.remove()
                bnp = BNP(model, eps=EPS, momentum=0.8, start=start)
                bnp.load_state_dict(torch.load(file))
            model.zero_grad()
            loss(model, x).backward()
            bnp.step()
        results.append(gradients(model))
    for name, g in results[0].items():
        assert torch.equal(g, results[1][name])


def test_a_state_that_does_not_fit_says_what_is_wrong() -> None:
    state = BNP(mlp(), momentum=0.9).state_dict()
    other = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(9, 5))
    with pytest.raises(ValueError, match=r"unexpected '4'.*'2', input: expected averages \(3, 9\)"):
        BNP(other, momentum=0.9).load_state_dict(state)
    with pytest.raises(ValueError, match="missing '0', input"):
        BNP(mlp(), momentum=0.9).load_state_dict(BNP(mlp()).state_dict())
    del state["2"]
    with pytest.raises(ValueError, match="missing '2'"):
        BNP(mlp(), momentum=0.9).load_state_dict(state)


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda state: state.update({"2": None}), "'2': expected statistics by site, got None"),
        (lambda state: state["2"].update(input=None), "'2', input: expected averages and weight,"),
        (lambda state: state["2"]["input"].pop("weight"), r"expected weight \(\), got None"),
        (
            lambda state: state["2"]["input"].pop("averages"),
            r"expected averages \(3, 6\), got None",
        ),
        (
            lambda state: state["2"]["input"].update(weight=torch.ones(1)),
            r"expected weight \(\), got \(1,\)",
        ),
        (
            lambda state: state["2"]["input"]["averages"].fill_(torch.nan),
            "expected finite averages",
        ),
    ],
)
def test_a_damaged_state_is_refused_as_a_whole(
    damage: Callable[[dict[str, Any]], Any], match: str
) -> None:
    model, x = mlp(), torch.randn(8, 4)
    bnp = BNP(model, momentum=0.9)
    loss(model, x).backward()
    bnp.step()
    state = bnp.state_dict()
    damage(state)
    other = BNP(mlp(), momentum=0.9)
    before = other.state_dict()
    with pytest.raises(ValueError, match=match):
        other.load_state_dict(state)
    for name, sites in other.state_dict().items():
        for site, after in sites.items():
            for key, value in after.items():
                assert torch.equal(value, before[name][site][key])


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"eps": 0.0}, ValueError, "positive eps"),
        ({"eps": -1.0}, ValueError, "eps of at least 0"),
        ({"eps": "0.1"}, TypeError, "eps as a float"),
        ({"eps": float("nan")}, ValueError, "eps"),
        ({"relative_eps": -0.1}, ValueError, "relative_eps"),
        ({"momentum": 1.0}, ValueError, "momentum"),
        ({"momentum": -0.1}, ValueError, "momentum"),
        ({"start": "zero"}, ValueError, "start"),
        ({"dtype": torch.float16}, ValueError, "dtype"),
        ({"include": [0]}, TypeError, "include as names or types of modules, got 0"),
        ({"exclude": 0}, TypeError, "exclude as names or types of modules, got 0"),
        ({"include": "7"}, ValueError, "'7' matches none of: 0, 1, 2, 3, 4"),
        ({"exclude": nn.Conv2d}, ValueError, "matches none"),
        ({"exclude": nn.Linear}, ValueError, "0.weight: excluded"),
    ],
)
def test_settings_that_make_no_sense(
    settings: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        BNP(mlp(), **settings)


def test_models_that_cannot_be_served() -> None:
    with pytest.raises(TypeError, match="expected an nn"):
        BNP([nn.Linear(2, 2)])  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ValueError, match="use DistributedDataParallel"):
        BNP(nn.DataParallel(nn.Linear(2, 2)))
    model = nn.Linear(2, 2)
    bnp = BNP(model)
    # what nn.DataParallel calls
    replica: Any = model._replicate_for_data_parallel()
    replica.weight, replica.bias = model.weight.detach(), model.bias.detach()
    with pytest.raises(ValueError, match="use DistributedDataParallel"):
        replica(torch.randn(3, 2))
    bnp.remove()
    with pytest.raises(ValueError, match="got none"):
        BNP(nn.Sequential(nn.LayerNorm(3)))
    with pytest.raises(ValueError, match="got none: ReLU has no parameters"):
        BNP(nn.ReLU())


def test_precision_on_request() -> None:
    torch.set_default_dtype(torch.float32)
    layer, x = nn.Linear(4, 3), torch.randn(12, 4)
    for dtype in (torch.float32, torch.float64):
        bnp = BNP(layer, momentum=0.9, dtype=dtype)
        loss(layer, x).backward()
        bnp.step()
        assert bnp.state_dict()[""]["input"]["averages"].dtype == dtype
        assert grad_of(layer.weight).dtype == torch.float32
        bnp.remove()


def penalty(model: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    return slope.square().mean()


@pytest.mark.parametrize("when", ["before", "between"])
def test_passes_while_it_is_paused_do_not_count(when: str) -> None:
    model, x, other = mlp(), torch.randn(9, 4), torch.randn(7, 4)
    bnp = BNP(model, eps=EPS)

    def look() -> None:
        with bnp.paused():
            penalty(model, other)
            torch.autograd.grad(penalty(model, other), [*model.parameters()], allow_unused=True)

    if when == "before":
        look()
    loss(model, x).backward()
    if when == "between":
        look()
    values = expected(model, x)
    bnp.step()
    assert_gradients(model, values)
    # and those after it do
    model.zero_grad()
    loss(model, x).backward()
    values = expected(model, x)
    bnp.step()
    assert_gradients(model, values)


def test_two_pauses_end_with_the_outer_one() -> None:
    model, x = mlp(), torch.randn(9, 4)
    bnp = BNP(model, eps=EPS)
    with bnp.paused():
        with bnp.paused():
            pass
        loss(model, x).backward()
        before = {name: grad_of(p).clone() for name, p in model.named_parameters()}
        with pytest.warns(UserWarning, match="no forward pass of it was seen"):
            bnp.step()
    assert_gradients(model, before)


def test_diagnostics_do_not_count() -> None:
    rnn = cayley.RNN(4, 5, nonlinearity="tanh")
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    x, other = torch.randn(9, 4), torch.randn(7, 4)
    bnp = BNP(model, eps=EPS)
    condition_numbers(model, lambda: loss(model, other), "0")
    loss(model, x).backward()
    condition_numbers(model, lambda: loss(model, other), "2")
    values = expected(model, x)
    bnp.step()
    assert_gradients(model, values)
    both = nn.ModuleDict({"rnn": rnn})
    twin = copy.deepcopy(both)
    x, other = torch.randn(6, 3, 4), torch.randn(5, 2, 4)
    found = []
    for one, looks in ((both, True), (twin, False)):
        preconditioner = BNP(one, eps=EPS)
        layer = one["rnn"]
        layer(x)[0].square().sum().backward()
        if looks:
            gradient_norms(one, lambda layer=layer: layer(other)[0].square().sum())
        preconditioner.step()
        found.append([p.grad for p in one.parameters()])
    torch.testing.assert_close(*found)
