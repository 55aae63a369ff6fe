"""Trained weights of a run: ``weights.safetensors`` and its model card."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cayley.lab.errors import RunError
from cayley.lab.recipes import Recipe
from cayley.lab.runs.description import RunDescription
from cayley.lab.runs.reading import explain_damage, load_tensors, read_result
from cayley.lab.runs.result import RunResult, SelectedScores
from cayley.lab.runs.seals import digest

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "CARD_FILE",
    "WEIGHTS_FILE",
    "SavedWeights",
    "Weights",
    "pack_weights",
    "read_weights",
    "write_card",
]

WEIGHTS_FILE = "weights.safetensors"
CARD_FILE = "README.md"
Weights = Literal["selected", "valid", "test", "last"]


@dataclass(frozen=True)
class SavedWeights:
    """Weights of a run.

    Attributes:
        tensors: By name, as in ``state_dict()``, on the CPU.
        step: The step after which they were saved.
        chosen_by: The split on which they are the best, or ``"last"``.
    """

    tensors: "dict[str, Tensor]"
    step: int
    chosen_by: str

    @property
    def words(self) -> str:
        """Which ones they are."""
        return _words(self.step, self.chosen_by)


def _words(step: int, chosen_by: str) -> str:
    chosen = "the last" if chosen_by == "last" else f"best by {chosen_by}"
    return f"weights of step {step}, {chosen}"


def read_weights(
    folder: Path,
    description: RunDescription,
    recipe: Recipe,
    weights: Weights = "selected",
    split: str = "test",
) -> SavedWeights:
    """The weights of a run, which need not be finished.

    Arguments:
        folder: The run folder, or that of an archived run with weights.
        description: The description of the run.
        recipe: The recipe of the run.
        weights: ``"selected"`` for those behind the run's numbers (if each split has its own
            selection, but this one has none, the best on ``"valid"``), ``"valid"`` or ``"test"``
            for the best on that split, or ``"last"`` for the last that were saved. An archived run
            has only those behind its numbers on test or, if it has none, on valid.
        split: The split that they are to be scored on.
    """
    chosen: str = recipe.evaluation.select if weights == "selected" else weights
    if (folder / WEIGHTS_FILE).exists():
        return _unpack(folder, read_result(folder, description), chosen, split)
    if chosen == "each":
        # earlier versions did not save the best weights on train
        chosen = split if (folder / f"best-{split}.pt").exists() else "valid"
    name = "checkpoint.pt" if chosen == "last" else f"best-{chosen}.pt"
    with explain_damage(folder, name):
        state = load_tensors(folder, name, description)
        if chosen == "last":
            return SavedWeights(state["learner"]["model"], state["progress"]["step"], chosen)
        saved = SavedWeights(state["model"], state["step"], chosen)
    if (folder / "result.json").exists():
        best = read_result(folder, description).best.get(chosen)
        if best is not None and best.step != saved.step:
            raise RunError(
                f"expected {folder / name} with the weights of step {best.step}, of which the "
                f"run's numbers are, got those of step {saved.step}: delete the folder, and train "
                "once more"
            )
    return saved


def pack_weights(tensors: "dict[str, Tensor]", description: RunDescription) -> bytes:
    """The content of a file of weights.

    Arguments:
        tensors: The weights by name, as in ``state_dict()``.
        description: The description of the run, whose recipe and seed are put into the file.
    """
    import torch
    from safetensors.torch import save

    # copies, since tied weights share memory
    dense = torch.contiguous_format
    copies = {name: value.detach().clone(memory_format=dense) for name, value in tensors.items()}
    about = {"format": "pt", "recipe": description.recipe, "seed": str(description.seed)}
    return save(copies, about)


def _find_packed(result: RunResult) -> SelectedScores:
    """The evaluation whose weights an archive has."""
    # without test, each split may have its own best evaluation
    splits = [split for split in ("test", "valid") if split in result.selected]
    return result.selected[splits[0] if splits else next(iter(result.selected))]


def _unpack(folder: Path, result: RunResult, chosen: str, split: str) -> SavedWeights:
    """The weights of an archive; raise unless they are those of the choice."""
    from safetensors.torch import load

    packed = _find_packed(result)
    if chosen == "each":
        chosen = split if split in result.selected else "valid"
    if chosen == "last":
        step = result.step
    else:
        step = result.best[chosen].step if chosen in result.best else None
    if chosen != packed.chosen_by and step != packed.step:
        wanted = "the last weights" if chosen == "last" else f"the weights best by {chosen}"
        raise RunError(
            f"expected {wanted}, got an archive in {folder} with only the "
            f"{_words(packed.step, packed.chosen_by)}: evaluate the run that it was made from, or "
            f"these, with --weights {packed.chosen_by}"
        )
    path = folder / WEIGHTS_FILE
    with explain_damage(folder, WEIGHTS_FILE):
        content = path.read_bytes()
        if digest(content) != result.weights:
            raise RunError(
                f"could not use {path}, which is damaged or of another run: restore the file "
                "whose SHA-256 is in result.json"
            )
        return SavedWeights(load(content), packed.step, packed.chosen_by)


def write_card(folder: Path, description: RunDescription, result: RunResult) -> None:
    """Write ``README.md``: what was trained, how well it does, and how to load it.

    Arguments:
        folder: The folder with the weights.
        description: The description of the run.
        result: The result of the run.
    """
    packed = _find_packed(result)
    # other splits may have their numbers from other weights
    own = {split: one for split, one in result.selected.items() if one.step == packed.step}
    rows = [
        f"| {split} | {name} | {value:.6g} |"
        for split, chosen in own.items()
        for name, value in chosen.scores.items()
    ]
    place = folder.as_posix()
    # test is what the command scores by itself
    option = "" if "test" in own else f" --split {next(iter(own))}"
    machine = description.machine
    lines = [
        f"# {description.recipe}, seed {description.seed}",
        "",
        f"{description.parameters:,} parameters, trained for {result.step:,} steps with the recipe "
        f"`recipe.toml` on {machine.device}; `run.json` has everything else.",
        "",
        f"Scores of its {_words(packed.step, packed.chosen_by)}:",
        "",
        "| split | metric | value |",
        "| --- | --- | ---: |",
        *rows,
        "",
        "```python",
        "from cayley.lab.training import load_model",
        "",
        f'model = load_model("{place}")',
        "```",
        "",
        f"`cayley evaluate {place}{option}` scores it again (with `--data` if the task reads "
        "files). Loading it executes no code from this folder.",
    ]
    (folder / CARD_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
