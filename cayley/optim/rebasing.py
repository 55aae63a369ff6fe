"""Scaled Cayley transforms that choose D again while they are trained."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import LBFGS, Adagrad, Optimizer
from torch.utils.hooks import RemovableHandle

from cayley.checks import check_number
from cayley.optim.multiple import Optimizers
from cayley.optim.optimizer import innermost
from cayley.parametrizations import (
    GateMatrices,
    LongShort,
    NeumannCayley,
    ScaledCayley,
    StructuredMatrix,
)
from cayley.parametrizations.rebase_option import Rebase, RebaseOption
from cayley.parametrizations.rebasing import Rebased, rebase_cayley

__all__ = ["attach_rebase", "rebase_"]

Moments = Literal["carry", "reset"]

# the names under which optimizers keep averages of gradients, averages of squares, and steps,
# which move A without being divided by a root of squares
GRADIENTS = ("exp_avg", "grad_avg", "mean")
SQUARES = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "square", "accumulator")
STEPS = ("velocity", "momentum_buffer")
STEPS_TAKEN = "rebase_steps"


class _Place(NamedTuple):
    """A scaled Cayley transform in a model, and its free entries."""

    name: str
    map: ScaledCayley | NeumannCayley
    A: Tensor


def rebase_(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    limit: float = 1.0,
    moments: Moments = "carry",
) -> dict[str, Tensor]:
    r"""Choose D again for those scaled Cayley transforms whose A has entries beyond a limit.

    W, and so the loss, stays the same up to rounding; afterwards all :math:`|a_{ij}| \le 1`. Call
    it after ``optimizer.step()``. An existing gradient is converted to the new A; a graph that was
    recorded before would give a gradient for the old A.

    Note:
        Averages of gradients, and steps, are converted to the new coordinates exactly:
        :math:`K^\top M K` and :math:`K^{-1} V K^{-\top}`, with
        :math:`K = (I + A)(I + A')^{-1}`. Averages of squares cannot be: they are converted as if
        what varies were independent between entries, see
        :meth:`~cayley.parametrizations.rebasing.Rebased.covector_squares`.

        The momentum of SGD counts as a step, so it moves W as it would have without the new D. It
        is a sum of gradients too, but of gradients at smaller A, for which K is too large: as a
        gradient it would grow by up to :math:`1 + \|A\|^2` and drive A further each time.

    Arguments:
        model: A model with scaled Cayley transforms; those with a bandwidth are left alone.
        optimizer: The optimizer of their A; None if it has no state for them.
        limit: The largest :math:`|a_{ij}|` that is left alone.
        moments: ``"carry"`` to convert the optimizer's state of A to the new coordinates, or
            ``"reset"`` to start it again; of :class:`torch.optim.LBFGS`, only ``"reset"``, which
            forgets all its pairs of steps and gradients.

    Returns:
        For each transform, by its matrix's name, whether D was chosen again, bool, ().

    Example:
        >>> import cayley
        >>> layer = cayley.ScoRNN(2, 4, negative_ones=0)
        >>> with torch.no_grad():
        ...     _ = layer.structured["weight_hh_l0"].A.mul_(1e3)
        >>> W = layer.weight_hh_l0.detach()
        >>> rebase_(layer)
        {'weight_hh_l0': tensor(True)}
        >>> torch.testing.assert_close(layer.weight_hh_l0.detach(), W, rtol=0, atol=1e-5)
        >>> bool((layer.structured["weight_hh_l0"].A.abs() <= 1).all())
        True
    """
    _check(limit, moments)
    optimizer = None if optimizer is None else innermost(optimizer)
    return _rebase(_places(model), optimizer, limit, moments)


def _check(limit: float, moments: str) -> None:
    check_number("rebase_", "limit", limit)
    if limit < 1:
        raise ValueError(f"expected a limit of at least 1, which D can promise, got {limit}")
    if moments not in ("carry", "reset"):
        raise ValueError(f'expected moments "carry" or "reset", got {moments!r}')


@torch.no_grad()
def _rebase(
    places: list[_Place], optimizer: Optimizer | None, limit: float, moments: Moments
) -> dict[str, Tensor]:
    members = () if optimizer is None else _members(optimizer)
    found: dict[str, Tensor] = {}
    for name, map, A in places:
        largest = A.new_zeros(()) if A.numel() == 0 else A.abs().max()
        # with NaN or infinite entries W is NaN, and is left so
        found[name] = beyond = (largest > limit) & largest.isfinite()
        if not beyond:
            continue
        new = rebase_cayley(map.skew(A), map.D)
        change = _carried if moments == "carry" else _reset
        # first, since it may raise, and then nothing else must have changed
        for member in members:
            if _group(member, A) is not None:
                change(member, A, map.skew, new)
        if A.grad is not None:
            A.grad.copy_(map.skew.entries(new.covector(map.skew(A.grad))))
        A.copy_(map.skew.entries(new.A))
        map.D.copy_(new.D)
        if isinstance(map, NeumannCayley):
            map.refresh_()
    return found


def attach_rebase(
    model: nn.Module,
    optimizer: Optimizer,
    rebase: Rebase | None = None,
    *,
    limit: float = 1.0,
    moments: Moments = "carry",
) -> RemovableHandle:
    """Let an optimizer choose D again during training, by :func:`rebase_`.

    D is chosen for the first time now, for the W that the model starts with: how many entries of D
    are −1, the papers' ρ, then matters for the initial W only. The steps are counted in the first
    group of the optimizer, so training resumes exactly from the optimizer's ``state_dict``. Load
    model and optimizer both before this call, or both after it: the moments that an optimizer has
    saved belong to the D that was saved with them.

    Arguments:
        model: A model with scaled Cayley transforms.
        optimizer: An optimizer of their A.
        rebase: After how many steps of the optimizer to look for entries beyond the limit, which
            waits for a GPU; ``"auto"`` for 100. None to do what the layers' own option says, as in
            ``ScoRNN(…, rebase="auto")``, and to leave layers without it alone; if no layer has
            the option, it is ``"auto"`` for all.
        limit: See :func:`rebase_`.
        moments: See :func:`rebase_`.

    Returns:
        A handle whose ``remove()`` ends it.

    Example:
        >>> import cayley
        >>> layer = cayley.ScoRNN(2, 8, rebase="auto")
        >>> optimizer = torch.optim.Adam(layer.parameters())
        >>> handle = attach_rebase(layer, optimizer)
        >>> handle.remove()
    """
    _check(limit, moments)
    optimizer = innermost(optimizer)
    places = _places(model)
    if rebase is None:
        asked = [place for place in places if place.map.rebase_option.rebase is not None]
        places, rebase = asked or places, None if asked else "auto"
    given = RebaseOption(rebase).steps
    found = ((name, given or map.rebase_option.steps) for name, map, _ in places)
    steps = {name: every for name, every in found if every is not None}
    for name, _, A in places:
        if A.requires_grad and _group(optimizer, A) is None:
            raise ValueError(
                f"expected an optimizer of all scaled Cayley transforms of the model, but the A of "
                f"{name} is not among the parameters of this {type(optimizer).__name__}"
            )
    if moments == "carry":
        _check_known(optimizer, places)
    # unless the state of the optimizer was loaded, and training continues
    if not _first_group(optimizer).get(STEPS_TAKEN):
        _rebase(places, optimizer, limit, moments)
        _first_group(optimizer)[STEPS_TAKEN] = 0
    handle = optimizer.register_step_post_hook(_After(model, steps, limit, moments))
    for place in places:
        place.map.rebase_option.handle.value = handle
    return handle


class _After:
    """What an optimizer does after each of its steps, for one model.

    Arguments:
        model: The model.
        steps: After how many steps to look at each of its transforms, by name.
        limit: See :func:`rebase_`.
        moments: See :func:`rebase_`.
    """

    def __init__(
        self, model: nn.Module, steps: Mapping[str, int], limit: float, moments: Moments
    ) -> None:
        self.model, self.steps, self.limit, self.moments = model, steps, limit, moments
        self.checked = moments == "reset"

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.checked:
            # in the first step, not when an entry is beyond the limit, after hours
            _check_known(optimizer, _places(self.model))
            self.checked = True
        group = _first_group(optimizer)
        # an optimizer may serve several models, and counts its steps once
        hooks = optimizer._optimizer_step_post_hooks.values()
        if self is next(hook for hook in hooks if isinstance(hook, _After)):
            # the state of an optimizer without a model to rebase, if loaded, has no count
            group[STEPS_TAKEN] = group.get(STEPS_TAKEN, 0) + 1
        names = {name for name, every in self.steps.items() if group[STEPS_TAKEN] % every == 0}
        if names:
            # looked up again: loading with assign=True replaces parameters
            due = [place for place in _places(self.model) if place.name in names]
            _rebase(due, optimizer, self.limit, self.moments)


def _first_group(optimizer: Optimizer) -> dict[str, Any]:
    """Where the steps are counted, since groups are saved and loaded with the state."""
    return optimizer.param_groups[0]


def _group(optimizer: Optimizer, A: Tensor) -> dict[str, Any] | None:
    groups = optimizer.param_groups
    return next((group for group in groups if any(p is A for p in group["params"])), None)


def _places(model: nn.Module) -> list[_Place]:
    """The scaled Cayley transforms of a model whose A may be any skew matrix."""
    found = [place for place in _transforms(model) if place.map.onto]
    if not found:
        raise TypeError(
            "expected a model with a real scaled Cayley transform without a bandwidth (ENRNN, "
            "NCGRU, ScoRNN, RNN with recurrent='cayley' or 'neumann', or a weight of "
            "cayley.orthogonal_), got none; ScuRNN trains its D"
        )
    return found


def _transforms(model: nn.Module) -> Iterator[_Place]:
    for prefix, matrix in model.named_modules():
        if isinstance(matrix, parametrize.ParametrizationList):
            # a weight that cayley.orthogonal_ has made
            map = matrix[0]
            if isinstance(map, (ScaledCayley, NeumannCayley)):
                yield _Place(prefix.replace("parametrizations.", ""), map, matrix.original)
        if not isinstance(matrix, StructuredMatrix):
            continue
        name, free = prefix.replace("structured.", ""), matrix.stored
        named = dict(zip(matrix.map.names, free, strict=True))
        maps: Mapping[str, Any] = {"": matrix.map}
        if isinstance(matrix.map, LongShort):
            maps = {"long": matrix.map.long}
        elif isinstance(matrix.map, GateMatrices):
            maps = dict(matrix.map.named_children())
        for part, map in maps.items():
            if isinstance(map, (ScaledCayley, NeumannCayley)):
                gate = isinstance(matrix.map, GateMatrices)
                A = named[f"{part}_A" if gate else "A"]
                yield _Place(f"{name}.{part}" if part else name, map, A)


def _members(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    return optimizer.optimizers if isinstance(optimizer, Optimizers) else (optimizer,)


def _check_known(optimizer: Optimizer, places: list[_Place]) -> None:
    """Raise unless it is known how to convert what an optimizer keeps so far."""
    for member in _members(optimizer):
        for place in places:
            _known_state(member, place.A)


def _carried(optimizer: Optimizer, A: Tensor, skew: Any, new: Rebased) -> None:
    """Convert an optimizer's state of the free entries to the new coordinates."""
    kept = _known_state(optimizer, A)
    mean = next((skew(kept[key]) for key in GRADIENTS if key in kept), None)
    carried: dict[str, Tensor] = {}
    for key, value in kept.items():
        if key in GRADIENTS:
            carried[key] = new.covector(skew(value))
        elif key in SQUARES:
            carried[key] = new.covector_squares(skew(value).abs(), mean)
        else:
            carried[key] = new.vector(skew(value))
    for key, value in carried.items():
        kept[key].copy_(skew.entries(value))


