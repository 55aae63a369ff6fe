"""Two processes with half a batch each compute what one computes with the whole.

Two processes can share a GPU, if they do not talk through NCCL.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import call_in_processes, free_port
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from variants import NETWORKS

import cayley

T, B, SIZE = 5, 4, 8
# on a GPU the precision of the kernels
DTYPES = {"cpu": torch.float64, "cuda": torch.float32}


def batch(device: str) -> torch.Tensor:
    x = torch.randn(T, B, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x.to(device, DTYPES[device])


def optimizer_of(name: str, layer: nn.Module) -> torch.optim.Optimizer:
    groups = cayley.parameter_groups(layer, lr=1e-2)
    return (cayley.optim.StiefelSGD if name == "FullURNN" else torch.optim.SGD)(groups)


def train(name: str, layer: nn.Module, model: nn.Module, x: torch.Tensor) -> None:
    optimizer = optimizer_of(name, layer)
    for _ in range(3):
        optimizer.zero_grad()
        model(x)[0].square().mean().backward()
        optimizer.step()


def work(rank: int, port: str, folder: str, device: str) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(DTYPES[device])
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for name in NETWORKS:
        layer = NETWORKS[name](3, SIZE, num_layers=2, device=device)
        if rank == 0:
            layer.load_state_dict(torch.load(Path(folder) / f"{name}.start", weights_only=True))
        # the other process starts elsewhere: the model is that of process 0
        model = DistributedDataParallel(layer)
        train(name, layer, model, batch(device)[:, rank * 2 : rank * 2 + 2])
        torch.save(layer.state_dict(), Path(folder) / f"{name}.{rank}")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:a recurrence runs as a loop")
@pytest.mark.parametrize("device", DTYPES)
def test_data_parallel_training_is_training_on_the_whole_batch(device: str, tmp_path: Path) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    expected = {}
    for name, make in NETWORKS.items():
        layer = make(3, SIZE, num_layers=2, device=device, dtype=DTYPES[device])
        torch.save(layer.state_dict(), tmp_path / f"{name}.start")
        train(name, layer, layer, batch(device))
        expected[name] = layer.state_dict()
    port = free_port()
    ranks = [(rank, port, str(tmp_path), device) for rank in range(2)]
    call_in_processes(__file__, "work", *ranks)
    for name, state in expected.items():
        first, second = (
            torch.load(tmp_path / f"{name}.{rank}", weights_only=True) for rank in range(2)
        )
        for key, value in state.items():
            assert torch.equal(first[key], second[key]), f"{name}: {key}"
            tolerance: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5} if device == "cuda" else {}
            torch.testing.assert_close(
                first[key], value, **tolerance, msg=lambda m, k=(name, key): f"{k}: {m}"
            )
