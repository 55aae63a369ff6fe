import math
import re
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cayley.lab.errors import RecipeError
from cayley.lab.models import build_model, count_parameters
from cayley.lab.recipes import published, tables
from cayley.lab.recipes.schema import ModelSettings, Variant
from cayley.lab.runs.machine import Machine
from cayley.lab.studies import STUDIES
from cayley.lab.tasks import Position
from cayley.lab.tasks.speech import Speech
from cayley.lab.training import RunSettings, build_task, train

ROOT = Path(__file__).parents[3]
REPORTED = ROOT.parent / "shared" / "reported.toml"
ENTRIES = {entry.name: entry for table in tables().values() for entry in table.entries}
RECIPES = [(name, variant) for name, entry in ENTRIES.items() for variant in entry.variants]
LINKED = [(name, id) for name, entry in ENTRIES.items() for id in entry.recipe().reported]
AUDIO = ("segsnr_db", "stoi", "pesq")

# what is printed and what the sizes that are printed beside it give
WRONGLY_PRINTED = {
    "rnn/mnist-116-timing": ("16k", 14858),
    "rnn/mnist-360-timing": ("137k", 133930),
    "enrnn/characters-310-720": ("1016k", 893575),
    "eurnn/pmnist-512": ("9k", 17930),
}
# epochs and steps of all rows, where they are printed
PRINTED_LENGTHS = {
    "helfrich2020-figure-2.12": (6, 0),
    "helfrich2020-figure-2.13": (0, 4000),
    "helfrich2020-figure-2.17": (6, 0),
    "helfrich2020-figure-2.18": (6, 0),
    "helfrich2020-table-2.1": (70, 0),
    "helfrich2020-table-2.2": (200, 0),
    "helfrich2020-table-2.4": (300, 0),
    "helfrich2020-table-2.5": (20, 0),
    "scurnn2019-table-1": (70, 0),
}
# two steps at full size would take seconds; the full size is built all the same, on no device
WIDTH = 64
ENRNN = ("model.hidden=[93, 216]", "model.negative_ones=56", "model.embedding=309")
# smaller for the first loss: what the embedding and the output are, as far as it can be
FIRST = {
    "enrnn/characters-310-720": ENRNN,
    "enrnn/characters-3-layers": ENRNN,
    **{
        name: ["model.hidden=[400, 200, 400]"]
        for name in ENTRIES
        if name.startswith(("gru/words", "nc-gru/words", "scornn/words"))
    },
}
TEXTS = [pair for pair in RECIPES if ENTRIES[pair[0]].recipe().task.name in ("characters", "words")]
# the code's only where it is another network
NETWORKS = [
    (name, variant)
    for name, variant in TEXTS
    if variant == "paper" or ENTRIES[name].recipe("code").model != ENTRIES[name].recipe().model
]


def smaller(model: ModelSettings) -> list[str]:
    """What to change in a network so that no layer is wider than some; all sizes shrink alike."""
    hidden = [model.hidden] if isinstance(model.hidden, int) else [*model.hidden]
    scale = WIDTH / max(hidden)
    if scale >= 1:
        return []
    sizes = [int(scale * size) for size in hidden]
    changes = [f"model.hidden={sizes[0] if isinstance(model.hidden, int) else sizes}"]
    counts = {"negative_ones", "reflections"} & set(model.options)
    changes += [f"model.{key}={int(scale * model.options[key])}" for key in sorted(counts)]
    if model.embedding:
        # that of an ENRNN is as wide as its two parts
        embedding = sum(sizes) if model.name == "ENRNN" else int(scale * model.embedding)
        changes.append(f"model.embedding={embedding}")
    return changes


def metric_of(id: str) -> tuple[str, str]:
    """The split that a result is from, and the name of its metric here."""
    name = published.result(id).metric.removeprefix("permuted_").removesuffix("_percent")
    split, _, rest = name.partition("_")
    if split not in ("train", "valid", "test"):
        split, rest = "test", name
    return split, "cross_entropy" if rest == "loss" else rest


