"""Trained weights of a run: ``weights.safetensors`` and its model card."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cayley.lab.errors import RunError
from cayley.lab.recipes import Recipe
from cayley.lab.runs.description import RunDescription
from cayley.lab.runs.reading import explain_damage, load_tensors, read_result
from cayley.lab.runs.result import RunResult
from cayley.lab.runs.seals import digest

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CARD_FILE", "WEIGHTS_FILE", "Weights", "pack_weights", "read_weights", "write_card"]

WEIGHTS_FILE = "weights.safetensors"
CARD_FILE = "README.md"
Weights = Literal["selected", "valid", "test", "last"]


def read_weights(
    folder: Path,
    description: RunDescription,
    recipe: Recipe,
    weights: Weights = "selected",
    split: str = "test",
) -> "dict[str, Tensor]":
    """The weights of a run, which need not be finished, on the CPU.

    Arguments:
        folder: The run folder, or that of an archived run with weights.
        description: The description of the run.
        recipe: The recipe of the run.
        weights: ``"selected"`` for those behind the run's numbers (if each split has its own
            selection, but this one has none, the best on ``"valid"``), ``"valid"`` or ``"test"``
            for the best on that split, or ``"last"`` for the last that were saved. An archived run
            has only the selected ones.
        split: The split that they are to be scored on.
    """
    chosen: str = recipe.evaluation.select if weights == "selected" else weights
    if chosen == "each":
        # earlier versions did not save the best weights on train
        chosen = split if (folder / f"best-{split}.pt").exists() else "valid"
    name = "checkpoint.pt" if chosen == "last" else f"best-{chosen}.pt"
    if weights == "selected" and not (folder / name).exists() and (folder / WEIGHTS_FILE).exists():
        return _unpack(folder, read_result(folder, description))
    with explain_damage(folder, name):
        state = load_tensors(folder, name, description)
        return (state["learner"] if chosen == "last" else state)["model"]


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


def _unpack(folder: Path, result: RunResult) -> "dict[str, Tensor]":
    from safetensors.torch import load

    path = folder / WEIGHTS_FILE
    with explain_damage(folder, WEIGHTS_FILE):
        content = path.read_bytes()
        if digest(content) != result.weights:
            raise RunError(
                f"could not use {path}, which is damaged or of another run: restore the file "
                "whose SHA-256 is in result.json"
            )
        return load(content)


def write_card(folder: Path, description: RunDescription, result: RunResult) -> None:
    """Write ``README.md``: what was trained, how well it does, and how to load it.

    Arguments:
        folder: The folder with the weights.
        description: The description of the run.
        result: The result of the run.
    """
    rows = [
        f"| {split} | {name} | {value:.6g} |"
        for split, chosen in result.selected.items()
        for name, value in chosen.scores.items()
    ]
    machine = description.machine
    lines = [
        f"# {description.recipe}, seed {description.seed}",
        "",
        f"{description.parameters:,} parameters, trained for {result.step:,} steps with the recipe "
        f"`recipe.toml` on {machine.device}; `run.json` has everything else.",
        "",
        "| split | metric | value |",
        "| --- | --- | ---: |",
        *rows,
        "",
        "```python",
        "from cayley.lab.training import load_model",
        "",
        f'model = load_model("{folder.as_posix()}")',
        "```",
        "",
        f"`cayley evaluate {folder.as_posix()}` scores it again (with `--data` if the task "
        "reads files). Loading it executes no code from this folder.",
    ]
    (folder / CARD_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
