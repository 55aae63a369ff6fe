"""The contract of ``torch.nn.RNN``, once, for every recurrent layer."""

import functools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple, NoReturn, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from cayley.cache import Cache
from cayley.checks import check_flag, check_integer, check_number
from cayley.kernels.dispatch import backend_in_force
from cayley.kernels.observation import is_observed
from cayley.layers.pieces import in_pieces, piece_steps
from cayley.parametrizations import StructuredMatrix
from cayley.tracing import autocast_enabled, in_backward, is_batched, traced, transforms_active

__all__ = ["Recurrent", "State", "freeze", "has_hooks"]

State = Tensor | tuple[Tensor, ...]


class _Stream(NamedTuple):
    """The plain state that a call returned, and the tensor that was left out of it.

    Attributes:
        tensors: The state that was returned, detached. Keeping it keeps its memory from being used
            for another tensor, so that addresses can be compared.
        values: Copies, which no caller can write to.
        versions: The version counter of each when it was returned; -1 where there is none.
        stream: The tensor that was left out, the last of the full state.
        goes_on: Whether the call itself went on with such a tensor.
    """

    tensors: list[Tensor]
    values: list[Tensor]
    versions: list[int]
    stream: Tensor
    goes_on: bool

    def is_of(self, tensors: Sequence[Tensor]) -> bool:
        """Whether a state is the one that was returned, or has its values."""
        pairs = [*zip(tensors, self.values, strict=True)]
        if any(
            h.shape != value.shape or h.dtype != value.dtype or h.device != value.device
            for h, value in pairs
        ):
            return False
        # to compare values would wait for a GPU
        if all(h.is_cuda and not h.is_inference() for h in tensors) and all(
            h.data_ptr() == last.data_ptr() and h._version == version
            for h, last, version in zip(tensors, self.tensors, self.versions, strict=True)
        ):
            return True
        return all(torch.equal(h, value) for h, value in pairs)


