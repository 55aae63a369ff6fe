"""Two processes with unequal parts of a batch step as one with the whole."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from preconditioners.explicit import gradients, preconditioned
from processes import call_in_processes, free_port
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cayley.preconditioners import BNP

SIZES = (5, 11)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), nn.Unflatten(1, (1, 3)))


def batch() -> Tensor:
    x = torch.randn(sum(SIZES), 4, generator=torch.Generator().manual_seed(1))
    return x * torch.tensor([1.0, 5.0, 0.2, 1.0]) + torch.arange(sum(SIZES))[:, None]


def train(net: nn.Module, bnp: BNP, x: Tensor, scale: float, synced: Any) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    bnp.attach(optimizer)
    for _ in range(5):
        optimizer.zero_grad()
        parts = x.split(3)
        for i, part in enumerate(parts):
            if synced is not None and i < len(parts) - 1:
                with synced.no_sync():
                    (synced(part).tanh().square().sum() * scale).backward()
            else:
                ((synced or net)(part).tanh().square().sum() * scale).backward()
        optimizer.step()


def work(rank: int, port: str, folder: str) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    net = model()
    wrapped = DistributedDataParallel(net)
    with pytest.raises(ValueError, match="drift apart"):
        BNP(wrapped, sync=False)
    bnp = BNP(wrapped, eps=0.1, momentum=0.9)
    # DDP takes the mean over processes, a single process the sum
    train(net, bnp, batch().split(SIZES)[rank], 2.0, wrapped)
    torch.save((net.state_dict(), bnp.state_dict()), Path(folder) / str(rank))

    # a process whose rows do not reach the loss takes part in the exchange all the same
    layer = nn.Linear(4, 2)
    bnp = BNP(layer, eps=0.1)
    output = layer(batch().split(SIZES)[rank])
    (output.sum() if rank else output.sum() * 0).backward()
    before = gradients(layer)
    bnp.step()
    b, (W,) = preconditioned(before["bias"], [before["weight"]], [batch().split(SIZES)[1]], 0.1)
    torch.testing.assert_close(layer.weight.grad, W)
    torch.testing.assert_close(layer.bias.grad, b)

    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (2,))
    sharded = nn.Linear(4, 2)
    fully_shard(sharded, mesh=mesh)
    with pytest.raises(ValueError, match="sharded"):
        BNP(sharded)
    dist.destroy_process_group()


@pytest.mark.slow
def test_processes_step_as_one_and_stay_identical(tmp_path: Path) -> None:
    expected = model()
    bnp = BNP(expected, eps=0.1, momentum=0.9)
    train(expected, bnp, batch(), 1.0, None)
    port = free_port()
    call_in_processes(__file__, "work", *((rank, port, str(tmp_path)) for rank in range(2)))
    (first, first_state), (second, second_state) = (
        torch.load(tmp_path / str(rank), weights_only=True) for rank in range(2)
    )
    for name, value in expected.state_dict().items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], value, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(first_state, second_state, rtol=0, atol=0)
    torch.testing.assert_close(first_state, bnp.state_dict(), rtol=1e-11, atol=1e-12)