def test_there_is_every_number_of_the_documents() -> None:
    if not REPORTED.exists():
        pytest.skip(f"no {REPORTED}: it belongs to the project, not to the package")
    reported = tomllib.loads(REPORTED.read_text(encoding="utf-8"))
    keys = ("paper", "location", "value", "std", "same_as", "quoted_from")
    for one in reported["result"]:
        got = published.result(one["id"])
        assert {key: getattr(got, key) for key in keys} == {key: one.get(key) for key in keys}
        assert got.parameters == one.get("params")
    for one in reported["claim"]:
        assert published.claim(one["id"]).text == one["text"]
    assert len(published.results()) == len(reported["result"]) == 400
    assert len(published.claims()) == len(reported["claim"]) == 95


def test_every_result_is_linked_from_a_recipe_or_listed_with_a_reason() -> None:
    served = [id for _, id in LINKED]
    listed = [id for gap in published.gaps() for id in gap.results]
    assert Counter(served + listed) == Counter(list(published.results()))


def test_every_claim_is_linked_from_recipes_or_a_study_or_listed_with_a_reason() -> None:
    served = {id for entry in ENTRIES.values() for id in entry.recipe().claims}
    studied = [id for study in STUDIES.values() for id in study.claims if id not in served]
    listed = [id for gap in published.gaps() for id in gap.claims]
    assert Counter([*served, *studied, *listed]) == Counter(list(published.claims()))


def test_what_tests_check_beside_recipes_is_served_by_them() -> None:
    served = {id for entry in ENTRIES.values() for id in entry.recipe().claims}
    for check in published.checks():
        assert check.tests
        assert not check.results
        assert set(check.claims) <= served


def test_what_stands_for_a_recipe_is_there() -> None:
    for gap in (*published.gaps(), *published.checks()):
        assert gap.reason
        assert gap.results or gap.claims
        for test in gap.tests:
            path, _, name = test.partition("::")
            assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), test


def test_same_as_names_the_same_number() -> None:
    for one in published.results().values():
        if one.same_as is not None:
            other = published.result(one.same_as)
            assert (other.value, other.metric, other.model) == (one.value, one.metric, one.model)
    for one in published.claims().values():
        assert one.same_as is None or one.same_as in published.claims()


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean mnist-scornn-170"):
        published.result("mnist-scornn-17")
    with pytest.raises(RecipeError, match="did you mean mnist-rho-optimum"):
        published.claim("mnist-rho-optimun")


def test_names_differ_and_what_is_linked_has_a_paper() -> None:
    """A recipe may have no paper; then it reproduces no published number."""
    assert len(ENTRIES) == sum(len(table.entries) for table in tables().values())
    for entry in ENTRIES.values():
        recipe = entry.recipe()
        if recipe.paper in published.papers():
            assert recipe.location
            assert recipe.table.startswith(recipe.paper)
        else:
            assert not recipe.reported
            assert not recipe.claims


def test_a_tenth_of_the_scornn_on_timit_is_negative() -> None:
    """All tables print the same settings of it: 22, 32 and, rounded up, 43."""
    recipes = [entry.recipe() for name, entry in ENTRIES.items() if name.startswith("scornn/timit")]
    signs = {(recipe.model.hidden, recipe.model.options["negative_ones"]) for recipe in recipes}
    assert signs == {(224, 22), (322, 32), (425, 43)}


@pytest.mark.parametrize("table", [name for name in tables() if "-section-" not in name])
def test_training_is_as_long_as_printed_or_said_to_be_unstated(table: str) -> None:
    for entry in tables()[table].entries:
        recipe = entry.recipe()
        # a time for an epoch has no length
        if not recipe.paper or entry.name.endswith("-timing"):
            continue
        if table in PRINTED_LENGTHS:
            assert (recipe.training.epochs, recipe.training.steps) == PRINTED_LENGTHS[table]
        else:
            length = "training.epochs" if recipe.training.epochs else "training.steps"
            assert {length, "training"} & set(recipe.unstated), entry.name


