"""Parts of batches: their losses and weights make up those of the whole."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cayley.lab.errors import RecipeError
from cayley.lab.models import BatchNorm
from cayley.lab.processes import Processes
from cayley.lab.recipes.schema import Recipe, read_recipe
from cayley.lab.tasks import Batch, Position, Task, make_task
from cayley.lab.tasks.synthetic import Adding
from cayley.lab.training.shares import Share, check_shares, take_rows

TASKS: dict[str, Task] = {
    "adding": make_task("adding", T=10),
    "copying": make_task("copying", T=5),
    "mnist": make_task("mnist").tiny(),
    "cifar10": make_task("cifar10").tiny(),
    "characters": make_task("characters", K=7).tiny(),
    **{
        f"speech, {reduction}": make_task("speech", reduction=reduction).tiny()
        for reduction in ("none", "padded", "valid")
    },
}


def recipe(task: dict[str, Any]) -> Recipe:
    return read_recipe(
        {
            "name": "a",
            "task": task,
            "model": {"name": "ScoRNN", "hidden": 4},
            "optim": {"name": "Adam", "lr": 1e-3},
            "training": {"batch": 8, "steps": 1},
        }
    )


def answers(task: Task, batch: Batch) -> Tensor:
    """Any."""
    shape = batch.target.shape
    if not batch.target.is_floating_point():
        shape = (*shape, task.output_size)
    return torch.randn(shape)


@pytest.mark.parametrize("name", TASKS)
def test_weighed_losses_of_parts_are_the_loss_of_the_batch(name: str) -> None:
    task = TASKS[name]
    batch = task.batch("train", 5, Position(), seed=1)
    if not batch.target.is_floating_point():
        # as many answers in one part as in the others would hide a mean of means, and none a NaN
        batch.target.select(1 if task.answers == "each" else 0, 0).fill_(-100)
        batch.target.select(1 if task.answers == "each" else 0, 1).fill_(-100)
    output = answers(task, batch).requires_grad_()
    expected = task.loss(output, batch)
    (gradient,) = torch.autograd.grad(expected, output)
    axis = 1 if task.answers == "each" else 0
    outputs = output.tensor_split(3, axis)
    total = torch.zeros(())
    for rank in range(3):
        share = Share(task, nn.Identity(), None, Processes(rank, 3), 1)
        part = share.part(batch)
        assert share.weighs
        assert part.target.shape[axis] == outputs[rank].shape[axis]
        loss, added = share.loss(outputs[rank], part, batch)
        total = total + loss / 3
        torch.testing.assert_close(added, loss.detach() / 3)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(torch.autograd.grad(total, output)[0], gradient)


def test_weights_have_the_precision_of_the_loss() -> None:
    torch.set_default_dtype(torch.float32)  # as in a run, also in one of float64
    task = TASKS["adding"]
    batch = task.batch("train", 3, Position(), seed=1, dtype=torch.float64)
    output = torch.randn(batch.target.shape, dtype=torch.float64)
    added = []
    for rank, own in enumerate(output.tensor_split(3)):
        share = Share(task, nn.Identity(), None, Processes(rank, 3), 1)
        added.append(share.loss(own, share.part(batch), batch)[1])
    torch.testing.assert_close(sum(added), task.loss(output, batch), rtol=1e-14, atol=0)


def test_parts_are_all_of_a_batch() -> None:
    task = TASKS["speech, valid"]
    batch = task.batch("train", 5, Position())
    assert batch.index is not None
    assert batch.lengths is not None
    parts = [take_rows(batch, task, rank, 2) for rank in range(2)]
    for name, axis in (("input", 1), ("target", 1), ("lengths", 0), ("index", 0)):
        found = torch.cat([getattr(part, name) for part in parts], axis)
        assert torch.equal(found, getattr(batch, name)), name
    assert all((part.position, part.next) == (batch.position, batch.next) for part in parts)


@dataclass(frozen=True)
class Own(Adding):
    """With a loss of its own."""

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        return (output - batch.target).abs().sum()


@dataclass(frozen=True)
class OwnWeight(Own):
    """And what it divides by."""

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        return (output - batch.target).abs().mean()

    def weight(self, batch: Batch) -> Tensor:
        return super().weight(batch)


def test_a_loss_of_its_own_needs_a_weight_of_its_own() -> None:
    for task, weighs in ((Own(), False), (OwnWeight(), True)):
        assert Share(task, nn.Identity(), None, Processes(0, 2), 1).weighs == weighs


def test_a_batch_of_fewer_examples_than_processes_is_everybodys() -> None:
    task = TASKS["adding"]
    batch = task.batch("train", 2, Position())
    model = nn.Sequential(BatchNorm(1))
    share = Share(task, model, None, Processes(1, 3), 1)
    assert share.part(batch) is batch
    assert share.whole
    assert not model[0].synchronized
    output = answers(task, batch)
    loss, added = share.loss(output, batch, batch)
    torch.testing.assert_close(loss, task.loss(output, batch))
    torch.testing.assert_close(3 * added, loss)
    share.part(task.batch("train", 3, Position()))
    assert model[0].synchronized


def test_each_process_draws_by_the_position() -> None:
    task, drawn = TASKS["adding"], []
    for rank, place in ((0, Position()), (1, Position()), (0, Position(0, 1)), (0, Position())):
        share = Share(task, nn.Identity(), None, Processes(rank, 2), 1)
        share.part(task.batch("train", 4, place))
        drawn.append(float(torch.rand(())))
    assert len({*drawn}) == 3
    assert drawn[0] == drawn[3]


def test_what_cannot_be_shared_is_refused() -> None:
    model, plain = nn.Linear(1, 1), {"name": "adding"}
    check_shares(recipe(plain), TASKS["adding"], model, 4)
    # one device shares nothing
    check_shares(recipe(plain), TASKS["adding"], nn.BatchNorm1d(1), 1)
    with pytest.raises(RecipeError, match=r"multiple of the 3 processes .* got 8.*batch=9"):
        check_shares(recipe(plain), TASKS["adding"], model, 3)
    graph = make_task("cora").tiny()
    with pytest.raises(RecipeError, match="got those of cora, which are graphs"):
        check_shares(recipe({"name": "cora"}), graph, model, 2)
    with pytest.raises(RecipeError, match=r"got BatchNorm1d in 0: use cayley\.lab\.models\."):
        check_shares(recipe(plain), TASKS["adding"], nn.Sequential(nn.BatchNorm1d(1)), 2)
    check_shares(recipe(plain), TASKS["adding"], BatchNorm(1), 2)
