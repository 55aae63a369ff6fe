"""What a study is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from cayley.lab.errors import RecipeError
from cayley.lab.recipes import parse_override, published
from cayley.lab.training import RunSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Measured", "Number", "Settings", "Study", "make_panels"]

Number = float | list[float]
Settings = Mapping[str, Any]


class Measured(NamedTuple):
    """The result of one seed.

    Attributes:
        numbers: By name; a list for a curve.
        picture: The data that the picture is drawn from.
    """

    numbers: dict[str, Number]
    picture: Any


@dataclass(frozen=True)
class Study:
    """A question, and how its answer is computed.

    Attributes:
        name: The name of the study, and of its folder.
        title: In a few words.
        settings: The settings of the paper, or ours if it gives none.
        tiny: Changes of the settings with which the study takes a second.
        compute: Computes the numbers from settings, a seed, and machine and data.
        draw: Draws a figure from the picture's tensors and the settings.
        random: Whether seeds make a difference; otherwise one seed decides.
    """

    name: str
    title: str
    compute: Callable[[Settings, int, RunSettings], Measured]
    draw: Callable[[Any, Settings], "Figure"]
    settings: Settings = field(default_factory=dict)
    tiny: Settings = field(default_factory=dict)
    random: bool = True

    @property
    def claims(self) -> tuple[str, ...]:
        """The claims that it is about, from ``not-runnable.toml``; none for the user's own."""
        return published.studies().get(self.name, ())

    def choose(self, changes: Sequence[str] = (), *, tiny: bool = False) -> dict[str, Any]:
        """The settings with changes.

        Arguments:
            changes: Each as ``key=value``.
            tiny: Whether to use the tiny settings.
        """
        chosen = {**self.settings, **(self.tiny if tiny else {})}
        for change in changes:
            for key, value in parse_override(change).items():
                if key not in chosen:
                    known = ", ".join(chosen) or "none"
                    raise RecipeError(f"{self.name}: expected a setting of {known}, got {key!r}")
                if type(value) is not type(chosen[key]):
                    kind = type(chosen[key]).__name__
                    raise RecipeError(f"{self.name}: {key}: expected {kind}, got {value!r}")
                chosen[key] = value
        return chosen

    def changed(self, settings: Settings) -> dict[str, Any]:
        """Those of some settings that differ from the study's own."""
        return {key: value for key, value in settings.items() if value != self.settings.get(key)}


def make_panels(
    count: int = 1, projection: str | None = None, *, share: bool = False
) -> tuple["Figure", list["Axes"]]:
    """A figure with panels side by side.

    Arguments:
        count: The number of panels.
        projection: ``"3d"`` for surfaces.
        share: Whether they have one vertical axis.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 if count == 1 else 4.2 * count, 3.6), layout="constrained")
    axes = figure.subplots(
        1, count, sharey=share, squeeze=False, subplot_kw={"projection": projection}
    )
    return figure, [*axes[0]]
