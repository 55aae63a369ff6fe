"""Nodes with rules for ``vmap`` and ``grad`` of :mod:`torch.func`, to run G networks on kernels.

Each transform works at a level of its own, and asks a node there for its rule: the batching rule
for ``vmap``, and the gradient, which is a node too, so that ``vmap(grad(f))`` can ask it for its
batching rule. Below the last level kernels run, side by side: a few calls of many networks each
where a rule takes them together, and otherwise one call per network.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from cayley.batched_gradients import one_by_one
from cayley.kernels.crowds import crowded
from cayley.kernels.side_by_side import Calls, side_by_side
from cayley.tracing import transforms_active

__all__ = ["Room", "Rule", "Transformed"]

# Calls of several networks. Each takes the host as long as that of one network. In one call alone,
# nothing would run beside the last rows of the recurrences, or beside the sums over their steps: it
# takes an H200 8 % longer than two.
CALLS = 2

Gradients = Sequence[Tensor | None]


class Rule(Protocol):
    """What a node computes, of flat arguments: tensors, None and options.

    Attributes:
        batched: Whether it also takes the arguments of G networks together, with the networks along
            the first dimension of every tensor, and of its results. Then :meth:`takes_together` and
            :meth:`room` are not asked.
    """

    batched: bool

    def forward(self, *flat: Any) -> Sequence[Tensor]:
        """The results, without a gradient."""

    def node(self, *flat: Any) -> Sequence[Tensor]:
        """The results as an autograd node, outside of transforms."""

    def loop(self, *flat: Any) -> Sequence[Tensor]:
        """The results in torch operations, which transforms can trace."""

    def backward(
        self, gradients: Gradients, results: Sequence[Tensor], flat: Sequence[Any], needs: Any
    ) -> Gradients:
        """The gradients of those arguments that need one, detached."""

    def loop_backward(
        self,
        gradients: Gradients,
        results: Sequence[Tensor],
        flat: Sequence[Any],
        needs: Any,
        again: bool,
    ) -> Gradients:
        """The same in torch operations; ``again`` if they will be differentiated again."""

    def kept(self, results: Sequence[Tensor], flat: Sequence[Any]) -> Sequence[Any]:
        """The arguments as they are saved for the gradient."""

    def takes_together(self, networks: int, flat: Sequence[Any]) -> int:
        """How many such networks ``forward`` and ``backward`` take together, as for ``batched``.

        It is asked below all levels, if :meth:`serves` holds: only there kernels run.

        Arguments:
            networks: How many are wanted at most.
            flat: The arguments of the first.

        Returns:
            Their number; 0 if tensors cannot have the dimension of the networks.
        """

    def room(self, networks: int, flat: Sequence[Any], grouped: bool) -> "Room | None":
        """Where calls of networks can leave their results; None if they cannot.

        Arguments:
            networks: How many there are.
            flat: The arguments of the first.
            grouped: Whether a call takes several of them.
        """

    def serves(
        self, dims: Sequence[int | None], flat: Sequence[Any], gradients: Gradients | None = None
    ) -> bool:
        """Whether a kernel is called for each network, rather than the loop for all of them.

        Arguments:
            dims: The dimension of each argument along which the networks are; None if shared.
            flat: The arguments of the first network.
            gradients: Those of its results; None in a forward pass.
        """


class Room(NamedTuple):
    """The results of several networks in one tensor each, and what fills the part of a call.

    Attributes:
        results: The tensors, not filled yet, with the networks along the first dimension.
        fill: Takes the parts of a call and its arguments: those of a network, or of several.
    """

    results: Sequence[Tensor]
    fill: Callable[..., None]


class Transformed(torch.autograd.Function):
    """The results of a rule under transforms, ``Transformed.apply(rule, *flat)``."""

    @staticmethod
    def forward(rule: Rule, *flat: Any) -> tuple[Tensor, ...]:
        """The results, below all levels."""
        return (*rule.forward(*flat),)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save what the gradient needs."""
        ctx.rule, *flat = inputs
        _save(ctx, [*output, *ctx.rule.kept(output, flat)])
        # results other than the states seldom get a gradient
        ctx.set_materialize_grads(False)

    @staticmethod
    @partial(one_by_one, has_rule=True)
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradient, by a node that has a batching rule too."""
        _, *needs = ctx.needs_input_grad
        job = _Job(ctx.rule, (*needs,), len(gradients))
        found = iter(_Pullback.apply(job, *map(_there, gradients), *_saved(ctx)))
        return None, *(_there(next(found)) if need else None for need in needs)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        """The batching rule."""
        (rule, *flat), (_, *dims) = args, in_dims
        G, first = info.batch_size, _first(dims, flat)
        if not rule.serves(dims, first):
            return _by_torch(info, rule.loop, dims, flat)
        calls = _calls_of(rule, G, first, transforms_active())
        if rule.batched or transforms_active():
            return side_by_side(lambda *own: Transformed.apply(rule, *own), calls, dims, flat)
        room = rule.room(G, first, calls.grouped)
        if not calls.grouped and room is None:
            return side_by_side(rule.node, calls, dims, flat)
        results = _SideBySide.apply(rule, room, calls, info, dims, *flat)
        return results, (0,) * len(results)


def _calls_of(rule: Rule, G: int, first: Sequence[Any], levels: bool) -> Calls:
    """The calls of G networks, where there are levels of transforms left, or none."""
    if rule.batched:
        return Calls.together(G, 1)
    if levels:
        return Calls.apart(G)
    count = min(G, CALLS)
    device = next(value.device for value in first if isinstance(value, Tensor))
    # all calls run at the same time
    with crowded(G, device.index):
        most = rule.takes_together(-(-G // count), first)
    return Calls.together(G, max(count, -(-G // most))) if most else Calls.apart(G)


@dataclass(frozen=True, eq=False)
class _Job:
    """A rule, and the arguments whose gradients are needed; ``count`` is its number of results."""

    rule: Rule
    needs: tuple[bool, ...]
    count: int

    def parts(self, flat: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """The gradients of the results, the results, and the arguments."""
        k = self.count
        return flat[:k], flat[k : 2 * k], flat[2 * k :]

    def run(self, *flat: Any) -> tuple[Tensor, ...]:
        """The gradients that are needed, an empty tensor for 0."""
        return self._full(self.rule.backward(*self.parts(flat), self.needs), flat)

    def loop(self, again: bool, *flat: Any) -> tuple[Tensor, ...]:
        """The same in torch operations."""
        return self._full(self.rule.loop_backward(*self.parts(flat), self.needs, again), flat)

    def _full(self, found: Gradients, flat: Sequence[Any]) -> tuple[Tensor, ...]:
        nothing = flat[self.count].new_empty(0)
        pairs = zip(found, self.needs, strict=True)
        return tuple(nothing if value is None else value for value, need in pairs if need)


class _Pullback(torch.autograd.Function):
    """The gradients of a rule under transforms."""

    @staticmethod
    def forward(job: _Job, *flat: Any) -> tuple[Tensor, ...]:
        return job.run(*flat)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.job, *flat = inputs
        _save(ctx, flat)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        flat = _saved(ctx)
        _, *needs = ctx.needs_input_grad
        places = [k for k, need in enumerate(needs) if need]
        given = {k: g for k, g in enumerate(gradients) if _there(g) is not None}

        def differentiable(*leaves: Tensor) -> tuple[Tensor, ...]:
            values = [*flat]
            for k, leaf in zip(places, leaves, strict=True):
                values[k] = leaf
            found = ctx.job.loop(True, *values)
            return tuple(found[k] for k in given)

        pull = torch.func.vjp(differentiable, *(flat[k] for k in places))[1]
        found = dict(zip(places, pull((*given.values(),)), strict=True))
        return None, *(found.get(k) for k in range(len(flat)))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        (job, *flat), (_, *dims) = args, in_dims
        return _pulled(job, info, dims, flat)


class _SideBySide(torch.autograd.Function):
    """The results of several networks, where nothing is transformed any more.

    Each call writes its own part of the results, so that nothing has to be copied together, where
    there is room. One node for all networks has the same gradient as one for each.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rule: Rule,
        room: Room | None,
        calls: Calls,
        info: Any,
        dims: Sequence[int | None],
        *flat: Any,
    ) -> tuple[Tensor, ...]:
        if room is None:
            results, _ = side_by_side(rule.forward, calls, dims, flat)
        else:
            results = _filled(room, calls, dims, flat)
        kept = rule.kept(results, flat)
        # what is kept in the place of an argument is a result
        pairs = zip(kept, flat, dims, strict=True)
        own_dims = [dim if value is given else 0 for value, given, dim in pairs]
        ctx.rule, ctx.info, ctx.dims = rule, info, (dims, own_dims)
        _save(ctx, [*results, *kept])
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    @one_by_one
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        _, _, _, _, _, *needs = ctx.needs_input_grad
        job, (dims, own_dims) = _Job(ctx.rule, (*needs,), len(gradients)), ctx.dims
        # those of empty results are empty, for every network
        given = [None if g is None or g.shape[-1] == 0 else g for g in gradients]
        of_given = [None if gradient is None else 0 for gradient in given]
        all_dims = (*of_given, *(0,) * len(given), *own_dims)
        found = iter(_pulled(job, ctx.info, all_dims, [*given, *_saved(ctx)])[0])
        pairs = zip(needs, dims, strict=True)
        of_flat = [_of_argument(next(found), dim) if need else None for need, dim in pairs]
        return None, None, None, None, None, *of_flat


