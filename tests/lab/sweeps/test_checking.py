import pytest
from lab.sweeps.made_up import TEXT, space

from cayley.lab.errors import RecipeError
from cayley.lab.sweeps import find_space
from cayley.lab.sweeps.checking import check_space
from cayley.lab.sweeps.engine import make_pruner, make_sampler

pytest.importorskip("optuna", reason="sweeps need the extra sweep")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("optim.lrr = [1]", "unknown key optim.lrr: did you mean optim.lr?"),
        ("optim.lr = [-1]", "optim.lr: expected a number of at least 0"),
        ("optim.lr = { low = -1, high = 1 }", "optim.lr: expected a number of at least 0"),
        ("training.batch = { low = 1, high = 2.5 }", "training.batch: expected an integer"),
        ('optim.name = ["Adam", "Adamm"]', "did you mean Adam?"),
        ('model.name = ["ScoRNN", "ScoRN"]', "did you mean ScoRNN?"),
        ("model.negative_one = [1]", "unknown key model.negative_one"),
        ("model.negative_ones = { low = 0, high = 90 }", "negative_ones"),
        ("task.TT = [10]", "expected settings of T"),
        ("task.T = [1, 10]", "T: expected"),
        ("optim.options.momentum = [0.9]", "Adam refuses these settings"),
        ("bnp.epsilon = [0.9]", "bnp: "),
        ("evaluation.splits = [['test'], ['valid', 'test']]", "expected a split that is evaluated"),
    ],
)
def test_ends_of_a_space_are_checked_before_any_work(line: str, words: str) -> None:
    text = TEXT.partition("[parameters]")[0].replace(', "model.hidden=6"', "")
    text = text.replace("]\n", ', "evaluation.select=last"]\n', 1)
    with pytest.raises(RecipeError) as caught:
        check_space(space(f"{text}[parameters]\n{line}"))
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"mine: parameters.{line.partition(' ')[0]}: ")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"valid_mse": "test_mse"}, "the test set chooses the settings, which is optimistic"),
        (
            {"model.hidden=6": "evaluation.select=test"},
            "the test set chooses the evaluations, which is optimistic",
        ),
        # a list of which one value is optimistic
        (
            {"[parameters]": "[parameters]\nevaluation.select = ['valid', 'test']"},
            "the test set chooses the evaluations, which is optimistic",
        ),
        ({"model.hidden=6": "evaluation.select=each"}, ""),
        ({"model.hidden=6": "evaluation.select=last"}, ""),
    ],
)
def test_a_choice_by_the_test_set_is_said(changes: dict[str, str], words: str) -> None:
    assert check_space(space(**changes)) == words


def test_a_metric_that_the_task_has_not() -> None:
    with pytest.raises(RecipeError, match="expected one of valid_mse, got 'valid_accuracy'"):
        check_space(space(valid_mse="valid_accuracy"))


@pytest.mark.parametrize(
    "name",
    [
        *("atn-windows", "cifar10-bn", "cifar10-bnp", "cifar10-plain", "enrnn-adding"),
        *("nc-gru-order", "scornn-mnist", "scornn-pmnist"),
    ],
)
def test_ready_spaces_can_be_searched(name: str) -> None:
    found = find_space(name)
    assert found.title
    assert found.source
    check_space(found)
    make_sampler(found.sampler)
    make_pruner(found.pruner)


def test_the_searches_of_cifar10_have_equal_budgets() -> None:
    plain, *others = (find_space(f"cifar10-{name}") for name in ("plain", "bn", "bnp"))
    for one in others:
        assert (one.trials, one.parameters, one.set) == (plain.trials, plain.parameters, plain.set)
