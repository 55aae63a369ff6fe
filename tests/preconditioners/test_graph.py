"""Graph layers: against a dense graph matrix, the explicit preconditioner and normalised inputs."""

import copy
import gc
import importlib.util
import io
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from preconditioners.explicit import gradients, preconditioned
from processes import run_after_torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cayley.preconditioners import BNP
from cayley.preconditioners.joint import joint

pytest.importorskip("torch_geometric", reason="torch_geometric is not installed (extra graph)")

from torch_geometric.nn import GATConv, GCNConv, Linear, SAGEConv
from torch_geometric.typing import OptTensor

from cayley.preconditioners import graph

ROOT = Path(__file__).parent.parent.parent
CORA = Path(os.environ.get("CAYLEY_DATA", ROOT.parent / "shared" / "data")) / "cora"
N, I, H = 12, 4, 3  # noqa: E741
EPS = 0.1


def edges(N: int, count: int) -> Tensor:
    """A directed graph without loops or double edges, in which the last node receives nothing."""
    pairs = torch.tensor([(j, i) for j in range(N) for i in range(N - 1) if i != j])
    return pairs[torch.randperm(len(pairs))[:count]].T


def shifted(*shape: int) -> Tensor:
    """Features with means and variances far from 0 and 1."""
    n = shape[-1]
    return torch.randn(*shape) * torch.linspace(0.2, 3, n) + torch.linspace(-2, 4, n)


def cotangent(nodes: int, reached: int) -> Tensor:
    """The gradient of a loss that depends on the first nodes only."""
    C = torch.randn(nodes, H)
    C[reached:] = 0
    return C


def plain_gradients(model: nn.Module, loss: Callable[[], Tensor]) -> dict[str, Tensor]:
    """Those that BNP is given."""
    parameters = dict(model.named_parameters())
    grads = torch.autograd.grad(loss(), list(parameters.values()))
    return dict(zip(parameters, grads, strict=True))


def step(model: nn.Module, bnp: BNP, loss: Callable[[], Tensor]) -> dict[str, Tensor]:
    """Those that BNP makes of them."""
    model.zero_grad()
    loss().backward()
    bnp.step()
    return gradients(model)


def check(new: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    torch.testing.assert_close(dict(new), dict(expected), rtol=1e-12, atol=1e-12)


def check_block(
    new: Mapping[str, Tensor], old: Mapping[str, Tensor], rows: Mapping[str, Tensor], bias: str
) -> None:
    """The gradients of a block are P Pᵀ, written out, times the old ones."""
    grads = [old[name] for name in rows]
    b, weights = preconditioned(old.get(bias), grads, list(rows.values()), EPS)
    expected = dict(zip(rows, weights, strict=True)) | ({bias: b} if bias in old else {})
    check({name: new[name] for name in expected}, expected)


def matrix(
    edge_index: Tensor,
    edge_weight: Tensor | None = None,
    *,
    improved: bool = False,
    add_self_loops: bool = True,
    normalize: bool = True,
    flow: str = "source_to_target",
    aggr: str = "add",
) -> Tensor:
    """Â, edge by edge, (N, N)."""
    A, count = torch.zeros(N, N), torch.zeros(N, N)
    for k, (j, i) in enumerate(edge_index.T.tolist()):
        target, source = (i, j) if flow == "source_to_target" else (j, i)
        A[target, source] = 1.0 if edge_weight is None else edge_weight[k]
        count[target, source] = 1.0
    if normalize:
        if add_self_loops:
            A += (2.0 if improved else 1.0) * torch.eye(N)
            count += torch.eye(N)
        d = A.sum(1)
        scale = torch.where(d > 0, d.clamp_min(1e-300) ** -0.5, 0.0)
        A = scale[:, None] * A * scale
    return A / count.sum(1).clamp_min(1)[:, None] if aggr == "mean" else A


def check_gcn(new: Mapping[str, Tensor], C: Tensor, Z: Tensor) -> None:
    """By associativity the gradient of W is Cᵀ Z, in whatever order the layer computes."""
    reached = C.any(-1)
    check_block(
        new, {"lin.weight": C.T @ Z, "bias": C.sum(0)}, {"lin.weight": Z[reached]}, bias="bias"
    )


GCN_SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "improved": {"improved": True},
    "without loops": {"add_self_loops": False},
    "not normalised": {"normalize": False},
    "backwards": {"flow": "target_to_source"},
    "mean": {"aggr": "mean"},
}


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("setting", GCN_SETTINGS)
def test_gcn_is_the_explicit_preconditioner(setting: str, cached: bool, weighted: bool) -> None:
    conv = GCNConv(I, H, cached=cached, **GCN_SETTINGS[setting])
    x, edge_index, C = shifted(N, I), edges(N, 40), cotangent(N, 7)
    # without weights torch_geometric 2.8 ignores `improved`
    edge_weight = torch.rand(40) + 0.5 if weighted or setting == "improved" else None
    Z = matrix(edge_index, edge_weight, **GCN_SETTINGS[setting]) @ x
    bnp = BNP(conv, eps=EPS)
    for _ in range(2):
        new = step(conv, bnp, lambda: (conv(x, edge_index, edge_weight=edge_weight) * C).sum())
        check_gcn(new, C, Z)


