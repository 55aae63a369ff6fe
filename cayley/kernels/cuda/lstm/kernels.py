"""The kernels of an LSTM of a given size, and the part of the LSTM that each computes."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from cayley.kernels.crowds import crowd
from cayley.kernels.cuda.lstm.steps import lstm_steps, lstm_steps_backward
from cayley.kernels.cuda.runtime.blocks import (
    DEPTH,
    BlockLayout,
    Options,
    best_block_layout,
    gate_kernel,
    option_lines,
)
from cayley.kernels.cuda.runtime.chip import RESERVED, chip
from cayley.kernels.cuda.runtime.networks import arrays_of
from cayley.kernels.cuda.runtime.nvrtc import Kernel, constants, on
from cayley.kernels.cuda.runtime.step_kernels import row_layout, step_kernel
from cayley.kernels.cuda.runtime.stepwise import runs_stepwise
from cayley.kernels.cuda.runtime.team_kernels import run_teams
from cayley.kernels.cuda.runtime.teams import GateProduct, Kind, best_team
from cayley.kernels.cuda.runtime.tensor import EIGHT, TensorLayout

__all__ = [
    "LstmKernels",
    "ManyRows",
    "fits_blocks",
    "has_room",
    "launch",
    "lstm_kernels",
    "team_kind",
    "window_room",
]

ROLES = 2  # the lanes of a unit, each with two gates, or each with another row
PAIR_SPARE = 64  # registers that a block of two rows needs beside those for weights
EIGHT_SPARE = 64, 96  # those of a block of eight rows, forward and backward
THREADS = 256  # of the kernels that take all steps at once
WARP_UNITS = 200  # the most units for which a warp of these kernels has registers for a step
STEPS = 64  # the fewest steps of a block of these kernels


def window_room(K: int) -> int:
    """K rounded up, so that kernels are not compiled again for every length of a window."""
    return 1 if K == 1 else -(-K // STEPS) * STEPS


class ManyRows(NamedTuple):
    """A kernel whose blocks compute several rows.

    Attributes:
        kernel: The kernel.
        blocks: The blocks of a network.
        sums: The rows of `partial` that a network has, backward.
    """

    kernel: Kernel
    blocks: int
    sums: int


class LstmKernels:
    """The kernels of one kind of LSTM on one device, compiled when they are first used."""

    def __init__(
        self,
        H: int,
        K: int,
        normed: tuple[bool, ...],
        packed: bool,
        eps: float,
        device: int,
        several: bool,
    ) -> None:
        self.H, self.K, self.normed, self.packed, self.several = H, K, normed, packed, several
        self.options, self.device = _options(normed, K > 1, packed, eps), device
        self.length = max(STEPS, K)  # the steps of a block of kernels that take all steps at once
        self._many: dict[tuple[int, str, int], Kernel | None] = {}

    def forward(
        self,
        h0: Tensor,
        given: Sequence[Any],
        made: Sequence[Any],
        batch_sizes: Tensor | None,
        *rest: Any,
    ) -> None:
        """Launch for all rows of h0; the rest are the table of steps and integers."""
        if self._forward is not None:
            *networks, B, _ = h0.shape
            launch(self._forward, B, networks, given, made, *rest)
            return
        arrays = (*given, *made)
        if runs_stepwise(h0, self._team(False)):
            lstm_steps(self._step("lstm_step_forward"), h0, arrays, batch_sizes, *rest)
        else:
            run_teams("lstm_team_forward", self._team(False), self.options, h0, arrays, *rest)

    def backward(
        self,
        h0: Tensor,
        given: Sequence[Any],
        made: Sequence[Any],
        batch_sizes: Tensor | None,
        parts: int,
        *rest: Any,
    ) -> None:
        """As :meth:`forward`; ``parts`` is the number of rows of `partial` that a network has."""
        if self._backward is not None:
            *networks, B, _ = h0.shape
            launch(self._backward, B, networks, given, made, *rest, parts)
            return
        arrays = (*given, *made)
        if runs_stepwise(h0, self._team(True)):
            step, normalised = self._step("lstm_step_backward"), self.normed[1]
            lstm_steps_backward(step, h0, arrays, batch_sizes, *rest, normalised=normalised)
        else:
            run_teams("lstm_team_backward", self._team(True), self.options, h0, arrays, *rest)

    def many_rows(self, B: int, networks: int, direction: str, inputs: int) -> ManyRows | None:
        """The kernel whose blocks have several rows each; None if it does not pay off, or fit.

        Two rows a block pay off if there are more rows than multiprocessors, and eight, by tensor
        cores, if there are more than twice as many. Among launches of other networks, gradients
        are faster with two: eight take longer, and what follows them waits.

        Arguments:
            B: The number of rows of a network.
            networks: The number of networks of a launch.
            direction: ``"forward"`` or ``"backward"``.
            inputs: 1 if the kernel reads the input, a single number, and 0 if it does not.
        """
        processors, several = chip(self.device).processors, max(networks, 1)
        at_once = B * max(several, crowd(self.device))
        if at_once <= processors or any(self.normed) or self.packed:
            return None
        rows = at_once if direction == "forward" else B * several
        if rows > 2 * processors and (kernel := self._of_many(EIGHT, direction, inputs)):
            blocks = -(-B // EIGHT)
            return ManyRows(kernel, blocks, blocks)
        kernel = self._of_many(2, direction, inputs)
        return None if kernel is None else ManyRows(kernel, -(-B // 2), B)

    def _of_many(self, rows: int, direction: str, inputs: int) -> Kernel | None:
        """The kernel with so many rows a block; None if it does not fit."""
        key = rows, direction, inputs
        if key not in self._many:
            make = self._eight if rows == EIGHT else self._pair
            self._many[key] = make(direction, inputs)
        return self._many[key]

    def _eight(self, direction: str, inputs: int) -> Kernel | None:
        if direction == "forward":
            layout = TensorLayout(self.H, 1, 4, 2 if inputs else 16, EIGHT_SPARE[0])
        else:
            layout = TensorLayout(self.H, 4, 1, 4 * (7 + inputs), EIGHT_SPARE[1])
        if layout.threads > 1024 or layout.memory > chip(self.device).memory - RESERVED:
            return None
        sizes = layout.sizes(inputs, self.several)
        with on(self.device):
            return Kernel(f"lstm_eight_{direction}", sizes, layout.threads, 1, layout.memory)

    def _pair(self, direction: str, inputs: int) -> Kernel | None:
        H, memory = self.H, chip(self.device).memory
        if direction == "forward":
            factor, streams = (H, 4), 1 if inputs else 4
        else:
            factor, streams = (4 * H, 1), 7 + inputs
        layout = best_block_layout(H, (factor,), streams, 0, PAIR_SPARE, memory, ROLES, 2)
        if layout is None:
            return None
        options = (*self.options, ("int INPUTS", str(inputs)))
        return gate_kernel(self.device, f"lstm_pair_{direction}", layout, options, self.several)

    @functools.cached_property
    def _forward(self) -> Kernel | None:
        return self._block("lstm_forward", _forward_layout)

    @functools.cached_property
    def _backward(self) -> Kernel | None:
        return self._block("lstm_backward", _backward_layout)

    def _block(self, source: str, best: Callable[..., BlockLayout | None]) -> Kernel | None:
        """The kernel whose blocks have one row each; None if a row does not fit."""
        layout = best(self.H, self.K, any(self.normed), self.device)
        if layout is None:
            return None
        return gate_kernel(self.device, source, layout, self.options, self.several)

    def _step(self, source: str) -> Kernel:
        """The kernel of a single step."""
        layout = row_layout(self.H, joined=any(self.normed[1:]))
        return step_kernel(self.device, source, self.H, layout, self.options)

    def _team(self, gradient: bool) -> Kind:
        return team_kind(self.K, any(self.normed), gradient, sum(self.normed[1:]))

    @functools.cached_property
    def before(self) -> Kernel:
        """The kernel of the input, before the recurrence."""
        return self._input("lstm_input_forward", 3 * (self.length + self.K))

    @functools.cached_property
    def after(self) -> Kernel:
        """The kernel of the input and the parameters, after the gradient of the recurrence."""
        floats = max(3 * (self.length + self.K), THREADS // self._step_threads * 4 * self.H)
        return self._input("lstm_input_backward", floats)

    @property
    def _step_threads(self) -> int:
        return 32 if self.H <= WARP_UNITS else THREADS

    def _input(self, source: str, floats: int) -> Kernel:
        """A kernel that takes all steps at once, with a number of floats of shared memory."""
        numbers = constants(H=self.H, THREADS=THREADS, STEP_THREADS=self._step_threads)
        sizes = numbers + constants(SEVERAL=int(self.several)) + option_lines(self.options)
        with on(self.device):
            return Kernel(source, sizes, THREADS, 1, 4 * floats)


def launch(
    kernel: Kernel,
    blocks: int,
    networks: Sequence[int],
    given: Sequence[Any],
    made: Sequence[Any],
    *rest: Any,
) -> None:
    """Launch a kernel for one network, or for several.

    Arguments:
        kernel: The kernel.
        blocks: The number of blocks of a network.
        networks: The number of networks, if tensors have a dimension for them; otherwise empty.
        given: The arrays that it reads, which networks may share; what is missing may be empty.
        made: Those that each network has of its own.
        *rest: Its other arguments.
    """
    if networks:
        there = [None if array is None or array.numel() == 0 else array for array in given]
        arrays, shared = arrays_of(there, several=True)
        kernel(blocks, *arrays, *made, *rest, shared, networks=networks[0])
    else:
        kernel(blocks, *given, *made, *rest, 0)


def lstm_kernels(
    H: int,
    K: int,
    normed: tuple[bool, ...],
    packed: bool,
    eps: float,
    device: int,
    several: bool = False,
) -> LstmKernels:
    """The kernels of an LSTM with H units.

    Arguments:
        H: The number of units.
        K: The steps of a window.
        normed: Whether the input, the recurrent product and the cell are normalised.
        packed: Whether sequences are packed.
        eps: The ε of the normalisations.
        device: The index of the device.
        several: Whether a launch runs several networks.
    """
    return _kernels(H, window_room(K), normed, packed, eps, device, several)


_kernels = functools.cache(LstmKernels)


@functools.cache
def fits_blocks(H: int, K: int, normed: bool, device: int) -> bool:
    """Whether a block has room for the weights of H units, and a window of K steps of a row."""
    layouts = (_forward_layout, _backward_layout)
    return all(layout(H, window_room(K), normed, device) for layout in layouts)


@functools.cache
def has_room(H: int, K: int, normed: bool, device: int) -> bool:
    """Whether the chip has room for H units and, if normalised, windows of K steps."""
    K = window_room(K)
    return all(
        layout(H, K, normed, device)
        or best_team(H, 1, team_kind(K, normed, gradient), chip(device))
        for layout, gradient in ((_forward_layout, False), (_backward_layout, True))
    )


def _forward_layout(H: int, K: int, normed: bool, device: int) -> BlockLayout | None:
    spare = 32 + 16 * normed + 16 * (K > 1)
    return best_block_layout(H, ((H, 4),), 2, _extra(K), spare, chip(device).memory, ROLES)


def _backward_layout(H: int, K: int, normed: bool, device: int) -> BlockLayout | None:
    spare = 32 + 32 * normed + 8 * (K > 1)
    return best_block_layout(H, ((4 * H, 1),), 7, _extra(K), spare, chip(device).memory, ROLES)


def team_kind(K: int, normed: bool, gradient: bool, totals: int = 2) -> Kind:
    """What a team computes, with four numbers per step of a window for each of N_h and N_c."""
    spare = 100 + normed * (32 if gradient else 8)
    return Kind((GateProduct(4, gradient),), totals, 8 * K * normed, spare)


def _extra(K: int) -> int:
    """Floats for statistics, sums of up to 16 warps, and four numbers per step of a window."""
    return 8 * DEPTH + 2 * (4 * 16 + 4 * K)


def _options(normed: tuple[bool, ...], windowed: bool, packed: bool, eps: float) -> Options:
    names = ("NORM_X", "NORM_H", "NORM_C", "WINDOWED", "PACKED")
    flags = zip(names, (*normed, windowed, packed), strict=True)
    constants = [(f"bool {name}", str(flag).lower()) for name, flag in flags]
    return (*constants, ("float EPS", f"{float(eps)!r}f"))