def test_adding_goes_beyond_the_descent_of_the_restricted_urnn() -> None:
    """U 5.3 has it around the tenth epoch of T = 750, in the figure of all these curves."""
    names = ("scurnn", "scornn", "lstm", "urnn", "full-urnn", "ornn", "eurnn")
    for name in names:
        assert ENTRIES[f"{name}/adding-750"].recipe().training.epochs > 10


def test_sizes_of_the_adding_problem_of_2023_are_unstated() -> None:
    for entry in ENTRIES.values():
        recipe = entry.recipe()
        if recipe.paper == "pospisil2023" and recipe.task.name == "adding":
            assert {"task.train", "task.valid", "task.test"} <= set(recipe.unstated), entry.name


def test_larger_rates_are_found_not_given() -> None:
    """bn-larger-lr: all four networks are tuned with one grid and one budget."""
    tried: dict[tuple[int, str], set[float]] = {}
    others = set()
    for entry in ENTRIES.values():
        recipe = entry.recipe()
        if "bn-larger-lr" in recipe.claims:
            norm = recipe.model.options.get("norm", "")
            tried.setdefault((recipe.training.batch, norm), set()).add(recipe.optim.lr)
            others.add((recipe.training.epochs, recipe.evaluation, recipe.optim.name))
    assert set(tried) == {(60, ""), (60, "batch"), (6, ""), (6, "batch")}
    assert len({frozenset(rates) for rates in tried.values()}) == len(others) == 1
    assert all(len(rates) >= 5 for rates in tried.values())
    # nor do the curves of the figure have a larger one
    for batch in (60, 6):
        plain, normal = (ENTRIES[f"mlp/cifar10-{batch}{end}"].recipe() for end in ("", "-bn"))
        assert plain.optim.lr == normal.optim.lr


@pytest.mark.parametrize(("name", "id"), LINKED)
def test_a_recipe_gives_the_number_that_it_is_linked_to(name: str, id: str) -> None:
    recipe, one = ENTRIES[name].recipe(), published.result(id)
    split, metric = metric_of(id)
    if metric in AUDIO:
        assert recipe.evaluation.audio
    elif metric != "minutes_per_epoch":
        task = build_task(recipe.task, RunSettings())
        assert metric in [each.name for each in task.metrics]
        assert split in recipe.evaluation.splits
    if one.hidden is not None:
        assert recipe.model.hidden == one.hidden
    permuted = recipe.task.settings.get("order") == "permuted"
    assert permuted == one.metric.startswith("permuted_")
    T = re.match(r"(?:copy|add|denoise)(\d+)-", id)
    assert T is None or recipe.task.settings["T"] == int(T[1])


@pytest.mark.parametrize(("name", "variant"), RECIPES)
def test_the_network_has_as_many_parameters_as_the_formulas_say(
    name: str, variant: Variant
) -> None:
    recipe = ENTRIES[name].recipe(variant)
    with torch.device("meta"):
        model = build_model(recipe.model, build_task(recipe.task, RunSettings()))
    assert count_parameters(model) == recipe.parameters > 0


@pytest.mark.parametrize(("name", "id"), LINKED)
def test_the_parameters_are_those_printed(name: str, id: str) -> None:
    """Up to half a thousand or 2 %: the papers round 1,179,957 to 1200k."""
    printed, count = published.result(id).parameters, ENTRIES[name].recipe().parameters
    if printed is None:
        return
    about = 1000 * int(printed.removesuffix("k").replace(",", ""))
    if name in WRONGLY_PRINTED:
        assert (printed, count) == WRONGLY_PRINTED[name]
        assert abs(count - about) > 0.02 * about
    else:
        assert abs(count - about) <= max(500, 0.02 * about)


