"""The command ``cayley archive``."""

from argparse import Namespace

from cayley.lab.errors import RunError

__all__ = ["archive"]


def archive(options: Namespace) -> int:
    """Copy finished runs without checkpoints, and with fewer points of their curves.

    It copies what the report reads: recipe, description, numbers and curves; a run that ended
    because something was not finite has no numbers. Unfinished runs are named and left out. With
    --weights the weights behind the numbers are copied too, as safetensors, with a model card.
    """
    from cayley.lab.runs import archive_run, find_runs, is_diverged

    source, target = options.folder, options.output
    folders = find_runs(source)
    if not folders:
        raise RunError(f"expected runs below {source}, got none: make some with cayley train")
    finished = [
        folder for folder in folders if (folder / "result.json").exists() or is_diverged(folder)
    ]
    for folder in finished:
        archive_run(
            folder, target / folder.relative_to(source), options.points, weights=options.weights
        )
    print(f"{target}: {len(finished)} runs")
    for folder in folders:
        if folder not in finished:
            print(f"not finished, left out: {folder.relative_to(source)}")
    return 0
