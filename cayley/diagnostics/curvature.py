"""Eigenvalues of the Hessian of one layer, with and without preconditioning, by Lanczos."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from cayley.diagnostics.krylov import Product, Ritz, condition_number, lanczos
from cayley.preconditioners import default_rules
from cayley.preconditioners.joint import Damping, precondition
from cayley.preconditioners.rule import suspended
from cayley.preconditioners.unit import Unit, present

__all__ = [
    "Conditioning",
    "LayerConditioning",
    "condition_numbers",
    "gauss_newton_product",
    "hessian_product",
]


class Conditioning(NamedTuple):
    """The condition number of a symmetric matrix, and the eigenvalues that it is made of.

    Attributes:
        condition: The largest modulus of an eigenvalue divided by the smallest, ().
        eigenvalues: In increasing order, (k).
        residuals: Bounds of the distance of each from an exact eigenvalue, (k).
    """

    condition: Tensor
    eigenvalues: Tensor
    residuals: Tensor


def hessian_product(loss: Tensor, parameters: Sequence[Tensor]) -> Product:
    """The function v ↦ H v, where H is the Hessian of a loss with respect to flattened tensors.

    Example:
        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> hessian_product((x**3).sum(), [x])(torch.ones(2))
        tensor([ 6., 12.])
    """
    gradients = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
    pairs = [(g, k) for k, g in enumerate(gradients) if g is not None and g.requires_grad]

    def product(v: Tensor) -> Tensor:
        parts = _unflatten(v, parameters)
        if not pairs:
            return torch.zeros_like(v)
        found = torch.autograd.grad(
            [g for g, _ in pairs],
            parameters,
            [parts[k] for _, k in pairs],
            retain_graph=True,
            allow_unused=True,
        )
        return _flatten(found, parameters)

    return product


def gauss_newton_product(outputs: Tensor, loss: Tensor, parameters: Sequence[Tensor]) -> Product:
    r"""The function :math:`v \mapsto J^\top H_L J v`, the Gauss–Newton part of the Hessian.

    J is the Jacobian of a model's outputs with respect to some parameters, and :math:`H_L` the
    Hessian of the loss with respect to the outputs. It is positive semidefinite for a loss that is
    convex in the outputs.

    Arguments:
        outputs: The outputs that the loss is a function of.
        loss: The loss, ().
        parameters: The tensors.

    Example:
        >>> w = torch.tensor([3.0], requires_grad=True)
        >>> y = w**2
        >>> gauss_newton_product(y, y.square().sum(), [w])(torch.ones(1))  # (2w)² · 2
        tensor([72.])
    """
    (slope,) = torch.autograd.grad(loss, outputs, create_graph=True)
    dummy = torch.zeros_like(outputs, requires_grad=True)
    transposed = torch.autograd.grad(
        outputs, parameters, dummy, create_graph=True, allow_unused=True
    )
    pairs = [(g, k) for k, g in enumerate(transposed) if g is not None and g.requires_grad]

    def product(v: Tensor) -> Tensor:
        parts = _unflatten(v, parameters)
        if not pairs or not slope.requires_grad:
            return torch.zeros_like(v)
        (Jv,) = torch.autograd.grad(
            [g for g, _ in pairs], dummy, [parts[k] for _, k in pairs], retain_graph=True
        )
        (HJv,) = torch.autograd.grad(slope, outputs, Jv, retain_graph=True)
        found = torch.autograd.grad(outputs, parameters, HJv, retain_graph=True, allow_unused=True)
        return _flatten(found, parameters)

    return product


class LayerConditioning(NamedTuple):
    """The conditioning of one layer, without and with BNP.

    Attributes:
        plain: The conditioning of the Hessian block H.
        preconditioned: That of P Pᵀ H, which has the eigenvalues of Pᵀ H P.
    """

    plain: Conditioning
    preconditioned: Conditioning


def condition_numbers(
    model: nn.Module,
    compute: Callable[[], Tensor | tuple[Tensor, Tensor]],
    layer: str,
    *,
    block: Literal["hessian", "gauss_newton"] = "hessian",
    eps: float = 1e-2,
    relative_eps: float = 0.0,
    q: bool = False,
    steps: int | None = None,
    floor: float | None = None,
    seed: int = 0,
) -> LayerConditioning:
    r"""Condition numbers of the Hessian with respect to one layer, with and without BNP.

    BNP replaces the gradient g by :math:`P P^\top g`: gradient descent then behaves as if the
    Hessian were :math:`P^\top H P`. Both numbers come from :func:`~cayley.diagnostics.lanczos`
    with products with H, over the parameters that BNP preconditions.

    References:
        Orthogonal Recurrent Neural Networks and Batch Normalization in Deep Neural Networks
        (dissertation), Helfrich, 2020, section 3.3.
        Batch Normalization Preconditioning for Neural Network Training, Lange, Helfrich, Ye, 2022.

    Arguments:
        model: The model, in double precision if small eigenvalues matter.
        compute: Runs the model and returns the loss, (), or for the Gauss–Newton block its outputs
            and the loss.
        layer: The layer's name in the model, ``""`` for the model itself.
        block: ``"hessian"``, or ``"gauss_newton"``, which has no negative eigenvalues for a convex
            loss.
        eps: As in :class:`cayley.BNP`.
        relative_eps: As in :class:`cayley.BNP`.
        q: As in :class:`cayley.BNP`.
        steps: How many Lanczos takes; None for as many as there are parameters, which finds every
            eigenvalue. With fewer, the smallest eigenvalue, and so the condition number, is a
            rough estimate.
        floor: See :func:`~cayley.diagnostics.condition_number`; None for the rounding error.
        seed: The seed of the first direction.

    Example:
        >>> layer, x = nn.Linear(2, 1), 100 + torch.randn(50, 2)
        >>> found = condition_numbers(layer, lambda: layer(x).square().mean(), "")
        >>> bool(found.preconditioned.condition < found.plain.condition)
        True
    """
    if block not in ("hessian", "gauss_newton"):
        raise ValueError(f'expected a block "hessian" or "gauss_newton", got {block!r}')
    unit = _unit(model, layer)
    parameters = [p for p in unit.parameters().values() if p.requires_grad]
    # a preconditioner of the model itself does not see these passes
    with suspended(model), ExitStack() as hooks, torch.enable_grad():
        for handle in unit.watch():
            hooks.callback(handle.remove)
        computed = compute()
        pair = isinstance(computed, tuple)
        if pair != (block == "gauss_newton"):
            expected = "outputs and loss" if block == "gauss_newton" else "the loss alone"
            raise TypeError(f"expected a function that returns {expected} for block={block!r}")
        loss = computed[1] if pair else computed
        # a recorded backward pass, which also collects the statistics of the rows
        hessian = hessian_product(loss, parameters)
        statistics = unit.collector.take()
        product = gauss_newton_product(*computed, parameters) if pair else hessian
    if not statistics:
        raise ValueError(
            f"expected a loss that depends on {layer or 'the model'}, got one that does not"
        )
    names = [name for name, p in unit.parameters().items() if p.requires_grad]
    damping = Damping(eps, relative_eps, q)

    def metric(u: Tensor) -> Tensor:
        gradients = dict(zip(names, _unflatten(u, parameters), strict=True))
        found = precondition(unit.blocks, gradients, statistics, damping)
        return _flatten([found[name] for name in names], parameters)

    first = parameters[0]
    generator = torch.Generator().manual_seed(seed)
    n = sum(p.numel() for p in parameters)
    start = torch.randn(n, generator=generator, dtype=first.dtype).to(first.device)
    return LayerConditioning(
        *(_conditioning(lanczos(product, start, steps, metric=M), floor, n) for M in (None, metric))
    )


def _conditioning(ritz: Ritz, floor: float | None, n: int) -> Conditioning:
    floor = 10 * n * torch.finfo(ritz.values.dtype).eps if floor is None else floor
    return Conditioning(condition_number(ritz.values, floor=floor), *ritz)


def _unit(model: nn.Module, layer: str) -> Unit:
    """The layer as a unit of BNP; raise if BNP has no rule for it."""
    modules = dict(model.named_modules())
    if layer not in modules:
        raise ValueError(
            f"expected the name of a layer of the model, one of {[*modules]}, got {layer!r}"
        )
    module, rules = modules[layer], default_rules()
    rule = next((rule for rule in rules if rule.serves(module)), None)
    if rule is None:
        known = sorted({kind.__name__ for rule in rules for kind in rule.types})
        raise TypeError(
            f"expected a layer that BNP can precondition, one of {known}, got "
            f"{type(module).__name__}: name the layer inside it"
        )
    named = dict(module.named_parameters())
    blocks = present(rule.layout(module).blocks, named)
    return Unit(layer, [module], rule, blocks, torch.float32)


def _flatten(tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    pairs = zip(tensors, like, strict=True)
    return torch.cat([(torch.zeros_like(p) if t is None else t).flatten() for t, p in pairs])


def _unflatten(v: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = v.split([p.numel() for p in like])
    return [part.view_as(p) for part, p in zip(parts, like, strict=True)]