def _known_state(optimizer: Optimizer, A: Tensor) -> dict[str, Tensor]:
    """What an optimizer keeps of each free entry, if it is known how to convert it."""
    if isinstance(optimizer, LBFGS) and _group(optimizer, A) is not None:
        raise ValueError(
            'expected moments="reset" with LBFGS, got "carry": its pairs of steps and gradients '
            "cannot be converted to the coordinates of a new D"
        )
    state = optimizer.state.get(A, {})
    kept = {k: v for k, v in state.items() if isinstance(v, Tensor) and v.shape == A.shape}
    for key in kept:
        if key not in (*GRADIENTS, *SQUARES, *STEPS):
            raise ValueError(
                f"expected the state of {type(optimizer).__name__} to consist of averages of "
                f"gradients {GRADIENTS}, of squares {SQUARES} or steps {STEPS}, got {key!r}: use "
                'moments="reset"'
            )
    return kept


def _reset(optimizer: Optimizer, A: Tensor, skew: Any, new: Rebased) -> None:
    """Start an optimizer's state of the free entries again."""
    if isinstance(optimizer, LBFGS):
        # which keeps all under its first parameter, and its pairs are of all parameters together
        optimizer.state.clear()
    elif isinstance(optimizer, Adagrad):
        # which makes its state when it is constructed
        group = _group(optimizer, A)
        assert group is not None
        optimizer.state[A]["sum"].fill_(group["initial_accumulator_value"])
        optimizer.state[A]["step"].zero_()
    else:
        optimizer.state.pop(A, None)
