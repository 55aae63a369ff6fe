"""The rule for convolutions, against patches that are written out."""

from typing import Any

import pytest
import torch
from gradients import grad_of
from preconditioners.explicit import P, backward, gradients
from torch import Tensor, nn

from cayley.preconditioners import BNP

EPS = 0.05
CASES = {
    "1d": (lambda: nn.Conv1d(4, 6, 3), (5, 4, 9)),
    "1d, unbatched": (lambda: nn.Conv1d(4, 6, 3), (4, 9)),
    "2d": (lambda: nn.Conv2d(4, 6, (3, 2)), (3, 4, 7, 6)),
    "2d, strided": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2), (3, 4, 9, 8)),
    "2d, groups": (lambda: nn.Conv2d(4, 6, 3, groups=2), (3, 4, 7, 6)),
    "2d, depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, padding="same"), (3, 4, 7, 6)),
    "2d, circular": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), (3, 4, 7, 6)),
    "2d, no bias": (lambda: nn.Conv2d(4, 6, 3, bias=False), (3, 4, 7, 6)),
    "3d": (lambda: nn.Conv3d(2, 3, 2), (2, 2, 4, 3, 5)),
}


def by_channel(layer: Any, x: Tensor, before: dict[str, Tensor]) -> dict[str, Tensor]:
    """P Pᵀ on the row of each output, made of each channel's own numbers at all positions."""
    spatial = len(layer.kernel_size)
    channels = x.reshape(-1, *x.shape[-spatial - 1 :]).transpose(0, 1).flatten(1)
    G = before["weight"]
    new = {name: torch.zeros_like(g) for name, g in before.items()}
    per_group = len(G) // layer.groups
    for o in range(len(G)):
        own = channels[o // per_group * G.shape[1] :][: G.shape[1]]
        rows = own.repeat_interleave(G[0, 0].numel(), 0).T
        matrix = P([rows], EPS, centred="bias" in before)
        b = before["bias"][o : o + 1] if "bias" in before else torch.zeros(1)
        row = torch.cat((b, G[o].flatten())) @ matrix @ matrix.T
        new["weight"][o] = row[1:].view_as(G[o])
        if "bias" in before:
            new["bias"][o] = row[0]
    return new


@pytest.mark.parametrize("case", CASES)
def test_equals_P_Pt_by_channel(case: str) -> None:
    make, shape = CASES[case]
    layer = make()
    x = torch.randn(shape) * 2 + 1
    bnp = BNP(layer, eps=EPS)
    backward(layer(x))
    before = gradients(layer)
    bnp.step()
    for name, expected in by_channel(layer, x, before).items():
        torch.testing.assert_close(layer.get_parameter(name).grad, expected, rtol=1e-12, atol=1e-12)


def test_one_step_is_that_of_the_layer_with_normalised_channels() -> None:
    layer, x = nn.Conv2d(3, 4, 3), torch.randn(6, 3, 8, 7) * 2 + 1
    mu = x.mean((0, 2, 3))
    sigma = (x.var((0, 2, 3), correction=0) + EPS).sqrt()
    assert layer.bias is not None
    normalised: Any = nn.Conv2d(3, 4, 3)
    with torch.no_grad():
        normalised.weight.copy_(layer.weight * sigma[:, None, None])
        normalised.bias.copy_(layer.bias + layer.weight.sum((2, 3)) @ mu)
    z = (x - mu[:, None, None]) / sigma[:, None, None]
    bnp = BNP(layer, eps=EPS)
    for module, input in ((layer, x), (normalised, z)):
        module(input).tanh().square().mean().backward()
    bnp.step()
    for module in (layer, normalised):
        torch.optim.SGD(module.parameters(), lr=0.1).step()
    torch.testing.assert_close(layer(x), normalised(z), rtol=1e-12, atol=1e-12)


def test_statistics_by_channel_condition_patches_almost_as_well_as_exact_ones() -> None:
    layer, x = nn.Conv2d(3, 4, 3), torch.randn(8, 3, 10, 10)
    x = x * torch.tensor([0.1, 1.0, 5.0])[:, None, None] + torch.tensor([3.0, -1, 2])[:, None, None]
    patches = nn.functional.unfold(x, 3).transpose(1, 2).flatten(0, 1)
    channels = x.transpose(0, 1).flatten(1).repeat_interleave(9, 0).T
    hat = torch.cat((torch.ones(len(patches), 1), patches), 1)
    before, exact, by_channel = (
        float(torch.linalg.cond(hat @ matrix))
        for matrix in (torch.eye(28), P([patches], 0.0), P([channels], 0.0))
    )
    assert by_channel < 1.2 * exact
    assert by_channel < before / 10
    assert layer.weight[0].numel() + 1 == 28


def test_channels_last_gradients_and_examples_that_do_not_reach_the_loss() -> None:
    layer: Any = nn.Conv2d(4, 6, 3)
    layer.to(memory_format=torch.channels_last)
    x = torch.randn(5, 4, 7, 6).to(memory_format=torch.channels_last)
    bnp = BNP(layer, eps=EPS)
    output = layer(x)
    (output[:3] ** 2).sum().backward()
    layer.weight.grad = layer.weight.grad.to(memory_format=torch.channels_last)
    assert not layer.weight.grad.is_contiguous()
    before = gradients(layer)
    bnp.step()
    for name, expected in by_channel(layer, x[:3], before).items():
        torch.testing.assert_close(layer.get_parameter(name).grad, expected, rtol=1e-12, atol=1e-12)


def test_empty_batches() -> None:
    layer = nn.Conv2d(4, 6, 3)
    bnp = BNP(layer)
    layer(torch.randn(0, 4, 7, 6)).sum().backward()
    bnp.step()
    assert not grad_of(layer.weight).any()


def test_transposed_convolutions_are_reported() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.ConvTranspose1d(3, 2, 3))
    assert BNP(model).report()["1.weight"] == "no rule for ConvTranspose1d"
