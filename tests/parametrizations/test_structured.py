"""When the matrix is formed anew, and when it is not."""

import torch

from cayley.parametrizations import ScaledCayley, StructuredMatrix


def matrix() -> StructuredMatrix:
    return StructuredMatrix(ScaledCayley(6))


def test_is_formed_at_every_call_that_records_a_gradient() -> None:
    W = matrix()
    first, second = W(), W()
    assert first is not second
    first.sum().backward()
    second.sum().backward()  # neither graph was shared


def test_is_kept_without_gradients() -> None:
    W = matrix()
    with torch.no_grad():
        assert W() is W()
    W.requires_grad_(False)
    assert W() is W()


def test_is_formed_anew_after_any_change() -> None:
    W = matrix()
    with torch.no_grad():
        for change in (
            lambda: W.A.add_(0.1),
            lambda: W.map.D.neg_(),
            lambda: W.load_state_dict(matrix().state_dict()),
            lambda: setattr(W.A, "data", W.A.data * 2),
            lambda: setattr(W, "A", torch.nn.Parameter(W.A * 0.5)),
            lambda: W.reset_parameters(),
            lambda: W.assign(torch.linalg.qr(torch.randn(6, 6))[0]),
            lambda: W().mul_(2),
        ):
            W()
            change()
            torch.testing.assert_close(W(), W.map(W.A), rtol=0, atol=0)


def test_address_of_a_freed_tensor_is_not_mistaken_for_the_old_one() -> None:
    W = matrix()
    with torch.no_grad():
        for _ in range(50):
            before = W()
            W.A.data = torch.randn(15)
            W.A.data = torch.randn(15)
            assert W() is not before
            torch.testing.assert_close(W(), W.map(W.A), rtol=0, atol=0)


def test_forgets_on_train_eval_and_moves() -> None:
    W = matrix()
    with torch.no_grad():
        before = W()
        W.A.data.mul_(0.5)  # unseen by autograd's counters, and so by ours
        W.eval()
        assert W() is not before
        single = W.float()()
        assert single.dtype == torch.float32


def test_inference_mode_leaves_no_inference_tensor_behind() -> None:
    W = matrix().requires_grad_(False)
    with torch.inference_mode():
        inside = W()
        assert W() is inside
    x = torch.randn(6, requires_grad=True)
    (x @ W()).sum().backward()
    with torch.inference_mode():
        born_there = matrix()
        torch.testing.assert_close(born_there(), born_there.map(born_there.A))


def test_training_sees_each_step() -> None:
    W = matrix()
    optimizer = torch.optim.SGD(W.parameters(), lr=0.1)
    W().square().sum().backward()
    with torch.no_grad():
        before = W().clone()
    W().trace().backward()
    optimizer.step()
    with torch.no_grad():
        assert not torch.equal(W(), before)
