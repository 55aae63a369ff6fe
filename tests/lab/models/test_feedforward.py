from typing import Any

import pytest
import torch
from torch import nn

from cayley.lab.errors import RecipeError
from cayley.lab.models.feedforward import MLP, BatchNorm, GraphNetwork, Variance
from cayley.lab.tasks import Graph

torch_geometric = pytest.importorskip("torch_geometric")


def normalized(h: torch.Tensor) -> torch.Tensor:
    return (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()


def test_mlp_is_its_formula() -> None:
    """H 3.1: normalised before each layer, the first and the last included."""
    model = MLP((6, 5, 4, 3), norm="batch", init_scale=0.75).train()
    first, second, third = (layer for layer in model.layers if isinstance(layer, nn.Linear))
    x = torch.randn(20, 6)
    h = normalized(first(normalized(x)).relu())
    expected = third(normalized(second(h).relu()))
    output, state = model(x)
    torch.testing.assert_close(output, expected)
    assert state is None
    assert first.weight.abs().max() <= 0.75 * (6 / 11) ** 0.5
    assert not first.bias.any()


def test_mlp_normalized_before_the_nonlinearity() -> None:
    """H 3.2: no bias in front of a norm, and none of either at the output."""
    model = MLP((6, 5, 4, 3), norm="batch", before="nonlinearity").train()
    first, second, third = (layer for layer in model.layers if isinstance(layer, nn.Linear))
    assert (first.bias, second.bias) == (None, None)
    x = torch.randn(20, 6)
    h = normalized(second(normalized(first(x)).relu())).relu()
    torch.testing.assert_close(model(x)[0], third(h))
    assert model.layers[-1] is third


def batches() -> list[torch.Tensor]:
    return [2 + 3 * torch.randn(N, 4) for N in (7, 7, 5)]


@pytest.mark.parametrize(("variance", "correction"), [("", 0), ("biased", 0), ("unbiased", 1)])
def test_running_statistics(variance: Variance, correction: int) -> None:
    """H 3.5 and 3.6, from 0 and 1 on, with ρ = 0.9."""
    norm = BatchNorm(4, momentum=0.1, variance=variance)
    mu, var = torch.zeros(4), torch.ones(4)
    for x in batches():
        torch.testing.assert_close(norm(x), normalized(x))
        mu = 0.9 * mu + 0.1 * x.mean(0)
        var = 0.9 * var + 0.1 * x.var(0, correction=correction)
    x = torch.randn(3, 4)
    torch.testing.assert_close(norm.eval()(x), (x - mu) / (var + 1e-5).sqrt())


@pytest.mark.parametrize(("variance", "correction"), [("", 1), ("biased", 0), ("unbiased", 1)])
def test_averages_at_inference(variance: Variance, correction: int) -> None:
    """H 3.3 and 3.4, over the batches since the last restart."""
    norm = BatchNorm(4, inference="average", variance=variance)
    norm(torch.full((2, 4), 9.0))
    norm.restart_()
    seen = batches()
    for x in seen:
        torch.testing.assert_close(norm(x), normalized(x))
    mu = torch.stack([x.mean(0) for x in seen]).mean(0)
    var = torch.stack([x.var(0, correction=correction) for x in seen]).mean(0)
    x = torch.randn(3, 4)
    torch.testing.assert_close(norm.eval()(x), (x - mu) / (var + 1e-5).sqrt())


def test_running_statistics_go_on_over_a_restart() -> None:
    one, other = BatchNorm(4), BatchNorm(4)
    for x in batches():
        one(x)
        one.restart_()
        other(x)
    torch.testing.assert_close(one.running_var, other.running_var)


def graph() -> Graph:
    edges = torch.tensor([[0, 1, 1, 2, 3, 4, 4, 0], [1, 0, 2, 1, 4, 3, 0, 4]])
    return Graph(torch.randn(5, 6), edges)


def test_gcn_is_its_formula() -> None:
    model: Any = GraphNetwork("GCN", (6, 4, 3), norm="layer", sites="101", dropout=0.5).eval()
    x, edges = graph()
    A = torch.eye(5)
    A[edges[1], edges[0]] = 1
    d = A.sum(1).rsqrt()
    A = d[:, None] * A * d
    W1, W2 = (conv.lin.weight for conv in model.convs)
    h = (A @ nn.functional.layer_norm(x, (6,)) @ W1.T + model.convs[0].bias).relu()
    expected = nn.functional.layer_norm(A @ h @ W2.T + model.convs[1].bias, (3,))
    torch.testing.assert_close(model(Graph(x, edges))[0], expected)


def test_dropout_comes_before_the_norm_between() -> None:
    model = GraphNetwork("SAGE", (6, 40, 3), norm="batch", sites="010", dropout=0.5)
    seen = []
    model.norms[1].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model(graph())
    assert (seen[0] == 0).double().mean() > 0.5
    assert isinstance(model.norms[0], nn.Identity)
    assert isinstance(model.norms[1], nn.BatchNorm1d)


@pytest.mark.parametrize(
    "options",
    [{"sites": "10", "norm": "batch"}, {"sites": "100"}, {"sites": "12x", "norm": "batch"}],
)
def test_sites_are_one_digit_each(options: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match="expected 3 digits 0 or 1, and a norm"):
        GraphNetwork("GCN", (6, 4, 3), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "bach"}, r'norm: expected "", "batch" or "layer", got \'bach\''),
        ({"norm": "batch", "inference": "avg"}, r'inference: expected "running" or "average"'),
        ({"norm": "batch", "variance": "small"}, r'variance: expected "", "biased" or "unbiased"'),
        ({"norm": "batch", "before": "relu"}, r'before: expected "layer" or "nonlinearity"'),
    ],
)
def test_unknown_words(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        MLP((6, 4, 3), **options)
