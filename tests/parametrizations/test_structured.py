"""When the matrix is computed anew, and when it is not."""

import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.fx.experimental.proxy_tensor import make_fx

import cayley
from cayley.optim import StiefelSGD, parameter_groups
from cayley.parametrizations import (
    HouseholderProduct,
    MatrixExponential,
    NeumannCayley,
    Parametrization,
    ScaledCayley,
    SpectralSVD,
    StiefelPoint,
    StructuredMatrix,
)


def matrix() -> Any:
    return StructuredMatrix(ScaledCayley(6))


def computed(W: StructuredMatrix, calls: int) -> int:
    """How many of some calls compute the matrix."""
    ways = [
        patch.object(W.map, name, wraps=getattr(W.map, name))
        for name in ("forward", "with_pullback")
    ]
    with ways[0] as forward, ways[1] as with_gradient:
        for _ in range(calls):
            W()
    return forward.call_count + with_gradient.call_count


@torch.no_grad()
def check_fresh(W: StructuredMatrix) -> None:
    torch.testing.assert_close(W(), W.map(*W.free), rtol=0, atol=0)


def test_a_map_with_parameters_is_refused() -> None:
    """They would have no gradient, and changes of them would not be seen."""
    map = ScaledCayley(6)
    map.scale = nn.Parameter(torch.ones(()))
    with pytest.raises(ValueError, match=r"without parameters, got ScaledCayley with \['scale'\]"):
        StructuredMatrix(map)


@pytest.mark.parametrize("make", [ScaledCayley, MatrixExponential, HouseholderProduct, SpectralSVD])
def test_a_map_in_another_precision_gets_that_of_the_layer(make: Callable[[int], Any]) -> None:
    assert torch.get_default_dtype() == torch.float64
    layer = cayley.RNN(3, 6, recurrent=make(6).float())
    layer(torch.randn(5, 2, 3))[0].sum().backward()
    assert {p.dtype for p in layer.parameters()} == {torch.float64}
    layer = cayley.RNN(3, 6, recurrent=make(6), dtype=torch.float32)
    layer(torch.randn(5, 2, 3, dtype=torch.float32))[0].sum().backward()


def test_is_computed_once_between_two_steps() -> None:
    W, weights = matrix(), torch.randn(3, 6, 6)
    expected = torch.autograd.grad((W.map(*W.free) * weights.sum(0)).sum(), W.A)[0]
    assert computed(W, 3) == 1
    for k in range(3):  # each with a graph of its own
        (W() * weights[k]).sum().backward()
    torch.testing.assert_close(W.A.grad, expected)
    with torch.no_grad():
        assert computed(W, 1) == 0
        W.A += 0.1
    assert computed(W, 2) == 1
    check_fresh(W)


def test_a_gradient_after_the_step_is_that_of_its_own_forward_pass() -> None:
    W = matrix()
    expected = torch.autograd.grad(W.map(*W.free).trace(), W.A)[0]
    trace = W().trace()
    with torch.no_grad():
        W.A += 0.1
    W()
    torch.testing.assert_close(torch.autograd.grad(trace, W.A)[0], expected)


def test_second_derivatives_pass_through_what_is_kept() -> None:
    W = matrix()
    W()

    def value(A: Tensor) -> Tensor:
        return torch.func.functional_call(W, {"A": A}, ())

    A = W.A.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(value, A)
    assert torch.autograd.gradgradcheck(value, A)


def test_activation_checkpointing_may_form_and_find() -> None:
    W, x = matrix(), torch.randn(6)
    torch.utils.checkpoint.checkpoint(lambda x: W() @ x, x, use_reentrant=False).sum().backward()
    expected = torch.autograd.grad((W.map(*W.free) @ x).sum(), W.A)[0]
    torch.testing.assert_close(W.A.grad, expected)


