"""The factory of all operators: it makes an autograd node from a loop, its gradient and kernels."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import compress, islice
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

import torch
from torch import Tensor

from cayley.kernels.dispatch import backend_in_force, is_decomposing, use_kernel
from cayley.kernels.observation import Run, is_observed, tell_observer
from cayley.kernels.records import Fields
from cayley.kernels.steps import empty_gradient
from cayley.kernels.transforms import Room, Transformed
from cayley.tracing import eager_apply, is_eager, needs_loop, no_autocast, traced, transformed

__all__ = ["Found", "Kernels", "Operator", "recorded_gradients", "unaliased"]

Call = TypeVar("Call", bound=tuple)
States = TypeVar("States", bound=tuple)

Found = dict[str, Tensor | None]
"""Gradients by the names of what they belong to; those of others are 0, or nobody needs them."""


class Kernels(NamedTuple):
    """The kernels of a recurrence for one kind of device.

    Attributes:
        refusal: Returns why a call cannot be computed, or its gradient if the gradients of the
            results are given as a second argument; None if it can.
        forward: Returns the results of a call. On a GPU it takes as a second argument, if there is
            one, the tensors that the results are to be written to, contiguous ones.
        backward: Takes the gradients of the results, the results, the call, and the names of the
            arguments that need a gradient; returns those gradients, and possibly others.
        takes_networks: Returns, for the call of a network and the number of networks, whether
            all functions also take the tensors of all networks, along one more dimension in front
            of the others; None if they never do.
        otherwise: What a warning says that torch does if a call is refused; None for no warning,
            where torch is as good.
    """

    refusal: Callable[..., str | None]
    forward: Callable[..., Any]
    backward: Callable[[Any, Any, Any, Collection[str]], Found]
    takes_networks: Callable[[Any, int], bool] | None = None
    otherwise: str | None = "a recurrence runs as a loop of torch operations"


class Operator(Generic[Call, States]):
    """A recurrence as one operator of torch, with a gradient written by hand.

    It is ``cayley::<name>``, and its gradient ``cayley::<name>_backward``. For ``torch.compile``
    and ``torch.export`` each is a single node. Outside of tracing both run without torch's
    dispatcher: for a kernel written in Python it looks up the schema of every argument in each
    call, which with thirty arguments takes longer than a hundred steps of a recurrence on a GPU.

    Under ``grad`` and ``vmap`` of :mod:`torch.func` kernels run too: a few calls for G networks
    that have their own W, if the kernels take several, and otherwise one call for each. Other
    transforms use the loop, which they can differentiate and batch, and so do ``vmap`` over
    examples, second derivatives, and calls that a kernel cannot run.

    Arguments:
        name: The name of the operator.
        call: The named tuple of its arguments, tensors first. A field may itself be a named tuple,
            or None.
        states: The named tuple of its results.
        gradients: The named tuple of their gradients.
        loop: Returns the results of a call, in torch.
        gradient: Its gradient in torch, as in :class:`Kernels`.
        shapes: Returns results of which only the shapes count.
        kernels: The kernels, by kind of device.
        definition: A loop whose steps are recorded if a gradient is differentiated again; None if
            ``gradient`` itself can be differentiated.
        constants: The names of tensors that have no gradient.
        kept_input: Returns, for a call and its results, what to save for the gradient instead of x,
            in the shape of x, so that x need not be saved if it is not read; None for x.
        scan: Returns the results of a call as a torch scan, for exporters that do not know the
            operator; results that only a gradient needs may be anything.
    """

    def __init__(
        self,
        name: str,
        *,
        call: type[Call],
        states: type[States],
        gradients: Callable[..., Any],
        loop: Callable[[Call], States],
        gradient: Callable[[Any, Any, Any, Collection[str]], Found],
        shapes: Callable[[Call], States],
        kernels: Mapping[str, Kernels],
        definition: Callable[[Call], States] | None = None,
        constants: Collection[str] = ("batch_sizes",),
        kept_input: Callable[[Call, States], Tensor] | None = None,
        scan: Callable[[Call], States] | None = None,
    ) -> None:
        self.states, self.gradients, self.fields = states, gradients, Fields.of(call)
        self.loop, self.gradient, self.shapes = loop, gradient, shapes
        self.kernels, self.definition, self.kept_input = kernels, definition, kept_input
        # with weights that networks have each of their own
        self._has_rule = "W" in self.fields.tensors
        self.scan = scan
        self.differentiable = [name for name in self.fields.tensors if name not in constants]
        results = ", ".join(["Tensor"] * len(get_type_hints(states)))
        self.operator = torch.library.custom_op(
            f"cayley::{name}",
            self._forward_operator,
            mutates_args=(),
            schema=f"({self.fields.schema}, str backend) -> ({results})",
        )
        self.operator.register_fake(self._fake)
        self.operator.register_autograd(self._differentiate_operator, setup_context=self._save_all)
        self.backward_operator = torch.library.custom_op(
            f"cayley::{name}_backward",
            self._backward_operator,
            mutates_args=(),
            schema=f"({self._backward_schema()}) -> Tensor[]",
        )
        self.backward_operator.register_fake(self._fake_gradients)

    def __call__(self, call: Call) -> States:
        """The results of a call, by the back end that is in force."""
        x, flat, backend = call[0], self.fields.flatten(call), backend_in_force()
        tensors = flat[: len(self.fields.tensors)]
        if is_eager(*tensors):
            is_traced = x.is_meta
        elif self._has_rule and transformed(*tensors) and x.device.type in self.kernels:
            tell_observer(None)
            return self.states(*Transformed.apply(_OperatorRule(self, backend), *flat))
        elif needs_loop(*tensors):
            tell_observer(None)
            return self.loop(call)
        else:
            is_traced = traced(*tensors)
        if is_traced and self.scan is not None and is_decomposing():
            return self.scan(call)
        if not is_traced and x.device.type in self.kernels:
            if torch.is_grad_enabled():
                states = self.states(*_make_node(self, backend, call, *flat))
            else:
                # a node takes almost as long as a short recurrence
                states = self.forward(call, backend)
        else:
            states = self.states(*self.operator(*flat, backend))
        if is_observed():
            tell_observer(None if is_traced else Run(self, call, states, backend))
        return states

    def forward(self, call: Call, backend: str) -> States:
        """The results of a call by a back end, without a gradient."""
        kernels = self.kernels_of(backend, call)
        return self.loop(call) if kernels is None else kernels.forward(call)

    def kernels_of(self, backend: str, call: Call, *gradients: Any) -> Kernels | None:
        """The kernels that compute a call on a back end, or its gradient; None for the loop.

        Arguments:
            backend: The back end.
            call: The call.
            *gradients: Those of its results, for its gradient.
        """
        # only then, since checking for a refusal takes time, and the loop takes every call
        if backend == "reference":
            return None
        device = call[0].device
        kernels = self.kernels.get(device.type)
        if kernels is None:
            use_kernel(None, None, device, backend=backend)  # raises if another one was asked for
            return None
        refusal = kernels.refusal(call, *gradients)
        if refusal is None and backend == "auto":
            return kernels
        runs = use_kernel(
            device.type, refusal, device, backend=backend, otherwise=kernels.otherwise
        )
        return kernels if runs else None

    def backward(
        self, gradients: Any, states: States, call: Call, needed: Collection[str], backend: str
    ) -> Found:
        """The needed gradients, computed by a back end."""
        kernels = self.kernels_of(backend, call, gradients)
        run = self.gradient if kernels is None else kernels.backward
        return run(gradients, states, call, needed)

    def traced_backward(
        self, gradients: Any, states: States, call: Call, needed: Collection[str], backend: str
    ) -> Found:
        """The same as one operator, for tracers."""
        flat = (*gradients, *states, *self.fields.flatten(call))
        needs = [name in needed for name in self.differentiable]
        found = self.backward_operator(*flat, needs, backend)
        return dict(zip(self.differentiable, found, strict=True))

    def save(self, ctx: Any, call: Call, flat: Sequence[Any], states: States, backend: str) -> None:
        """Save what the gradient needs in a context."""
        flat, count = self.kept(call, flat, states), len(self.fields.tensors)
        ctx.save_for_backward(*states, *flat[:count])
        ctx.options, ctx.backend = flat[count:], backend
        # results other than the states seldom get a gradient
        ctx.set_materialize_grads(False)

    def kept(self, call: Call, flat: Sequence[Any], states: States) -> Sequence[Any]:
        """The values of a call as they are saved for the gradient."""
        if self.kept_input is None:
            return flat
        _, *others = flat
        return (self.kept_input(call, states), *others)

    def differentiate(
        self, ctx: Any, gradients: Sequence[Tensor | None], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        """Gradients of all fields of a call, from those of its results."""
        # read once: activation checkpointing allows it only once
        saved, count = ctx.saved_tensors, len(gradients)
        states = self.states(*saved[:count])
        call = self.fields.unflatten((*saved[count:], *ctx.options))
        names = self.fields.names
        needed = [*compress(names, needs)]
        # some tracers give empty gradients to missing results
        of_states = [None if g is None or g.shape == (0,) else g for g in gradients]
        with no_autocast(states[0].device):
            found = self._gradients(of_states, states, call, needed, ctx.backend)
        return [found.get(name) if need else None for name, need in zip(names, needs, strict=True)]

    def _gradients(
        self,
        gradients: list[Tensor | None],
        states: States,
        call: Call,
        needed: list[str],
        backend: str,
    ) -> Found:
        # a gradient that will be differentiated again must consist of recorded operations
        recorded = torch.is_grad_enabled()
        if recorded and self.definition is not None:
            return self._recorded(self.definition, gradients, call, needed)
        if gradients[0] is None:
            gradients[0] = torch.zeros_like(states[0])
        of_states = self.gradients(*gradients)
        if recorded:
            return self.gradient(of_states, states, call, needed)
        if not traced(states[0], *gradients):
            return self.backward(of_states, states, call, needed, backend)
        return self.traced_backward(of_states, states, call, needed, backend)

    def _recorded(
        self,
        definition: Callable[[Call], States],
        gradients: list[Tensor | None],
        call: Call,
        needed: list[str],
    ) -> Found:
        names, flat = self.fields.tensors, self.fields.flatten(call)
        options = flat[len(names) :]
        found = recorded_gradients(
            lambda *tensors: definition(self.fields.unflatten([*tensors, *options])),
            flat[: len(names)],
            [name in needed for name in names],
            gradients,
        )
        return dict(zip(names, found, strict=True))

    def _forward_operator(self, *arguments: Any) -> tuple[Tensor, ...]:
        *flat, backend = arguments
        return (*unaliased(self.forward(self.fields.unflatten(flat), backend)),)

    def _fake(self, *arguments: Any) -> tuple[Tensor, ...]:
        *flat, _ = arguments
        return (*self.shapes(self.fields.unflatten(flat)),)

    def _save_all(self, ctx: Any, inputs: Sequence[Any], output: Sequence[Tensor]) -> None:
        *flat, backend = inputs
        self.save(ctx, self.fields.unflatten(flat), flat, self.states(*output), backend)

    def _differentiate_operator(self, ctx: Any, *gradients: Tensor | None) -> tuple:
        *needs, _ = ctx.needs_input_grad
        return *self.differentiate(ctx, gradients, needs), None

    def _backward_schema(self) -> str:
        states = list(get_type_hints(self.states))
        gradients = [f"Tensor? grad_{name}" for name in states]
        results = [f"Tensor out_{name}" for name in states]
        fields = [*gradients, *results, self.fields.schema]
        return ", ".join([*fields, "bool[] needed", "str backend"])

    def _of_backward(self, arguments: Sequence[Any]) -> tuple[Any, Any, Any, list[str], str]:
        *flat, needs, backend = arguments
        values, count = iter(flat), len(get_type_hints(self.states))
        gradients = self.gradients(*islice(values, count))
        states = self.states(*islice(values, count))
        call = self.fields.unflatten([*values])
        pairs = zip(self.differentiable, needs, strict=True)
        return gradients, states, call, [name for name, need in pairs if need], backend

    def _backward_operator(self, *arguments: Any) -> list[Tensor]:
        gradients, states, call, needed, backend = self._of_backward(arguments)
        found = self.backward(gradients, states, call, needed, backend)
        results = [found.get(name) if name in needed else None for name in self.differentiable]
        return unaliased(states[0].new_empty(0) if v is None else v for v in results)

    def _fake_gradients(self, *arguments: Any) -> list[Tensor]:
        _, states, call, needed, _ = self._of_backward(arguments)
        h = states[0]
        values = dict(zip(self.fields.names, self.fields.flatten(call), strict=True))
        return [
            h.new_empty(0)
            if name not in needed
            else empty_gradient(h, values[name])
            if name in ("W", "U")
            else h.new_empty(values[name].shape)
            for name in self.differentiable
        ]


class _Node(torch.autograd.Function):
    """An operator without torch's dispatcher."""

    @staticmethod
    def forward(
        ctx: Any, operator: Operator, backend: str, call: Any, *flat: Any
    ) -> tuple[Tensor, ...]:
        # the same values twice: autograd sees those of flat only
        states = operator.forward(call, backend)
        ctx.operator = operator
        operator.save(ctx, call, flat, states, backend)
        return (*states,)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        _, _, _, *needs = ctx.needs_input_grad
        return None, None, None, *ctx.operator.differentiate(ctx, gradients, needs)


