"""What holds for every task."""

import copy
import math
import pickle
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from lab.bounds import unbounded
from torch import Tensor

from cayley.lab.errors import RecipeError
from cayley.lab.tasks import (
    SPLITS,
    TASKS,
    Batch,
    Graph,
    Position,
    Prefetcher,
    Task,
    make_task,
    score_split,
)
from cayley.lab.tasks.examples import ExampleTask
from cayley.lab.tasks.graph import Nodes
from cayley.lab.tasks.synthetic import GeneratedTask

VARIANTS = {
    **{name: {} for name in TASKS},
    "adding-code": {"markers": "code"},
    "adding-fresh": {"fresh": True},
    "adding-ordered": {"shuffle": False},
    "copying-code": {"delta": 0},
    "denoise-code": {"layout": "code"},
    "mnist-permuted": {"order": "permuted"},
    "mnist-noisy": {"noise": 0.1},
    "cifar10-validated": {"validation": 5},
    "words-jitter": {"jitter": True},
    "speech-none": {"reduction": "none"},
    "speech-padded": {"reduction": "padded", "minibatch": 4},
    "speech-split": {"reduction": "padded", "pad": "split"},
    "characters-lost": {"carry": False, "lines": "stripped"},
    "cora-sampled": {"neighbours": (3, 2), "normalize": True},
    "tolokers-sampled": {"neighbours": [2]},
}


@pytest.fixture(params=VARIANTS)
def full(request: pytest.FixtureRequest) -> Task:
    name = request.param if request.param in TASKS else request.param.partition("-")[0]
    return make_task(name, **VARIANTS[request.param])


@pytest.fixture
def task(full: Task) -> Task:
    return full.tiny()


def classifies(task: Task) -> bool:
    """Whether answers are classes: as for the loss, whole numbers are, others are not."""
    return not task.batch("train", 4, Position()).target.is_floating_point()


def wanted(batch: Batch) -> Tensor:
    return ~batch.target.isnan() if batch.target.is_floating_point() else batch.target != -100


def tensors(batch: Batch) -> list[Tensor]:
    input = batch.input if isinstance(batch.input, Graph) else (batch.input,)
    more = [x for x in (batch.lengths, batch.index) if x is not None]
    return [*input, batch.target, *more]