def test_gcn_without_a_bias_is_not_centred() -> None:
    conv, x, edge_index, C = GCNConv(I, H, bias=False), shifted(N, I), edges(N, 40), cotangent(N, 7)
    new = step(conv, BNP(conv, eps=EPS), lambda: (conv(x, edge_index) * C).sum())
    Z = matrix(edge_index) @ x
    check(new, {"lin.weight": C.T @ Z / (Z[:7].square().mean(0) + EPS)})


def test_gcn_counts_the_nodes_that_reach_the_loss() -> None:
    net = nn.ModuleDict({"first": GCNConv(I, 5), "last": GCNConv(5, H)})
    x, edge_index, C = shifted(N, I), edges(N, 16), cotangent(N, 3)

    def loss() -> Tensor:
        return (net["last"](net["first"](x, edge_index).tanh(), edge_index) * C).sum()

    old = plain_gradients(net, loss)
    new = step(net, BNP(net, eps=EPS), loss)
    A = matrix(edge_index)
    neighbours = (A[:3] != 0).any(0)
    assert 3 < neighbours.sum() < N
    hidden = net["first"](x, edge_index).tanh().detach()
    check_block(new, old, {"first.lin.weight": (A @ x)[neighbours]}, bias="first.bias")
    check_block(new, old, {"last.lin.weight": (A @ hidden)[:3]}, bias="last.bias")


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("features", ["dense", "coo", "csr"])
@pytest.mark.parametrize("adjacency", ["edges", "csr"])
def test_gcn_with_sparse_features_and_graphs(
    features: str, adjacency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "COLUMNS", 3)
    conv, x, edge_index, C = GCNConv(I, H), shifted(N, I).relu(), edges(N, 40), cotangent(N, 7)
    Z = matrix(edge_index) @ x
    x = {"dense": x, "coo": x.to_sparse(), "csr": x.to_sparse_csr()}[features]
    if adjacency == "csr":
        edge_index = torch.sparse_coo_tensor(edge_index.flip(0), torch.ones(40), (N, N))
        edge_index = edge_index.to_sparse_csr()
    check_gcn(step(conv, BNP(conv, eps=EPS), lambda: (conv(x, edge_index) * C).sum()), C, Z)


def test_gcn_over_several_signals_at_once() -> None:
    conv, x, edge_index, C = GCNConv(I, H), shifted(2, N, I), edges(N, 40), torch.randn(2, N, H)
    new = step(conv, BNP(conv, eps=EPS), lambda: (conv(x, edge_index) * C).sum())
    check_gcn(new, C.view(-1, H), (matrix(edge_index) @ x).view(-1, I))


def test_micro_batches_of_graphs_equal_their_union() -> None:
    conv, x, parts = GCNConv(I, H), shifted(2, N, I), (edges(N, 40), edges(N, 40))
    bnp = BNP(conv, eps=EPS)
    for k in range(2):
        conv(x[k], parts[k]).square().sum().backward()
    bnp.step()
    pooled = gradients(conv)
    union = torch.cat((parts[0], parts[1] + N), 1)
    check(pooled, step(conv, bnp, lambda: conv(x.view(-1, I), union).square().sum()))


