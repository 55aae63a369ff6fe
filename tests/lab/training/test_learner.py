import copy
from typing import Any

import pytest
import torch
from gradients import grad_of
from torch import Tensor, nn

import cayley
from cayley.lab.errors import RecipeError
from cayley.lab.models import build_model
from cayley.lab.recipes.schema import Recipe, read_recipe
from cayley.lab.runs.machine import Machine
from cayley.lab.tasks import Batch, Task, make_task
from cayley.lab.training.learner import Learner, detach_state
from cayley.preconditioners import BNP


def recipe(**changes: Any) -> Recipe:
    content: dict[str, Any] = {
        "name": "a",
        "task": {"name": "adding"},
        "model": {"name": "ScoRNN", "hidden": 6},
        "optim": {"name": "SGD", "lr": 0.1},
        "training": {"batch": 5, "steps": 10},
    }
    return read_recipe(content | changes)


def learner(recipe: Recipe, task: Task) -> Learner:
    model = build_model(recipe.model, task)
    return Learner(recipe, task, model, Machine("cpu", "64-true"))


def test_a_step_is_forward_backward_bnp_clip_step() -> None:
    task = make_task("adding").tiny()
    settings = recipe(
        training={"batch": 5, "steps": 10, "clip_norm": 0.01},
        bnp={"eps": 0.1},
        model={"name": "torch.LSTM", "hidden": 6},
    )
    one = learner(settings, task)
    model = copy.deepcopy(one.model)
    batch = next(task.batches("train", 5))

    bnp = BNP(model, eps=0.1)
    output, _ = model(batch.input)
    loss = (output - batch.target).square().mean()
    loss.backward()
    bnp.step()
    norm = torch.stack([grad_of(p).norm() for p in model.parameters()]).norm()
    assert norm > 0.01
    expected = [p - 0.1 * grad_of(p) * 0.01 / (norm + 1e-6) for p in model.parameters()]

    torch.testing.assert_close(one.learn(batch), loss.detach())
    for got, want in zip(one.model.parameters(), expected, strict=True):
        torch.testing.assert_close(got, want)


def test_values_are_clipped() -> None:
    task = make_task("adding").tiny()
    one = learner(recipe(training={"batch": 5, "steps": 1, "clip_value": 1e-3}), task)
    before = [p.detach().clone() for p in one.model.parameters()]
    one.learn(next(task.batches("train", 5)))
    for p, old in zip(one.model.parameters(), before, strict=True):
        assert (p - old).abs().max() <= 1e-4 * (1 + 1e-9)


REBASED = {"optim": {"name": "RMSpropTF", "lr": 0.1, "recurrent_lr": 3.0, "rebase": 2}}


def entries(one: Learner) -> Tensor:
    """A of the first layer."""
    return one.model.get_parameter("layers.0.structured.weight_hh_l0.A")


def test_d_is_chosen_again_as_a_grows() -> None:
    """At such a rate A grows beyond 1 in two steps, and then is brought back."""
    task = make_task("adding").tiny()
    one = learner(recipe(**REBASED), task)
    fixed = learner(recipe(optim=REBASED["optim"] | {"rebase": ""}), task)
    batches = [*task.batches("train", 5)][:2]
    for batch in batches:
        one.learn(batch)
        fixed.learn(batch)
    assert entries(fixed).abs().max() > 1
    assert entries(one).abs().max() <= 1 + 1e-12


def test_a_training_that_chooses_d_again_resumes_exactly() -> None:
    task = make_task("adding").tiny()
    batches = [*task.batches("train", 2, epochs=3)][:7]
    torch.manual_seed(1)
    whole = learner(recipe(**REBASED), task)
    model = copy.deepcopy(whole.model.state_dict())
    for batch in batches:
        whole.learn(batch)
    first = learner(recipe(**REBASED), task)
    first.model.load_state_dict(model)
    for batch in batches[:3]:
        first.learn(batch)
    second = learner(recipe(**REBASED), task)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for batch in batches[3:]:
        second.learn(batch)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name


def test_a_network_without_d_is_refused() -> None:
    optim = {"name": "RMSpropTF", "lr": 0.1, "rebase": 2}
    settings = recipe(model={"name": "LSTM", "hidden": 6}, optim=optim)
    with pytest.raises(RecipeError, match=r"optim.rebase: expected a model with a real scaled Cay"):
        learner(settings, make_task("adding").tiny())