def assert_same(one: Batch, other: Batch) -> None:
    assert (one.position, one.next, one.fresh) == (other.position, other.next, other.fresh)
    for a, b in zip(tensors(one), tensors(other), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def perfect(task: Task, batch: Batch) -> Tensor:
    """An output that is right, and sure of it."""
    if not classifies(task):
        return batch.target.nan_to_num() if task.answers == "nodes" else batch.target
    return 100 * torch.nn.functional.one_hot(batch.target.clamp_min(0), task.output_size).double()


def test_shapes(task: Task) -> None:
    for split in SPLITS:
        for batch in task.batches(split, 4):
            x, y = batch.input, batch.target
            if task.reads == "graph":
                assert isinstance(x, Graph)
                N = len(x.x)
                assert x.x.shape == (N, task.input_size)
                assert x.edge_index.shape[0] == 2
                assert 0 <= x.edge_index.min() <= x.edge_index.max() < N
                lead = (N,)
            else:
                assert isinstance(x, Tensor)
                lead = {"features": x.shape[:2], "tokens": x.shape, "rows": x.shape[:1]}[task.reads]
                if task.reads == "tokens":
                    assert x.dtype == torch.int64
                    assert 0 <= x.min() <= x.max() < task.input_size
                else:
                    assert x.shape == (*lead, task.input_size)
                if task.answers == "last":
                    lead = lead[1:]
            if classifies(task):
                assert y.shape == lead
                assert y.dtype == torch.int64
                assert -100 <= y.min() <= y.max() < task.output_size
                assert not ((y < 0) & (y != -100)).any()
            else:
                assert y.shape == (*lead, task.output_size)
            assert task.naive(batch).shape == (*lead, task.output_size)
            assert batch.split == split
            if batch.lengths is not None:
                assert 1 <= batch.lengths.min() <= batch.lengths.max() <= len(y)


def test_seed_determines_everything(task: Task) -> None:
    other = copy.deepcopy(task)
    for split in SPLITS:
        for batch in task.batches(split, 4, seed=3):
            assert_same(batch, other.batch(split, 4, batch.position, seed=3))
    if isinstance(task, ExampleTask):
        one: Any = next(task.batches("train", 4, seed=3))
        two: Any = next(task.batches("train", 4, seed=4))
        assert not torch.equal(one.input, two.input)


def test_who_writes_into_a_batch_does_not_change_the_next(task: Task) -> None:
    if isinstance(task, Nodes) and not task.neighbours:
        pytest.skip("a whole graph is not copied")
    before = [x.clone() for x in tensors(task.batch("train", 4, Position()))]
    for x in tensors(task.batch("train", 4, Position())):
        x.zero_()
    for x, expected in zip(tensors(task.batch("train", 4, Position())), before, strict=True):
        torch.testing.assert_close(x, expected, rtol=0, atol=0, equal_nan=True)


def test_resumes_anywhere(task: Task) -> None:
    """From any position a new object gives the very batches of the run that went through."""
    whole = list(task.batches("train", 7, seed=5, epochs=3))
    for start in range(0, len(whole), 3):
        rest = task.tiny().batches("train", 7, seed=5, start=whole[start].position, epochs=3)
        for batch in whole[start:]:
            assert_same(next(rest), batch)
        assert next(rest, None) is None
    for batch, after in pairwise(whole):
        assert batch.next == after.position
    assert whole[0].position == Position()
    assert whole[-1].next == Position(3, 0)
    assert [b.position.batch for b in whole if b.fresh][:1] == [0]


def test_epochs_go_on_for_ever(task: Task) -> None:
    batches = task.batches("train", 11, epochs=None)
    steps = [task.steps("train", 11, epoch=epoch) for epoch in range(3)]
    positions = [next(batches).position for _ in range(sum(steps))]
    assert positions == [Position(e, b) for e, count in enumerate(steps) for b in range(count)]


def test_position_outside_an_epoch_is_refused(task: Task) -> None:
    steps = task.steps("train", 4)
    for batch in (-1, steps):
        with pytest.raises(ValueError, match=f"expected a batch from 0 to {steps - 1}"):
            task.batch("train", 4, Position(0, batch))


def test_batch_size_must_be_positive(task: Task) -> None:
    with pytest.raises(ValueError, match="expected"):
        next(task.batches("train", 0))


def test_an_epoch_holds_every_example_once(task: Any) -> None:
    for split in SPLITS:
        batches = list(task.batches(split, 7, start=Position(1, 0), epochs=2))
        if isinstance(task, ExampleTask):
            index = torch.cat([batch.index for batch in batches]) if batches else torch.empty(0)
            first = task.size(split) if split == "train" and task.fresh else 0
            assert index.sort().values.tolist() == list(range(first, first + task.size(split)))
        else:
            width = 1 if classifies(task) else task.output_size
            assert sum(int(wanted(batch).sum()) for batch in batches) == width * task.size(split)


def test_splits_are_disjoint(task: Any) -> None:
    if task.reads == "graph":
        nodes = {s: wanted(next(replace(task, neighbours=()).batches(s, 1))) for s in SPLITS}
        nodes = {s: w if w.dim() == 1 else w[:, 0] for s, w in nodes.items()}
        assert int(torch.stack([w.int() for w in nodes.values()]).sum(0).max()) == 1
        return
    axis = 0 if task.reads == "rows" else 1
    found = {
        split: [
            example.numpy().tobytes()
            for batch in task.batches(split, 4)
            for example in batch.input.unbind(axis)
        ]
        for split in SPLITS
    }
    for one, other in combinations(found.values(), 2):
        shared = set(one) & set(other)
        if not isinstance(task, GeneratedTask):
            assert not shared
            continue
        # what is drawn from few inputs may be drawn twice, as within a split: splits that were
        # drawn from the same numbers would share as many as the smaller one has
        pairs = len(one) * (len(one) - 1) / 2
        twice = sum(count * (count - 1) / 2 for count in Counter(one).values()) / pairs
        expected = twice * len(one) * len(other)
        assert len(shared) <= expected + 4 * math.sqrt(expected)


def test_epochs_differ_in_order_alone_unless_fresh(task: Task) -> None:
    if not isinstance(task, ExampleTask):
        return
    batches: Callable[..., Any] = task.batches
    orders = [
        torch.cat([b.index for b in batches("train", 4, start=Position(e, 0), epochs=e + 1)])
        for e in range(2)
    ]
    assert torch.equal(*orders) == (not task.shuffle and not task.fresh)
    assert (set(orders[0].tolist()) == set(orders[1].tolist())) == (not task.fresh)


def test_an_example_is_the_same_in_every_batch(task: Task) -> None:
    """Whatever the batch size: example 5 of a batch of 8 is example 1 of the second of 4."""
    if not isinstance(task, ExampleTask) or not task.size("valid"):
        return
    large: Any = task.batch("test", 6, Position())
    small: Any = task.batch("test", 3, Position(0, 1))
    axis = 0 if task.reads == "rows" else 1
    torch.testing.assert_close(
        large.input.narrow(axis, 3, len(small.index)), small.input, rtol=0, atol=0
    )


def test_batches_that_are_made_at_once_are_the_same(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not isinstance(task, ExampleTask) or not task.example_size:
        return
    plain, position = [], Position()
    while position.epoch < 2:
        plain.append(task.batch("train", 7, position, seed=5))
        position = plain[-1].next
    monkeypatch.setattr("cayley.lab.tasks.examples.chunk_length", lambda *_: 3)
    several = task.batches("train", 7, seed=5, epochs=2)
    ahead = Prefetcher(task.tiny(), "train", 7, seed=5)
    later = (ahead.batch(batch.position) for batch in (*plain, *reversed(plain)))
    wanted = (*plain, *plain, *reversed(plain))
    for again, batch in zip((*several, *later), wanted, strict=True):
        assert_same(again, batch)
        assert isinstance(again.input, Tensor)
        assert again.input.is_contiguous()


def test_scores_do_not_depend_on_the_batch_size(task: Task) -> None:
    """Also if the last batch is smaller: every example counts the same."""
    scores = [
        score_split(task, lambda batch, state: (task.naive(batch), None), "test", B)
        for B in (3, 4, 7)
    ]
    for other in scores[1:]:
        assert other == pytest.approx(scores[0], rel=1e-12)


def test_baseline_is_what_the_naive_predictor_gets(task: Any) -> None:
    # those that have as many examples as are asked for
    drawn = "valid" in {field.name for field in fields(task)}
    if drawn:
        # the closed form is an expectation: enough examples for 2 %
        task = replace(task, test=20_000, valid=20_000)
    for split in ("valid", "test"):
        if not task.size(split):
            continue
        B = 4000 if drawn else 4
        got = score_split(task, lambda batch, state: (task.naive(batch), None), split, B)
        tolerance = 2e-2 if drawn else 1e-6
        assert task.baseline(split) == pytest.approx(got, rel=tolerance)


def test_perfect_answers_score_perfectly(task: Task) -> None:
    best = {"roc_auc": 1.0, "accuracy": 1.0, "perplexity": 1.0}
    scores = score_split(task, lambda batch, state: (perfect(task, batch), None), "test", 4)
    assert list(scores) == [metric.name for metric in task.metrics]
    for name, value in scores.items():
        assert value == pytest.approx(best.get(name, 0.0), abs=1e-12), name
    naive = task.baseline("test")
    for metric in task.metrics:
        better = scores[metric.name] - naive[metric.name]
        assert better > 0 if metric.better == "higher" else better < 0


def test_loss_is_finite_and_ignores_what_is_not_wanted(task: Task) -> None:
    for batch in task.batches("train", 4):
        output = torch.randn_like(task.naive(batch)).requires_grad_()
        loss = task.loss(output, batch)
        assert loss.shape == ()
        (gradient,) = torch.autograd.grad(loss, output)
        assert math.isfinite(loss.item())
        assert gradient.isfinite().all()
        mask = wanted(batch)
        mask = mask if mask.shape == gradient.shape else mask.unsqueeze(-1).expand_as(gradient)
        assert not gradient[~mask].any()
        assert gradient[mask].any()


def test_evaluation_carries_the_state_within_an_epoch(task: Task) -> None:
    seen = []

    def predict(batch: Batch, state: int | None) -> tuple[Tensor, int]:
        seen.append((batch.fresh, state))
        return task.naive(batch), len(seen)

    score_split(task, predict, "test", 4)
    for number, (fresh, state) in enumerate(seen):
        assert state == (None if fresh else number)
    assert all(fresh for fresh, _ in seen) or task.reads == "tokens"


def test_types(task: Task) -> None:
    exact, rough = (task.batch("train", 4, Position(), dtype=d) for d in (None, torch.float32))
    for a, b in zip(tensors(exact), tensors(rough), strict=True):
        if a.is_floating_point():
            assert (a.dtype, b.dtype) == (torch.float64, torch.float32)
            torch.testing.assert_close(a.float(), b, equal_nan=True)
        else:
            assert torch.equal(a, b)


def test_tiny_keeps_the_sizes_and_needs_no_file(full: Task) -> None:
    tiny = full.tiny()
    assert type(tiny) is type(full)
    # of published data the sizes are known without the files
    assert (tiny.input_size, tiny.output_size) == (full.input_size, full.output_size)
    assert all(tiny.size(split) <= 500 for split in SPLITS)


def test_settings_are_frozen_and_copies_equal(task: Any) -> None:
    next(task.batches("train", 4))
    for other in (copy.deepcopy(task), pickle.loads(pickle.dumps(task))):
        assert other == task
        assert_same(next(other.batches("train", 4)), next(task.batches("train", 4)))
    with pytest.raises(AttributeError):
        task.seed = 1


def test_every_setting_has_its_words_or_its_range(full: Task) -> None:
    assert not unbounded(type(full))


@pytest.mark.parametrize(
    ("name", "change", "allowed"),
    [
        ("adding", {"markers": "foo"}, "'halves' or 'code'"),
        ("adding", {"T": 3}, "an integer from 4 to 1,000,000"),
        ("adding", {"T": 10**9}, "an integer from 4 to 1,000,000"),
        ("adding", {"T": "many"}, "an integer"),
        ("adding", {"train": -1}, "an integer from 0 to"),
        ("adding", {"shuffle": "no"}, "true or false"),
        ("copying", {"valid": -5}, "an integer from 0 to"),
        ("copying", {"delta": 2}, "0 or 1"),
        ("denoise", {"test": -1}, "an integer from 0 to"),
        ("denoise", {"T": 0}, "an integer from 10 to"),
        ("mnist", {"order": "foo"}, "'rows' or 'permuted'"),
        ("mnist", {"noise": -0.1}, "a number of at least 0"),
        ("mnist", {"validation": 60_000}, "an integer from 0 to 59,999"),
        ("cifar10", {"validation": -1}, "an integer from 0 to 49,999"),
        ("cifar10", {"train": 50_001}, "an integer from 0 to 50,000"),
        ("cifar10", {"test": -1}, "an integer from 0 to 10,000"),
        ("characters", {"level": "foo"}, "'characters' or 'words'"),
        ("words", {"corpus": "foo"}, "'ptb' or 'own'"),
        ("words", {"K": 0}, "an integer from 1 to"),
        ("words", {"vocabulary": -1}, "an integer from 2 to 10,000,000 or nothing"),
        ("speech", {"corpus": "foo"}, "'timit' or 'nltk' or 'fsdd' or 'own'"),
        ("speech", {"reduction": "foo"}, "'none' or 'padded' or 'valid'"),
        ("speech", {"pad": "foo"}, "'batch' or 'split'"),
        ("speech", {"rate": 0}, "an integer from 1,000 to"),
        ("photo", {"fold": -1}, "an integer from 0 to"),
        ("cora", {"fold": 1}, "0, as cora has one split"),
        ("photo", {"division": "public"}, "'full', as photo is not a citation graph"),
        ("cora", {"neighbours": [-5]}, "an integer from 1 to"),
        ("cora", {"division": "foo"}, "'full' or 'public' or 'fastgcn'"),
        ("cora", {"dataset": "foo"}, "'cora' or 'citeseer'"),
    ],
)
def test_what_is_not_allowed_is_refused_with_what_is(
    name: str, change: dict[str, Any], allowed: str
) -> None:
    """Also where the class is called directly, or a task changed."""
    (key, value), kind = next(iter(change.items())), TASKS[name][0]
    task: Any = make_task(name)
    message = re.escape(f"task.{key}: expected {allowed}")
    with pytest.raises(RecipeError, match=message):
        make_task(name, **change)
    with pytest.raises(RecipeError, match=message):
        kind(**(TASKS[name][1] | change))
    with pytest.raises(RecipeError, match=message):
        replace(task, **{key: value})


def test_naive_rule_and_needs_are_named(full: Task) -> None:
    assert full.naive_rule
    for resource in full.needs:
        assert resource.url or resource.hint


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_another_device_shows_the_same(task: Task) -> None:
    for split in SPLITS:
        for ours, theirs in zip(
            task.batches(split, 7), task.batches(split, 7, device="cuda"), strict=True
        ):
            for a, b in zip(tensors(ours), tensors(theirs), strict=True):
                assert b.is_cuda
                # exact, but for the logarithm and the cosine in normal noise
                torch.testing.assert_close(a, b.cpu(), rtol=1e-12, atol=1e-12, equal_nan=True)
    scores = [
        score_split(task, lambda batch, state: (task.naive(batch), None), "test", 4, device=device)
        for device in ("cpu", "cuda")
    ]
    assert scores[1] == pytest.approx(scores[0], rel=1e-9)