@pytest.mark.parametrize("name", ["auto", "reference"])
@pytest.mark.parametrize("kind", [ScaledCayley, NeumannCayley])
def test_what_is_kept_does_not_leak(
    kind: type[ScaledCayley | NeumannCayley], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    W: Any = StructuredMatrix(kind(6))
    kept = []
    form = W.map.with_pullback

    def watched(*X: Tensor, update: bool) -> tuple[Tensor, Callable]:
        W, pullback = form(*X, update=update)
        kept.append((weakref.ref(W), weakref.ref(pullback)))
        return W, pullback

    monkeypatch.setattr(W.map, "with_pullback", watched)
    with cayley.backend(name):
        for _ in range(3):
            W(update=True).sum().backward()
            with torch.no_grad():
                W.A += 0.1
    assert [(W(), pullback()) for W, pullback in kept[:2]] == [(None, None)] * 2
    assert len(kept) == 3


@pytest.mark.parametrize("bandwidth", [None, 2])
def test_closed_form_is_the_gradient_of_autograd(bandwidth: int | None) -> None:
    map = ScaledCayley(7, bandwidth=bandwidth)
    A = torch.randn_like(map.sample()[0])
    G = torch.randn(7, 7)
    W, pullback = map.with_pullback(A)
    expected, autograd = Parametrization.with_pullback(map, A)
    torch.testing.assert_close(W, expected)
    torch.testing.assert_close(pullback(G), autograd(G))
    torch.testing.assert_close(pullback(2 * G), autograd(2 * G))  # as often as it is called


def test_is_kept_without_gradients() -> None:
    W = matrix()
    with torch.no_grad():
        assert computed(W, 5) == 1
    W.requires_grad_(False)
    assert computed(W, 5) == 0


@torch.no_grad()
def test_is_computed_anew_after_any_change() -> None:
    W = matrix()
    vector = nn.utils.parameters_to_vector(W.parameters())
    nn.utils.vector_to_parameters(vector, W.parameters())
    changes = {
        "in place": lambda: W.A.add_(0.1),
        "buffer": lambda: W.map.D.neg_(),
        "state_dict": lambda: W.load_state_dict(matrix().state_dict()),
        "state_dict, assigned": lambda: W.load_state_dict(matrix().state_dict(), assign=True),
        "data replaced": lambda: setattr(W.A, "data", W.A.data * 2),
        "parameter replaced": lambda: setattr(W, "A", nn.Parameter(W.A * 0.5)),
        "drawn anew": lambda: W.reset_parameters(),
        "assigned": lambda: W.assign(torch.linalg.qr(torch.randn(6, 6))[0]),
        "data in place": lambda: W.A.data.mul_(0.5),
        "numpy": lambda: W.A.detach().numpy().__imul__(0.5),
        "shared vector": lambda: vector.add_(0.1),
        "result changed": lambda: W().data.zero_(),
    }
    for name, change in changes.items():
        before = W()
        change()
        check_fresh(W)
        if name != "result changed":
            assert not torch.equal(W(), before) or name == "shared vector", name


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_is_computed_anew_after_a_step(
    kind: Callable[..., torch.optim.Optimizer], fused: bool
) -> None:
    W = matrix()
    optimizer = kind(W.parameters(), lr=0.1, fused=fused)
    for _ in range(3):
        optimizer.zero_grad()
        W().trace().backward()
        optimizer.step()
        with torch.no_grad():
            check_fresh(W)


def test_forgets_moves() -> None:
    W = matrix()
    with torch.no_grad():
        W()
        assert W.float()().dtype == torch.float32


def test_inference_mode_leaves_no_inference_tensor_behind() -> None:
    W = matrix().requires_grad_(False)
    with torch.inference_mode():
        assert computed(W, 2) == 1
    x = torch.randn(6, requires_grad=True)
    (x @ W()).sum().backward()
    with torch.inference_mode():
        check_fresh(matrix())


def test_tracers_leave_nothing_behind() -> None:
    W = matrix().requires_grad_(False)
    x = torch.randn(6)
    make_fx(lambda x: W() @ x, tracing_mode="fake", _allow_non_fake_inputs=True)(x)
    assert type(W()) is Tensor
    torch.func.functionalize(lambda x: W() @ x)(x)
    check_fresh(W)


def test_ensembles_under_vmap() -> None:
    members = [matrix() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(members)

    def call(parameters: dict, buffers: dict) -> Tensor:
        return torch.func.functional_call(members[0], (parameters, buffers), ())

    with torch.no_grad():
        stacked = torch.func.vmap(call)(parameters, buffers)
        torch.testing.assert_close(stacked, torch.stack([member() for member in members]))


def test_warns_when_a_point_of_the_manifold_has_left_it() -> None:
    W = StructuredMatrix(StiefelPoint(6))
    W.eval()
    optimizer = torch.optim.Adam(parameter_groups(W, lr=0.1))
    for _ in range(5):
        optimizer.zero_grad()
        W().abs().square().sum().backward()
        optimizer.step()
    with pytest.warns(UserWarning, match=r"no longer unitary.*StiefelRMSprop"):
        W.train()
    with pytest.raises(ValueError, match="expected orthogonal"):
        StiefelSGD(parameter_groups(W, lr=0.1))


@pytest.mark.parametrize(("lr", "steps"), [(1e-2, 10), (1e-3, 100)])
def test_warns_soon_where_training_leaves_the_manifold(lr: float, steps: int) -> None:
    """Once, in the tenth or hundredth step, and before anybody calls eval()."""
    W = StructuredMatrix(StiefelPoint(6))
    optimizer = torch.optim.Adam(W.parameters(), lr=lr)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(1, steps + 5):
            optimizer.zero_grad()
            W(update=True).real.sum().backward()
            optimizer.step()
            assert len(caught) == (step >= steps)
        W.eval()
    assert [str(w.message).partition(":")[0].partition("‖")[0] for w in caught] == [
        "W is no longer unitary, "
    ]


def test_says_nothing_where_training_stays_on_the_manifold() -> None:
    W = StructuredMatrix(StiefelPoint(6))
    optimizer = StiefelSGD(parameter_groups(W, lr=0.1))
    for _ in range(11):
        optimizer.zero_grad()
        W(update=True).real.sum().backward()
        optimizer.step()


def test_sharded_free_tensors_say_what_to_do(tmp_path: Path) -> None:
    """As FSDP2 leaves them outside of a forward pass."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rank", rank=0, world_size=1)
    try:
        layer: Any = cayley.ScoRNN(3, 6)
        fully_shard(layer, mesh=dist.init_device_mesh("cpu", (1,)))
        layer(torch.randn(4, 2, 3))[0].sum().backward()
        with pytest.raises(RuntimeError, match=r"call module\.unshard\(\) before"):
            _ = layer.weight_hh_l0
        with pytest.raises(RuntimeError, match=r"call module\.unshard\(\) before"):
            layer.freeze()
        layer.unshard()
        assert layer.weight_hh_l0.shape == (6, 6)
    finally:
        dist.destroy_process_group()


class Orthonormal(Parametrization):
    """The Q of a QR decomposition."""

    names = ("X",)

    def forward(self, X: Tensor) -> Tensor:
        return torch.linalg.qr(X)[0]

    def sample(self, **options: Any) -> Any:
        return (torch.randn(self.n, self.n, **options),)


class Bare(Orthonormal):
    """A sample that is no tuple."""

    def sample(self, **options: Any) -> Any:
        return super().sample(**options)[0]


def test_names_and_samples_that_do_not_fit_are_refused() -> None:
    assert StructuredMatrix(Orthonormal(3))().shape == (3, 3)
    with pytest.raises(TypeError, match=r"Bare.names .*got names = \('X',\) and a bare tensor"):
        StructuredMatrix(Bare(3))
    for names in ("X", ("X", "Y")):
        map = Orthonormal(3)
        map.names = names  # pyrefly: ignore[bad-assignment]
        with pytest.raises(TypeError, match="and 1 tensors"):
            StructuredMatrix(map)
    for name in ("free", "map", "kept", "forward"):
        map = Orthonormal(3)
        map.names = (name,)
        with pytest.raises(ValueError, match=f"got '{name}': rename it"):
            StructuredMatrix(map)