class Echo(nn.Module):
    """Returns the number of the batch as its state, and remembers what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(50))
        self.given: list[Any] = []

    def forward(self, input: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        self.given.append(state)
        count = self.weight.sum() * 0 + (1 if state is None else state[0] + 1)
        return self.weight.expand(*input.shape, 50), (count,)


def test_the_state_is_carried_detached_until_a_fresh_batch() -> None:
    task = make_task("characters", K=100).tiny()
    one = Learner(recipe(), task, Echo(), Machine("cpu", "64-true"))
    batches: list[Batch] = list(task.batches("train", 5, epochs=2))
    for batch in batches:
        one.learn(batch)
    model = one.model
    assert isinstance(model, Echo)
    half = len(batches) // 2
    assert half > 1
    counts = [None if state is None else int(state[0]) for state in model.given]
    assert counts == [None, *range(1, half)] * 2
    assert not any(state[0].requires_grad for state in model.given if state is not None)


@pytest.mark.parametrize(("every", "rates"), [("step", [0.05, 0.025]), ("epoch", [0.1, 0.05])])
def test_rates_follow_their_schedule(every: str, rates: list[float]) -> None:
    task = make_task("adding").tiny()
    schedule = {"name": "ExponentialLR", "gamma": 0.5, "every": every}
    one = learner(recipe(optim={"name": "SGD", "lr": 0.1, "schedule": schedule}), task)
    got = []
    for batch in task.batches("train", 20):
        one.learn(batch)
        got.append(one.rates())
    assert got == [{"rest": rate, "recurrent": rate} for rate in rates]


def test_rates_follow_the_length_of_a_segment() -> None:
    """lr × length / K of AWD-LSTM: with SGD a step is that much longer, and the rate stays."""
    task = make_task("characters", K=20, jitter=True).tiny()
    model = {"name": "ScoRNN", "hidden": 6}
    lengths = set()
    for batch in list(task.batches("train", 5, epochs=1))[:3]:
        steps = []
        for by_length in (False, True):
            torch.manual_seed(0)
            optim = {"name": "SGD", "lr": 0.1, "recurrent_lr": 0.01, "lr_by_length": by_length}
            one = learner(recipe(model=model, optim=optim), task)
            before = [p.detach().clone() for p in one.model.parameters()]
            one.learn(batch)
            moved = zip(one.model.parameters(), before, strict=True)
            steps.append([p.detach() - old for p, old in moved])
            assert one.rates() == {"rest": 0.1, "recurrent": 0.01}
        lengths.add(len(batch.target))
        for plain, scaled in zip(*steps, strict=True):
            torch.testing.assert_close(scaled, plain * len(batch.target) / 20)
    assert len(lengths) > 1


def test_rates_by_length_need_a_text() -> None:
    optim = {"name": "SGD", "lr": 0.1, "lr_by_length": True}
    with pytest.raises(RecipeError, match="lr_by_length: expected false, as the task is not text"):
        learner(recipe(optim=optim), make_task("adding").tiny())


def test_inverses_are_computed_anew_at_the_start_of_an_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = make_task("adding").tiny()
    one = learner(recipe(model={"name": "NCGRU", "hidden": 6}), task)
    seen = []
    monkeypatch.setattr(cayley.NCGRU, "refresh_", lambda layer: seen.append(layer))
    for batch in task.batches("train", 10, epochs=2):
        one.learn(batch)
    assert len(seen) == 2


def test_averages_of_batch_normalisation_are_over_an_epoch() -> None:
    task = make_task("cifar10").tiny()
    model = {"name": "MLP", "hidden": [6], "norm": "batch", "inference": "average"}
    one = learner(recipe(model=model), task)
    norm = one.model.get_submodule("layers.0")
    batches: list[Any] = list(task.batches("train", 20, epochs=2))
    for batch in batches:
        one.learn(batch)
    last = torch.stack([batch.input.mean(0) for batch in batches[len(batches) // 2 :]])
    torch.testing.assert_close(norm.running_mean, last.mean(0))


@pytest.mark.parametrize("name", ["NCGRU", "ScuRNN", "FullURNN"])
def test_the_state_dict_holds_all_that_the_next_steps_depend_on(name: str) -> None:
    task = make_task("adding").tiny()
    optim = {"name": "RMSpropTF", "lr": 1e-2, "recurrent": "StiefelRMSprop"}
    settings = recipe(
        model={"name": name, "hidden": [6, 6], "dropout": 0.5},
        optim=optim if name == "FullURNN" else {"name": "Adam", "lr": 1e-2},
    )
    one, other = learner(settings, task), learner(settings, task)
    batches = list(task.batches("train", 5))
    for batch in batches[:4]:
        one.learn(batch)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    random = torch.get_rng_state()
    losses = [one.learn(batch) for batch in batches[4:]]
    torch.set_rng_state(random)
    assert [other.learn(batch) for batch in batches[4:]] == losses


def test_awd_lstm_resumes_to_the_bit() -> None:
    """All its random choices are in the state, or follow from the position."""
    task = make_task("characters", K=20, jitter=True).tiny()
    drops = ("dropout", "embedding_dropout", "word_dropout", "weight_dropout", "output_dropout")
    model = {"name": "torch.LSTM", "hidden": [6, 8], "embedding": 8, "tied": True, "locked": True}
    settings = recipe(
        model=model | dict.fromkeys(drops, 0.4),
        optim={"name": "Adam", "lr": 1e-2, "lr_by_length": True},
    )
    one, other = learner(settings, task), learner(settings, task)
    batches = list(task.batches("train", 5, seed=3, epochs=2))
    for batch in batches[:4]:
        one.learn(batch)
    kept = copy.deepcopy(one.state_dict())
    losses = [one.learn(batch) for batch in batches[4:]]
    torch.manual_seed(0)
    other.load_state_dict(kept)
    assert [other.learn(batch) for batch in batches[4:]] == losses
    for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(p, q)


def test_convey_keeps_the_form() -> None:
    x = torch.ones(2, requires_grad=True)
    (a, (b,)), c = detach_state(((x, (x * 2,)), None))
    assert not a.requires_grad
    torch.testing.assert_close(b, 2 * torch.ones(2))
    assert c is None
