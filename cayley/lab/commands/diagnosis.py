"""The command ``cayley diagnose``."""

import io
import json
from argparse import Namespace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cayley.lab.commands.files import write_file
from cayley.lab.errors import RunError
from cayley.lab.wording import align, counted, short_number

if TYPE_CHECKING:
    from cayley.lab.runs import Weights

__all__ = ["diagnose"]

FILES = {"checkpoint.pt": "last", "best-valid.pt": "valid", "best-test.pt": "test"}


def diagnose(options: Namespace) -> int:
    """Examine the network of a run: how orthogonal it is, its spectrum, gradients and states.

    RUN is the folder of a run, or a checkpoint in it. Figures, and the numbers as JSON, are written
    into a folder; diagnostics that are not possible for the network are named, with the layers for
    which they are.
    """
    folder, weights = _locate(options.run_folder, options.weights)
    from cayley.lab.studies.diagnosis import Probe
    from cayley.lab.studies.diagnosis import diagnose as look
    from cayley.lab.training import restore_run

    run = restore_run(
        folder,
        weights=cast("Weights", weights),
        device=options.device or "",
        data=options.data,
        trust=options.trust,
    )
    found = look(Probe(run), options.only)
    output = options.output or folder / "diagnosis"
    numbers = {one.name: one.numbers for one in found if not one.refusal}
    refusals = {one.name: one.refusal for one in found if one.refusal}
    # JSON has no number that is not finite
    finite = {
        name: {key: value if isfinite(value) else None for key, value in several.items()}
        for name, several in numbers.items()
    }
    record = {"run": str(folder), "weights": weights, "numbers": finite, "refused": refusals}
    for one in found:
        if one.draw is not None:
            write_file(output / f"{one.name}.png", _png(one.draw()))
    write_file(output / "diagnosis.json", (json.dumps(record, indent=1) + "\n").encode())
    if options.json:
        print(json.dumps(record))
        return 0
    for name, several in numbers.items():
        print(name)
        rows = [(f"  {key}", short_number(value)) for key, value in several.items()]
        print("\n".join(align(rows, 200)))
    for name, reason in refusals.items():
        print(f"{name}: not for this network: {reason}")
    print(f"{output}: {counted(len(numbers), 'figure')} and diagnosis.json")
    return 0


def _locate(path: Path, weights: str) -> tuple[Path, str]:
    """The folder of a run and its weights, from a folder or a checkpoint in it."""
    if path.suffix != ".pt":
        return path, weights
    if path.name not in FILES:
        raise RunError(
            f"expected the folder of a run, or one of {', '.join(FILES)} in it, got {path}"
        )
    return path.parent, FILES[path.name]


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    return file.getvalue()
