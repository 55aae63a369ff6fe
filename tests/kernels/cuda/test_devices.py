"""Tensors of every device have kernels of that device, laid out for its chip.

Tensors are fake here, so that devices need not be there, and kernels compute nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from emulator import H200, replacing
from torch import Tensor
from torch._subclasses import FakeTensor, FakeTensorMode

from cayley.kernels import memory
from cayley.kernels.calls import (
    ElmanCall,
    ElmanGradients,
    GruCall,
    GruGradients,
    LstmCall,
    LstmGradients,
    Site,
)
from cayley.kernels.cuda import cayley as small
from cayley.kernels.cuda import elman, gru
from cayley.kernels.cuda.lstm import recurrence as lstm
from cayley.kernels.cuda.lstm.references import references
from cayley.kernels.cuda.runtime import projection
from cayley.kernels.cuda.runtime.chip import Chip
from cayley.kernels.cuda.runtime.nvrtc import tensor_refusal

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="where there is a GPU, torch asks it for fake tensors too"
)

CHIPS = (H200, Chip(46, 101376, 1))  # different ones, the second without clusters
T, B = 3, 2


class Devices:
    """Those of :data:`CHIPS`, which say what was launched on them."""

    def __init__(self) -> None:
        self.current: int | None = None
        self.launched: list[tuple[str, int]] = []

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        before, self.current = self.current, device
        yield
        self.current = before

    def kernel(
        self,
        source: str,
        sizes: str,
        threads: int,
        blocks: int,
        memory: int,
        together: bool = False,
    ) -> Callable:
        """A kernel of the current device, which takes no tensors of others."""
        device = self.current
        assert device is not None, f"{source} was loaded where no device was current"
        chip = CHIPS[device]
        assert memory <= chip.memory
        assert blocks <= (chip.processors if together else chip.cluster)

        def launch(clusters: int, *arguments: object, networks: int = 1) -> None:
            for argument in arguments:
                tensor = getattr(argument, "whole", argument)
                assert not isinstance(tensor, Tensor) or tensor.device.index == device
            assert not together or clusters * networks * blocks <= chip.processors
            self.launched.append((source, device))

        launch.resident_clusters = lambda: 1  # pyrefly: ignore[missing-attribute]
        return launch


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[Devices]:
    devices = Devices()
    monkeypatch.setattr(FakeTensor, "data_ptr", lambda _: 0)
    values = {"Kernel": devices.kernel, "on": devices.on, "chip": CHIPS.__getitem__}
    # fake tensors stand for those of a GPU
    monkeypatch.setattr(memory, "is_wrapper", lambda _: False)
    with FakeTensorMode(), replacing(**values, tensor_refusal=lambda *_: None):
        yield devices


def empty_on(device: int) -> Callable[..., Tensor]:
    """Makes tensors there."""
    return lambda *shape: torch.empty(shape, device=f"cuda:{device}", dtype=torch.float32)


def run_elman(new: Callable[..., Tensor], H: int) -> None:
    call = ElmanCall(new(T, B, H), new(B, H), new(H, H), new(H), nonlinearity="modrelu")
    states = elman.elman(call)
    elman.elman_backward(ElmanGradients(call.x), states, call, ("x", "h0", "b"))


def run_gru(new: Callable[..., Tensor], H: int) -> None:
    U, c = new(3 * H, 2), new(3 * H)
    call = GruCall(new(T, B, 2), new(B, H), new(3 * H, H), new(H), U, c)
    states = gru.gru(call)
    gru.gru_backward(GruGradients(states.h), states, call, ("x", "h0", "W", "b", "U", "c"))


def run_lstm(new: Callable[..., Tensor], H: int) -> None:
    sites: list[Any] = [Site(new(F), new(F)) for F in (4 * H, 4 * H, H)]
    x, h0, c0, W, b = new(T, B, 2), new(B, H), new(B, H), new(4 * H, H), new(4 * H)
    call = LstmCall(x, h0, c0, W, b, *sites, U=new(4 * H, 2), window=2)
    contribution = new(T, B, 4 * H)
    states, references = lstm.contributed_lstm(call, contribution, derive=True)
    of_x, of_h, of_c = (
        site._replace(reference=reference)
        for site, reference in zip(sites, references, strict=True)
    )
    call = call._replace(input=of_x, recurrent=of_h, cell=of_c)
    needed = ("x", "h0", "c0", "W", "b", "U", "c")
    lstm.lstm_backward(LstmGradients(new(T, B, H)), states, call, needed, contribution)


def run_project(new: Callable[..., Tensor], H: int) -> None:
    projection.project_on_cuda(new(T, B, 2), new(H, 2), new(H))


def run_small(new: Callable[..., Tensor], H: int) -> None:
    x, D = new(H * (H - 1) // 2), new(H)
    W, X, _ = small.cayley(x, D, H - 1)
    small.cayley_backward(W, X, D, H - 1)


def run_references(new: Callable[..., Tensor], H: int) -> None:
    references(new(T, B, 4 * H), new(4 * H), B, None)


# of one block, of one block on the first device only, and of several
CASES = [(run, H) for run in (run_elman, run_gru, run_lstm) for H in (60, 140, 300, 600)]
CASES += [(run, 60) for run in (run_references, run_project, run_small)]


@pytest.mark.parametrize(("run", "H"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_each_device_has_its_kernels(devices: Devices, run: Callable, H: int) -> None:
    for turn in (0, 1, 1, 0):
        devices.launched.clear()
        run(empty_on(turn), H)
        assert {device for _, device in devices.launched} == {turn}


def test_no_device_is_left_current(devices: Devices) -> None:
    run_gru(empty_on(1), 60)
    assert devices.current is None


def test_tensors_of_two_devices_are_refused() -> None:
    with FakeTensorMode():
        one, other = empty_on(0)(3), empty_on(1)(3)
        with pytest.raises(ValueError, match="one device, got cuda:0 and cuda:1"):
            tensor_refusal(one, None, other)
