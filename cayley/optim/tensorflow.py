"""RMSprop and Adagrad as TensorFlow 1 defines them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cayley.checks import check_number
from cayley.optim.optimizer import DenseOptimizer, as_real, check_rate, scaled

__all__ = ["AdagradTF", "RMSpropTF", "adagrad_tf_", "rmsprop_tf_"]


def rmsprop_tf_(
    p: Tensor,
    g: Tensor,
    square: Tensor,
    *,
    lr: float | Tensor,
    alpha: float,
    eps: float,
    momentum: float = 0.0,
    velocity: Tensor | None = None,
    mean: Tensor | None = None,
) -> None:
    r"""One step of TensorFlow 1's RMSprop, in place.

    .. math::
        s &\leftarrow \alpha s + (1 - \alpha) g^2 \\
        m &\leftarrow \alpha m + (1 - \alpha) g \\
        v &\leftarrow \mu v + \lambda g / \sqrt{s - m^2 + \varepsilon} \\
        p &\leftarrow p - v

    Without ``mean``, m is 0; without ``velocity``, μ is 0.

    Note:
        Rounding can make s − m² negative, for which TensorFlow returns NaN. Here it counts as 0.

    Arguments:
        p: The parameter, real, of any shape; changed.
        g: Its gradient.
        square: s, the mean square of the gradients; changed.
        lr: λ, the learning rate.
        alpha: α, the decay.
        eps: ε.
        momentum: μ.
        velocity: v; changed.
        mean: m, the mean of the gradients; changed.

    Example:
        >>> p, square = torch.tensor([1.0]), torch.tensor([1.0])
        >>> rmsprop_tf_(p, torch.tensor([1.0]), square, lr=0.25, alpha=0.9, eps=0.0)
        >>> p, square
        (tensor([0.7500]), tensor([1.]))
    """
    velocities, means = ([] if v is None else [v] for v in (velocity, mean))
    options = {"lr": lr, "alpha": alpha, "eps": eps, "momentum": momentum}
    _rmsprop_tf_all_([p], [g], [square], velocities, means, **options)


def _rmsprop_tf_all_(
    ps: list[Tensor],
    gs: list[Tensor],
    squares: list[Tensor],
    velocities: list[Tensor],
    means: list[Tensor],
    *,
    lr: float | Tensor,
    alpha: float,
    eps: float,
    momentum: float,
) -> None:
    """:func:`rmsprop_tf_` of several parameters, with no velocities or means if there are none.

    On a GPU an update of a small parameter takes as long as five launches; here all of them share
    these launches.
    """
    _scale_all_(squares, alpha)
    torch._foreach_addcmul_(squares, gs, gs, value=1 - alpha)
    variances = squares
    if means:
        _scale_all_(means, alpha)
        torch._foreach_add_(means, gs, alpha=1 - alpha)
        variances = torch._foreach_addcmul(squares, means, means, value=-1)
        torch._foreach_clamp_min_(variances, 0)
    roots = torch._foreach_add(variances, eps)
    torch._foreach_sqrt_(roots)
    gs, lr = scaled(gs, lr)
    if velocities:
        _scale_all_(velocities, momentum)
        torch._foreach_addcdiv_(velocities, gs, roots, value=lr)
        torch._foreach_sub_(ps, velocities)
    else:
        torch._foreach_addcdiv_(ps, gs, roots, value=-lr)


def _scale_all_(tensors: list[Tensor], factor: float) -> None:
    """Multiply all tensors by a number, which torch would first round to bfloat16 on a CPU."""
    torch._foreach_mul_(tensors, torch.tensor(factor, dtype=torch.float64, device="cpu"))


class RMSpropTF(DenseOptimizer):
    r"""RMSprop with TensorFlow 1's semantics and defaults.

    .. math::
        s \leftarrow \alpha s + (1 - \alpha) g^2, \qquad
        v \leftarrow \mu v + \lambda g / \sqrt{s + \varepsilon}, \qquad
        p \leftarrow p - v, \qquad s_0 = 1

    It differs from :class:`torch.optim.RMSprop` in four ways: s starts at one instead of zero,
    which makes the first hundred steps a warm-up; ε is inside the root; λ is inside the momentum,
    so that a new learning rate does not rescale old steps; α is 0.9 instead of 0.99. For
    a constant gradient of 0.01 the first step is 0.0105 λ, where torch's is 10 λ.

    Note:
        Real and imaginary parts of a complex parameter are separate numbers. ``weight_decay`` adds
        its multiple of p to g, as in torch; TensorFlow 1 has none.

    References:
        TensorFlow: A System for Large-Scale Machine Learning, Abadi et al., 2016
        (``tf.train.RMSPropOptimizer``).
        Lecture 6.5: rmsprop, Tieleman, Hinton, 2012.

    Arguments:
        params: The parameters, or groups of them, as for every torch optimizer.
        lr: λ, the learning rate, a number or a tensor of one, ().
        alpha: α, the decay of the mean square; TensorFlow's ``decay``.
        momentum: μ.
        eps: ε, inside the root.
        centered: Whether to subtract the squared mean gradient from s in the root.
        weight_decay: The factor of an L2 penalty.

    Example:
        >>> p = torch.nn.Parameter(torch.zeros(1))
        >>> optimizer = RMSpropTF([p], lr=1.0)
        >>> p.grad = torch.full((1,), 0.01)
        >>> optimizer.step()
        >>> p.data
        tensor([-0.0105])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        alpha: float = 0.9,
        momentum: float = 0.0,
        eps: float = 1e-10,
        centered: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "alpha": alpha,
            "momentum": momentum,
            "eps": eps,
            "centered": centered,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)

    def check(self, group: dict[str, Any]) -> None:
        """Raise unless every option of ``group`` is in its range."""
        check_rate(self, "lr", group["lr"])
        for name in ("eps", "weight_decay"):
            check_number(self, name, group[name])
        check_number(self, "alpha", group["alpha"], below=1.0, closed=True)
        check_number(self, "momentum", group["momentum"], below=1.0)

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
        """Move ``p`` by :func:`rmsprop_tf_`; the slots start at one (s) and zero (v, m)."""
        self.update_all([p], [g], [state], group)

    def update_all(
        self,
        ps: Sequence[Tensor],
        gs: Sequence[Tensor],
        states: Sequence[dict[str, Tensor]],
        group: dict[str, Any],
    ) -> None:
        """The same for all parameters of a group."""
        ps, gs = [as_real(p) for p in ps], [as_real(g) for g in gs]
        if group["weight_decay"] != 0:
            gs = [*torch._foreach_add(gs, ps, alpha=group["weight_decay"])]
        for p, state in zip(ps, states, strict=True):
            if "square" not in state:
                state["square"] = torch.ones_like(p)
            if group["momentum"] != 0 and "velocity" not in state:
                state["velocity"] = torch.zeros_like(p)
            if group["centered"] and "mean" not in state:
                state["mean"] = torch.zeros_like(p)
        _rmsprop_tf_all_(
            ps,
            gs,
            [state["square"] for state in states],
            [state["velocity"] for state in states] if group["momentum"] != 0 else [],
            [state["mean"] for state in states] if group["centered"] else [],
            **{name: group[name] for name in ("lr", "alpha", "eps", "momentum")},
        )