def test_gcn_forms_its_rows_again_only_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    conv, x, edge_index = GCNConv(I, H), shifted(N, I), edges(N, 40)
    edge_weight, calls, aggregate = torch.rand(40) + 0.5, [], graph.aggregate
    monkeypatch.setattr(graph, "aggregate", lambda *args: calls.append(1) or aggregate(*args))
    bnp = BNP(conv, eps=EPS)

    def formed() -> int:
        calls.clear()
        C = torch.randn(N, H)
        new = step(conv, bnp, lambda: (conv(x, edge_index, edge_weight) * C).sum())
        check_gcn(new, C, matrix(edge_index, edge_weight) @ x)
        return len(calls)

    assert [formed(), formed(), formed()] == [1, 0, 0]
    x.mul_(2)
    assert [formed(), formed()] == [1, 0]
    x = x.clone()
    assert [formed(), formed()] == [1, 0]
    edge_weight.add_(1)
    assert [formed(), formed()] == [1, 0]
    edge_index = edge_index.flip(0)
    assert [formed(), formed()] == [1, 0]
    conv(x + 1, edge_index)
    assert formed() == 0


def test_gcn_sees_features_that_a_fused_optimizer_trains() -> None:
    conv, x, edge_index = GCNConv(I, H), shifted(N, I).requires_grad_(), edges(N, 40)
    bnp, optimizer = BNP(conv, eps=EPS), torch.optim.SGD([x], lr=0.5, fused=True)
    for _ in range(2):
        C = torch.randn(N, H)
        new = step(conv, bnp, lambda C=C: (conv(x, edge_index) * C).sum())
        check_gcn(new, C, matrix(edge_index) @ x.detach())
        optimizer.step()


def test_steps_are_those_on_normalised_inputs() -> None:
    conv, x, edge_index = GCNConv(I, H), shifted(N, I), edges(N, 40)
    Z, target = matrix(edge_index) @ x, torch.randn(N, H)
    mean, sigma = Z.mean(0), (Z.var(0, correction=0) + EPS).sqrt()
    V = (conv.lin.weight * sigma).detach().requires_grad_()
    c = (conv.bias + conv.lin.weight @ mean).detach().requires_grad_()
    normalised = (Z - mean) / sigma

    optimizer = torch.optim.SGD(conv.parameters(), lr=0.1)
    BNP(conv, eps=EPS).attach(optimizer)
    reference = torch.optim.SGD([V, c], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        reference.zero_grad()
        (conv(x, edge_index).tanh() - target).square().mean().backward()
        ((normalised @ V.T + c).tanh() - target).square().mean().backward()
        optimizer.step()
        reference.step()
    check({"output": conv(x, edge_index)}, {"output": normalised @ V.T + c})


REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda rows: rows.mean(0),
    "sum": lambda rows: rows.sum(0),
    "max": lambda rows: rows.amax(0),
}


