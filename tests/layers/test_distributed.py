"""Two processes with half a batch each compute what one computes with the whole."""

import socket
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from networks import NETWORKS
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import cayley

T, B, SIZE = 5, 4, 8


def batch() -> torch.Tensor:
    return torch.randn(T, B, 3, generator=torch.Generator().manual_seed(0))


def optimizer_of(name: str, layer: nn.Module) -> torch.optim.Optimizer:
    groups = cayley.parameter_groups(layer, lr=1e-2)
    return (cayley.optim.StiefelSGD if name == "FullURNN" else torch.optim.SGD)(groups)


def train(name: str, layer: nn.Module, model: nn.Module, x: torch.Tensor) -> None:
    optimizer = optimizer_of(name, layer)
    for _ in range(3):
        optimizer.zero_grad()
        model(x)[0].square().mean().backward()
        optimizer.step()


def work(rank: int, port: str, folder: str) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for name in NETWORKS:
        layer = NETWORKS[name](3, SIZE, num_layers=2)
        if rank == 0:
            layer.load_state_dict(torch.load(Path(folder) / f"{name}.start", weights_only=True))
        # the other process starts elsewhere: the model is that of process 0
        model = DistributedDataParallel(layer)
        train(name, layer, model, batch()[:, rank * 2 : rank * 2 + 2])
        torch.save(layer.state_dict(), Path(folder) / f"{name}.{rank}")
    dist.destroy_process_group()


def test_data_parallel_training_is_training_on_the_whole_batch(tmp_path: Path) -> None:
    expected = {}
    for name, make in NETWORKS.items():
        layer = make(3, SIZE, num_layers=2)
        torch.save(layer.state_dict(), tmp_path / f"{name}.start")
        train(name, layer, layer, batch())
        expected[name] = layer.state_dict()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[1] + '/..']\n"
        "from test_distributed import work\n"
        "work(int(sys.argv[2]), *sys.argv[3:])\n"
    )
    here = str(Path(__file__).parent)
    processes = [
        subprocess.Popen([sys.executable, "-c", script, here, str(rank), port, str(tmp_path)])
        for rank in range(2)
    ]
    assert [process.wait(timeout=240) for process in processes] == [0, 0]
    for name, state in expected.items():
        first, second = (
            torch.load(tmp_path / f"{name}.{rank}", weights_only=True) for rank in range(2)
        )
        for key, value in state.items():
            assert torch.equal(first[key], second[key]), f"{name}: {key}"
            torch.testing.assert_close(first[key], value, msg=lambda m, k=(name, key): f"{k}: {m}")
