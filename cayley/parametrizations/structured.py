"""A structured matrix as a module: free tensors, and the map that makes a matrix from them."""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain, zip_longest
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from cayley.cache import Cache, ThreadCache
from cayley.kernels.dispatch import is_decomposing
from cayley.notices import warn_once
from cayley.parametrizations.parametrization import Parametrization, Pullback, check_precision
from cayley.tracing import captured, eager_apply, is_wrapper, needs_loop, traced

__all__ = [
    "StructuredMatrix",
    "acting_on_reals",
    "check_whole",
    "is_looked_at",
    "warn_off_manifold",
]


# attributes of an object, not of its class
RESERVED = ("map", "kept", "is_frozen", "training")


class StructuredMatrix(nn.Module):
    r"""Trainable free tensors :math:`X` and the map that gives :math:`W = f(X)`.

    :func:`torch.nn.utils.parametrize.register_parametrization` gives a module a class of its own;
    this class does the same by composition, so that it can be pickled. Calling it gives W.

    Note:
        Calling the matrix only reads it. A layer's forward pass, if it forms W, calls it with
        ``update=True``: in training mode and with gradients, such a pass writes the buffers of a
        map that has a state (``map.stateful``), and nothing else does. Both kinds of call give the
        same W.

        W is computed once and reused until a free tensor or a buffer changes: in evaluation, and on
        the CPU also while gradients are recorded, so that several calls between two steps of an
        optimizer share one W. Changes are found by comparing values, since neither the version
        counter nor the address of a tensor shows all of them: ``Adam(fused=True)``,
        ``dist.broadcast``, a write to ``tensor.data`` and one through NumPy change neither. Callers
        get a copy.

        On a GPU the comparison waits for the device. A call that records gradients therefore
        computes W every time there; one without gradients compares.

        Two ways avoid the comparison, and with it the wait. :meth:`freeze` keeps W as a constant:
        use it for streams, since ``eval()`` and ``no_grad`` do not promise that the free tensors
        stay as they are. Between :meth:`hold` and :meth:`release`, and inside torch's
        ``parametrize.cached()``, all calls share the first W and its graph: a loop of steps forms
        one W and has one backward pass through it.

    Arguments:
        map: The parametrisation. It is copied: two matrices never share one.
        device, dtype: The device and dtype of the free tensors; dtype is real even if W is complex.

    Example:
        >>> from cayley.parametrizations import ScaledCayley
        >>> matrix = StructuredMatrix(ScaledCayley(3))
        >>> [name for name, _ in matrix.named_parameters()], matrix().shape
        (['A'], torch.Size([3, 3]))
    """

    def __init__(
        self,
        map: Parametrization,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if own := [name for name, _ in map.named_parameters()]:
            raise ValueError(
                f"expected a map without parameters, got {type(map).__name__} with {own}: name "
                "them in its names, return them from sample, and take them in forward"
            )
        # a map may have been made in another precision than that of the layer
        dtype = torch.get_default_dtype() if dtype is None else dtype
        self.map = copy.deepcopy(map).to(device=device, dtype=dtype)
        sampled = self.map.sample(device=device, dtype=dtype)
        names = [map.names] if isinstance(map.names, str) else map.names
        if names is not map.names or isinstance(sampled, Tensor) or len(sampled) != len(names):
            got = "a bare tensor" if isinstance(sampled, Tensor) else f"{len(sampled)} tensors"
            raise TypeError(
                f"expected {type(map).__name__}.names to be a tuple of strings, and sample to "
                f"return a tuple of a tensor for each, got names = {map.names!r} and {got}"
            )
        for name in names:
            if hasattr(type(self), name) or name in RESERVED:
                raise ValueError(
                    f"expected {type(map).__name__}.names without those of the attributes of a "
                    f"module, got {name!r}: rename it"
                )
        for name, X in zip(names, sampled, strict=True):
            self.register_parameter(name, nn.Parameter(X))
        self._cache: Cache[_Kept] = Cache()
        # others may hold one of their own meanwhile
        self._held: ThreadCache[dict[bool, _Held]] = ThreadCache()
        self.is_frozen = False
        # not a buffer: averages of models pair those of one model with those of another
        self.kept: Tensor | None = None
        # the free tensors that it is made of, by name
        self._kept_of: tuple[tuple[str, Tensor], ...] = ()
        self._passes = 0

    @property
    def free(self) -> tuple[Tensor, ...]:
        """The free tensors, in the order of the map's arguments."""
        own = self._parameters
        # here first: getattr of a module tries everything else before, which takes time
        found = [own[name] if name in own else getattr(self, name) for name in self.map.names]
        return cast(tuple[Tensor, ...], tuple(found))

    @property
    def stored(self) -> tuple[Tensor, ...]:
        """The free tensors, to write to; raise if they are computed from other tensors."""
        if computed := [name for name in self.map.names if name not in self._parameters]:
            raise RuntimeError(
                f"expected free tensors that are parameters, to write to them, got {computed} that "
                "are computed, by pruning or a parametrisation: end that first, by torch.nn.utils."
                "prune.remove or parametrize.remove_parametrizations"
            )
        return self.free

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the free tensors again."""
        stored, self.kept = self.stored, None
        first = stored[0]
        dtype = first.dtype.to_real()
        for X, value in zip(stored, self.map.sample(device=first.device, dtype=dtype), strict=True):
            X.copy_(value)

    @torch.no_grad()
    def assign(self, W: Tensor) -> None:
        """Choose the free tensors so that the matrix is ``W``.

        W is checked in the precision of the free tensors, or in its own if that is lower, but at
        least in float32.
        """
        if not isinstance(W, Tensor) or not (W.is_floating_point() or W.is_complex()):
            got = f"one of {W.dtype}" if isinstance(W, Tensor) else type(W).__name__
            raise TypeError(
                f"expected a tensor of floating-point numbers, got {got}: convert it with "
                f"torch.as_tensor(W, dtype={self.free[0].dtype.to_real()})"
            )
        coarser = max(W.dtype.to_real(), self.free[0].dtype.to_real(), key=_eps)
        dtype = torch.promote_types(coarser, torch.float32)
        W = W.to(self.free[0].device, dtype.to_complex() if W.is_complex() else dtype)
        # first, since the map may write its buffers
        stored = self.stored
        X = self.map.right_inverse(W)
        self.kept = None
        for free, value in zip(stored, (X,) if isinstance(X, Tensor) else X, strict=True):
            free.copy_(value)

    def freeze(self) -> None:
        """Keep W as it is now, as a constant: the free tensors are not read and get no gradient.

        Loading, assigning or drawing free tensors gives a new W; what an optimizer writes to them
        goes unnoticed. Training mode ends it.
        """
        self.kept = None
        if self._forward_pre_hooks:
            # torch's pruning computes free tensors before a call
            with torch.no_grad():
                self()
            self.kept = None
        if not self.free[0].is_meta:
            self.acting  # noqa: B018 (formed now, not in the first step of a stream)
        self.is_frozen = True

    def unfreeze(self) -> None:
        """Make W a function of the free tensors again."""
        self.is_frozen, self.kept = False, None

    @property
    def constant(self) -> Tensor:
        """The W that :meth:`freeze` keeps."""
        W = self.acting
        if not self.map.is_complex:
            return W
        real, imaginary = W[:, : self.map.n].split(self.map.n)
        return torch.complex(real, imaginary)

    @property
    def acting(self) -> Tensor:
        """The kept W as it acts on real features, [[R, −C], [C, R]] for a complex one."""
        W = self.kept
        # what is traced has other tensors in the place of the free ones
        if W is None or not (traced(self.free[0]) or self.keeps_its_own()):
            check_whole(self.free[0])
            if traced(self.free[0]) and not self.free[0].is_meta:
                raise RuntimeError(
                    "a frozen matrix must be formed before tracing: call layer.freeze() again"
                )
            with torch.inference_mode(False), torch.no_grad():
                W = acting_on_reals(self._form(self.free, traced(self.free[0]), recorded=False))
                # with its transpose contiguous, products with rows of states are faster
                W = self.kept = W.mT.contiguous().mT
                self._kept_of = (*zip(self.map.names, self.free, strict=True),)
        return W

    def keeps_its_own(self) -> bool:
        """Whether the kept W is that of the free tensors that the module has now.

        They are others after an assignment, and while :func:`torch.func.functional_call` runs.
        """
        parameters = self._parameters
        return all(parameters.get(name) is X for name, X in self._kept_of)

    def hold(self) -> object:
        """Use the next W for all calls of this thread; :meth:`release` takes what this returns."""
        before, self._held.value = self._held.value, {}
        return before

    def release(self, before: Any) -> None:
        """End what :meth:`hold` began."""
        self._held.value = before

    def prepared(self) -> AbstractContextManager[None]:
        """Context of one training step without the host, see :meth:`.Parametrization.prepared`."""
        return self.map.prepared(*self.free)

    def forward(self, *, update: bool = False) -> Tensor:
        """The matrix W, (n, n).

        Arguments:
            update: Whether this is a training step; ignored unless the module is in training mode
                and gradients are recorded.
        """
        if self.is_frozen:
            # a copy for readers, who may write to it
            return self.constant if update else self.constant.clone()
        free = self.free
        is_traced = traced(free[0])
        if is_traced and is_decomposing():
            message = (
                "a structured matrix is exported as a constant, got one that is a function of its "
                "free tensors: call layer.freeze(), or cayley.freeze(model), before the export"
            )
            # a warning too: torch.onnx tries again another way and shows that error instead
            warnings.warn(message, stacklevel=2)
            raise RuntimeError(message)
        recorded = torch.is_grad_enabled() and any(X.requires_grad for X in free)
        update = update and recorded and self.training
        held = self._held.value
        if held is None and parametrize._cache_enabled:
            # torch clears it at the end of the context
            cache = cast(dict[Any, dict[bool, _Held]], parametrize._cache)
            held = cache.setdefault((id(self), "held"), {})
        if held is None or is_traced:
            return self._form(free, is_traced, recorded, update)
        found = held.get(recorded)
        if found is None or (update and not found.followed):
            followed = update or not self.map.stateful
            # calls outside of inference mode may use it, too
            with torch.inference_mode(False), torch.set_grad_enabled(recorded):
                W = self._form(free, False, recorded, update)
            held[recorded] = found = _Held(W, followed)
        return found.W

    def _form(
        self, free: Sequence[Tensor], is_traced: bool, recorded: bool, update: bool = False
    ) -> Tensor:
        check_whole(free[0])
        map, is_captured = self.map, not is_traced and captured(free[0])
        if update and not (is_traced or is_captured):
            self._look_now_and_then(map)
        if recorded and map.on_manifold:
            # here the free tensor is W
            return map(*free)
        if (
            is_traced
            # a cached W has no tangent
            or needs_loop(*free)
            # while a CUDA graph is captured, unless the map can be captured too
            or (is_captured and not (recorded and map.capturable(*free)))
        ):
            return map.advance(*free) if update else map(*free)
        if recorded and free[0].device.type != "cpu":
            # comparing values would wait for the device
            kept = _Kept(*map.with_pullback(*free, update=update))
            return _attach(kept, map, *free)
        kept = self._cache.value
        if (
            kept is None
            or (recorded and kept.pullback is None)
            or (update and not kept.followed)
            or not kept.holds(self._sources(free))
        ):
            if recorded:
                W, pullback = map.with_pullback(*free, update=update)
            else:
                W, pullback = map(*free).detach().clone(), None
            # the sources are read afterwards, since an update writes buffers
            followed = update or not map.stateful
            self._cache.value = kept = _Kept(W, pullback, self._sources(free), followed)
        return _attach(kept, map, *free) if recorded else kept.W.clone()

    def _sources(self, free: Sequence[Tensor]) -> Iterator[Tensor]:
        """Everything that W is a function of; what changes most often comes first."""
        return chain(free, self.map.buffers())

    def train(self, mode: bool = True) -> "StructuredMatrix":
        """Set the mode, as every module does; warn if W is not unitary where it should be."""
        self._cache.value = None
        if mode:
            self.unfreeze()
        if self.map.on_manifold and not self.free[0].is_meta:
            self._warn_off_manifold()
        return super().train(mode)

    def _look_now_and_then(self, map: Parametrization) -> None:
        """Check in steps 10, 100, 1000, … how W is trained: more often would wait for the GPU."""
        self._passes += 1
        if is_looked_at(self._passes):
            if map.on_manifold:
                self._warn_off_manifold()
            if map.awaits_rebase:
                warn_once(
                    "rebase has no effect on training before an optimizer is attached: call "
                    "cayley.optim.attach_rebase(model, optimizer) once, before the first step",
                    key="rebase without an optimizer",
                    owner=self,
                    stacklevel=3,
                )

    def _warn_off_manifold(self) -> None:
        warn_off_manifold(self.map, self.free[0], self)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "StructuredMatrix":
        """Move or cast, as ``to`` does; complex tensors are cast as pairs of real ones.

        Without this, ``double()`` would skip complex tensors, and ``to(torch.float64)`` would drop
        their imaginary parts.
        """
        self._cache.value = None
        # in another precision, the constant is formed again from the converted free tensors
        self.kept = None

        def apply(X: Tensor) -> Tensor:
            if not X.is_complex():
                return fn(X)
            parts = fn(torch.view_as_real(X))
            check_precision(parts)
            return torch.view_as_complex(parts)

        super()._apply(apply, recurse)
        if self.is_frozen:
            self.freeze()
        return self

    # pyrefly: ignore[bad-override]
    def _load_from_state_dict(self, *args: Any) -> None:
        self.kept = None
        super()._load_from_state_dict(*args)


def is_looked_at(step: int) -> bool:
    """Whether W is checked in a training step: it is in steps 10, 100, 1000 and so on.

    Example:
        >>> [step for step in range(1, 2000) if is_looked_at(step)]
        [10, 100, 1000]
    """
    return step >= 10 and step == 10 ** (len(str(step)) - 1)


@torch.no_grad()
def warn_off_manifold(map: Parametrization, W: Tensor, owner: nn.Module) -> None:
    """Warn if W, which only some optimizers keep unitary, is no longer so."""
    defect = float(map.defect(W))
    if not defect <= 0.1:
        warn_once(
            f"W is no longer unitary, ‖W*W − I‖ = {defect:.2g}: train it with "
            "cayley.optim.StiefelRMSprop or StiefelSGD over the groups that "
            "cayley.parameter_groups makes",
            key="off the manifold",
            owner=owner,
            stacklevel=4,
        )


def check_whole(X: Tensor) -> None:
    """Raise if a free tensor is sharded: FSDP gathers it for forward passes only."""
    if is_wrapper(X) and type(X).__module__.startswith("torch.distributed"):
        raise RuntimeError(
            "expected whole free tensors to form a matrix from, got sharded ones, which FSDP "
            "gathers inside forward only: to read or freeze W elsewhere, call module.unshard() "
            "before, and module.reshard() after it"
        )


def acting_on_reals(W: Tensor) -> Tensor:
    """W as it acts on real features, [[R, −C], [C, R]] on [Re h, Im h] if it is complex."""
    if not W.is_complex():
        return W
    R, C = torch.view_as_real(W).unbind(-1)
    return torch.cat((torch.cat((R, -C), 1), torch.cat((C, R), 1)))


class _Held(NamedTuple):
    """A matrix with its graph, and whether the map's buffers are up to date with it."""

    W: Tensor
    followed: bool


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


class _Kept:
    """A matrix, its pullback, and the values that it was computed from.

    Arguments:
        W: The matrix, detached.
        pullback: Maps a gradient to those of the free tensors; None if none is needed.
        sources: The tensors that W is a function of.
        followed: Whether the map's buffers are up to date with W.
    """

    def __init__(
        self,
        W: Tensor,
        pullback: Pullback | None,
        sources: Iterable[Tensor] = (),
        followed: bool = True,
    ) -> None:
        self.W = W
        self.pullback = pullback
        self.followed = followed
        self.values = [source.detach().clone() for source in sources]

    def holds(self, sources: Iterable[Tensor]) -> bool:
        """Whether the sources still have these values."""
        return all(
            x is not None
            and y is not None
            and x.dtype == y.dtype
            and x.device == y.device
            and torch.equal(x, y)
            for x, y in zip_longest(sources, self.values)
        )


class _Attached(torch.autograd.Function):
    """A cached matrix as a function of the free tensors; it can be differentiated many times."""

    @staticmethod
    def forward(ctx: Any, kept: _Kept, map: Parametrization, *free: Tensor) -> Tensor:
        ctx.kept, ctx.map = kept, map
        ctx.save_for_backward(*free)
        return kept.W.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (G,) = gradients
        if not torch.is_grad_enabled():
            return None, None, *ctx.kept.pullback(G)
        # a gradient that will be differentiated again needs a graph to the free tensors
        free = ctx.saved_tensors
        needed = [X for X in free if X.requires_grad]
        found = iter(torch.autograd.grad(ctx.map(*free), needed, G, create_graph=True))
        return None, None, *(next(found) if X.requires_grad else None for X in free)


_attach = eager_apply(_Attached)
