"""The rows of tables: ours over seeds, the published value, the gap."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from cayley.lab.recipes import Recipe
from cayley.lab.recipes.views import Curve, View
from cayley.lab.report.quantities import Quantity
from cayley.lab.report.reading import MeasuredRun, Problem
from cayley.lab.report.samples import Sample
from cayley.lab.runs import RunResult
from cayley.lab.wording import counted, time_words

__all__ = [
    "VERDICTS",
    "Environment",
    "Line",
    "PublishedValue",
    "Report",
    "Row",
    "Section",
    "Shown",
    "find_common",
    "is_sweep",
    "label_rows",
]

VERDICTS = ("better", "equal", "within spread", "worse", "from one seed")


@dataclass(frozen=True)
class PublishedValue:
    """A published number and all places that print it.

    Attributes:
        value: The number.
        std: The number printed after ±.
        sources: The places.
        rounding: How far it may be from what was measured.
    """

    value: float
    std: float | None
    sources: tuple[str, ...]
    rounding: float = 0.0

    @property
    def source(self) -> str:
        """The first place, and how many more there are."""
        more = len(self.sources) - 1
        return self.sources[0] + (f", and {more} more" if more else "")


@dataclass(frozen=True)
class Line:
    """A quantity of a row: ours and the published value.

    Attributes:
        quantity: What is measured.
        higher: Whether higher values are better.
        values: One for each seed with a finished run, the mean of its runs.
        published: The published value; None if there is none.
        baseline: The score of the naive predictor; None if it is not known.
        chosen_by: The split that selected the evaluations; ``"last"``; or empty.
        judged: Whether ours may be compared with the published value: only with its settings.
    """

    quantity: Quantity
    higher: bool
    values: tuple[float, ...]
    published: PublishedValue | None = None
    baseline: float | None = None
    chosen_by: str = ""
    judged: bool = True

    @property
    def mean(self) -> float | None:
        """Over seeds."""
        return mean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """The sample standard deviation over seeds; None for a single one."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def gap(self) -> float | None:
        """Ours − published."""
        if self.mean is None or self.published is None or not self.judged:
            return None
        return self.mean - self.published.value

    @property
    def verdict(self) -> str:
        """Ours against the published value: one of :data:`VERDICTS`, or empty.

        Ours is equal if it has the digits that are printed. A gap is within the spread if it is
        not larger than the standard deviation, ours or theirs. From a single seed of ours, neither
        better nor worse can be said.

        Example:
            >>> published = PublishedValue(0.973, None, ())
            >>> Line(Quantity("test", "accuracy"), True, (0.97, 0.974), published).verdict
            'within spread'
            >>> Line(Quantity("test", "accuracy"), True, (0.97,), published).verdict
            'from one seed'
        """
        if self.gap is None or self.published is None:
            return ""
        if abs(self.gap) <= self.published.rounding + 1e-9 * abs(self.published.value):
            return "equal"
        if abs(self.gap) <= max(self.spread or 0.0, self.published.std or 0.0):
            return "within spread"
        if len(self.values) < 2:
            return "from one seed"
        return "better" if (self.gap > 0) == self.higher else "worse"

    @property
    def optimistic(self) -> bool:
        """Whether the test set selected its own best evaluation."""
        return self.quantity.split == "test" and self.chosen_by == "test"


