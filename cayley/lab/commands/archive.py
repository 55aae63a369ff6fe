"""The command ``cayley archive``."""

import sys
from argparse import Namespace
from pathlib import Path

from cayley.lab.commands.files import write_file
from cayley.lab.errors import RunError
from cayley.lab.wording import counted

__all__ = ["archive"]


def archive(options: Namespace) -> int:
    """Copy finished runs without checkpoints, and with fewer points of their curves.

    It copies what the report reads: recipe, description, numbers and curves; a run that ended
    because something was not finite has no numbers. Unfinished and damaged runs are named and left
    out. With --weights the weights behind the numbers are copied too, as safetensors, with a model
    card.
    """
    from cayley.lab.runs import (
        SWEEP_FILE,
        archive_run,
        check_archive,
        find_runs,
        find_sweeps,
    )

    source, target = options.folder, options.output
    if target.resolve().is_relative_to(source.resolve()):
        raise RunError(
            f"expected a folder outside of {source} for the archive, got {target}: runs would be "
            "overwritten, or archived again: choose another place"
        )
    folders = find_runs(source)
    if not folders:
        raise RunError(f"expected runs below {source}, got none: make some with cayley train")
    finished = [folder for folder in folders if _is_over(folder)]
    places = [target / folder.relative_to(source) for folder in finished]
    # all of them before the first is written
    for place in places:
        check_archive(place)
    damaged = 0
    for folder, place in zip(finished, places, strict=True):
        try:
            archive_run(
                folder,
                place,
                options.points,
                options.losses,
                weights=options.weights,
            )
        except RunError as error:
            # without permission, or on a full disk, the other runs would fail too
            if isinstance(error.__cause__, OSError):
                raise
            print(f"left out: {error}", file=sys.stderr)
            damaged += 1
    for folder in find_sweeps([source]):
        place = folder.relative_to(source) / SWEEP_FILE
        write_file(target / place, (source / place).read_bytes())
    print(f"{target}: {counted(len(finished) - damaged, 'run')}")
    for folder in folders:
        if folder not in finished:
            print(f"not finished, left out: {folder.relative_to(source)}")
    return RunError.code if damaged else 0


def _is_over(folder: Path) -> bool:
    from cayley.lab.runs import is_diverged

    try:
        return (folder / "result.json").exists() or is_diverged(folder)
    except RunError:
        # who archives it learns what is wrong with it
        return True