class Recurrent(nn.Module, ABC):
    """Recurrent layers stacked on one another, in one or two directions.

    A subclass defines in :meth:`run` what one layer does in one direction. This class handles
    shapes, ``batch_first``, packed sequences, dropout and the states of all layers, all as in
    :class:`torch.nn.RNN`.

    Arguments:
        input_size: The number I of features of the input.
        hidden_size: The number of units.
        num_layers: The number of layers stacked.
        state_sizes: The number of features of each tensor of the state; the first is the output.
        bias: Whether there are biases.
        batch_first: Whether input and output are (B, T, ·).
        dropout: Probability of dropout on the output of each layer but the last.
        bidirectional: Whether a second set of weights reads the sequence from its end.
        trainable_h0: Whether the output's initial state is a parameter, ``h0_l0``.
        streams: Whether the last tensor of the state is one that only streams need: it may be left
            out of ``hx``, and :meth:`run` then gets the others alone.
        plain_state: Whether that tensor is kept in the layer rather than returned, see
            :class:`~cayley.LSTM`.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        *,
        state_sizes: tuple[int, ...],
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        trainable_h0: bool = False,
        streams: bool = False,
        plain_state: bool = False,
    ) -> None:
        super().__init__()
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
        for name, size in sizes.items():
            check_integer(name, size)
        # positional arguments of nn.RNN come in another order: "relu" would pass as a bias
        check_flag("bias", bias)
        check_flag("batch_first", batch_first)
        check_flag("bidirectional", bidirectional)
        # the type of error that nn.RNN raises
        number = isinstance(dropout, (int, float)) and not isinstance(dropout, bool)
        if not number or not 0 <= dropout <= 1:
            raise ValueError(f"expected a dropout probability from 0 to 1, got {dropout!r}")
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                f"dropout={dropout} has no effect with num_layers=1: it acts between layers, not "
                "after the last",
                stacklevel=3,
            )
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.state_sizes = state_sizes
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.trainable_h0 = trainable_h0
        self.streams = streams
        self.plain_state = plain_state
        self._stream: Cache[_Stream] = Cache()
        self.structured = nn.ModuleDict()
        self._is_lean = False

    @abstractmethod
    def run(
        self,
        suffix: str,
        x: Tensor,
        state: tuple[Tensor, ...] | None,
        batch_sizes: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """One layer in one direction.

        Arguments:
            suffix: The end of its parameters' names, such as ``"l0"`` or ``"l1_reverse"``.
            x: The input, (T, B, I), or (N, I) with ``batch_sizes``.
            state: Each tensor of the initial state, (B, ·); None for the layer's own.
            batch_sizes: The batch sizes of a packed sequence, (T).
            reverse: Whether time runs backwards.

        Returns:
            The output in the layout of x, and each tensor of the last state, (B, ·).
        """

    @property
    def num_directions(self) -> int:
        """1, or 2 if bidirectional."""
        return 2 if self.bidirectional else 1

    @property
    def output_size(self) -> int:
        """The number of features of the output, of both directions together."""
        return self.state_sizes[0] * self.num_directions

    def suffixes(self) -> Iterator[tuple[str, int, bool]]:
        """Name, input size and direction of every recurrence, in the order of their states."""
        for layer in range(self.num_layers):
            size = self.input_size if layer == 0 else self.output_size
            yield f"l{layer}", size, False
            if self.bidirectional:
                yield f"l{layer}_reverse", size, True

    def initial_state(self, suffix: str, B: int) -> Tensor:
        """The state that is used when no ``hx`` is given: the trained one, or zeros, (B, H)."""
        if self.trainable_h0:
            return getattr(self, f"h0_{suffix}").expand(B, -1)
        return getattr(self, f"weight_ih_{suffix}").new_zeros(B, self.state_sizes[0])

    def forward(
        self, input: Tensor | PackedSequence, hx: State | None = None
    ) -> tuple[Tensor | PackedSequence, State]:
        """Run over a sequence.

        Arguments:
            input: (T, B, I), (B, T, I) with ``batch_first``, (T, I) without a batch, or packed.
            hx: The initial state, (num_layers · directions, B, H), without B if the input is;
                None for zeros, or the trained state of layers that have one.

        Returns:
            The output of the last layer, shaped as the input with directions · H features, and the
            last state, shaped as ``hx``.
        """
        if isinstance(input, torch.fx.Proxy):
            raise TypeError(
                f"torch.fx.symbolic_trace cannot look into {type(self).__name__}: use "
                "torch.export.export(model, (x,)), or a torch.fx.Tracer whose is_leaf_module "
                "returns True for cayley.layers.Recurrent"
            )
        if not (self.plain_state and self.streams):
            return self._forward(input, hx)
        full = self._with_stream(hx)
        output, state = self._forward(input, full)
        return output, self._without_stream(state, goes_on=full is not hx)

    # to see whether a subclass of the user's has another one
    plain_forward = forward

    def _forward(
        self, input: Tensor | PackedSequence, hx: State | None
    ) -> tuple[Tensor | PackedSequence, State]:
        if isinstance(input, PackedSequence):
            x, batch_sizes, order, back = input
            self._check_input(x, rank=2)
            if transforms_active() and is_batched(batch_sizes):
                raise ValueError(
                    f"{type(self).__name__}: expected packed sequences of the same lengths for all "
                    "networks under vmap, got different lengths: pad the sequences, or call the "
                    "networks one by one"
                )
            B = int(batch_sizes[0]) if len(batch_sizes) else 0
            if B == 0 or int(batch_sizes[-1]) == 0:
                raise RuntimeError("expected a packed sequence of at least one step, got none")
            states = self._split(hx, B, unbatched=False)
            if order is not None and states is not None:
                states = [tuple(h.index_select(0, order) for h in state) for state in states]
            y, last = self._layers(x, states, batch_sizes)
            if back is not None:
                last = [tuple(h.index_select(0, back) for h in state) for state in last]
            return PackedSequence(y, batch_sizes, order, back), self._join(last)

        if input.dim() not in (2, 3):
            raise ValueError(
                f"{type(self).__name__}: expected input of 2 dimensions (T, I) or 3 dimensions "
                f"(T, B, I), got {input.dim()}"
            )
        unbatched = input.dim() == 2
        x = input.transpose(0, 1) if self.batch_first and not unbatched else input
        x = x.unsqueeze(1) if unbatched else x
        self._check_input(x, rank=3)
        if x.shape[0] == 0:
            raise RuntimeError(
                f"{type(self).__name__}: expected a sequence of at least one step, got none"
            )
        y, last = self._layers(x, self._split(hx, x.shape[1], unbatched), None)
        if unbatched:
            return y.squeeze(1), self._join([tuple(h[0] for h in state) for state in last])
        return y.transpose(0, 1) if self.batch_first else y, self._join(last)

    def step(self, x_t: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step of :meth:`forward`, for streams.

        Arguments:
            x_t: The input of one step, (B, I), or (I) without a batch.
            state: The state that the previous step returned, shaped as ``hx``; None at the start.

        Returns:
            The output of the step, (B, H) or (H), and the state after it.
        """
        if (
            self._is_lean
            and isinstance(state, Tensor)
            and state.dim() == 3
            and not torch.is_grad_enabled()
        ):
            found = self.lean_step(x_t, state)
            if found is not None:
                return found
        if self.bidirectional:
            raise ValueError(
                "a bidirectional layer needs the whole sequence: call forward instead of step"
            )
        if x_t.dim() not in (1, 2):
            raise ValueError(
                f"{type(self).__name__}.step: expected the input of one step, (I) or (B, I), got "
                f"{x_t.dim()} dimensions"
            )
        unbatched = x_t.dim() == 1
        if self._needs_forward() or (self.plain_state and self.streams):
            time = 1 if self.batch_first and not unbatched else 0
            y, state = self(x_t.unsqueeze(time), state)
            return y.squeeze(time), state
        x = x_t.unsqueeze(0) if unbatched else x_t
        self._check_input(x, rank=2)
        y, last = self._one_step(x, self._split(state, x.shape[0], unbatched))
        if unbatched:
            return y.squeeze(0), self._join([tuple(h[0] for h in state) for state in last])
        return y, self._join(last)

    def _needs_forward(self) -> bool:
        """Whether a step has to call :meth:`forward`: for a hook, a kernel, or a change to it."""
        changed = "forward" in self.__dict__ or _changes_sequences(type(self))
        return changed or has_hooks(self) or self._needs_kernel()

    def _needs_kernel(self) -> bool:
        """Whether a step has to use :meth:`run`: for a gradient, or a kernel was requested."""
        return (
            torch.is_grad_enabled()
            or torch._C._is_any_autocast_enabled()
            or backend_in_force() in ("cpu", "cuda")
            or is_observed()
        )

    def _has_lean_step(self) -> bool:
        """Whether one layer, once frozen, has a :meth:`lean_step`."""
        return False

    def lean_step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor] | None:
        """One step of one frozen layer with as little Python as possible; None if it cannot be.

        The products of a step are so small that Python calls around them take most of the time. A
        subclass without a short cut leaves the step to :meth:`advance`.

        Arguments:
            x: The input, (B, I).
            state: h, (B, H), or (1, B, H) for a state that shares no memory with the output.

        Returns:
            The output, (B, H), and the state after the step, shaped as ``state``.
        """
        return None

    def _one_step(
        self, x: Tensor, states: list[tuple[Tensor, ...]] | None
    ) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """One step of all layers, from (B, I) to (B, H)."""
        last: list[tuple[Tensor, ...]] = []
        for k in range(self.num_layers):
            if k and self.dropout:
                x = nn.functional.dropout(x, self.dropout, self.training)
            last.append(self.advance(f"l{k}", x, None if states is None else states[k]))
            x = last[k][0]
        return x, last

    def advance(
        self, suffix: str, x: Tensor, state: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, ...]:
        """One step of one layer: what :meth:`run` does to a sequence of length one.

        A subclass may write it in a few torch operations, which take less time than the call of a
        kernel. It is used only where no gradient is needed.

        Arguments:
            suffix: The end of its parameters' names.
            x: The input, (B, I).
            state: Each tensor of the state before, (B, ·); None for the layer's own.

        Returns:
            Each tensor of the state after it; the first is the output.
        """
        return self.run(suffix, x.unsqueeze(0), state, None, False)[1]

    def freeze(self) -> Self:
        """Keep every W as it is now, as a constant, and set the layer to evaluation mode.

        :meth:`step` then costs little more than a cell of torch, since W is neither formed nor
        compared with its free tensors, and nothing waits for a GPU. W has no gradient. Loading or
        assigning free tensors gives a new W; what an optimizer writes to them goes unnoticed.
        :meth:`unfreeze` or ``train()`` ends it.

        Example:
            >>> import cayley
            >>> layer, state = cayley.ScoRNN(3, 8).freeze(), None
            >>> with torch.no_grad():
            ...     for x_t in torch.randn(5, 3):
            ...         y_t, state = layer.step(x_t, state)
        """
        self.eval()
        for matrix in self.matrices():
            matrix.freeze()
        self._is_lean = self.num_layers * self.num_directions == 1 and self._has_lean_step()
        return self

    def unfreeze(self) -> Self:
        """Make every W a function of its free tensors again."""
        for matrix in self.matrices():
            matrix.unfreeze()
        self._is_lean = False
        return self

    def train(self, mode: bool = True) -> Self:
        """Set the mode, as every module does; training ends :meth:`freeze`."""
        if mode:
            self.unfreeze()
        return super().train(mode)

    @contextmanager
    def held(self) -> Iterator[Self]:
        """Context in which W is formed at most once, with its graph, for all calls of this thread.

        It is for loops over :meth:`step` in training, which then share one W and one backward pass
        through it. The loop and its ``backward()`` may be inside; ``optimizer.step()`` belongs
        after it, since W does not change inside. ``torch.nn.utils.parametrize.cached()`` does the
        same for all layers of a model. Inside either, do not checkpoint parts of the loop with
        :func:`torch.utils.checkpoint.checkpoint`, which expects the second run of a part to compute
        the same as the first, while only one of them may form W. Checkpoint whole calls of the
        layer instead, outside of this context.

        Example:
            >>> import cayley
            >>> layer, state = cayley.ScoRNN(3, 8), None
            >>> with layer.held():
            ...     for x_t in torch.randn(5, 3):
            ...         y_t, state = layer.step(x_t, state)
            >>> y_t.sum().backward()
        """
        matrices = [*self.matrices()]
        before = [matrix.hold() for matrix in matrices]
        try:
            yield self
        finally:
            for matrix, state in zip(matrices, before, strict=True):
                matrix.release(state)

    @contextmanager
    def prepared(self) -> Iterator[Self]:
        """Context of one training step that a CUDA graph records or replays.

        On entry, the host does its part of the step: for an :class:`~cayley.ENRNN` it finds the
        eigenvalues to divide by. Other layers need no host, and work without this context too. The
        parameters must not change between entry and the step.

        Example:
            >>> import cayley
            >>> layer = cayley.ENRNN(3, 8, 4)
            >>> with layer.prepared():  # in place of the next line: graph.replay()
            ...     layer(torch.randn(5, 2, 3))[0].sum().backward()
        """
        with ExitStack() as stack:
            for matrix in self.matrices():
                stack.enter_context(matrix.prepared())
            yield self

    def _with_stream(self, hx: State | None) -> State | None:
        """The full state, if this is the plain state that the last call returned."""
        last = self._stream.value
        if last is None or hx is None:
            return hx
        tensors = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        if traced(*tensors) or len(tensors) != len(last.tensors):
            return hx
        if in_backward() and last.goes_on:
            raise RuntimeError(
                f"{type(self).__name__}: expected no plain_state=True with activation "
                "checkpointing, which computes a call again when the tensor that it went on with "
                "is no longer kept: carry the whole state with plain_state=False"
            )
        return (*tensors, last.stream) if last.is_of(tensors) else hx

    def _without_stream(self, state: State, *, goes_on: bool) -> State:
        """The plain state that a caller unpacks; the rest is kept for the next call."""
        *tensors, stream = state
        if traced(stream):
            self._stream.value = None
        elif not in_backward():
            # a call that is computed again is not the last one
            self._keep(tensors, stream, goes_on=goes_on)
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def _keep(self, tensors: Sequence[Tensor], stream: Tensor, *, goes_on: bool) -> None:
        versions = [-1 if h.is_inference() else h._version for h in tensors]
        returned = [h.detach() for h in tensors]
        values = [h.clone() for h in returned]
        self._stream.value = _Stream(returned, values, versions, stream.detach(), goes_on)

    def carry(self, state: State, *, decay: float = 1.0, max_norm: float | None = None) -> State:
        r"""The state for the next chunk of a long sequence: detached, and optionally made smaller.

        .. math:: h \mapsto d\, h \min(1, m / \|d\, h\|)

        An orthogonal W with b = 0 adds up all inputs, so a state that is carried through thousands
        of steps grows with the square root of their number, and the output with it. Either of the
        two numbers bounds it; so do thresholds b < 0 and :class:`~cayley.ENRNN`.

        Arguments:
            state: What a call returned.
            decay: The factor d.
            max_norm: The norm m that no example's h exceeds; None for no bound.

        Example:
            >>> import cayley
            >>> layer, state = cayley.ScoRNN(3, 8), None
            >>> for chunk in torch.randn(10, 20, 4, 3):  # ten chunks of 20 steps
            ...     output, state = layer(chunk, state)
            ...     state = layer.carry(state, decay=0.9)
        """
        check_number("carry", "decay", decay)
        if max_norm is not None:
            check_number("carry", "max_norm", max_norm)
        tensors = (state,) if isinstance(state, Tensor) else tuple(state)
        plain = len(self.state_sizes) - self.streams
        carried: list[Tensor] = []
        for k, h in enumerate(tensors):
            h = h.detach()
            if k < plain and decay != 1:
                h = decay * h
            if k < plain and max_norm is not None:
                # scaled first, or the squares of large entries would be infinite
                largest = h.abs().amax(-1, keepdim=True)
                unit = h / largest.clamp_min(torch.finfo(h.dtype).tiny)
                most = max_norm / torch.linalg.vector_norm(unit, dim=-1, keepdim=True)
                h = torch.where(largest > most, most * unit, h)
            carried.append(h)
        last = self._stream.value
        if last is not None and self._with_stream(state) is not state:
            self._keep(carried, last.stream, goes_on=last.goes_on)
        return carried[0] if isinstance(state, Tensor) else tuple(carried)

    def _layers(
        self, x: Tensor, states: list[tuple[Tensor, ...]] | None, batch_sizes: Tensor | None
    ) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        last: list[tuple[Tensor, ...]] = []
        outputs: list[Tensor] = []
        for suffix, _, reverse in self.suffixes():
            state = None if states is None else states[len(last)]
            divided = batch_sizes is None and self._keeps_more()
            steps = piece_steps(x, self.state_sizes[0]) if divided else None
            if steps is None:
                y, state = self.run(suffix, x, state, batch_sizes, reverse)
            else:
                run = partial(self.run, suffix, batch_sizes=None, reverse=reverse)
                # W is formed once
                with self.held():
                    y, state = in_pieces(run, x, state, steps, reverse)
            last.append(state)
            outputs.append(y)
            if len(outputs) == self.num_directions:
                x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
                outputs = []
                if self.dropout and len(last) < self.num_layers * self.num_directions:
                    x = nn.functional.dropout(x, self.dropout, self.training)
        return x, last

    def _keeps_more(self) -> bool:
        """Whether a pass keeps more than its output, and can be divided into pieces."""
        return True

    def _split(self, hx: State | None, B: int, unbatched: bool) -> list[tuple[Tensor, ...]] | None:
        """The states of all recurrences, one tuple of (B, ·) tensors for each."""
        if hx is None:
            return None
        tensors = (hx,) if isinstance(hx, Tensor) else tuple(hx)
        alone = self.streams and len(tensors) == len(self.state_sizes) - 1
        sizes = self.state_sizes[:-1] if alone else self.state_sizes
        if len(tensors) != len(sizes):
            raise RuntimeError(
                f"{type(self).__name__}: expected hx to hold {len(self.state_sizes)} tensor(s), "
                f"got {len(tensors)}"
            )
        count = self.num_layers * self.num_directions
        for h, size in zip(tensors, sizes, strict=True):
            shape = (count, size) if unbatched else (count, B, size)
            if h.shape != shape:
                raise RuntimeError(
                    f"{type(self).__name__}: expected hidden size {shape}, got {tuple(h.shape)}"
                )
            self._check_kind("hx", h)
        if unbatched:
            tensors = tuple(h.unsqueeze(1) for h in tensors)
        if count == 1:
            return [tuple(h[0] for h in tensors)]
        return list(zip(*(h.unbind(0) for h in tensors), strict=True))

    def _join(self, states: list[tuple[Tensor, ...]]) -> State:
        if len(states) == 1:
            # a copy, as torch.stack makes one below: the caller may write to the output
            tensors = tuple(h.unsqueeze(0).clone() for h in states[0])
        else:
            tensors = tuple(torch.stack(h) for h in zip(*states, strict=True))
        return tensors[0] if len(tensors) == 1 else tensors

    def _check_input(self, x: Tensor, rank: int) -> None:
        if x.dim() != rank:
            raise RuntimeError(
                f"{type(self).__name__}: expected packed data of {rank} dimensions (N, I), got "
                f"{x.dim()}"
            )
        if x.shape[-1] != self.input_size:
            raise RuntimeError(
                f"{type(self).__name__}: input.size(-1) must be equal to input_size. Expected "
                f"{self.input_size}, got {x.shape[-1]}"
            )
        self._check_kind("input", x)

    def _check_kind(self, what: str, tensor: Tensor) -> None:
        """Raise unless a tensor has the device and the dtype of the weights."""
        weight = self.weight_ih_l0
        device, dtype = weight.device, weight.dtype
        if tensor.device != device:
            raise ValueError(
                f"{type(self).__name__}: expected {what} on {device}, where the weights are, got "
                f'{tensor.device}. Move it: {what}.to("{device}"), or move the layer'
            )
        if tensor.dtype != dtype and not (autocast_enabled(device) and tensor.is_floating_point()):
            raise ValueError(
                f"{type(self).__name__}: {what} dtype ({tensor.dtype}) does not match weight "
                f"dtype ({dtype}). Convert it: {what}.to({dtype})"
            )

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Add a parameter, as every module does; refuse to let pruning break a structured W."""
        matrix = name.removesuffix("_orig")
        if matrix != name and matrix in self.__dict__.get("_modules", {}).get("structured", ()):
            raise TypeError(
                f"torch.nn.utils.prune cannot prune {matrix} of {type(self).__name__}: it is made "
                f"from free tensors (structured.{matrix}), and with zeros in it it would lose its "
                "structure. Prune weight_ih instead, or use fewer free entries: "
                "ScoRNN(bandwidth=…)"
            )
        super().register_parameter(name, param)

    def __prepare_scriptable__(self) -> NoReturn:
        raise NotImplementedError(
            f"torch.jit.script cannot compile {type(self).__name__}, and is deprecated in torch: "
            "use torch.export.export(model, (x,)), torch.compile, torch.onnx.export or, for one "
            "length, torch.jit.trace"
        )

    def flatten_parameters(self) -> None:
        """Do nothing; for code that calls this method of ``nn.RNN``."""

    def recurrent_matrix(self, suffix: str) -> Tensor:
        """``weight_hh`` for a forward pass, which in training also updates the map's buffers.

        A frozen complex matrix is returned as it acts on real features.

        Reading ``layer.weight_hh_l0`` gives the same matrix and changes nothing.
        """
        name = f"weight_hh_{suffix}"
        matrix = cast(StructuredMatrix | None, self.structured._modules.get(name))
        if matrix is None:
            return getattr(self, name)
        if matrix.is_frozen:
            # a short cut for steps of a stream: calling a module takes longer than this lookup
            if not self.training:
                return matrix.acting
            # a cell that shares it is frozen, and this layer is trained
            matrix.train()
        return matrix(update=True)

    def matrices(self) -> Iterator[StructuredMatrix]:
        """The structured matrices of all layers and directions."""
        return cast(Iterator[StructuredMatrix], iter(self.structured.values()))

    def __getattr__(self, name: str) -> Any:
        # first, since most lookups are of parameters, and every step of a stream makes some
        if (parameter := self.__dict__.get("_parameters", {}).get(name)) is not None:
            return parameter
        modules = self.__dict__.get("_modules", {})
        if (module := modules.get(name)) is not None:
            return module
        if name in modules.get("structured", ()):
            return modules["structured"][name]()
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        structured = self.__dict__.get("_modules", {}).get("structured", ())
        if name in structured:
            structured[name].assign(value)
        else:
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.structured})

    # pyrefly: ignore[bad-override]
    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        error_msgs: list[str] = args[-1]
        for name, matrix in self.structured.items():
            if f"{prefix}{name}" in state_dict:
                expected = ", ".join(
                    f"{prefix}structured.{name}.{key} {tuple(X.shape)}"
                    for key, X in matrix.named_parameters()
                )
                got = tuple(state_dict[f"{prefix}{name}"].shape)
                error_msgs.append(
                    f"{prefix}{name}: expected the free tensors of a structured matrix "
                    f"({expected}), got the matrix itself {got}. If it has that structure, assign "
                    f"it: layer.{name} = state_dict[{prefix + name!r}]"
                )
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """The sizes and whatever differs from the defaults, as ``nn.RNN`` prints it."""
        parts = [f"{self.input_size}, {self.hidden_size}"]
        if self.num_layers != 1:
            parts.append(f"num_layers={self.num_layers}")
        if not self.bias:
            parts.append("bias=False")
        if self.batch_first:
            parts.append("batch_first=True")
        if self.dropout:
            parts.append(f"dropout={self.dropout}")
        if self.bidirectional:
            parts.append("bidirectional=True")
        if self.trainable_h0:
            parts.append("trainable_h0=True")
        return ", ".join(parts)


def freeze(model: nn.Module) -> nn.Module:
    """Set a model to evaluation mode and :meth:`~Recurrent.freeze` all layers in it.

    Example:
        >>> import cayley
        >>> model = freeze(nn.Sequential(cayley.ScoRNN(3, 8)))
        >>> model[0].structured["weight_hh_l0"].is_frozen
        True
    """
    model.eval()
    for module in model.modules():
        if isinstance(module, Recurrent):
            module.freeze()
    return model


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of a module does more than its ``forward``.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> handle = layer.register_forward_hook(lambda *_: None)
        >>> has_hooks(layer), has_hooks(nn.Linear(2, 2))
        (True, False)
    """
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


@functools.cache
def _changes_sequences(kind: type[Recurrent]) -> bool:
    """Whether a class changes what a layer does with a sequence, and not what a step does."""

    def place(name: str) -> int:
        return next(k for k, one in enumerate(kind.__mro__) if name in one.__dict__)

    if kind.forward is not kind.plain_forward:
        return True
    # a step written for another run; those of Recurrent itself call run
    return any(
        place("run") < place(name) and getattr(kind, name) is not getattr(Recurrent, name)
        for name in ("advance", "lean_step")
    )
