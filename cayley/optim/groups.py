"""Parameter groups: structured matrices, phases and the rest, each with its learning rate."""

from collections.abc import Iterator
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from cayley.checks import check_number
from cayley.optim.optimizer import check_rate
from cayley.parametrizations import Parametrization, StructuredMatrix

__all__ = ["parameter_groups"]


def parameter_groups(
    model: nn.Module,
    lr: float | Tensor,
    *,
    recurrent_lr: float | Tensor | None = None,
    phase_lr: float | Tensor | None = None,
    weight_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Parameter groups of a model, for any torch optimizer.

    ========= ============================================ ================ ================
    name      parameters                                   learning rate    weight decay
    ========= ============================================ ================ ================
    rest      all others                                   ``lr``           ``weight_decay``
    recurrent free tensors of structured matrices          ``recurrent_lr`` 0
    phases    free tensors that are angles                 ``phase_lr``     0
    ========= ============================================ ================ ================

    A structured matrix is a :class:`~cayley.parametrizations.StructuredMatrix`, or a tensor to
    which :func:`torch.nn.utils.parametrize.register_parametrization` gave one of this package's
    maps and no other. Every trainable parameter appears once; empty groups are left out.

    If a map's free tensor is the unitary matrix itself, only an optimizer such as
    :class:`~cayley.optim.StiefelRMSprop` keeps it unitary. Every group has the key ``stiefel``,
    which is true only for the group of these matrices; other optimizers ignore it. That group is
    called "recurrent", unless there are other free tensors: then those are "recurrent" and the
    matrices are "stiefel", with the same learning rate.

    Arguments:
        model: The model.
        lr: The learning rate, a number or a tensor of one, (), as are the others.
        recurrent_lr: The learning rate of the free tensors of structured matrices; None for ``lr``.
        phase_lr: The learning rate of the phases; None for ``lr``.
        weight_decay: The weight decay of the rest; None for the optimizer's default.

    Returns:
        The groups, in the order of the table.

    Example:
        >>> from cayley.parametrizations import ComplexScaledCayley, StructuredMatrix
        >>> model = nn.ModuleList([StructuredMatrix(ComplexScaledCayley(3)), nn.Linear(3, 1)])
        >>> groups = parameter_groups(model, lr=1e-3, recurrent_lr=1e-4)
        >>> [(group["name"], group["lr"], len(group["params"])) for group in groups]
        [('rest', 0.001, 2), ('recurrent', 0.0001, 1), ('phases', 0.001, 1)]
    """
    for name, rate in (("lr", lr), ("recurrent_lr", recurrent_lr), ("phase_lr", phase_lr)):
        if rate is not None:
            check_rate("parameter_groups", name, rate)
    if weight_decay is not None:
        check_number("parameter_groups", "weight_decay", weight_decay)
    kinds = dict(_kinds(model))
    rest, recurrent, stiefel, phases = [], [], [], []
    members = {"rest": rest, "recurrent": recurrent, "stiefel": stiefel, "phases": phases}
    # parameters() gives a shared parameter once
    for p in model.parameters():
        if p.requires_grad:
            members[kinds.get(p, "rest")].append(p)

    recurrent_lr = lr if recurrent_lr is None else recurrent_lr
    phase_lr = lr if phase_lr is None else phase_lr
    manifold = "stiefel" if recurrent else "recurrent"
    groups: list[dict[str, Any]] = [
        {"params": rest, "name": "rest", "lr": lr},
        {"params": recurrent, "name": "recurrent", "lr": recurrent_lr, "weight_decay": 0.0},
        {"params": stiefel, "name": manifold, "lr": recurrent_lr, "weight_decay": 0.0},
        {"params": phases, "name": "phases", "lr": phase_lr, "weight_decay": 0.0},
    ]
    if weight_decay is not None:
        groups[0]["weight_decay"] = weight_decay
    for group in groups:
        group["stiefel"] = group["params"] is stiefel
    return [group for group in groups if group["params"]]


def _kinds(model: nn.Module) -> Iterator[tuple[Tensor, str]]:
    """Every free tensor of a structured matrix, with the kind of its group."""
    for module in model.modules():
        if isinstance(module, StructuredMatrix):
            map = module.map
            free = [(name, X) for name in map.names for X in _stored(module, name)]
        elif isinstance(module, ParametrizationList) and len(module) == 1:
            map = module[0]
            if not isinstance(map, Parametrization):
                continue
            # original, or original0, original1, …: in the order of the map's arguments; a
            # parametrised buffer has no parameters
            free = [*zip(map.names, module.parameters(recurse=False), strict=False)]
        else:
            continue
        for name, X in free:
            if name in map.unconstrained:
                continue
            if name in map.phases:
                yield X, "phases"
            else:
                yield X, "stiefel" if map.on_manifold else "recurrent"


def _stored(matrix: StructuredMatrix, name: str) -> Iterator[Tensor]:
    """The parameters that a free tensor is made of, if it is pruned or parametrised, or itself."""
    if is_parametrized(matrix, name):
        parametrizations = cast(nn.ModuleDict, matrix.parametrizations)
        yield from parametrizations[name].parameters(recurse=False)
    else:
        own = dict(matrix.named_parameters(recurse=False))
        yield from (own[key] for key in (name, f"{name}_orig") if key in own)
