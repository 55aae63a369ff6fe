"""The folder of a study: ``study.json`` with the numbers of each seed, and ``picture.png``."""

import io
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from datetime import UTC, datetime
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Any

import torch

from cayley.lab.errors import NotFinite, RecipeError
from cayley.lab.processes import end_with
from cayley.lab.runs import (
    STUDY_FILE,
    STUDY_FORMAT,
    STUDY_PICTURE,
    RunFolder,
    SeedRecord,
    StudyRecord,
    describe_machine,
    find_git_state,
    find_versions,
    read_study,
)
from cayley.lab.studies.study import Measured, Number, Settings, Study
from cayley.lab.training import RunSettings

__all__ = ["run_study"]

FIRST_SEED = 5544


def run_study(
    study: Study,
    output: Path,
    *,
    seeds: int = 1,
    jobs: int = 1,
    changes: Sequence[str] = (),
    tiny: bool = False,
    settings: RunSettings | None = None,
    tell: Callable[[str], None] = lambda words: None,
) -> StudyRecord:
    """Compute a study for some seeds; existing ones are not computed again.

    Arguments:
        study: The study.
        output: The folder in which that of the study is made, under its name.
        seeds: The number of seeds.
        jobs: How many are computed at a time, each in its own process.
        changes: Changes of its settings, each as ``key=value``.
        tiny: Whether to use tiny settings, to try it out.
        settings: Machine and data.
        tell: Called with a line about each finished seed.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from cayley.lab.studies import find_study
        >>> with TemporaryDirectory() as folder:
        ...     record = run_study(find_study("modrelu-surface"), Path(folder), tiny=True)
        >>> round(record.seeds["5544"].numbers["peak"])
        30
    """
    settings = RunSettings() if settings is None else settings
    # before the first seed, since files may change during the computation
    git = find_git_state()
    chosen = study.choose(changes, tiny=tiny)
    record = StudyRecord(
        format=STUDY_FORMAT,
        study=study.name,
        title=study.title,
        claims=study.claims,
        random=study.random,
        settings=chosen,
        changed=study.changed(chosen),
    )
    device = settings.machine.engine().device
    with RunFolder(output / study.name) as folder:
        if folder.has(STUDY_FILE):
            before = read_study(folder.folder)
            if before.settings != chosen:
                differ = sorted(k for k in chosen if before.settings.get(k) != chosen[k])
                raise RecipeError(
                    f"expected {folder.folder} to hold the study with the same settings, got other "
                    f"{', '.join(differ)}: choose another --output, or delete it"
                )
            record.seeds.update(before.seeds)
        numbers = range(FIRST_SEED, FIRST_SEED + (seeds if study.random else 1))
        # the picture is that of the first seed
        drawn = folder.has(STUDY_PICTURE)
        left = []
        for seed in numbers:
            if str(seed) in record.seeds and (drawn or seed != FIRST_SEED):
                tell(f"{study.name}, seed {seed}: is there already")
            else:
                left.append(seed)
        for seed, found, seconds in _compute_all(study, chosen, left, settings, jobs):
            _check_finite(study.name, found.numbers)
            if seed == FIRST_SEED and not drawn:
                folder.write(STUDY_PICTURE, _png(study.draw(found.picture, chosen)))
            record.seeds[str(seed)] = SeedRecord(
                numbers=found.numbers,
                seconds=round(seconds, 2),
                finished=datetime.now(UTC).isoformat(timespec="seconds"),
                machine=describe_machine(settings.machine, device),
                versions=find_versions(),
                git=git,
            )
            # by number, not in the order in which they end
            in_order = sorted(record.seeds.items(), key=lambda item: int(item[0]))
            record.seeds.clear()
            record.seeds.update(in_order)
            folder.write_json(STUDY_FILE, asdict(record))
            tell(f"{study.name}, seed {seed}: {seconds:.1f} s")
    return record


def _compute_all(
    study: Study, chosen: Settings, seeds: Sequence[int], settings: RunSettings, jobs: int
) -> Iterator[tuple[int, Measured, float]]:
    """Each seed with its result and the seconds that it took, as they end."""
    if min(jobs, len(seeds)) <= 1:
        for seed in seeds:
            yield seed, *_compute(study, chosen, seed, settings)
        return
    others = {*active_children()}
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin_worker) as pool:
        futures = {pool.submit(_compute, study, chosen, seed, settings): seed for seed in seeds}
        try:
            for future in as_completed(futures):
                yield futures[future], *future.result()
        except BaseException:
            # a seed may take long: nobody waits for those that are under way
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in {*active_children()} - others:
                worker.terminate()
            raise


def _begin_worker() -> None:
    """Leave Ctrl-C to the parent, and end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None
    end_with(parent.join)


def _compute(
    study: Study, chosen: Settings, seed: int, settings: RunSettings
) -> tuple[Measured, float]:
    # sets the number of threads, on which times depend
    settings.machine.engine()
    start = time.perf_counter()
    found = study.compute(chosen, seed, settings)
    seconds = time.perf_counter() - start
    # no other picture is drawn, and tensors would have to be sent
    return (found if seed == FIRST_SEED else found._replace(picture=None)), seconds


def _check_finite(name: str, numbers: dict[str, Number]) -> None:
    for key, value in numbers.items():
        if not torch.tensor(value).isfinite().all():
            raise NotFinite(f"{name}: expected a finite {key}, got {value}")


def _png(figure: Any) -> bytes:
    """A figure in few colours, which take few bytes."""
    from PIL import Image

    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=100)
    Image.open(full).convert("RGB").quantize(128).save(small, format="png", optimize=True)
    return small.getvalue()
