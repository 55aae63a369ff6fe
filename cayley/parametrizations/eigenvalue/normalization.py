"""Matrices whose spectral radius does not exceed one, by eigenvalue normalisation."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cayley.cache import Cache
from cayley.checks import check_number
from cayley.initializers import rotation_angles
from cayley.kernels.cuda.eigenpair import can_follow, normalized_gradient
from cayley.parametrizations.cayley import differentiated
from cayley.parametrizations.eigenvalue.dominant import (
    Eigenpair,
    Event,
    division,
    dominant_eigenpair,
)
from cayley.parametrizations.eigenvalue.tracker import Following, Tracker
from cayley.parametrizations.parametrization import (
    Parametrization,
    Pullback,
    check_square,
    full_precision,
    rounding_tolerance,
)
from cayley.tracing import captured, computes_now, needs_loop

__all__ = ["EigenvalueNormalization", "spectral_radius"]


def spectral_radius(T: Tensor) -> Tensor:
    r"""Largest modulus of the eigenvalues of a real matrix, with its gradient.

    .. math::
        \rho(T) = |\lambda|, \qquad
        \frac{\partial \rho}{\partial T} = \frac{\alpha\, \mathrm{Re}\, S + \beta\, \mathrm{Im}\, S}
        {\rho}, \qquad S = \frac{\bar v u^\top}{v^* u}

    for a simple eigenvalue :math:`\lambda = \alpha + i \beta` with :math:`T u = \lambda u` and
    :math:`v^* T = \lambda v^*`.

    Note:
        If the dominant eigenvalue is (nearly) multiple, the gradient does not exist; it is then
        taken as 0, with a warning. If different eigenvalues tie for the largest modulus, the
        gradient jumps; it is that of one of them.

    References:
        Orthogonal Recurrent Neural Networks and Batch Normalization in Deep Neural Networks
        (dissertation), Helfrich, 2020, proposition 2.7.1.

    Arguments:
        T: A real matrix, (s, s).

    Returns:
        ρ, ().

    Example:
        >>> T = torch.tensor([[2.0, 1.0], [0.0, 1.0]], requires_grad=True)
        >>> rho = spectral_radius(T)
        >>> rho.item(), torch.autograd.grad(rho, T)[0].round(decimals=6)
        (2.0, tensor([[1., 0.],
                [1., 0.]]))
    """
    with full_precision(T):
        nothing = T.new_zeros(len(T), 0)
        counts = torch.zeros(len(Event), dtype=torch.int64, device=T.device)
        lax = torch.zeros((), dtype=torch.bool, device=T.device)
        return dominant_eigenpair(T, nothing, nothing, counts, lax)[0]


class EigenvalueNormalization(Parametrization):
    r"""Matrices :math:`W = T / (\rho(T) + \epsilon)`, once ρ(T) has exceeded 1.

    At first W = T. The first T with ρ(T) > 1 in training closes a latch, and from then on W is
    normalised, even if ρ(T) falls below 1 again. With :math:`G = \partial L / \partial W`, the
    gradient is then

    .. math::
        \frac{\partial L}{\partial T} = \frac{1}{\rho + \epsilon} \Big[ G -
        \frac{1}{\rho} \langle G, W \rangle\, C \Big], \qquad
        C = \alpha\, \mathrm{Re}\, S + \beta\, \mathrm{Im}\, S,

    with S as in :func:`spectral_radius`. For ε = 0 it is orthogonal to T.

    Note:
        The reference prints 1/(ρ + ε) before the inner product; its own proof has the 1/ρ that is
        used here. The two agree for ε = 0 only. With ε = 0, the reference's choice, the spectral
        radius of W is 1, not less.

        If the dominant eigenvalue is (nearly) multiple there is no gradient, and the reference
        takes a plain step, without normalisation. So does this map, as far as the gradient is
        concerned: ρ counts as a constant, :math:`\partial L/\partial T = G / (\rho + \epsilon)`.
        W itself stays normalised, since T may have grown far beyond ρ = 1 by then, and a recurrence
        with such a matrix overflows. The first such step warns.

        Only :meth:`advance`, which a layer's forward pass calls in training, changes the buffers.
        Any other call normalises if ρ(T) > 1 but does not close the latch: neither reading W nor
        evaluation affects training.

        On an NVIDIA GPU, training tracks the eigenpair of a float32 matrix with a
        :class:`~.eigenvalue.tracker.Tracker`, which stops waiting for the GPU once T changes slowly
        enough (see there). Reading W waits; so does everything under
        ``cayley.backend("reference")``, where the tracker is not used.

        The host decides how to go on, which a CUDA graph cannot: inside :meth:`prepared`, it has
        done so already.

    References:
        Orthogonal Recurrent Neural Networks and Batch Normalization in Deep Neural Networks
        (dissertation), Helfrich, 2020, section 2.7.
        Eigenvalue Normalized Recurrent Neural Networks for Short Term Memory, Helfrich, Ye, 2020.

    Arguments:
        s: The size of W.
        eps: The ε above, at least 0.

    Attributes:
        latched: Whether the latch has closed, a bool tensor.
        counts: How often each :class:`~.eigenvalue.dominant.Event` has happened.
        right, left: The vectors from which the next call finds the dominant eigenpair; None if T is
            so small that it is decomposed at every call.
        status, lead, gram: The other buffers of a tracker, see
            :class:`~.eigenvalue.tracker.Following`; always float64, None if nothing is tracked.

    Shapes:
        T (s, s) ↦ W (s, s).

    Example:
        >>> normalise = EigenvalueNormalization(2)
        >>> T = torch.tensor([[0.0, -2.0], [2.0, 0.0]], requires_grad=True)
        >>> normalise.advance(T).detach()
        tensor([[ 0., -1.],
                [ 1.,  0.]])
        >>> normalise.latched, normalise.events["DIRECT"]
        (tensor(True), 1)
    """

    names = ("T",)
    stateful = True
    asks_host = True
    right: Tensor | None
    left: Tensor | None
    latched: Tensor
    counts: Tensor
    status: Tensor | None
    lead: Tensor | None
    gram: Tensor | None

    def __init__(self, s: int, *, eps: float = 0.0) -> None:
        super().__init__(s)
        check_number(self, "eps", eps)
        self.eps = eps
        state = Following.zeros(s)
        self._is_followed = state.right.numel() > 0
        for name, buffer in state._asdict().items():
            # None, since safetensors cannot store empty buffers
            needed = self._is_followed or name in ("latched", "counts")
            self.register_buffer(name, buffer if needed else None)
        self._tracker: Cache[Tracker] = Cache()
        # the tensor that CUDA graphs read, always at the same address
        self._place: Cache[Tensor] = Cache()
        # the same tensor inside prepared(), and None outside
        self._prepared: Cache[Tensor] = Cache()

    def _forget(self) -> None:
        for buffer in self.buffers():
            buffer.zero_()

    @property
    def _following(self) -> Following:
        return Following(*(getattr(self, name) for name in Following._fields))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or cast, as ``to`` does; buffers that the kernels read as float64 stay so."""
        exact = (self.status, self.lead, self.gram)

        def apply(X: Tensor) -> Tensor:
            moved = fn(X)
            cast = moved.dtype != X.dtype and any(X is buffer for buffer in exact)
            return X.to(moved.device) if cast else moved

        return super()._apply(apply, recurse)

    def forward(self, T: Tensor, *, update: bool = False) -> Tensor:
        """The matrix of ``T``, normalised if the latch is closed or ρ(T) > 1."""
        with full_precision(T):
            prepared = self._prepared_for(T, update)
            if prepared is not None:
                return _Divided.apply(T, prepared)
            # the operator has a gradient only
            if needs_loop(T):
                return self._normalise(T, torch.linalg.eigvals(T).abs().max())[0]
            # where no derivative is needed: bitwise the same matrix as :meth:`with_pullback` gives
            if computes_now(T) and not differentiated(T) and self._is_tracked(T):
                return T / self._track(T, update)[-1]
            rho, _, _, _, *found = self._pair(T)
            W, latched = self._normalise(T, rho)
        if update:
            self._remember(latched, *found)
        return W

    def _pair(self, T: Tensor) -> Eigenpair:
        """The dominant eigenpair of T, from the vectors of the last step."""
        nothing = T.new_zeros(self.n, 0)
        return dominant_eigenpair(
            T,
            nothing if self.right is None else self.right,
            nothing if self.left is None else self.left,
            self.counts,
            ~self.latched,
        )

    @torch.no_grad()
    def _remember(self, latched: Tensor, right: Tensor, left: Tensor, event: Tensor) -> None:
        """Write what the next step needs to know of this one."""
        self.latched.copy_(latched)
        kinds = torch.arange(len(Event), device=event.device)
        self.counts.add_(kinds == event)
        if self._is_followed:
            state = self._following
            state.right.copy_(right)
            state.left.copy_(left)
            # the tracker's buffers belong to other vectors now
            for buffer in (state.status, state.lead, state.gram):
                buffer.zero_()

    @torch.no_grad()
    def with_pullback(self, *X: Tensor, update: bool = False) -> tuple[Tensor, Pullback]:
        """The matrix, detached, and its pullback in closed form."""
        (T,) = X
        answer = self._prepared_for(T, update)
        if answer is None and not self._is_tracked(T):
            return super().with_pullback(T, update=update)
        with full_precision(T):
            if answer is None:
                answer = self._track(T, update)
            W = T / answer[-1]
        return W, lambda G: (_gradient(G, W, answer),)

    def capturable(self, *X: Tensor) -> bool:
        """Whether a CUDA graph can capture :meth:`with_pullback`: inside :meth:`prepared`."""
        return self._prepared.value is not None

    @contextmanager
    def prepared(self, *X: Tensor) -> Iterator[None]:
        """Context of one training step without the host, which finds the eigenvalue on entry.

        The buffers are updated on entry too, and the step itself leaves them as they are. In
        evaluation nothing is done.

        Arguments:
            *X: T, as the step will find it.
        """
        (T,) = X
        if not self.training:
            yield
            return
        with full_precision(T), torch.no_grad():
            found = self._track(T, True) if self._is_tracked(T) else self._found(T)
        place = self._place.value
        if place is None or place.device != found.device or place.dtype != found.dtype:
            place = self._place.value = torch.empty_like(found)
        self._prepared.value = place.copy_(found)
        try:
            yield
        finally:
            self._prepared.value = None

    def _found(self, T: Tensor) -> Tensor:
        """The division of the next step, whose buffers are written."""
        rho, *_, right, left, event = pair = self._pair(T)
        latched = self.latched | (rho > 1)
        self._remember(latched, right, left, event)
        return division(pair, latched, self.eps)

    def _prepared_for(self, T: Tensor, update: bool) -> Tensor | None:
        """The division that was prepared for a training step; None if there is none."""
        prepared = self._prepared.value if update else None
        if captured(T):
            if prepared is None:
                raise RuntimeError(
                    "a CUDA graph cannot find eigenvalues, which the host takes part in: capture "
                    "and replay training steps inside `with layer.prepared():`, and freeze a layer "
                    "for evaluation"
                )
            return prepared
        # the next step overwrites it, perhaps before the backward pass of this one
        return None if prepared is None else prepared.clone()

    def _is_tracked(self, T: Tensor) -> bool:
        return self.training and self._is_followed and can_follow(T)

    @torch.no_grad()
    def _track(self, T: Tensor, update: bool) -> Tensor:
        """A tracker's result; without ``update`` that of the next step, computed on a copy."""
        if not update:
            # outside inference mode: the tracker notices changes by version counters
            with torch.inference_mode(False), torch.no_grad():
                state = Following(*(x.clone() for x in self._following))
                return Tracker()(T, state, self.eps)
        tracker = self._tracker.value = self._tracker.value or Tracker()
        return tracker(T, self._following, self.eps)

    def _normalise(self, T: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
        """W, and whether the latch is closed now; ρ = 0 cannot be normalised."""
        latched = self.latched | (rho.detach() > 1)
        return T / torch.where(latched & (rho.detach() != 0), rho + self.eps, 1.0), latched

    @property
    def events(self) -> dict[str, int]:
        """How often each :class:`~.eigenvalue.dominant.Event` has happened."""
        return {event.name: int(self.counts[event]) for event in Event}

    def right_inverse(self, W: Tensor) -> Tensor:
        """``W`` itself up to rounding, if ρ(W) ≤ 1; opens the latch, so that W = T again."""
        self.check(W)
        self._forget()
        if self.eps == 0:
            return W.clone()
        # if rounding made ρ larger than 1, the latch would close and W be divided by 1 + ε
        limit = 1 - 16 * torch.finfo(W.dtype).eps
        return W / (torch.linalg.eigvals(W).abs().max() / limit).clamp(min=1)

    def check(self, W: Tensor) -> None:
        """Raise unless W is a matrix of the right size with ρ(W) ≤ 1, up to rounding."""
        check_square(W, self.n, is_complex=False)
        defect = self.defect(W)
        # written so that NaN fails too
        if not defect <= rounding_tolerance(W):
            raise ValueError(
                f"expected a spectral radius of at most 1, got one that is larger by "
                f"{float(defect):.3g}: project(W) divides by it"
            )

    def sample(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Sequence[Tensor]:
        """Blocks γ [[cos t, −sin t], [sin t, cos t]], t ~ U[0, π/2), γ ~ U[−1, 1).

        An odd size leaves one block γ. The latch is open and nothing is tracked yet.
        """
        self._forget()
        s = self.n
        t = rotation_angles(s, device=device, dtype=dtype)
        gamma = 2 * torch.rand((s + 1) // 2, device=device, dtype=dtype) - 1
        T = gamma.repeat_interleave(2, output_size=len(gamma) * 2)[:s].diag()
        i = torch.arange(0, s - 1, 2, device=device)
        pair = gamma[: s // 2]
        T[i, i] = T[i + 1, i + 1] = pair * t.cos()
        T[i, i + 1], T[i + 1, i] = -pair * t.sin(), pair * t.sin()
        return (T,)

    def project(self, W: Tensor) -> Tensor:
        """W divided by its spectral radius if that is above 1."""
        return W / (1 + self.defect(W)).to(W.dtype)

    def defect(self, W: Tensor) -> Tensor:
        """By how much the spectral radius is above 1."""
        W = W.detach().to(torch.float64)
        # LAPACK's eigenvalues of NaN may end the process
        if not W.isfinite().all():
            return W.new_tensor(torch.nan)
        return (torch.linalg.eigvals(W).abs().max() - 1).clamp(min=0)

    def extra_repr(self) -> str:
        """The size and ε."""
        return f"{self.n}" + (f", eps={self.eps}" if self.eps else "")


def _gradient(G: Tensor, W: Tensor, answer: Tensor) -> Tensor:
    """The gradient with respect to T from that with respect to W, see :func:`division`."""
    if can_follow(W):
        return normalized_gradient(G, W, answer)
    f, u = answer[:-1].reshape(2, 2, len(W))
    return G / answer[-1] + (G * W).sum() * (f.mT @ u)


class _Divided(torch.autograd.Function):
    """T / d as a function of T, whose division is known."""

    @staticmethod
    def forward(ctx: Any, T: Tensor, answer: Tensor) -> Tensor:
        W = T / answer[-1]
        ctx.save_for_backward(W, answer)
        return W

    @staticmethod
    @once_differentiable
    # pyrefly: ignore[bad-override]
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _gradient(*gradients, *ctx.saved_tensors), None
