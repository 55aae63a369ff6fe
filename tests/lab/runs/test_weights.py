"""Archives with weights give the numbers of the runs that they are of."""

import shutil
from pathlib import Path

import pytest
import torch

from cayley.cli import main
from cayley.lab.errors import RunError
from cayley.lab.recipes import find_recipe
from cayley.lab.runs import WEIGHTS_FILE, Machine, archive_run, read_result
from cayley.lab.tasks import Split
from cayley.lab.tasks.sources import Source
from cayley.lab.training import RunSettings, evaluate, load_model, train

SHARED = Path(__file__).parents[3] / "results/weights"
NAMES = sorted(path.parent.relative_to(SHARED).as_posix() for path in SHARED.rglob(WEIGHTS_FILE))
# buffers of other types, complex numbers, the best evaluation and the last, tied weights
RECIPES = ["enrnn/adding-750", "full-urnn/copying-1000", "scornn/mnist-170", "lstm/words"]
SMALL = {"lstm/words": ["model.hidden=[6,8,6]", "model.embedding=6"]}


def trained(name: str, folder: Path) -> Path:
    recipe = find_recipe(name).recipe(overrides=SMALL.get(name, []), tiny=True)
    train(recipe, folder, settings=RunSettings(Machine("cpu"), tiny=True))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained("quickstart", tmp_path_factory.mktemp("quickstart") / "run")


@pytest.mark.parametrize("name", RECIPES)
def test_an_archive_has_the_scores_of_its_run(name: str, tmp_path: Path) -> None:
    run, archive = trained(name, tmp_path / "run"), tmp_path / "archive"
    archive_run(run, archive, weights=True)
    assert not [*archive.glob("*.pt")]
    chosen = read_result(run).selected["test"]
    again = evaluate(archive, "test")
    assert again == evaluate(run, "test")
    assert again == pytest.approx(chosen.scores)
    value = f"{next(iter(chosen.scores.values())):.6g}"
    assert value in (archive / "README.md").read_text()


@pytest.fixture(scope="module")
def own_best(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run whose splits have their best evaluations at different steps, and its archive."""
    folder = tmp_path_factory.mktemp("each")
    changes = ["training.steps=40", "evaluation.every=1", "evaluation.select=each", "optim.lr=0.03"]
    changes += ["task.valid=20", "task.test=20"]
    recipe = find_recipe("quickstart").recipe(overrides=changes, tiny=True)
    train(recipe, folder / "run", settings=RunSettings(Machine("cpu"), tiny=True))
    archive_run(folder / "run", folder / "archive", weights=True)
    selected = read_result(folder / "run").selected
    assert selected["valid"].step != selected["test"].step
    return folder / "run", folder / "archive"


def test_an_archive_scores_no_split_by_the_weights_of_another(own_best: tuple[Path, Path]) -> None:
    run, archive = own_best
    step = read_result(run).selected["test"].step
    assert evaluate(archive, "test") == evaluate(run, "test")
    words = f"expected the weights best by valid, got .* the weights of step {step}, best by test"
    with pytest.raises(RunError, match=words):
        evaluate(archive, "valid")
    # one that the run has not evaluated is scored by the weights best by valid
    for split, weights in (("train", "selected"), ("test", "valid"), ("test", "last")):
        with pytest.raises(RunError, match=f"only the weights of step {step}.*--weights test"):
            evaluate(archive, split, weights=weights)
    assert evaluate(archive, "valid", weights="test") == evaluate(run, "valid", weights="test")


def test_a_card_has_only_the_numbers_of_its_weights(own_best: tuple[Path, Path]) -> None:
    run, archive = own_best
    card = (archive / "README.md").read_text()
    step = read_result(run).selected["test"].step
    assert "| test | mse |" in card
    assert "| valid |" not in card
    assert f"weights of step {step}, best by test" in card


def test_the_selected_weights_of_an_archive_have_two_names(run: Path, tmp_path: Path) -> None:
    archive_run(run, tmp_path / "archive", weights=True)
    scores = evaluate(tmp_path / "archive", "test", weights="valid")
    assert scores == evaluate(tmp_path / "archive", "test")


def test_loading_leaves_random_numbers_alone(run: Path) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    load_model(run)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_is_loaded_in_one_line(run: Path, tmp_path: Path) -> None:
    archive_run(run, tmp_path / "archive", weights=True)
    one, other = load_model(run), load_model(str(tmp_path / "archive"))
    assert not other.training
    x = torch.rand(7, 2, 2, dtype=torch.float32)
    assert torch.equal(one(x, None)[0], other(x, None)[0])


def test_a_changed_bit_is_noticed(run: Path, tmp_path: Path) -> None:
    archive_run(run, tmp_path / "archive", weights=True)
    path = tmp_path / "archive" / WEIGHTS_FILE
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"weights.safetensors, which is damaged or of another run"):
        load_model(tmp_path / "archive")


def test_weights_of_another_run_are_refused(run: Path, tmp_path: Path) -> None:
    archive_run(run, tmp_path / "archive", weights=True)
    changes = ["optim.lr=0.5"]
    recipe = find_recipe("quickstart").recipe(overrides=changes, tiny=True)
    train(recipe, tmp_path / "other", settings=RunSettings(Machine("cpu"), tiny=True))
    archive_run(tmp_path / "other", tmp_path / "others", weights=True)
    shutil.copy(tmp_path / "others" / WEIGHTS_FILE, tmp_path / "archive")
    with pytest.raises(RunError, match="damaged or of another run"):
        load_model(tmp_path / "archive")


def test_an_archive_without_weights_says_what_is_missing(run: Path, tmp_path: Path) -> None:
    archive_run(run, tmp_path / "archive")
    with pytest.raises(RunError, match=r"expected best-valid.pt in .*archive, got none"):
        load_model(tmp_path / "archive")


def test_the_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run, tmp_path / "runs/a")
    assert main(["archive", str(tmp_path / "runs"), "-o", str(tmp_path / "b"), "--weights"]) == 0
    assert (tmp_path / "b/a" / WEIGHTS_FILE).exists()
    assert main(["evaluate", str(tmp_path / "b/a")]) == 0
    assert "mse" in capsys.readouterr().out.lower()


def check_card(name: str, device: str, data: Path | None = None) -> None:
    """Evaluate shared weights, on any device, and compare with the scores of their run."""
    selected = read_result(SHARED / name).selected
    split: Split = "test" if "test" in selected else "valid"
    scores = evaluate(SHARED / name, split, device=device, data=data)
    assert scores == pytest.approx(selected[split].scores, rel=1e-3, abs=2e-4)


@pytest.mark.parametrize("name", [name for name in NAMES if "mnist" not in name])
def test_shared_weights_give_the_number_of_their_card(name: str) -> None:
    check_card(name, "cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", [name for name in NAMES if "mnist" in name])
def test_shared_weights_for_images_give_the_number_of_their_card(name: str, source: Source) -> None:
    """Not on a CPU, where it takes a minute each."""
    check_card(name, "cuda", source.folder)