@dataclass(frozen=True)
class Row:
    """All runs of a recipe with the same settings.

    Attributes:
        recipe: With all settings.
        changes: The settings that differ from the recipe of the package, in words.
        runs: The runs, by seed.
        lines: The quantities, the published ones first.
        environments: The letters of the environments that the runs were in.
        printed: The number of parameters that the paper prints, such as ``"16k"``; else empty.
    """

    recipe: Recipe
    changes: tuple[str, ...]
    runs: tuple[MeasuredRun, ...]
    lines: tuple[Line, ...]
    environments: tuple[str, ...]
    printed: str = ""

    @property
    def label(self) -> str:
        """Recipe, variant and what was changed, for the legend of a figure."""
        return self.label_with(self.changes)

    def label_with(self, changes: Sequence[str]) -> str:
        """Recipe, variant and some of what was changed."""
        words = ", ".join((*(["code"] if self.recipe.variant == "code" else []), *changes))
        return f"{self.recipe.name} ({words})" if words else self.recipe.name

    @property
    def finished(self) -> tuple[MeasuredRun, ...]:
        """The runs that have numbers."""
        return tuple(run for run in self.runs if run.result is not None)

    @property
    def unfinished(self) -> int:
        """How many runs have none."""
        return len(self.runs) - len(self.finished)

    @property
    def seeds(self) -> str:
        """How many runs have numbers, and how many seeds they have if these are fewer."""
        count = len(self.finished)
        different = len({run.description.seed for run in self.finished})
        return str(count) if count == different else f"{different} in {count} runs"

    @property
    def parameters(self) -> int:
        """The number of parameters, as the papers count them."""
        return self.runs[0].description.parameters

    @property
    def time(self) -> tuple[str, str] | None:
        """The mean time of an epoch or, if no run had a whole one, of a step."""
        results = self._timed
        epochs = [one.seconds_per_epoch for one in results if one.seconds_per_epoch is not None]
        if epochs:
            return time_words(mean(epochs)), "an epoch"
        return None if self.seconds is None else (time_words(self.seconds), "a step")

    @property
    def seconds(self) -> float | None:
        """The mean time of a step."""
        steps = [one.seconds / one.step for one in self._timed if one.step]
        return mean(steps) if steps else None

    @property
    def _timed(self) -> list[RunResult]:
        """The results of runs whose time is their own."""
        return [run.result for run in self.runs if run.result and run.description.timed_alone]

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The samples of the first run that has any."""
        return next((run.samples for run in self.finished if run.samples), ())


def find_common(rows: Sequence[Row]) -> tuple[str, ...]:
    """The changes that all of several rows share; nothing for a single row."""
    if len(rows) < 2:
        return ()
    return tuple(one for one in rows[0].changes if all(one in row.changes for row in rows))


def is_sweep(rows: Sequence[Row]) -> bool:
    """Whether several rows are of one recipe."""
    recipes = {(row.recipe.table, row.recipe.name, row.recipe.variant) for row in rows}
    return len(rows) > 1 and len(recipes) == 1


def label_rows(rows: Sequence[Row]) -> list[str]:
    """A label of its own for each of several rows, without what they have in common.

    Rows of one recipe, such as those of a sweep, are labelled by their changes alone; recipes of
    one name in several tables by their table, where their changes do not tell them apart.
    """
    common = find_common(rows)
    own = [[one for one in row.changes if one not in common] for row in rows]
    if is_sweep(rows):
        # the words after "not" are the same everywhere
        return [
            ", ".join(one.partition(", not ")[0] for one in some) or "unchanged" for some in own
        ]
    labels = Counter(row.label_with(some) for row, some in zip(rows, own, strict=True))
    for row, some in zip(rows, own, strict=True):
        if labels[row.label_with(some)] > 1:
            some.append(f"table {row.recipe.table}")
    return [row.label_with(some) for row, some in zip(rows, own, strict=True)]


@dataclass(frozen=True)
class Shown:
    """A curve of a view, and the rows with its runs: several rows for several variants."""

    curve: Curve
    rows: tuple[Row, ...]

    @property
    def is_run(self) -> bool:
        """Whether there is a finished run."""
        return any(row.finished for row in self.rows)

    @property
    def words(self) -> str:
        """The arguments for ``cayley train``."""
        curve = self.curve
        return " --set ".join((curve.recipe, *([" ".join(curve.set)] if curve.set else [])))


@dataclass(frozen=True)
class Section:
    """A published figure or table or, without a view, further runs of a table of recipes.

    Attributes:
        name: For a link.
        title: What it shows.
        rows: The rows whose numbers are shown here; rows of tables are not repeated in figures.
        view: The figure or table.
        shown: Its curves or rows, run or not.
        elsewhere: Views with the numbers of its other rows.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    view: View | None = None
    shown: tuple[Shown, ...] = ()
    elsewhere: tuple[View, ...] = ()

    @property
    def coverage(self) -> str:
        """How many of the rows were run.

        Example:
            >>> view = View("helfrich2020", "Figure 2.8", "MNIST")
            >>> Section("a", "", (), view, (Shown(Curve("scornn/mnist-170"), ()),)).coverage
            '0 of 1 row run'
        """
        count = sum(one.is_run for one in self.shown)
        return f"{count} of {counted(len(self.shown), 'row')} run"

    @property
    def common(self) -> tuple[str, ...]:
        """The changes that all of several rows share."""
        return find_common(self.rows)

    @property
    def is_sweep(self) -> bool:
        """Whether the rows differ in settings only, so that these name them."""
        return is_sweep(self.rows)

    @property
    def labels(self) -> list[str]:
        """The labels of the rows, without what they have in common."""
        return label_rows(self.rows)

    @property
    def missing(self) -> tuple[Shown, ...]:
        """What was not run, or not to its end."""
        return tuple(one for one in self.shown if not one.is_run)

    @property
    def is_run(self) -> bool:
        """Whether anything of it was started."""
        return any(one.rows for one in self.shown)


@dataclass(frozen=True)
class Environment:
    """Machine and software that runs share, with a letter to name them by."""

    letter: str
    facts: tuple[tuple[str, str], ...]
    run_count: int


@dataclass(frozen=True)
class Report:
    """Everything that a page shows.

    Attributes:
        sections: The sections of the page.
        environments: The environments of the runs.
        problems: What is wrong with some of them.
        rows: All rows, each once.
        views: All figures and tables, in the order of the papers, run or not.
    """

    sections: tuple[Section, ...]
    environments: tuple[Environment, ...]
    problems: tuple[Problem, ...]
    rows: tuple[Row, ...] = ()
    views: tuple[Section, ...] = ()

    @property
    def run_count(self) -> int:
        """The number of runs, including those without numbers."""
        return sum(len(row.runs) for row in self.rows)

    @property
    def tally(self) -> dict[str, int]:
        """How many published numbers have which outcome, in runs with unchanged settings."""
        verdicts = [line.verdict for line in self._judged]
        return {verdict: verdicts.count(verdict) for verdict in VERDICTS}

    @property
    def places(self) -> int:
        """How often these numbers are printed: papers repeat each other."""
        return sum(len(line.published.sources) for line in self._judged if line.published)

    @property
    def _judged(self) -> list[Line]:
        lines = (line for row in self.rows if not row.changes for line in row.lines)
        return [line for line in lines if line.verdict]

    @property
    def sentence(self) -> str:
        """What matches the papers and what does not, in numbers."""
        words = f"{counted(self.run_count, 'run')} in {counted(len(self.rows), 'row')}."
        total = sum(self.tally.values())
        if total:
            fates = ", ".join(f"{count} {verdict}" for verdict, count in self.tally.items())
            words += f" {counted(total, 'published number')} measured with the recipe's settings, "
            words += f"printed in {counted(self.places, 'place')}: {fates}."
        others = sum(
            line.published is not None and line.mean is not None
            for row in self.rows
            if row.changes
            for line in row.lines
        )
        if others:
            words += f" {counted(others, 'number')} measured with other settings."
        if self.problems:
            folders = {problem.folder for problem in self.problems}
            words += f" {counted(len(folders), 'run')} not finished or damaged: see the end."
        return words