def adagrad_tf_(p: Tensor, g: Tensor, accumulator: Tensor, *, lr: float | Tensor) -> None:
    r"""One step of TensorFlow 1's Adagrad, in place.

    .. math::
        \gamma \leftarrow \gamma + g^2, \qquad p \leftarrow p - \lambda g / \sqrt{\gamma}

    Arguments:
        p: The parameter, real, of any shape; changed.
        g: Its gradient.
        accumulator: γ, positive; changed.
        lr: λ, the learning rate.

    Example:
        >>> p, accumulator = torch.tensor([1.0]), torch.tensor([3.0])
        >>> adagrad_tf_(p, torch.tensor([1.0]), accumulator, lr=1.0)
        >>> p, accumulator
        (tensor([0.5000]), tensor([4.]))
    """
    accumulator.addcmul_(g, g)
    (g,), lr = scaled([g], lr)
    p.addcdiv_(g, accumulator.sqrt(), value=-lr)


class AdagradTF(DenseOptimizer):
    r"""Adagrad with TensorFlow 1's semantics and defaults.

    .. math::
        \gamma \leftarrow \gamma + g^2, \qquad p \leftarrow p - \lambda g / \sqrt{\gamma}, \qquad
        \gamma_0 = 0.1

    It differs from :class:`torch.optim.Adagrad` in the start of γ and in having no ε.

    Note:
        Real and imaginary parts of a complex parameter are separate numbers. ``weight_decay`` adds
        its multiple of p to g, as in torch; TensorFlow 1 has none.

    References:
        TensorFlow: A System for Large-Scale Machine Learning, Abadi et al., 2016
        (``tf.train.AdagradOptimizer``).
        Adaptive Subgradient Methods for Online Learning and Stochastic Optimization, Duchi, Hazan,
        Singer, 2011.

    Arguments:
        params: The parameters, or groups of them, as for every torch optimizer.
        lr: λ, the learning rate, a number or a tensor of one, ().
        initial_accumulator: What γ starts with, positive.
        weight_decay: The factor of an L2 penalty.

    Example:
        >>> p = torch.nn.Parameter(torch.zeros(1))
        >>> optimizer = AdagradTF([p], lr=1.0, initial_accumulator=3.0)
        >>> p.grad = torch.ones(1)
        >>> optimizer.step()
        >>> p.data
        tensor([-0.5000])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        initial_accumulator: float = 0.1,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "initial_accumulator": initial_accumulator,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)

    def check(self, group: dict[str, Any]) -> None:
        """Raise unless every option of ``group`` is in its range."""
        check_rate(self, "lr", group["lr"])
        for name in ("initial_accumulator", "weight_decay"):
            check_number(self, name, group[name])
        if group["initial_accumulator"] == 0:
            raise ValueError(
                "AdagradTF: expected a positive initial_accumulator, got 0: without an ε a zero "
                "gradient would divide zero by zero; torch.optim.Adagrad starts at zero"
            )

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
        """Move ``p`` by :func:`adagrad_tf_`; γ starts at ``initial_accumulator``."""
        p, g = as_real(p), as_real(g)
        if group["weight_decay"] != 0:
            g = g.add(p, alpha=group["weight_decay"])
        if "accumulator" not in state:
            state["accumulator"] = torch.full_like(p, group["initial_accumulator"])
        adagrad_tf_(p, g, state["accumulator"], lr=group["lr"])
