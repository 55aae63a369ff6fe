import pytest
import torch
from torch import Tensor, nn

import cayley
from cayley.diagnostics.gradients import gradient_norms
from cayley.diagnostics.orthogonality import orthogonality_errors
from cayley.diagnostics.recorder import DIAGNOSTICS, Recorder
from cayley.diagnostics.states import hidden_statistics
from cayley.kernels.observation import is_observed

T, B, I, N = 6, 4, 3, 8  # noqa: E741


def train(model: nn.ModuleDict, recorder: Recorder | None, steps: int = 5) -> list[Tensor]:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        x = torch.randn(T, B, I)
        if recorder is None:
            step(model, optimizer, x)
        else:
            with recorder.step():
                step(model, optimizer, x)
    return [p.detach().clone() for p in model.parameters()]


def step(model: nn.ModuleDict, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    model["head"](model["rnn"](x)[0]).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def make(rnn: nn.Module) -> nn.ModuleDict:
    torch.manual_seed(1)
    for parameter in rnn.parameters(recurse=False):
        nn.init.normal_(parameter, std=0.3)
    return nn.ModuleDict({"rnn": rnn, "head": nn.Linear(N, 1)})


def test_records_all_there_is_and_changes_nothing() -> None:
    plain, watched = make(cayley.ENRNN(I, 5, 3)), make(cayley.ENRNN(I, 5, 3))
    watched.load_state_dict(plain.state_dict())
    recorder = Recorder(watched, DIAGNOSTICS, every=2)
    for p, q in zip(train(plain, None), train(watched, recorder), strict=True):
        assert torch.equal(p, q)
    records = recorder.records()
    shapes = {name: tuple(record.values.shape) for name, record in records.items()}
    assert shapes["orthogonality/rnn.weight_hh_l0.long"] == (3,)
    assert shapes["spectrum/rnn.weight_hh_l0.short.eigenvalues"] == (3, 3)
    assert shapes["spectrum/rnn.weight_hh_l0.long.singular_values"] == (3, 5)
    assert shapes["angles/rnn.weight_hh_l0.long"] == (3, 5)
    assert shapes["normalisation/rnn.weight_hh_l0.radius"] == (3,)
    assert shapes["normalisation/rnn.weight_hh_l0.events"] == (3, 8)
    assert shapes["gradient_norms/rnn.l0"] == (3, T + 1)
    assert shapes["states/rnn.l0.h.norm"] == (3, T)
    assert shapes["nonfinite/head.weight"] == (3,)
    assert all(record.steps.tolist() == [0, 2, 4] for record in records.values())
    assert recorder.first_nonfinite() is None
    final = orthogonality_errors(watched)["rnn.weight_hh_l0.long"]
    torch.testing.assert_close(records["orthogonality/rnn.weight_hh_l0.long"].values[-1], final)


def test_numbers_are_those_of_the_functions() -> None:
    model = make(cayley.ScoRNN(I, N))
    x = torch.randn(T, B, I)

    def loss() -> Tensor:
        return model["head"](model["rnn"](x)[0]).square().mean()

    recorder = Recorder(model, ["gradient_norms", "states"], at=[0])
    with recorder.step():
        loss().backward()
    records = recorder.records()
    expected = gradient_norms(model, loss)["rnn.l0"].mean(1)
    torch.testing.assert_close(records["gradient_norms/rnn.l0"].values[0], expected)
    states = hidden_statistics(model, loss)["rnn.l0.h"]
    torch.testing.assert_close(
        records["states/rnn.l0.h.variance"].values[0], states.variance.mean(1)
    )


def test_nothing_is_attached_when_off() -> None:
    model = make(cayley.ScoRNN(I, N))
    recorder = Recorder(model, ["gradient_norms", "states"], at=[1])
    for on in (False, True, False):
        assert recorder.is_on == on
        with recorder.step():
            hooks = [
                *model["rnn"]._forward_hooks.values(),
                *model["rnn"]._forward_pre_hooks.values(),
            ]
            assert bool(hooks) == on
            assert not is_observed()
            model["head"](model["rnn"](torch.randn(T, B, I))[0]).mean().backward()
    assert not model["rnn"]._forward_hooks
    assert recorder.records()["gradient_norms/rnn.l0"].steps.tolist() == [1]


def test_a_step_that_raises_is_not_recorded() -> None:
    model = make(cayley.ScoRNN(I, N))
    recorder = Recorder(model, ["gradient_norms"], every=1)
    with pytest.raises(RuntimeError, match="input_size"), recorder.step():
        model["rnn"](torch.randn(T, B, I + 1))
    assert not model["rnn"]._forward_hooks
    assert not is_observed()
    assert recorder.count == 0
    assert not recorder.records()


def test_a_step_without_a_run_is_said_once() -> None:
    recorder = Recorder(cayley.ScoRNN(I, N), ["gradient_norms"], every=1)
    said = pytest.warns(UserWarning, match="no run of a recurrent layer was seen in step 0")
    with said, recorder.step():
        pass
    with recorder.step():
        pass
    assert recorder.count == 2


def test_sequences_of_several_lengths_and_several_passes() -> None:
    layer = cayley.LSTM(I, N)
    recorder = Recorder(layer, ["gradient_norms"], every=1)
    for length in (3, 5):
        with recorder.step():
            _, state = layer(torch.randn(length, B, I))
            layer(torch.randn(2, B, I), state)[0].sum().backward()
    records = recorder.records()
    assert records["gradient_norms/l0:2"].values.shape == (2, 3)
    first = records["gradient_norms/l0"].values
    assert first.shape == (2, 6)
    assert first.isnan().sum(1).tolist() == [2, 0]


def test_functions_of_ones_own() -> None:
    layer = cayley.ScoRNN(I, N)
    recorder = Recorder(
        layer,
        {
            "orthogonality": None,
            "largest": lambda model: model.structured["weight_hh_l0"].A.abs().max(),
            "sizes": lambda model: {"U": model.weight_ih_l0.norm()},
        },
        every=1,
    )
    with recorder.step():
        pass
    assert [*recorder.records()] == ["orthogonality/weight_hh_l0", "largest", "sizes/U"]


def test_where_values_stop_being_finite() -> None:
    model = nn.Linear(1, 1, bias=False)
    recorder = Recorder(model, ["nonfinite"], every=1)
    for k in range(4):
        with recorder.step(), torch.no_grad():
            model.weight.fill_(torch.nan if k >= 2 else 1.0)
    assert recorder.first_nonfinite() == 2
    with pytest.raises(ValueError, match="nonfinite"):
        Recorder(cayley.LSTM(1, 1), ["spectrum"], every=1).first_nonfinite()


def test_resumes() -> None:
    model = make(cayley.ScoRNN(I, N))
    recorder = Recorder(model, ["orthogonality"], every=2)
    train(model, recorder, 3)
    other = Recorder(model, ["orthogonality"], every=2)
    other.load_state_dict(recorder.state_dict())
    train(model, other, 3)
    assert other.count == 6
    assert other.records()["orthogonality/rnn.weight_hh_l0"].steps.tolist() == [0, 2, 4]
    assert recorder.count == 3


def test_what_it_cannot_do_is_said_at_once() -> None:
    layer = cayley.LSTM(I, N)
    with pytest.raises(ValueError, match=r"diagnostics of \['orthogonality'.*got 'loss'"):
        Recorder(layer, ["loss"], every=1)
    with pytest.raises(TypeError, match="ScoRNN"):
        Recorder(layer, ["angles"], every=1)
    with pytest.raises(TypeError, match="ENRNN"):
        Recorder(layer, ["normalisation"], every=1)
    with pytest.raises(TypeError, match="load the state_dict"):
        Recorder(nn.LSTM(I, N), ["gradient_norms"], every=1)
    with pytest.raises(ValueError, match="every= or at="):
        Recorder(layer, ["spectrum"])
    with pytest.raises(ValueError, match="ints from 0"):
        Recorder(layer, ["spectrum"], at=[-1])


def test_steps_may_be_given_one_by_one() -> None:
    layer = cayley.ScoRNN(I, N)
    recorder = Recorder(layer, ["orthogonality"], at=(k * k for k in range(3)))
    for _ in range(5):
        with recorder.step():
            pass
    (record,) = recorder.records().values()
    assert record.steps.tolist() == [0, 1, 4]
    with pytest.raises(ValueError, match="every= or at="):
        Recorder(layer, ["orthogonality"], at=iter(()))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32, torch.complex64])
def test_own_values_of_several_sizes_are_padded_with_nan(dtype: torch.dtype) -> None:
    sizes = iter((2, 3))
    recorder = Recorder(
        nn.Linear(1, 1), {"mine": lambda _: torch.ones(next(sizes), dtype=dtype)}, every=1
    )
    for _ in range(2):
        with recorder.step():
            pass
    values = recorder.records()["mine"].values
    assert values.isnan().tolist() == [[False, False, True], [False] * 3]
    assert values.nan_to_num(1).eq(1).all()


def test_own_values_of_several_ranks_are_refused_at_once() -> None:
    shapes = iter(((2,), (2, 2)))
    recorder = Recorder(nn.Linear(1, 1), {"mine": lambda _: torch.ones(next(shapes))}, every=1)
    with recorder.step():
        pass
    with pytest.raises(ValueError, match=r"mine with 1 dimensions, .* got 2"), recorder.step():
        pass
