"""Elman recurrences by tiles: emulated, against the loop in double precision."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from emulator import COMPILER, Kernel, emulated
from teams import force_elman_tiles
from torch import Tensor

from cayley.kernels.calls import ElmanCall, ElmanGradients
from cayley.kernels.crowds import crowded
from cayley.kernels.cuda import elman
from cayley.kernels.cuda.runtime.tiles import TileKind
from cayley.recurrences import elman_loop

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no g++ on Linux"),
    pytest.mark.slow,
]

kinds = pytest.mark.parametrize("kind", elman.TILES, ids=lambda k: f"{k.groups}-{k.sets}")


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    with emulated():
        yield


def check(
    T: int, B: int, H: int, nonlinearity: str, reverse: bool = False, sizes: Tensor | None = None
) -> None:
    """States and every gradient, as float32 holds the arguments."""
    shape = (T, B) if sizes is None else (int(sizes.sum()),)
    named = {
        "x": torch.randn(*shape, H),
        "h0": torch.randn(B, H),
        "W": torch.linalg.qr(torch.randn(H, H))[0],
    }
    if nonlinearity == "modrelu":
        named["b"] = -0.3 * torch.rand(H)
    leaves: Any = {name: v.float().double().requires_grad_() for name, v in named.items()}
    options: Any = {"nonlinearity": nonlinearity, "batch_sizes": sizes, "reverse": reverse}
    g = torch.randn(*shape, H).float()
    h = elman_loop(**leaves, **options)
    theirs = [h.detach(), *torch.autograd.grad(h, [*leaves.values()], g.double())]
    own: Any = {name: v.detach().float() for name, v in leaves.items()}
    call = ElmanCall(**own, **options)
    states = elman.elman(call)
    found = elman.elman_backward(ElmanGradients(g), states, call, [*leaves])
    ours = [states.h, *(found[name] for name in leaves)]
    for name, one, other in zip(("h", *leaves), ours, theirs, strict=True):
        assert one is not None
        error = (one.double() - other).norm() / other.norm().clamp(min=1)
        assert error <= 2e-6, f"{name} is off by {error:.1g}"


# few sizes and activations: every kernel has to be compiled
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (elman.TILES[0], (1, 1, 1)),
        (elman.TILES[0], (3, 64, 17)),
        (elman.TILES[3], (1, 5, 16)),
        (elman.TILES[3], (4, 1, 33)),
        # more stages than there is room for, and a last warp with fewer inputs
        (elman.TILES[3], (2, 3, 170)),
    ],
    ids=str,
)
def test_sizes(kind: TileKind, size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    force_elman_tiles(monkeypatch, kind)
    check(*size, "modrelu")


@pytest.mark.parametrize("nonlinearity", ["identity", "relu", "leaky_relu", "tanh"])
def test_activations(nonlinearity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    force_elman_tiles(monkeypatch, elman.TILES[3])
    check(3, 3, 20, nonlinearity, reverse=nonlinearity != "relu")


@kinds
@pytest.mark.parametrize("late", [-1, 1])
@pytest.mark.parametrize("packed", [False, True])
def test_rows_in_turn(
    packed: bool, late: int, kind: TileKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One team takes 64 or 128 and then the last of the rows; its last block has few units."""
    force_elman_tiles(monkeypatch, kind, processors=3 if kind.groups == 1 else 2)
    monkeypatch.setattr(Kernel, "late", late)
    B = kind.sets * 64 + 6
    sizes = torch.tensor([B, B - 4, 65, 64, 9]) if packed else None
    for reverse in (False, True):
        check(5, B, 37, "modrelu", reverse=reverse, sizes=sizes)


@kinds
def test_sets_without_rows(kind: TileKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two teams, of which the second has rows in its first set only, or none."""
    force_elman_tiles(monkeypatch, kind, processors=6 if kind.groups == 1 else 4)
    for B in (65, 140):
        check(3, B, 37, "modrelu")


def test_alone_with_many_rows_and_units_only() -> None:
    def chosen(B: int, H: int, nonlinearity: str = "modrelu") -> Any:
        h0, W = torch.empty(B, H), torch.empty(H, H)
        x = torch.empty(1, 1, 1).expand(3, B, H)
        return elman._plan(ElmanCall(x, h0, W, W[0], nonlinearity=nonlinearity))

    assert isinstance(chosen(512, 1024), TileKind)
    assert not isinstance(chosen(512, 128), TileKind)
    assert not isinstance(chosen(1, 1024), TileKind)
    assert not isinstance(chosen(512, 1024, "modrelu_stacked"), TileKind)
    with crowded(2, torch.empty(0).device.index):
        assert not isinstance(chosen(512, 1024), TileKind)
