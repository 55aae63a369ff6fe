"""Structured matrices for the weights of any module."""

import copy
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import nn
from torch.nn.utils import parametrize

from cayley.parametrizations.cayley import ScaledCayley
from cayley.parametrizations.cayley_complex import ComplexScaledCayley
from cayley.parametrizations.composition import UnitaryComposition
from cayley.parametrizations.exponential import MatrixExponential
from cayley.parametrizations.givens import GivensLayers
from cayley.parametrizations.householder import HouseholderProduct
from cayley.parametrizations.neumann import NeumannCayley
from cayley.parametrizations.parametrization import Parametrization, made_on
from cayley.parametrizations.stiefel import StiefelPoint
from cayley.parametrizations.structured import is_looked_at, warn_off_manifold
from cayley.parametrizations.svd import SpectralSVD
from cayley.tracing import traced

__all__ = ["MAPS", "MapFactory", "make_map", "orthogonal_"]

MapFactory = Callable[[int], Parametrization]

MAPS: dict[str, MapFactory] = {
    "cayley": ScaledCayley,
    "cayley_complex": ComplexScaledCayley,
    "composition": UnitaryComposition,
    "exponential": MatrixExponential,
    "givens": GivensLayers,
    "householder": HouseholderProduct,
    "neumann": NeumannCayley,
    "stiefel": StiefelPoint,
    "svd": SpectralSVD,
}


def make_map(
    map: Parametrization | MapFactory | str, n: int, device: torch.device | str | None = None
) -> Parametrization:
    """The parametrisation of an (n, n) matrix.

    Arguments:
        map: The parametrisation itself, a function that makes it from n, or its name, a key of
            :data:`MAPS`.
        n: The size of the matrix.
        device: The device of the new map's buffers; None for torch's default.

    Example:
        >>> from functools import partial
        >>> make_map("householder", 4)
        HouseholderProduct(4, reflections=4)
        >>> make_map(partial(HouseholderProduct, reflections=2), 4)
        HouseholderProduct(4, reflections=2)
    """
    if isinstance(map, str):
        if map not in MAPS:
            raise ValueError(f"expected one of the maps {sorted(MAPS)}, got {map!r}")
        map = MAPS[map]
    if callable(map) and not isinstance(map, nn.Module):
        with made_on(device):
            map = map(n)
    if not isinstance(map, Parametrization):
        raise TypeError(
            "expected a parametrisation, a function that makes one from its size, or the name of "
            f"one of the maps {sorted(MAPS)}, got {map!r}"
        )
    if map.n != n:
        raise ValueError(f"expected a map of size {n}, got one of size {map.n}: {map}")
    return map


@torch.no_grad()
def orthogonal_(
    module: nn.Module,
    name: str = "weight",
    map: Parametrization | MapFactory | str = "cayley",
    *,
    init: str = "project",
) -> nn.Module:
    r"""Make a square weight of a module orthogonal (unitary, …) and keep it so, in place.

    From then on ``module.weight`` is formed from free tensors, which replace it as parameters of
    the module, and it stays orthogonal whatever the optimizer does; with ``"stiefel"``, whose free
    tensor is the weight, only if an optimizer of :mod:`cayley.optim` does it, and a warning says so
    otherwise. This is :func:`torch.nn.utils.parametrize.register_parametrization` with our maps,
    and torch's documentation of it applies: ``parametrize.cached()`` avoids forming the weight
    twice, and such a module is saved by its ``state_dict``, not pickled.

    If the map has a state (:class:`~cayley.parametrizations.NeumannCayley`), calling the module in
    training mode updates it; reading ``module.weight`` does not.

    Arguments:
        module: Any module.
        name: The name of its weight, (n, n); complex for a complex map.
        map: A parametrisation of size n, a function that makes one from n, such as its class, or
            its name, a key of :data:`MAPS`.
        init: ``"project"`` starts from the structured matrix nearest to the weight; ``"sample"``
            draws one as the method's authors do, and is the only way for maps that reach only some
            of these matrices.

    Returns:
        The module.

    Example:
        >>> layer = orthogonal_(nn.Linear(4, 4), map="cayley")
        >>> torch.testing.assert_close(layer.weight @ layer.weight.T, torch.eye(4))
    """
    if init not in ("project", "sample"):
        raise ValueError(f'expected init to be "project" or "sample", got {init!r}')
    weight = module._parameters.get(name)
    if parametrize.is_parametrized(module, name):
        raise ValueError(
            f"expected {name!r} without a parametrisation, got one that has some: remove them "
            "first, with torch.nn.utils.parametrize.remove_parametrizations"
        )
    if weight is None:
        raise ValueError(
            f"expected {name!r} to be a parameter of {type(module).__name__}, got one of "
            f"{[key for key, _ in module.named_parameters(recurse=False)]}"
        )
    if weight.dim() != 2 or weight.shape[0] != weight.shape[1]:
        raise ValueError(f"expected {name!r} to be a square matrix, got {tuple(weight.shape)}")
    # a copy: two weights must not share the signs or the base that belong to one of them
    map = copy.deepcopy(make_map(map, len(weight), weight.device))
    if map.is_complex != weight.is_complex():
        kind = "complex" if map.is_complex else "real"
        raise TypeError(f"expected a {kind} weight for {map}, got {weight.dtype}")
    real = weight.dtype.to_real()
    map.to(device=weight.device, dtype=real)
    if init == "sample":
        X = map.sample(device=weight.device, dtype=real)
    else:
        X = map.right_inverse(map.project(weight))
    if not isinstance(X, torch.Tensor) and len(X) == 1:
        (X,) = X
    # register_parametrization asks the map for the free tensors of the weight; for maps without an
    # inverse, return those that were drawn
    map.right_inverse = lambda W: X
    try:
        parametrize.register_parametrization(module, name, map, unsafe=True)
    finally:
        del map.right_inverse
    if map.stateful:
        module.register_forward_pre_hook(partial(_advance, name))
    if map.on_manifold:
        module.register_forward_pre_hook(_Look(name))
    return module


class _Look:
    """Looks in passes 10, 100, 1000, … of training whether a weight is unitary.

    More often would wait for the GPU.
    """

    def __init__(self, name: str) -> None:
        self.name, self.passes = name, 0

    def __call__(self, module: nn.Module, args: object) -> None:
        if not (module.training and parametrize.is_parametrized(module, self.name)):
            return
        weights = cast(nn.ModuleDict, module.parametrizations)
        weight = cast(parametrize.ParametrizationList, weights[self.name])
        if traced(weight.original):
            return
        self.passes += 1
        if is_looked_at(self.passes):
            warn_off_manifold(cast(Parametrization, weight[0]), weight.original, module)


def _advance(name: str, module: nn.Module, args: object) -> None:
    """Update the buffers of a weight's map to its free tensors, before a pass in training."""
    if not (
        module.training and torch.is_grad_enabled() and parametrize.is_parametrized(module, name)
    ):
        return
    weights = cast(nn.ModuleDict, module.parametrizations)
    weight = cast(parametrize.ParametrizationList, weights[name])
    free = [X for key, X in weight.named_parameters() if key.startswith("original")]
    if any(X.requires_grad for X in free):
        with torch.no_grad():
            cast(Parametrization, weight[0]).advance(*free)
