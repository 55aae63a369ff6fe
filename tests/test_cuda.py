"""The layers on a GPU: the numbers of the CPU, and no waiting where none is promised."""

from collections.abc import Callable

import pytest
import torch
from torch.utils._pytree import tree_leaves
from variants import NETWORKS, Make

import cayley
from cayley.parametrizations import MAPS, Parametrization, StructuredMatrix

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    # double precision does, and says so once
    pytest.mark.filterwarnings("ignore:a recurrence runs as a loop"),
]

# matrix_exp asks for the norm of its argument, torch for the residual of a running inverse
WAITING = {torch.float32: {"exponential"}, torch.float64: {"exponential", "neumann"}}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_networks_give_the_numbers_of_the_cpu(make: Make, dtype: torch.dtype) -> None:
    layer = make(3, 8, num_layers=2, bidirectional=True, dtype=torch.float64)
    if getattr(layer, "is_complex", False):
        # for b > 0 the gain of modReLU at 0 is so large that float32 cannot follow float64
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if name.startswith("bias"):
                    parameter.copy_(-parameter.abs())
    x = torch.randn(20, 4, 3)
    output, h_n = layer(x)
    gradients = torch.autograd.grad(output.square().sum(), tuple(layer.parameters()))
    layer = layer.to("cuda", dtype)
    cuda_output, cuda_h_n = layer(x.to("cuda", dtype))
    assert cuda_output.is_cuda
    assert cuda_output.dtype == dtype
    cuda_gradients = torch.autograd.grad(cuda_output.square().sum(), tuple(layer.parameters()))
    # small entries of a gradient are sums of large ones, which float32 rounds
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    for ours, theirs in zip(
        (cuda_output, *tree_leaves(cuda_h_n), *cuda_gradients),
        (output, *tree_leaves(h_n), *gradients),
        strict=True,
    ):
        assert (ours.cpu().to(theirs.dtype) - theirs).norm() <= tolerance * max(theirs.norm(), 1)


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_networks_can_be_made_on_the_gpu(make: Make) -> None:
    layer = make(3, 8, device="cuda")
    assert all(t.is_cuda for t in layer.state_dict().values())
    assert layer(torch.randn(5, 2, 3, device="cuda"))[0].is_cuda
    layer.reset_parameters()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for dtype, waiting in WAITING.items() for name in sorted(set(MAPS) - waiting)],
)
def test_forming_a_matrix_does_not_wait_for_the_gpu(name: str, dtype: torch.dtype) -> None:
    make: Callable[[int], Parametrization] = MAPS[name]
    matrix = StructuredMatrix(make(64), device="cuda", dtype=dtype)
    G = torch.randn_like(matrix())
    (matrix() * G).abs().sum().backward()
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        (matrix() * G).abs().sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_autocast(make: Make) -> None:
    layer = make(3, 8, device="cuda", dtype=torch.float32)
    x = torch.randn(5, 2, 3, device="cuda", dtype=torch.float32)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output, _ = layer(x)
    assert output.dtype == torch.float32
    torch.testing.assert_close(output, layer(x)[0], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("make", [cayley.ScoRNN, cayley.NCGRU, cayley.LSTM])
def test_a_back_end_of_another_device_is_refused(make: Make) -> None:
    layer = make(3, 8, device="cuda", dtype=torch.float32)
    x = torch.randn(5, 2, 3, device="cuda", dtype=torch.float32)
    with cayley.backend("cpu"), pytest.raises(ValueError, match="on the device of back end 'cpu'"):
        layer(x)
    with cayley.backend("reference"):
        h = layer(x)[0]
    torch.testing.assert_close(layer(x)[0], h, rtol=1e-3, atol=1e-4)
