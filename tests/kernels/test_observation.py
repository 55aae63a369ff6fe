import threading

import pytest
import torch
from torch import Tensor

import cayley
from cayley.kernels.observation import Run, is_observed, observed, tell_observer
from cayley.recurrences import elman, gru, lstm


def run_elman(x: Tensor) -> Tensor:
    return elman(x[..., :4], torch.zeros(2, 4), torch.eye(4))


def run_gru(x: Tensor) -> Tensor:
    return gru(x[..., :12], torch.zeros(2, 4), torch.ones(12, 4))


def run_lstm(x: Tensor) -> Tensor:
    return lstm(x, torch.zeros(2, 4), torch.zeros(2, 4), torch.ones(16, 4)).h


@pytest.mark.parametrize("run", [run_elman, run_gru, run_lstm])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_every_recurrence_tells_of_its_runs(run, backend: str) -> None:  # noqa: ANN001
    seen: list[Run] = []
    x = torch.randn(5, 2, 16, requires_grad=True)
    with cayley.backend(backend), observed(seen.append):
        h = run(x)
    (one,) = seen
    assert one.states.h is h
    assert one.backend == backend
    # the same operator computes the same again
    torch.testing.assert_close(one.operator(one.call).h, h)
    run(x)
    assert len(seen) == 1


def test_observers_are_those_of_their_thread_and_nest() -> None:
    outer: list[Run] = []
    inner: list[Run] = []
    x = torch.randn(5, 2, 16)
    with observed(outer.append):
        thread = threading.Thread(target=run_elman, args=(x,))
        thread.start()
        thread.join()
        with observed(inner.append):
            run_elman(x)
        assert is_observed()
    assert not is_observed()
    assert (len(outer), len(inner)) == (0, 1)


def test_an_observer_that_raises_leaves() -> None:
    with pytest.raises(ZeroDivisionError), observed(lambda run: 1 / 0):  # pyrefly: ignore
        run_elman(torch.randn(5, 2, 16))
    assert not is_observed()


def test_nobody_to_tell() -> None:
    tell_observer(None)


def test_transforms_go_around_the_operator_and_say_so() -> None:
    with observed(lambda run: None), pytest.raises(RuntimeError, match="runs eagerly"):
        torch.func.grad(lambda x: run_elman(x).sum())(torch.randn(5, 2, 16))
