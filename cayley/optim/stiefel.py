"""Optimizers that move a unitary matrix along the Stiefel manifold."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cayley.checks import check_number
from cayley.optim.optimizer import DenseOptimizer, as_real, check_rate, scaled
from cayley.parametrizations.parametrization import full_precision
from cayley.parametrizations.polar import refine

__all__ = ["StiefelRMSprop", "StiefelSGD", "rms_normalize", "stiefel_step"]


def stiefel_step(W: Tensor, G: Tensor, lr: float | Tensor) -> Tensor:
    r"""Step along a curve of orthogonal (unitary) matrices, against the gradient.

    .. math::
        A = G W^* - W G^*, \qquad
        W \leftarrow (I + \tfrac{\lambda}{2} A)^{-1} (I - \tfrac{\lambda}{2} A)\, W

    A is skew-Hermitian, so the Cayley transform of any multiple of it is unitary. With torch's
    gradient, for complex W that is :math:`G = 2\, \partial L / \partial \bar W`, the loss starts
    with the slope :math:`\mathrm{d}L/\mathrm{d}\lambda = -\tfrac12 \|A\|_F^2` at λ = 0.

    Note:
        With :math:`G = \partial L / \partial W`, as the reference prints it elsewhere, the slope
        would be a different one.

        The step is computed as :math:`W - 2 (I + B)^{-1} B W`, :math:`B = \tfrac{\lambda}{2} A`,
        which is equal, and whose rounding errors shrink with the step. They still add up, since W
        is never formed from scratch: :math:`\|W^* W - I\|_F` grows as the square root of the number
        of steps. For n = 64 in complex64, λ = 1e-3 and random gradients it is 3e-6 after 100 steps
        and 2e-5 after 3000; with the product above, 4e-5 and 6e-4. This function does not correct
        W; :func:`cayley.parametrizations.refine` does, and the optimizers below call it. No step
        waits for the GPU, and a non-finite gradient gives a non-finite W, not an error.

    References:
        Full-Capacity Unitary Recurrent Neural Networks, Wisdom, Powers, Hershey, Le Roux, Atlas,
        2016, equations 8 and 9.
        Notes on Optimization on Stiefel Manifolds, Tagare, 2011.

    Arguments:
        W: An orthogonal (unitary) matrix, (n, n).
        G: The gradient of the loss, as torch returns it, (n, n).
        lr: λ, the learning rate, a number or a tensor of one, ().

    Returns:
        The next W, (n, n).

    Example:
        >>> W, G = torch.eye(2), torch.tensor([[0.0, 1.0], [0.0, 0.0]])
        >>> stiefel_step(W, G, lr=2.0)
        tensor([[ 0., -1.],
                [ 1.,  0.]])
    """
    with full_precision(W, G):
        M = G @ W.mH
        B = (M - M.mH) * (lr / 2)
        eye = torch.eye(W.shape[-1], device=W.device, dtype=W.dtype)
        return W - 2 * torch.linalg.solve_ex(eye + B, B @ W).result


class StiefelOptimizer(DenseOptimizer):
    """Common base of the optimizers along the Stiefel manifold: the step, and old checkpoints."""

    def move(self, W: Tensor, G: Tensor, group: dict[str, Any]) -> None:
        """Move W by :func:`stiefel_step`, as a group says."""
        lr = group["lr"]
        # to read a tensor would wait for the GPU
        if isinstance(lr, Tensor) or lr != 0:
            moved = stiefel_step(W, G, lr)
            W.copy_(refine(moved) if group["refine"] else moved)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            # checkpoints from before this option existed were trained without it
            group.setdefault("refine", False)


class StiefelSGD(StiefelOptimizer):
    r"""Gradient descent along the Stiefel manifold.

    Groups with ``stiefel=True`` hold orthogonal (unitary) matrices, which move by
    :func:`stiefel_step`; those with ``stiefel=False`` take the plain step :math:`p - \lambda g`. So
    one optimizer trains a whole model, with the groups of
    :func:`~cayley.optim.groups.parameter_groups`.

    Note:
        On the manifold ``weight_decay`` does nothing: the norm of a unitary matrix is constant.

    References:
        Full-Capacity Unitary Recurrent Neural Networks, Wisdom, Powers, Hershey, Le Roux, Atlas,
        2016.

    Arguments:
        params: The parameters, or groups of them, as for every torch optimizer.
        lr: λ, the learning rate, a number or a tensor of one, ().
        stiefel: The default of the key ``stiefel`` for groups without it.
        refine: Whether the rounding errors of a step are removed from W, so that they do not add
            up; the papers' programs do not.
        weight_decay: The factor of an L2 penalty on all other parameters.

    Example:
        >>> W = torch.nn.Parameter(torch.eye(2))
        >>> optimizer = StiefelSGD([W], lr=2.0)
        >>> W[0, 1].backward()
        >>> optimizer.step()
        >>> W.data
        tensor([[ 0., -1.],
                [ 1.,  0.]])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        stiefel: bool = True,
        refine: bool = True,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "stiefel": stiefel, "refine": refine, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    def check(self, group: dict[str, Any]) -> None:
        """Raise unless every option is in its range and a Stiefel group has square matrices."""
        check_rate(self, "lr", group["lr"])
        check_number(self, "weight_decay", group["weight_decay"])
        check_matrices(self, group)

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
        """Move ``p`` along the manifold or, in a group without ``stiefel``, straight."""
        if group["stiefel"]:
            self.move(p, g, group)
            return
        if group["weight_decay"] != 0:
            g = g.add(p, alpha=group["weight_decay"])
        (g,), lr = scaled([g], group["lr"])
        p.add_(g, alpha=-lr)


