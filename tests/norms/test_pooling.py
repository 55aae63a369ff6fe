"""Processes that share their statistics train as one process with all examples."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from processes import call_in_processes, free_port
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from cayley import LSTM, AssortedTimeNorm
from cayley.norms import synchronize
from cayley.norms.pooling import Pool
from cayley.notices import forget_notices
from cayley.processes import gather, world_size

SIZES = (2, 3)
T, F = 7, 3
LAYERS = {
    "batch": lambda: LSTM(F, 4, num_layers=2, norm="batch", max_steps=5),
    "atn": lambda: LSTM(F, 4, norm="atn", window=3, over="batch", bidirectional=True),
    "outside": lambda: LSTM(F, 4, norm="batch", norm_cell=False, bias_inside=False),
    "module": lambda: AssortedTimeNorm(F, 3, over="batch"),
}


def layer_of(name: str) -> nn.Module:
    torch.manual_seed(1)
    layer = LAYERS[name]()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def batch() -> Tensor:
    x = torch.randn(T, sum(SIZES), F, generator=torch.Generator().manual_seed(2))
    # a mean that takes digits from statistics that do not mind it
    return x + 100


def train(layer: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Gradients of two passes, and what the layer then knows."""
    for _ in range(2):
        y = layer(x)
        y = y if isinstance(y, Tensor) else y[0]
        (y - 0.3).square().sum().backward()
    found = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
    return {**found, **dict(layer.named_buffers())}


def work(rank: int, port: str, folder: str) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    x = batch().split(SIZES, 1)[rank]
    results = {}
    for name in LAYERS:
        layer = layer_of(name)
        synchronize(layer)
        if isinstance(layer, LSTM):
            forget_notices()
            with pytest.warns(UserWarning, match="those of several processes"):
                layer(x)
            layer = layer_of(name)
            synchronize(layer)
        results[name] = train(layer, x)
    torch.save(results, Path(folder) / str(rank))

    assert world_size() == 2
    assert gather(torch.tensor(rank)).tolist() == [0, 1]
    assert Pool(x).total == sum(SIZES)
    with pytest.raises(ValueError, match=r"same number of steps in each, got \[7, 6\]"):
        Pool(x[: T - rank])
    layer = layer_of("batch")
    synchronize(layer)
    with pytest.raises(NotImplementedError, match="packed sequence"):
        layer(pack_padded_sequence(x, [T] * SIZES[rank]))
    # back to each its own, and none waits for another
    synchronize(layer, False)
    if rank == 0:
        layer(x)
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:a recurrence runs as a loop")
def test_processes_train_as_one_would(tmp_path: Path) -> None:
    port = free_port()
    call_in_processes(__file__, "work", *((rank, port, str(tmp_path)) for rank in range(2)))
    first, second = (torch.load(tmp_path / str(rank)) for rank in range(2))
    for name in LAYERS:
        for key, expected in train(layer_of(name), batch()).items():
            one, other = first[name][key], second[name][key]
            if key in dict(layer_of(name).named_buffers()):
                assert torch.equal(one, other), (name, key)
                found = one
            else:
                found = one + other
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11, msg=f"{name}, {key}")


def test_alone_there_is_nothing_to_pool() -> None:
    assert world_size() == 1
    x = torch.randn(4, 3, 2)
    m, v = x.mean(1, keepdim=True), x.var(1, correction=0, keepdim=True)
    torch.testing.assert_close(Pool(x).statistics(m, v), (m, v))
    layer = LSTM(2, 3, norm="batch")
    expected = layer(x)[0]
    synchronize(layer)
    assert torch.equal(layer(x)[0], expected)
