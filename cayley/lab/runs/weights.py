"""Trained weights beside the numbers that they give: ``weights.safetensors`` and its card."""

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

__all__ = ["WEIGHTS_FILE", "Weights", "pack_weights", "read_weights", "write_card"]

WEIGHTS_FILE = "weights.safetensors"
Weights = Literal["selected", "valid", "test", "last"]


def read_weights(
    folder: Path,
    description: RunDescription,
    recipe: Recipe,
    weights: Weights = "selected",
    split: str = "test",
) -> "dict[str, Tensor]":
    """The weights of a run, which may still be going on, on the CPU.

    Arguments:
        folder: Of the run, or of an archive with weights.
        description: Of the run.
        recipe: Of the run.
        weights: ``"selected"``, which give the run's numbers (where each split has its own choice
            and this one none, the best by ``"valid"``), the best by ``"valid"`` or ``"test"``, or
            the ``"last"`` that were saved. An archive has the first only.
        split: What they are to be scored on.
    """
    chosen: str = recipe.evaluation.select if weights == "selected" else weights
    if chosen == "each":
        # earlier versions kept no best by train
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
        tensors: By name, as in ``state_dict()``.
        description: Of the run, whose recipe and seed the file names.
    """
    import torch
    from safetensors.torch import save

    # a copy of each, as tied weights share memory
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
                f"could not use {path}, which is damaged or of another run: put back the file "
                "whose SHA-256 result.json has"
            )
        return load(content)


def write_card(folder: Path, description: RunDescription, result: RunResult) -> None:
    """Write ``README.md``: what was trained, how well it does, and how to load it.

    Arguments:
        folder: With the weights.
        description: Of the run.
        result: Of the run.
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
        f"{description.parameters:,} parameters, trained for {result.step:,} steps by the recipe "
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
        f"`cayley evaluate {folder.as_posix()}` scores it again (with `--data` where the task "
        "reads files). Loading executes no code of this folder.",
    ]
    (folder / "README.md").write_text("\n".join(lines) + "\n")
