"""The LSTM on CUDA kernels as one node of autograd, the product with the input included.

Up to a few hundred steps a GPU waits for Python, which has little to do here. All else goes through
the operator: tracers, autocast, statistics over the batch, given ones and those of steps before the
first, and what the kernels refuse.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cayley.kernels.cuda.lstm import recurrence as cuda
from cayley.kernels.cuda.lstm.kernels import fits
from cayley.kernels.cuda.runtime.nvrtc import tensor_refusal
from cayley.kernels.cuda.runtime.projection import project_on_cuda
from cayley.kernels.dispatch import backend_in_force
from cayley.kernels.operator import recorded_gradients
from cayley.kernels.projection import project, projection_gradients
from cayley.recurrences.lstm_forward import lstm_forward
from cayley.tracing import autocast_enabled, no_autocast, traced

__all__ = ["Run", "differentiable_lstm", "serves"]


@dataclass
class Run:
    """What a run is given besides tensors, and what it finds that has no gradient.

    Attributes:
        window: The number K of steps.
        eps: The ε of the normalisations.
        batch_sizes: Of a packed sequence, (T), on the CPU.
        references: What the means of each normalisation are measured from, (B, 1); None for 0.
    """

    window: int
    eps: float
    batch_sizes: Tensor | None
    references: Sequence[Tensor | None] = (None, None, None)

    def options(self) -> tuple[Any, ...]:
        """The last arguments of the recurrence."""
        return self.batch_sizes, self.window, False, self.eps


def serves(run: Run, tensors: Sequence[Any], norms: Sequence[Tensor | None]) -> bool:
    """Whether :func:`differentiable_lstm` can run a call on a GPU."""
    x, h0 = tensors[:2]
    if backend_in_force() not in ("auto", "cuda") or traced(x) or autocast_enabled(x.device):
        return False
    T = x.shape[0] if run.batch_sizes is None else run.batch_sizes.shape[0]
    normalises = _normalises(norms)
    K = min(run.window, T) if normalises else 1
    fitting = fits(h0.shape[1], K, normalises, x.device.index)
    return fitting and not tensor_refusal(*tensors, *norms)


def differentiable_lstm(
    run: Run, tensors: Sequence[Tensor | None], norms: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """All h and c, and the statistics of every normalisation.

    Arguments:
        run: What is not differentiated; ``references`` is filled in.
        tensors: x, h0, c0, W, b, U and c of :func:`cayley.recurrences.lstm`.
        norms: γ and β of :math:`N_x`, :math:`N_h` and :math:`N_c`.
    """
    return _Lstm.apply(run, *tensors, *norms)


def _normalises(norms: Sequence[Tensor | None]) -> bool:
    """Whether anything is normalised."""
    return any(norm is not None for norm in norms)


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Run, *inputs: Any) -> tuple[Tensor, ...]:
        x, h0, c0, W, b, U, c, *norms = inputs
        projected = project_on_cuda(x, U, c)
        arguments = _arguments(projected, h0, c0, W, b, norms, run.references)
        found = cuda.lstm(*arguments, None, *run.options(), derive=_normalises(norms))
        h, cells, kept, *statistics = found[:6]
        for references in found[6:]:
            run.references = references.unbind()
        ctx.run = run
        if norms[0] is None and norms[2] is None:
            projected = kept  # which is not read then, and has its shape
        ctx.save_for_backward(*inputs, projected, *run.references, h, cells, kept, *statistics)
        ctx.set_materialize_grads(False)
        return h, cells, *statistics

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        # read once: activation checkpointing gives them out once
        saved = ctx.saved_tensors
        with no_autocast(saved[0].device):
            if torch.is_grad_enabled():
                found = _recorded(ctx, saved, gradients)
            elif traced(saved[0]):
                found = _by_operator(ctx, saved, gradients)
            else:
                found = _gradients(ctx, saved, gradients)
        return None, *found


def _arguments(
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    W: Tensor,
    b: Tensor | None,
    norms: Sequence[Tensor | None],
    references: Sequence[Tensor | None],
) -> tuple[Any, ...]:
    """Those of the recurrence, up to the past: no past, and no given statistics."""
    gamma_x, beta_x, gamma_h, beta_h, gamma_c, beta_c = norms
    of_x, of_h, of_c = references
    return (
        *(x, h0, c0, W, b),
        *(gamma_x, beta_x, of_x, None, None),
        *(gamma_h, beta_h, of_h, None, None),
        *(gamma_c, beta_c, of_c, None, None),
    )


def _gradients(
    ctx: Any, saved: tuple[Tensor, ...], gradients: tuple[Tensor | None, ...]
) -> list[Tensor | None]:
    x, h0, c0, W, b, U, _, *norms = saved[:13]
    projected, *references = saved[13:17]
    arguments = _arguments(projected, h0, c0, W, b, norms, references)
    found = cuda.lstm_backward(
        *(*gradients, *saved[17:], *arguments, None),
        *ctx.run.options(),
        input=x,
        U=U,
        wanted=cuda.Wanted(*ctx.needs_input_grad[1:8]),
    )
    *tensors, gx, bx, _, gh, bh, _, gc, bc, _, grad_U, grad_c = found
    pairs = zip((gx, bx, gh, bh, gc, bc), ctx.needs_input_grad[8:], strict=True)
    return [*tensors, grad_U, grad_c, *(gradient if needed else None for gradient, needed in pairs)]


def _by_operator(
    ctx: Any, saved: tuple[Tensor, ...], gradients: tuple[Tensor | None, ...]
) -> list[Tensor | None]:
    """Gradients for who traces them, as compiled autograd does: one node for the recurrence."""
    x, h0, c0, W, b, U, _, *norms = saved[:13]
    projected, *references = saved[13:17]
    arguments = _arguments(projected, h0, c0, W, b, norms, references)
    needed = ctx.needs_input_grad[1:]
    wanted = [True, needed[3], False]
    dx, *rest = torch.ops.cayley.lstm_backward(
        *(*gradients, *saved[17:], *arguments, None, None),
        *ctx.run.options(),
        *(wanted, "cuda"),
    )
    of_input = projection_gradients(dx, x, U, (needed[0], needed[5], needed[6]))
    of_sites = [v for k, v in enumerate(rest[4:13]) if k % 3 < 2]  # γ and β, of no past
    found = [of_input[0], *rest[:4], *of_input[1:], *of_sites]
    return [gradient if need else None for gradient, need in zip(found, needed, strict=True)]


def _recorded(
    ctx: Any, saved: tuple[Tensor, ...], gradients: tuple[Tensor | None, ...]
) -> list[Tensor | None]:
    """Gradients that can be differentiated again: those of the loop, whose steps are recorded."""
    references = saved[14:17]

    def loop(x: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
        h0, c0, W, b, U, c, *norms = inputs
        arguments = _arguments(project(x, U, c), h0, c0, W, b, norms, references)
        rest: tuple[Any, ...] = (None, None, *ctx.run.options())
        h, cells, _, *statistics = lstm_forward(
            *arguments, *rest, by_definition=True, backend="reference"
        )
        return h, cells, *statistics

    return recorded_gradients(loop, saved[:13], ctx.needs_input_grad[1:], gradients)