def _filled(
    room: Room, calls: Calls, dims: Sequence[int | None], flat: Sequence[Any]
) -> tuple[Tensor, ...]:
    """The results of all networks, in the room that was made for them."""
    results = (*room.results,)

    def fill(*arguments: Any) -> tuple[()]:
        room.fill(arguments[: len(results)], *arguments[len(results) :])
        return ()

    side_by_side(fill, calls, [0] * len(results) + [*dims], [*results, *flat])
    return results


def _of_argument(gradients: Tensor, dim: int | None) -> Tensor | None:
    """The gradient of an argument from those of all networks; None if they are empty, for 0.

    Example:
        >>> _of_argument(torch.ones(2, 3), None)
        tensor([2., 2., 2.])
    """
    if gradients.shape[1:] == (0,):
        return None
    return gradients.sum(0) if dim is None else gradients.movedim(0, dim)


def _pulled(
    job: _Job, info: Any, dims: Sequence[int | None], flat: Sequence[Any]
) -> tuple[Any, Any]:
    """The gradients of all networks, and their dimension."""
    G, own = info.batch_size, _first(dims, flat)
    tensors = [value for value in flat if isinstance(value, Tensor)]
    recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    again = recorded or transforms_active()
    gradients, _, first = job.parts(own)
    if not job.rule.serves(job.parts(dims)[2], first, gradients):
        return _by_torch(info, lambda *own: job.loop(again, *own), dims, flat)
    run = (lambda *own: _Pullback.apply(job, *own)) if again else job.run
    return side_by_side(run, _calls_of(job.rule, G, first, again), dims, flat)


