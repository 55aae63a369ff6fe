"""Libraries that tests compile: made once for all workers, and again when something has changed.

They are in pytest's cache, which ``pytest --cache-clear`` and ``make clean`` empty.
"""

import functools
import hashlib
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["compiled_from"]

FOLDER = Path(__file__).parents[1] / ".pytest_cache" / "d" / "compiled"
# a library that no test has used for so long was made from sources that have changed since
SECONDS = 14 * 24 * 3600.0


def compiled_from(compiler: str, contents: Iterable[str], build: Callable[[Path], None]) -> Path:
    """The library of these contents: compiled now, or before.

    Arguments:
        compiler: The program that compiles it.
        contents: All else that it depends on: sources, headers, options.
        build: Writes it to a path.
    """
    # none of them contains a zero
    digest = hashlib.sha256("\0".join([version(compiler), *contents]).encode()).hexdigest()
    library = folder() / f"{digest}.so"
    if library.exists():
        os.utime(library)
    else:
        # another worker sees all of it or nothing
        begun = library.with_suffix(f".{os.getpid()}.so")
        build(begun)
        begun.replace(library)
    return library


@functools.cache
def version(compiler: str) -> str:
    """What a compiler is, in its own words."""
    return subprocess.run([compiler, "-v"], check=True, capture_output=True, text=True).stderr


@functools.cache
def folder() -> Path:
    """The folder of libraries, without those that are not used any more."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.iterdir():
        # another worker may remove it, or give it its name
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > SECONDS:
                path.unlink()
    return FOLDER
