"""What was started, and on which machine: the content of ``run.json``."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cayley.lab.errors import RecipeError
from cayley.lab.recipes import Variant, from_table
from cayley.lab.runs.machine import GitState, MachineFacts
from cayley.lab.runs.seals import Seal, digest

__all__ = ["FORMAT", "DataPlace", "MetricInfo", "RecipeChange", "RunDescription", "TrialInfo"]

# 2: files have checksums and name the run that they belong to
FORMAT = 2


@dataclass(frozen=True)
class MetricInfo:
    """A metric and which of its values are better."""

    name: str
    better: Literal["lower", "higher"]


@dataclass(frozen=True)
class DataPlace:
    """Where a run's data are, and how they are obtained."""

    folder: str | None = None
    download: bool = False
    check: bool = True


@dataclass(frozen=True)
class TrialInfo:
    """Which trial of a sweep a run is.

    Attributes:
        study: The name of the sweep.
        number: The number of the trial, from 0.
        params: What the sweep chose, by key of the recipe.
    """

    study: str
    number: int
    params: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RecipeChange:
    """A change of a run's recipe, or of the code that it names, after its start.

    Attributes:
        step: After how many steps.
        time: When.
        kind: Whether the run was made longer, or its recipe or code edited.
        differences: The settings and the code that changed, in words.
        before: The digest of the recipe before.
        note: How the numbers differ from those of a run with the new recipe from the start; empty
            if they do not.
    """

    step: int
    time: str
    kind: Literal["extended", "edited"]
    differences: tuple[str, ...]
    before: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class RunDescription:
    """What a run was started with; keys and attributes have the same names.

    Attributes:
        format: The format of the run folder; in format 1, files have no checksums.
        id: The id of the run, which all of its files name; empty in format 1.
        recipe, table, variant: Which recipe.
        seed: The seed of the run.
        overrides: What was changed in the recipe, as ``key=value``.
        tiny: Whether a few made-up examples replace the data.
        parameters: The number of parameters, as the papers count them.
        parameters_stored: The number of parameters as torch counts them.
        metric: The metric that decides which evaluation is best.
        metrics: All metrics.
        baseline: The scores of the naive predictor, by split and metric.
        baseline_rule: The naive predictor in words.
        sizes: The number of examples, by split.
        steps_per_epoch: In the first epoch.
        steps: How many are planned.
        data: Where the data are.
        vocabulary: The digest of the numbered tokens of a text of the user's own; empty for other
            data, and in older runs, whose text is not checked.
        started: When.
        command: The words of the command line.
        machine: The machine that it runs on.
        together: How many runs, at most, learned side by side in its process; 0 in older runs.
        versions: The versions of Python and of packages.
        git: The revision of the source; None outside a repository.
        code: The digests of the source files of the user's own modules that the recipe names;
            empty if it names none, and in older runs, whose code is not checked.
        settings: The recipe as ``recipe.toml`` has it, with which that file is compared; empty in
            format 1.
        changes: The changes of the recipe after the start.
        trial: The trial of a sweep; None for a run of its own.
    """

    format: int
    id: str = ""
    recipe: str
    table: str = ""
    variant: Variant
    seed: int
    overrides: tuple[str, ...]
    tiny: bool
    parameters: int
    parameters_stored: int = 0
    metric: MetricInfo
    metrics: tuple[MetricInfo, ...]
    baseline: dict[str, dict[str, float]]
    baseline_rule: str
    sizes: dict[str, int] = field(default_factory=dict)
    steps_per_epoch: int = 0
    steps: int
    data: DataPlace
    vocabulary: str = ""
    started: str = ""
    command: tuple[str, ...] = ()
    machine: MachineFacts
    together: int = 0
    versions: dict[str, str]
    git: GitState | None = None
    code: dict[str, str] = field(default_factory=dict)
    settings: str = ""
    changes: tuple[RecipeChange, ...] = ()
    trial: TrialInfo | None = None

    @property
    def timed_alone(self) -> bool:
        """Whether the run's time is its own, and not that of several runs side by side."""
        return self.together == 1 if self.together else "--together" not in self.command

    @property
    def seal(self) -> Seal:
        """The seal of the run's files."""
        return Seal(self.id, digest(self.settings))

    def owns(self, seal: Seal) -> bool:
        """Whether a file with a seal belongs to this run, with its current or an earlier recipe."""
        recipes = {self.seal.recipe, *(change.before for change in self.changes)}
        return seal.run == self.id and seal.recipe in recipes

    @classmethod
    def parse(cls, content: Any) -> "RunDescription":
        """A description from JSON; unknown keys are ignored.

        Example:
            >>> RunDescription.parse({})
            Traceback (most recent call last):
            ...
            cayley.lab.errors.RecipeError: missing key format
        """
        if isinstance(content, dict) and content.get("format", FORMAT) not in range(1, FORMAT + 1):
            raise RecipeError(
                f"expected a format of 1 to {FORMAT}, got {content['format']!r}: the run is from "
                "another version of cayley"
            )
        description = from_table(cls, content, strict=False)
        if description.format > 1 and not (description.id and description.settings):
            raise RecipeError(f"missing key {'settings' if description.id else 'id'}")
        return description

    def to_json(self) -> dict[str, Any]:
        """What :meth:`parse` reads."""
        return asdict(self)