def _there(gradient: Tensor | None) -> Tensor | None:
    """A gradient, None for an empty tensor: some tracers give those to missing arguments."""
    return None if gradient is None or gradient.shape == (0,) else gradient


def _save(ctx: Any, values: Sequence[Any]) -> None:
    """Save tensors with autograd, and everything else in the context itself."""
    ctx.save_for_backward(*(value for value in values if isinstance(value, Tensor)))
    ctx.others = [None if isinstance(value, Tensor) else (value,) for value in values]


def _saved(ctx: Any) -> list[Any]:
    tensors = iter(ctx.saved_tensors)
    return [next(tensors) if other is None else other[0] for other in ctx.others]


def _first(dims: Sequence[int | None], flat: Sequence[Any]) -> list[Any]:
    """The arguments of the first network.

    Example:
        >>> _first([0, None], [torch.tensor([3, 5]), "auto"])
        [tensor(3), 'auto']
    """
    pairs = zip(flat, dims, strict=True)
    return [value if dim is None else value.select(dim, 0) for value, dim in pairs]


def _by_torch(
    info: Any, run: Callable[..., Sequence[Tensor]], dims: Sequence[Any], flat: Sequence[Any]
) -> tuple[Any, Any]:
    """The results of all networks by torch's own batching rules, and their dimension."""
    results = torch.func.vmap(run, (*dims,), randomness=info.randomness)(*flat)
    return (*results,), (0,) * len(results)