@pytest.mark.parametrize(("name", "variant"), RECIPES)
def test_trains_two_steps(name: str, variant: Variant, tmp_path: Path) -> None:
    changes = ["training.epochs=0", "training.steps=2"]
    changes += smaller(ENTRIES[name].recipe(variant).model)
    recipe = ENTRIES[name].recipe(variant, changes)
    recipe = replace(
        recipe,
        # more examples a step cost time and show nothing new
        training=replace(recipe.training, batch=min(recipe.training.batch, 4)),
        # the made-up recordings have no speech for PESQ to find
        evaluation=replace(recipe.evaluation, audio=False),
    )
    settings = RunSettings(Machine("cpu", threads=1), tiny=True)
    result = train(recipe, tmp_path / "run", settings=settings)
    assert (result.status, result.step) == ("done", 2)
    assert result.selected
    assert set(result.selected) <= set(recipe.evaluation.splits)


@pytest.mark.parametrize(("name", "variant"), NETWORKS)
def test_a_text_begins_at_the_entropy_of_even_chances(name: str, variant: Variant) -> None:
    """The first loss is about ln V: a network that has seen nothing is sure of nothing."""
    torch.set_default_dtype(torch.float32)
    recipe = ENTRIES[name].recipe(variant, FIRST.get(name, ()))
    task: Any = build_task(recipe.task, RunSettings())
    task = replace(task, invented=True, K=min(task.K, 50))
    torch.manual_seed(recipe.seed)
    model = build_model(recipe.model, task)
    batch = task.batch("train", 2, Position())
    with torch.no_grad():
        loss = task.loss(model(batch.input)[0], batch)
    assert loss == pytest.approx(math.log(task.output_size), rel=0.05)


def test_tied_embeddings_of_words_are_those_of_the_code() -> None:
    """U(±0.1), with states that are not lost in rounding."""
    for name, variant in TEXTS:
        recipe = ENTRIES[name].recipe(variant)
        if recipe.model.tied:
            assert recipe.model.embedding_init == 0.1


@pytest.mark.parametrize(("name", "variant"), TEXTS)
def test_characters_are_as_many_as_printed(name: str, variant: Variant) -> None:
    """H 2.7 and P 3.4.2 print those of the files with the spaces at the ends of lines."""
    task: Any = build_task(ENTRIES[name].recipe(variant).task, RunSettings())
    if task.level == "characters" and variant == "paper":
        assert task.lines == "raw"
        assert "code" in ENTRIES[name].variants
    elif task.level == "characters":
        assert task.lines == "stripped"


def test_the_gru_of_words_is_equation_4_1() -> None:
    """P 4.1: the reset gate acts on the state, not on its image; torch.GRU is the code's."""
    entry = ENTRIES["gru/words"]
    model = entry.recipe().model
    assert (model.name, model.options["orthogonal"], model.options["nonlinearity"]) == (
        "NCGRU",
        [],
        "tanh",
    )
    assert entry.recipe("code").model.name == "torch.GRU"
    counts = [entry.recipe(variant).parameters for variant in entry.variants]
    target = ENTRIES["nc-gru/words"].recipe().parameters
    assert all(abs(count - target) < 5000 for count in counts)


def test_awd_lstm_training_is_off_unless_code_says_so() -> None:
    for name, variant in TEXTS:
        recipe = ENTRIES[name].recipe(variant)
        awd = (recipe.model.locked, recipe.optim.lr_by_length)
        if variant == "paper":
            assert awd == (False, False)
            assert not recipe.model.word_dropout
        elif recipe.paper == "pospisil2023":
            assert awd[1]
        assert not recipe.model.weight_dropout


@pytest.mark.parametrize("name", [name for name, variant in RECIPES if variant == "code"])
def test_the_code_differs_from_the_paper(name: str) -> None:
    paper, code = ENTRIES[name].recipe(), ENTRIES[name].recipe("code")
    assert replace(code, variant="paper") != paper
    assert (code.reported, code.claims) == (paper.reported, paper.claims)


def test_timit_is_padded_within_the_minibatch() -> None:
    """U 5.4; the code of Wisdom et al. has the longest of the set."""
    for name, variant in RECIPES:
        task: Any = build_task(ENTRIES[name].recipe(variant).task, RunSettings())
        if isinstance(task, Speech):
            recipe = ENTRIES[name].recipe(variant)
            assert task.pad == ("batch" if variant == "paper" else "split"), name
            assert task.minibatch == recipe.training.batch
