"""Gradients that stand for many."""

from threading import Thread
from typing import Any

import torch
from torch import Tensor

from cayley.batched_gradients import is_many, one_by_one


class Product(torch.autograd.Function):
    """x y, whose gradient reads numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, y)
        ctx.set_materialize_grads(False)
        return x * y, x + 0

    @staticmethod
    @one_by_one
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, None]:
        g, other = gradients
        assert other is None
        assert g is not None
        if not torch.is_grad_enabled():
            assert g.data_ptr()
        return g * ctx.saved_tensors[1], None


def test_missing_gradients_stay_missing() -> None:
    x, y, G = torch.zeros(3, requires_grad=True), torch.arange(3.0), torch.randn(4, 3)
    (found,) = torch.autograd.grad(Product.apply(x, y)[0], x, G, is_grads_batched=True)
    torch.testing.assert_close(found, G * y)


def test_no_gradient_is_not_many() -> None:
    """Autograd calls hooks without one, too."""
    assert not is_many(None)


def test_transforms_may_be_nested() -> None:
    x, y, G = torch.zeros(3, requires_grad=True), torch.arange(3.0), torch.randn(4, 2, 3)
    product = Product.apply(x, y)[0]

    def gradient(g: Tensor) -> Tensor:
        return torch.autograd.grad(product, x, g, retain_graph=True)[0]

    found = torch.vmap(torch.vmap(gradient, in_dims=1, out_dims=1))(G.mT)
    torch.testing.assert_close(found, (G * y).mT)


def test_second_gradients() -> None:
    x = torch.ones(3, requires_grad=True)
    y = torch.arange(3.0, requires_grad=True)
    G, options = torch.randn(4, 3), {"create_graph": True, "is_grads_batched": True}
    (first,) = torch.autograd.grad(Product.apply(x, y)[0], x, G, **options)
    (second,) = torch.autograd.grad(first.sum(), y)
    torch.testing.assert_close(second, G.sum(0))


def test_random_numbers_may_be_drawn() -> None:
    class Noisy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x + 0

        @staticmethod
        @one_by_one
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor]:
            return (g + 0 * torch.randn(3),)

    x = torch.zeros(3, requires_grad=True)
    G = torch.eye(3)
    assert torch.equal(torch.autograd.grad(Noisy.apply(x), x, G, is_grads_batched=True)[0], G)


def test_a_thread_of_autograd_knows_no_level() -> None:
    """As backward passes on a GPU run."""
    doubled = one_by_one(lambda ctx, g: (torch.tensor([2 * v for v in g.tolist()]),))
    found: list[Tensor | None] = []

    def run(g: Tensor) -> Tensor:
        thread = Thread(target=lambda: found.extend(doubled(None, g)))
        thread.start()
        thread.join()
        (result,) = found
        assert result is not None
        return result

    x, G = torch.zeros(3, requires_grad=True), torch.randn(4, 3)
    y = x + 0
    y.register_hook(run)
    (gradients,) = torch.autograd.grad(y, x, G, is_grads_batched=True)
    torch.testing.assert_close(gradients, 2 * G)
