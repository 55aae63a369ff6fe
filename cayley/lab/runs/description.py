"""What was started, on what: the content of ``run.json``."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cayley.lab.errors import RecipeError
from cayley.lab.recipes import Variant, from_table
from cayley.lab.runs.machine import GitState, MachineFacts

__all__ = ["FORMAT", "DataPlace", "MetricInfo", "RunDescription"]

FORMAT = 1


@dataclass(frozen=True)
class MetricInfo:
    """A metric and which of its values are better."""

    name: str
    better: Literal["lower", "higher"]


@dataclass(frozen=True)
class DataPlace:
    """Where a run's data are, and how they are taken."""

    folder: str | None = None
    download: bool = False
    check: bool = True


@dataclass(frozen=True, kw_only=True)
class RunDescription:
    """What a run was started with; keys and attributes have the same names.

    Attributes:
        format: Of the run folder.
        recipe, table, variant: Which recipe.
        seed: Of the run.
        overrides: What was changed in the recipe, as ``key=value``.
        tiny: Whether a few made-up examples stand for the data.
        parameters: How many the model has, as the papers count them.
        parameters_stored: How many it has as torch counts them.
        metric: What decides which evaluation is best.
        metrics: All that are scored.
        baseline: What the naive predictor gets, by split and metric.
        baseline_rule: The naive predictor in words.
        sizes: The number of examples, by split.
        steps_per_epoch: In the first epoch.
        steps: How many are planned.
        data: Where the data are.
        started: When.
        command: The words of the command line.
        machine: What it runs on.
        versions: Of Python and of packages.
        git: Of the source; None outside a repository.
    """

    format: int
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
    started: str = ""
    command: tuple[str, ...] = ()
    machine: MachineFacts
    versions: dict[str, str]
    git: GitState | None = None

    @classmethod
    def parse(cls, content: Any) -> "RunDescription":
        """A description from JSON; keys that are unknown are passed over.

        Example:
            >>> RunDescription.parse({})
            Traceback (most recent call last):
            ...
            cayley.lab.errors.RecipeError: missing key format
        """
        if isinstance(content, dict) and content.get("format", FORMAT) != FORMAT:
            raise RecipeError(
                f"expected format {FORMAT}, got {content['format']!r}: the run is of another "
                "version of cayley"
            )
        return from_table(cls, content, strict=False)

    def to_json(self) -> dict[str, Any]:
        """What :meth:`parse` reads."""
        return asdict(self)