_make_node = eager_apply(_Node)


class _OperatorRule:
    """An operator on a back end, for transforms."""

    batched = False

    def __init__(self, operator: Operator, backend: str) -> None:
        self.operator, self.backend = operator, backend

    def forward(self, *flat: Any) -> Sequence[Tensor]:
        return self.operator.forward(self.operator.fields.unflatten(flat), self.backend)

    def node(self, *flat: Any) -> Sequence[Tensor]:
        call = self.operator.fields.unflatten(flat)
        return _make_node(self.operator, self.backend, call, *flat)

    def loop(self, *flat: Any) -> Sequence[Tensor]:
        return (*self.operator.loop(self.operator.fields.unflatten(flat)),)

    def kept(self, results: Sequence[Tensor], flat: Sequence[Any]) -> Sequence[Any]:
        operator = self.operator
        return operator.kept(operator.fields.unflatten(flat), flat, operator.states(*results))

    def takes_together(self, networks: int, flat: Sequence[Any]) -> int:
        call = self.operator.fields.unflatten(flat)
        takes_networks = self.operator.kernels[call[0].device.type].takes_networks
        if takes_networks is None:
            return 0
        while not takes_networks(call, networks):
            if networks == 1:
                return 0
            networks = -(-networks // 2)
        return networks

    def room(self, networks: int, flat: Sequence[Any], grouped: bool) -> Room | None:
        operator = self.operator
        call = operator.fields.unflatten(flat)
        kernels = operator.kernels_of(self.backend, call)
        if kernels is None or not call[0].is_cuda:
            return None
        shapes = [value.shape for value in operator.shapes(operator.fields.unflatten(_meta(flat)))]
        # kernels of one network may read four numbers at a time, from where its part begins
        if not grouped and any(shape.numel() % 4 for shape in shapes):
            return None

        def fill(parts: Sequence[Tensor], *own: Any) -> None:
            kernels.forward(operator.fields.unflatten(own), operator.states(*parts))

        return Room([call[0].new_empty(networks, *shape) for shape in shapes], fill)

    def serves(
        self,
        dims: Sequence[int | None],
        flat: Sequence[Any],
        gradients: Sequence[Tensor | None] | None = None,
    ) -> bool:
        operator = self.operator
        names = operator.fields.names
        if dims[names.index("W")] is None:
            return False
        call = operator.fields.unflatten(flat)
        given = () if gradients is None else (operator.gradients(*gradients),)
        return operator.kernels_of(self.backend, call, *given) is not None

    def backward(
        self,
        gradients: Sequence[Tensor | None],
        results: Sequence[Tensor],
        flat: Sequence[Any],
        needs: Sequence[bool],
    ) -> list[Tensor | None]:
        return self._gradients(gradients, results, flat, needs, self._by_kernels)

    def loop_backward(
        self,
        gradients: Sequence[Tensor | None],
        results: Sequence[Tensor],
        flat: Sequence[Any],
        needs: Sequence[bool],
        again: bool,
    ) -> list[Tensor | None]:
        recorded = again and self.operator.definition is not None
        run = self._by_definition if recorded else self.operator.gradient
        return self._gradients(gradients, results, flat, needs, run)

    def _gradients(
        self,
        gradients: Sequence[Tensor | None],
        results: Sequence[Tensor],
        flat: Sequence[Any],
        needs: Sequence[bool],
        run: Callable[..., Found],
    ) -> list[Tensor | None]:
        operator = self.operator
        first, *others = gradients
        of_states = operator.gradients(
            torch.zeros_like(results[0]) if first is None else first, *others
        )
        pairs = [*zip(operator.fields.names, needs, strict=True)]
        needed = [name for name, need in pairs if need]
        call = operator.fields.unflatten(flat)
        found = run(of_states, operator.states(*results), call, needed)
        return [found.get(name) if need else None for name, need in pairs]

    def _by_kernels(self, gradients: Any, states: Any, call: Any, needed: Collection[str]) -> Found:
        with no_autocast(states[0].device):
            return self.operator.backward(gradients, states, call, needed, self.backend)

    def _by_definition(
        self, gradients: Any, states: Any, call: Any, needed: Collection[str]
    ) -> Found:
        """The gradient of the loop, which can be differentiated again."""
        operator = self.operator
        definition = operator.definition
        assert definition is not None
        flat = [*operator.fields.flatten(call)]
        places = [operator.fields.names.index(name) for name in needed]
        given = [k for k, G in enumerate(gradients) if G is not None]

        def loop(*leaves: Tensor) -> list[Tensor]:
            values = [*flat]
            for k, leaf in zip(places, leaves, strict=True):
                values[k] = leaf
            states = definition(operator.fields.unflatten(values))
            return [states[k] for k in given]

        pull = torch.func.vjp(loop, *(flat[k] for k in places))[1]
        return dict(zip(needed, pull([gradients[k] for k in given]), strict=True))


def _meta(flat: Sequence[Any]) -> list[Any]:
    """The same arguments with tensors that have a shape but no memory."""
    return [
        torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value
        for value in flat
    ]


def unaliased(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copies of those that are part of another tensor: the results of an operator must not be.

    Example:
        >>> with torch.inference_mode():
        ...     parts = unaliased(torch.arange(4.0).split(2))
        >>> [part.untyped_storage().nbytes() for part in parts]
        [8, 8]
    """
    # a storage tells of views that autograd has not seen
    return [v if 0 < v.nbytes == v.untyped_storage().nbytes() else v.clone() for v in tensors]


def recorded_gradients(
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
    gradients: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Gradients that can be differentiated again: those of a function whose steps are recorded.

    Arguments:
        function: Gives the outputs from the inputs.
        inputs: Tensors, and None.
        needed: Whether the gradient of each is.
        gradients: Those of the outputs, None for 0.

    Example:
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> (slope,) = recorded_gradients(lambda x: (x * x,), [x], [True], [torch.ones(())])
        >>> torch.autograd.grad(slope, x)
        (tensor(2.),)
    """
    # an alias for each argument keeps apart those that are one tensor
    aliases: list[Any] = [None if v is None else v.view_as(v) for v in inputs]
    outputs = function(*aliases)
    wanted = [k for k, need in enumerate(needed) if need]
    used = [k for k, G in enumerate(gradients) if G is not None and outputs[k].requires_grad]
    results: list[Tensor | None] = [None] * len(inputs)
    if not used:
        return results
    found = torch.autograd.grad(
        [outputs[k] for k in used],
        [aliases[k] for k in wanted],
        [gradients[k] for k in used],
        create_graph=True,
        allow_unused=True,
    )
    for k, gradient in zip(wanted, found, strict=True):
        results[k] = gradient
    return results
