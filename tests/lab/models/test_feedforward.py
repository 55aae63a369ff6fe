from typing import Any

import pytest
import torch
from torch import nn

from cayley.lab.errors import RecipeError
from cayley.lab.models.feedforward import MLP, GraphNetwork
from cayley.lab.tasks import Graph

torch_geometric = pytest.importorskip("torch_geometric")


def test_mlp_is_its_formula() -> None:
    model = MLP((6, 5, 4, 3), norm="batch", init_scale=0.75).train()
    first, second, third = (layer for layer in model.layers if isinstance(layer, nn.Linear))
    x = torch.randn(20, 6)

    def normalized(h: torch.Tensor) -> torch.Tensor:
        return (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()

    h = normalized(first(x).relu())
    expected = third(normalized(second(h).relu()))
    output, state = model(x)
    torch.testing.assert_close(output, expected)
    assert state is None
    assert first.weight.abs().max() <= 0.75 * (6 / 11) ** 0.5
    assert not first.bias.any()


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


def test_unknown_norm() -> None:
    with pytest.raises(RecipeError, match=r'expected "", "batch" or "layer", got \'bach\''):
        MLP((6, 4, 3), norm="bach")  # pyrefly: ignore[bad-argument-type]
