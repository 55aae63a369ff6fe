"""Where models of a run compute, and in which types; several processes: ``test_parallel``."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cayley.lab.errors import MachineError
from cayley.lab.processes import Processes
from cayley.lab.runs import Precision
from cayley.lab.runs.engine import Engine, cast, find_device
from cayley.lab.tasks import Graph

CPU = torch.device("cpu")
ALONE = Processes()
SECOND_OF_TWO = Processes(rank=5, count=6, local_rank=1, local_count=2)
TYPES = {
    "32-true": (torch.float32, torch.float32),
    "64-true": (torch.float64, torch.float64),
    "bf16-mixed": (torch.bfloat16, torch.float32),
}


@pytest.fixture(autouse=True)
def single_precision() -> None:
    torch.set_default_dtype(torch.float32)


def have_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("name", "gpus", "processes", "device"),
    [
        ("cpu", 2, ALONE, "cpu"),
        ("cpu", 2, SECOND_OF_TWO, "cpu"),
        ("auto", 0, ALONE, "cpu"),
        ("auto", 0, SECOND_OF_TWO, "cpu"),
        ("auto", 2, ALONE, "cuda:0"),
        ("auto", 2, SECOND_OF_TWO, "cuda:1"),
        ("cuda", 2, ALONE, "cuda:0"),
        ("cuda", 2, SECOND_OF_TWO, "cuda:1"),
        ("cuda:1", 2, ALONE, "cuda:1"),
    ],
)
def test_the_device(
    name: str, gpus: int, processes: Processes, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_gpus(monkeypatch, gpus)
    assert find_device(name, processes) == torch.device(device)


@pytest.mark.parametrize(
    ("name", "gpus", "processes", "reason"),
    [
        ("cuda", 0, ALONE, "the device cuda, got none that torch can use: choose --device cpu"),
        ("cuda:1", 0, ALONE, "the device cuda:1, got none"),
        ("cuda:2", 2, ALONE, "the device cuda:2, got 2 GPUs, the last of which is cuda:1"),
        ("cuda:1", 2, SECOND_OF_TWO, "each of 6 processes, got cuda:1: choose --device cuda"),
        ("cuda", 1, SECOND_OF_TWO, "each of 2 processes, got 1 GPU: choose fewer --devices"),
        ("auto", 1, SECOND_OF_TWO, "each of 2 processes, got 1 GPU: choose fewer --devices"),
    ],
)
def test_a_device_that_is_not_there(
    name: str, gpus: int, processes: Processes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_gpus(monkeypatch, gpus)
    with pytest.raises(MachineError, match=reason):
        find_device(name, processes)


class Echo(nn.Module):
    """Notes what it is given, and answers with a product and the state."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.given: tuple[Any, ...] = ()
        self.created: Tensor | None = None

    def forward(self, input: Graph, state: Any) -> tuple[Tensor, Any]:
        self.given = input, state
        self.created = torch.ones(1)
        return self.linear(input.x), state


@pytest.mark.parametrize("precision", TYPES)
def test_types_inside_and_outside(precision: Precision) -> None:
    model = Echo()
    module = Engine(CPU, precision, ALONE).setup_module(model)
    inside, outside = TYPES[precision]
    dtype = torch.float64 if precision == "64-true" else torch.float32
    assert {p.dtype for p in model.parameters()} == {dtype}
    graph, state = Graph(torch.ones(4, 3, dtype=dtype), torch.tensor([[0], [1]])), torch.ones(2)
    output, (after, nothing) = module(graph, (state.to(dtype), None))
    given, (before, _) = model.given
    assert isinstance(given, Graph)
    assert given.x.dtype == before.dtype == inside
    assert given.edge_index.dtype == torch.int64
    assert output.dtype == after.dtype == outside
    assert nothing is None
    # a tensor that a model creates has the type of its parameters
    assert model.created is not None
    assert model.created.dtype == dtype
    assert torch.get_default_dtype() == torch.float32
    # where autocast has multiplied in bfloat16
    rounded = output.bfloat16().to(outside)
    assert output.equal(rounded) == (precision == "bf16-mixed")


def test_the_default_type_comes_back_after_an_error() -> None:
    def fail() -> None:
        with Engine(CPU, "64-true", ALONE).autocast():
            assert torch.get_default_dtype() == torch.float64
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        fail()
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("precision", TYPES)
def test_the_model_keeps_its_names_and_its_mode(precision: Precision) -> None:
    """Checkpoints have the names, and an evaluation sets the mode of what it calls."""
    model = nn.Linear(3, 2)
    names = [*model.state_dict()]
    module = Engine(CPU, precision, ALONE).setup_module(model)
    assert [*model.state_dict()] == names
    module.eval()
    assert not model.training


def test_lists_and_dictionaries_are_cast() -> None:
    values = {"a": [torch.ones(1)], "b": (torch.ones(1, dtype=torch.complex64), "word")}
    found = cast(values, torch.float64)
    assert found["a"][0].dtype == torch.float64
    assert found["b"][0].dtype == torch.complex64
    assert found["b"][1] == "word"


@pytest.fixture
def connected() -> Iterator[None]:
    """A group of one process, which does for what is not exchanged."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("connected")
@pytest.mark.parametrize("precision", TYPES)
def test_several_processes_average_gradients(precision: Precision) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    module = Engine(CPU, precision, Processes(0, 2)).setup_module(model)
    (found,) = (one for one in module.modules() if isinstance(one, DistributedDataParallel))
    assert found.module is model
    assert found.find_unused_parameters
    # its name before torch 2.13
    assert not getattr(found, "forward_sync_buffers", found.broadcast_buffers)
    output = module(torch.randn(5, 3, dtype=next(model.parameters()).dtype))
    assert output.dtype == TYPES[precision][1]
    output.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_before_torch_2_13_an_option_has_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def parallel(
        module: nn.Module,
        device_ids: None = None,
        broadcast_buffers: bool = True,
        find_unused_parameters: bool = False,
    ) -> nn.Module:
        found.append((broadcast_buffers, find_unused_parameters))
        return module

    found: list[tuple[bool, bool]] = []
    monkeypatch.setattr("cayley.lab.runs.engine.DistributedDataParallel", parallel)
    Engine(CPU, "32-true", Processes(0, 2)).setup_module(nn.Linear(1, 1))
    assert found == [(False, True)]