def received(x: Tensor, edge_index: Tensor, nodes: int, aggr: str = "mean") -> Tensor:
    """What the neighbours send to each of the first nodes, 0 if it has none."""
    groups = [x[edge_index[0, edge_index[1] == i]] for i in range(nodes)]
    return torch.stack(
        [REDUCTIONS[aggr](rows) if len(rows) else torch.zeros(x.shape[1]) for rows in groups]
    )


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("root_weight", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("aggr", REDUCTIONS)
def test_sage_is_the_explicit_preconditioner(
    aggr: str, bias: bool, root_weight: bool, normalize: bool
) -> None:
    conv = SAGEConv(I, H, aggr=aggr, bias=bias, root_weight=root_weight, normalize=normalize)
    x, edge_index, C = shifted(N, I), edges(N, 40), cotangent(N, 7)

    def loss() -> Tensor:
        return (conv(x, edge_index) * C).sum()

    old, new = plain_gradients(conv, loss), step(conv, BNP(conv, eps=EPS), loss)
    rows = {"lin_l.weight": received(x, edge_index, 7, aggr)}
    rows |= {"lin_r.weight": x[:7]} if root_weight else {}
    check_block(new, old, rows, bias="lin_l.bias")


def test_sage_between_two_sets_of_nodes() -> None:
    conv, sources, targets = SAGEConv((I, 2), H), shifted(N, I), shifted(8, 2)
    edge_index, C = edges(N, 60), cotangent(8, 5)
    edge_index = edge_index[:, edge_index[1] < 8]

    def loss(targets: Tensor | None) -> Tensor:
        return (conv((sources, targets), edge_index, (N, 8)) * C).sum()

    old, bnp = plain_gradients(conv, lambda: loss(targets)), BNP(conv, eps=EPS)
    rows = {"lin_l.weight": received(sources, edge_index, 5), "lin_r.weight": targets[:5]}
    check_block(step(conv, bnp, lambda: loss(targets)), old, rows, bias="lin_l.bias")

    # without features of the targets there are no rows of W_r
    for set_to_none in (False, True):
        conv.zero_grad(set_to_none)
        loss(None).backward()
        bnp.step()
        alone = {"lin_l.weight": rows["lin_l.weight"]}
        check_block(gradients(conv), old, alone, bias="lin_l.bias")


@pytest.mark.parametrize("momentum", [None, 0.5])
def test_sage_without_targets_leaves_their_weight(momentum: float | None) -> None:
    """No rows of a weight: its gradient of zero stays, whatever was averaged before."""
    model: Any = SAGEConv((I, 2), H)
    x, targets, graph = shifted(N, I), shifted(N, 2), edges(N, 40)
    bnp = BNP(model, eps=EPS, momentum=momentum)
    for given in (targets, None):
        model.zero_grad(set_to_none=False)
        model((x, given), graph, size=(N, N)).square().sum().backward()
        bnp.step()
    assert not model.lin_r.weight.grad.any()
    assert model.lin_l.weight.grad.any()


def test_sage_with_a_projection() -> None:
    conv, x, edge_index = SAGEConv(I, H, project=True), shifted(N, I), edges(N, 14)
    C = cotangent(N, 4)

    def loss() -> Tensor:
        return (conv(x, edge_index) * C).sum()

    old, new = plain_gradients(conv, loss), step(conv, BNP(conv, eps=EPS), loss)
    projected = conv.lin(x).relu().detach()
    rows = {"lin_l.weight": received(projected, edge_index, 4), "lin_r.weight": x[:4]}
    check_block(new, old, rows, bias="lin_l.bias")
    sends = torch.zeros(N, dtype=torch.bool)
    sends[edge_index[0, edge_index[1] < 4]] = True
    sends &= (projected > 0).any(1)
    assert 1 < sends.sum() < N
    check_block(new, old, {"lin.weight": x[sends]}, bias="lin.bias")


def sample(
    edge_index: Tensor, seeds: Sequence[int], fan_outs: Sequence[int]
) -> tuple[list[int], list[int], list[Tensor]]:
    """Nodes with the seeds in front, their number after each hop, and the edges of each hop.

    Edges name nodes by their places.
    """
    nodes, counts, hops = list(seeds), [], []
    frontier = nodes
    for fan_out in fan_outs:
        pairs: list[tuple[int, int]] = []
        for i in frontier:
            sources = edge_index[0, edge_index[1] == i]
            pairs += [(int(j), i) for j in sources[torch.randperm(len(sources))[:fan_out]]]
        frontier = [j for j in dict.fromkeys(j for j, _ in pairs) if j not in nodes]
        nodes = nodes + frontier
        counts.append(len(nodes))
        hops.append(pairs)
    return nodes, counts, [torch.tensor([[nodes.index(k) for k in e] for e in p]).T for p in hops]


def test_sampled_neighbourhoods_count_the_rows_that_reach_the_loss() -> None:
    model = nn.ModuleDict({"first": SAGEConv(I, 6), "last": SAGEConv(6, H)})
    first, last, bnp = model["first"], model["last"], BNP(model, eps=EPS)
    nodes, (inner, outer), hops = sample(edges(200, 1500), range(10), (3, 3))
    x, everything, target = shifted(200, I)[nodes], torch.cat(hops, 1), torch.randn(10, H)

    def whole() -> Tensor:
        """Every layer on every sampled node, of which only the first ten count."""
        hidden = first(x, everything).relu()
        return (last(hidden, everything)[:10] - target).square().mean()

    def needed() -> Tensor:
        """Every layer on the nodes that the next one needs."""
        hidden = first((x, x[:inner]), everything[:, everything[1] < inner], (outer, inner)).relu()
        return (last((hidden, hidden[:10]), hops[0], (inner, 10)) - target).square().mean()

    check(step(model, bnp, whole), step(model, bnp, needed))

    # to count all would matter: most of the nodes have no sampled neighbours
    Z = received(x, everything, outer)
    assert outer > 2 * inner
    assert not Z[inner:].any()
    assert (Z.mean(0) / Z[:inner].mean(0) < 0.5).all()


def test_joint_block_descends_where_algorithm_6_on_one_bias_may_not() -> None:
    means, variance = 2 * torch.randn(2, I), torch.full((I,), 0.5)

    def jointly(g: Tensor) -> Tensor:
        G = [g[None, 1 : I + 1], g[None, I + 1 :]]
        b, (left, right) = joint(g[:1], G, list(means), [variance, variance])
        assert b is not None
        return torch.cat((b, left[0], right[0]))

    def one_by_one(g: Tensor) -> Tensor:
        b, (left,) = joint(g[:1], [g[None, 1 : I + 1]], [means[0]], [variance])
        b, (right,) = joint(b, [g[None, I + 1 :]], [means[1]], [variance])
        assert b is not None
        return torch.cat((b, left[0], right[0]))

    Q = torch.stack([jointly(unit) for unit in torch.eye(2 * I + 1)], 1)
    torch.testing.assert_close(Q, Q.T)
    assert torch.linalg.eigvalsh(Q).min() > 0
    Q = torch.stack([one_by_one(unit) for unit in torch.eye(2 * I + 1)], 1)
    assert not torch.allclose(Q, Q.T)
    assert torch.linalg.eigvalsh((Q + Q.T) / 2).min() < 0


@pytest.mark.parametrize("kind", [GCNConv, SAGEConv])
def test_descent_and_linearity(kind: type[nn.Module]) -> None:
    edge_index = edges(N, 40)
    for _ in range(50):
        conv, x, C = kind(I, H), 3 * shifted(N, I), cotangent(N, 5)

        def loss(conv: nn.Module = conv, x: Tensor = x, C: Tensor = C) -> Tensor:
            return (conv(x, edge_index) * C).sum()

        bnp, old = BNP(conv, eps=1e-3), plain_gradients(conv, loss)
        new = step(conv, bnp, loss)
        assert sum((old[name] * new[name]).sum() for name in old) > 0
        check(step(conv, bnp, lambda: -8 * loss()), {name: -8 * g for name, g in new.items()})


class Rectified(GCNConv):
    """Sends something else than GCNConv does."""

    def message(self, x_j: Tensor, edge_weight: OptTensor) -> Tensor:
        return super().message(x_j, edge_weight).relu()


def test_report_names_what_is_not_served() -> None:
    model = nn.ModuleDict(
        {
            "gcn": GCNConv(I, H),
            "max": GCNConv(I, H, aggr="max"),
            "own": Rectified(I, H),
            "sage": SAGEConv(I, H, project=True),
            "lstm": SAGEConv(I, H, aggr="lstm"),
            "gat": GATConv(I, H),
            "linear": Linear(I, H),
        }
    )
    bnp = BNP(model, eps=EPS)
    report = bnp.report()
    assert set(report) == {name for name, _ in model.named_parameters()}
    assert report["gcn.lin.weight"].startswith("GCNConv: ")
    assert report["sage.lin_r.weight"] == report["sage.lin_l.bias"] == report["sage.lin_l.weight"]
    assert report["sage.lin.weight"].startswith("SAGEConv: ")
    assert report["linear.weight"].startswith("Linear: ")
    assert report["max.bias"].endswith("got 'max'")
    assert report["own.lin.weight"] == "expected the message of GCNConv, got that of Rectified"
    assert report["lstm.aggr_module.lstm.weight_hh_l0"] == "BNP serves no trained aggregation"
    assert report["gat.att_src"] == "no rule for GATConv"

    x, edge_index = shifted(N, I), edges(N, 40)
    for conv in (model["max"], model["own"]):
        loss = lambda conv=conv: conv(x, edge_index).square().sum()  # noqa: E731
        check(step(conv, bnp, loss), plain_gradients(conv, loss))


def test_linear_of_torch_geometric_equals_that_of_torch() -> None:
    ours, theirs, x = nn.Linear(I, H), Linear(I, H), shifted(N, I)
    theirs.load_state_dict(ours.state_dict())
    new = [
        step(lin, BNP(lin, eps=EPS), lambda lin=lin: lin(x).exp().sum()) for lin in (ours, theirs)
    ]
    check(*new)


@pytest.mark.parametrize("kind", [GCNConv, SAGEConv])
def test_lazy_layers(kind: type[nn.Module]) -> None:
    lazy, x, edge_index = kind(-1, H), shifted(N, I), edges(N, 40)
    bnp = BNP(lazy, eps=EPS)
    lazy(x, edge_index)
    eager = copy.deepcopy(lazy)
    new = step(lazy, bnp, lambda: lazy(x, edge_index).exp().sum())
    check(new, step(eager, BNP(eager, eps=EPS), lambda: eager(x, edge_index).exp().sum()))


@pytest.mark.parametrize("kind", [GCNConv, SAGEConv])
def test_copies_pickles_and_removal(kind: type[nn.Module]) -> None:
    conv, x, edge_index = kind(I, H), shifted(N, I), edges(N, 40)

    def loss() -> Tensor:
        return conv(x, edge_index).square().sum()

    bnp = BNP(conv, eps=EPS)
    with pytest.raises(ValueError, match="another BNP"):
        BNP(conv)
    new = step(conv, bnp, loss)
    buffer = io.BytesIO()
    torch.save(conv, buffer)
    buffer.seek(0)
    conv.zero_grad()
    loss().backward()
    for other in (copy.deepcopy(conv), torch.load(buffer, weights_only=False)):
        other(100 + x, edge_index).sum().backward()
    bnp.step()
    check(gradients(conv), new)
    bnp.remove()
    conv.zero_grad()
    loss().backward()
    check(gradients(conv), plain_gradients(conv, loss))


@pytest.mark.parametrize("kind", [GCNConv, SAGEConv])
def test_passes_without_a_backward_pass_are_freed(kind: type[nn.Module]) -> None:
    conv, x, edge_index = kind(I, H), shifted(N, I), edges(N, 40)
    BNP(conv, eps=EPS)
    outputs: list[weakref.ref[Any]] = []
    for module in conv.modules():
        module.register_forward_hook(lambda *args: outputs.append(weakref.ref(args[-1])))
    gc.collect()
    gc.disable()
    try:
        conv(x, edge_index)
        assert len(outputs) > 1
        assert all(output() is None for output in outputs)
    finally:
        gc.enable()


# dynamo looks at every attribute of what it hands to our hook
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("how", ["compiled", "checkpointed", "edges of inference mode"])
@pytest.mark.parametrize("kind", [GCNConv, SAGEConv])
def test_ways_to_call_a_layer(kind: type[nn.Module], how: str) -> None:
    conv, x, edge_index = kind(I, H), shifted(N, I), edges(N, 40)
    with torch.inference_mode():
        inference_edges = edge_index.clone()
    ways: dict[str, Callable[[], Tensor]] = {
        "compiled": lambda: torch.compile(conv, backend="eager")(x, edge_index),
        "checkpointed": lambda: checkpoint(conv, x, edge_index, use_reentrant=False),
        "edges of inference mode": lambda: conv(x, inference_edges),
    }
    bnp = BNP(conv, eps=EPS)
    new = step(conv, bnp, lambda: conv(x, edge_index).square().sum())
    check(step(conv, bnp, lambda: ways[how]().square().sum()), new)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("kind", [GCNConv, SAGEConv])
def test_gpu_equals_cpu(kind: type[nn.Module], sparse: bool) -> None:
    if sparse and kind is SAGEConv:
        pytest.skip("SAGEConv takes no sparse features")
    conv, x, edge_index, C = kind(I, H), shifted(N, I).relu(), edges(N, 40), cotangent(N, 7)
    new = step(conv, BNP(conv, eps=EPS), lambda: (conv(x, edge_index) * C).sum())
    there, x, edge_index, C = copy.deepcopy(conv).cuda(), x.cuda(), edge_index.cuda(), C.cuda()
    x = x.to_sparse() if sparse else x
    on_gpu = step(there, BNP(there, eps=EPS), lambda: (there(x, edge_index) * C).sum())
    check({name: g.cpu() for name, g in on_gpu.items()}, new)


@pytest.mark.slow
def test_importing_cayley_does_not_import_torch_geometric() -> None:
    script = (
        "import sys, torch\n"
        "from cayley.preconditioners import BNP\n"
        "BNP(torch.nn.Linear(2, 3))\n"
        "assert 'torch_geometric' not in sys.modules\n"
    )
    run_after_torch(script)


@pytest.mark.slow
@pytest.mark.skipif(not CORA.is_dir(), reason="Cora is not there: CAYLEY_DATA may say where")
@pytest.mark.filterwarnings("ignore:.*scipy.sparse.csr:DeprecationWarning")
def test_cora_is_learned_in_few_epochs() -> None:
    torch.set_default_dtype(torch.float32)
    spec = importlib.util.spec_from_file_location("cora", ROOT / "examples" / "cora.py")
    assert spec is not None
    assert spec.loader is not None
    cora = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cora)
    data = cora.read_planetoid_data(str(CORA), "cora")
    assert (data.num_nodes, data.val_mask.sum(), data.test_mask.sum()) == (2708, 500, 1000)
    epochs = [cora.train("SGD+BNP", data, seed, 1.0, 12)[0] for seed in range(3)]
    assert sorted(epochs)[1] <= 12
    epochs = [cora.train("SGD", data, seed, 1.0, 24)[0] for seed in range(3)]
    assert sorted(epochs)[1] == float("inf")