def rms_normalize(g: Tensor, square: Tensor, *, alpha: float, eps: float) -> Tensor:
    r"""Gradient divided by the root of its mean square, which is updated in place.

    .. math:: s \leftarrow \alpha s + (1 - \alpha) g^2, \qquad g / (\sqrt{s} + \varepsilon)

    Arguments:
        g: The gradient, real, of any shape.
        square: s, the mean square; changed.
        alpha: α, the decay.
        eps: ε.

    Returns:
        The normalised gradient, of the same shape.

    Example:
        >>> square = torch.zeros(1)
        >>> rms_normalize(torch.tensor([3.0]), square, alpha=0.75, eps=0.0), square
        (tensor([2.]), tensor([2.2500]))
    """
    square.mul_(alpha).addcmul_(g, g, value=1 - alpha)
    return g / square.sqrt().add_(eps)


class StiefelRMSprop(StiefelOptimizer):
    r"""RMSprop along the Stiefel manifold: the optimizer of the full-capacity uRNN.

    The gradient is normalised element by element, then the matrix moves by :func:`stiefel_step`:

    .. math::
        s \leftarrow \alpha s + (1 - \alpha) g^2, \qquad G = g / (\sqrt{s} + \varepsilon), \qquad
        A = G W^* - W G^*, \qquad
        W \leftarrow (I + \tfrac{\lambda}{2} A)^{-1} (I - \tfrac{\lambda}{2} A)\, W

    Groups with ``stiefel=False`` take the RMSprop step :math:`p - \lambda G`. So one optimizer
    trains a whole model, with the groups of :func:`~cayley.optim.groups.parameter_groups`.

    Note:
        The defaults (s from 0, ε added to the root) are those of the authors' program for pixel
        MNIST; their program for copying and TIMIT starts s at 1e-3, has no ε, and moves W by the
        plain :class:`StiefelSGD`. Real and imaginary parts are separate numbers.

        A is made from the normalised gradient, so even a small step need not reduce the loss, and
        the steps need not converge to a minimum: for the loss :math:`\langle C, W \rangle` they
        converge to minus the polar factor of sign(C), while the minimum is minus that of C. The two
        agree only where the gradient itself vanishes.

        On the manifold ``weight_decay`` does nothing: the norm of a unitary matrix is constant.

    References:
        Full-Capacity Unitary Recurrent Neural Networks, Wisdom, Powers, Hershey, Le Roux, Atlas,
        2016.

    Arguments:
        params: The parameters, or groups of them, as for every torch optimizer.
        lr: λ, the learning rate, a number or a tensor of one, ().
        alpha: α, the decay of the mean square.
        eps: ε, added to the root.
        initial_square: What s starts with.
        stiefel: The default of the key ``stiefel`` for groups without it.
        refine: Whether the rounding errors of a step are removed from W, so that they do not add
            up; the papers' programs do not.
        weight_decay: The factor of an L2 penalty on all other parameters.

    Example:
        >>> W, b = torch.nn.Parameter(torch.eye(2)), torch.nn.Parameter(torch.zeros(2))
        >>> groups = [{"params": W, "lr": 0.1}, {"params": b, "stiefel": False}]
        >>> optimizer = StiefelRMSprop(groups, lr=1e-3)
        >>> (W[0, 1] + b.sum()).backward()
        >>> optimizer.step()
        >>> b.data
        tensor([-0.0032, -0.0032])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        alpha: float = 0.9,
        eps: float = 1e-8,
        initial_square: float = 0.0,
        stiefel: bool = True,
        refine: bool = True,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "initial_square": initial_square,
            "stiefel": stiefel,
            "refine": refine,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)

    def check(self, group: dict[str, Any]) -> None:
        """Raise unless every option is in its range and a Stiefel group has square matrices."""
        check_rate(self, "lr", group["lr"])
        for name in ("eps", "initial_square", "weight_decay"):
            check_number(self, name, group[name])
        check_number(self, "alpha", group["alpha"], below=1.0, closed=True)
        if group["eps"] == 0 and group["initial_square"] == 0:
            raise ValueError(
                "StiefelRMSprop: expected a positive eps or initial_square, got 0 for both: a zero "
                "gradient would divide zero by zero"
            )
        check_matrices(self, group)

    def update(self, p: Tensor, g: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
        """Move ``p`` along the manifold or, in a group without ``stiefel``, straight."""
        x, g = as_real(p), as_real(g)
        if group["weight_decay"] != 0 and not group["stiefel"]:
            g = g.add(x, alpha=group["weight_decay"])
        if "square" not in state:
            state["square"] = torch.full_like(x, group["initial_square"])
        G = rms_normalize(g, state["square"], alpha=group["alpha"], eps=group["eps"])
        if group["stiefel"]:
            self.move(p, torch.view_as_complex(G) if p.is_complex() else G, group)
        else:
            (G,), lr = scaled([G], group["lr"])
            x.add_(G, alpha=-lr)


def check_matrices(owner: object, group: dict[str, Any]) -> None:
    """Raise unless a group with ``stiefel`` holds orthogonal (unitary) matrices only."""
    if not group["stiefel"]:
        return
    for p in group["params"]:
        if p.dim() != 2 or p.shape[0] != p.shape[1]:
            raise ValueError(
                f"{type(owner).__name__}: expected square matrices in a group with stiefel=True, "
                f"got a parameter of shape {tuple(p.shape)}: put it in a group with stiefel=False, "
                "or make the groups with cayley.parameter_groups"
            )
        if p.is_meta:
            continue
        with torch.no_grad():
            defect = torch.linalg.matrix_norm(p.mH @ p - torch.eye(len(p), device=p.device))
        if not defect <= 0.1:
            raise ValueError(
                f"{type(owner).__name__}: expected orthogonal (unitary) matrices in a group with "
                f"stiefel=True, got ‖W*W − I‖ = {float(defect):.2g} for a parameter of shape "
                f"{tuple(p.shape)}: put it in a group with stiefel=False, or start from "
                "cayley.parametrizations.polar(W)"
            )
