import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from cayley.lab.errors import RecipeError
from cayley.lab.settings import Free, Range, check_settings, convert


@dataclass(frozen=True)
class Inner:
    size: int = 1


@dataclass(frozen=True)
class Settings:
    order: Literal["rows", "permuted"] = "rows"
    delta: Literal[0, 1] = 1
    count: Annotated[int, Range(1, 1000)] = 1
    share: Annotated[float, Range(0, below=1)] = 0.0
    most: Annotated[int, Range(2)] | None = None
    sizes: tuple[Annotated[int, Range(1, 9)], ...] = ()
    name: Annotated[str, Free("a name")] = ""
    flag: bool = False
    inner: Inner = Inner()
    anything: Callable[[], int] | None = None

    def __post_init__(self) -> None:
        check_settings(self, "task.")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": "foo"}, "task.order: expected 'rows' or 'permuted', got 'foo'"),
        ({"delta": True}, "task.delta: expected 0 or 1, got True"),
        ({"count": 0}, "task.count: expected an integer from 1 to 1,000, got 0"),
        ({"count": 10**400}, "task.count: expected an integer from 1 to 1,000, got 1"),
        ({"count": 2.0}, "task.count: expected an integer, got 2.0"),
        ({"share": 1}, "task.share: expected a number from 0 to less than 1, got 1"),
        ({"share": math.nan}, "task.share: expected a number from 0 to less than 1, got nan"),
        ({"share": -math.inf}, "task.share: expected a number from 0 to less than 1, got -inf"),
        ({"share": 10**400}, "task.share: expected a number, got one that no float can hold"),
        ({"most": 1}, "task.most: expected an integer of at least 2 or nothing, got 1"),
        ({"sizes": [3, -5]}, "task.sizes: expected an integer from 1 to 9, got -5"),
        (
            {"sizes": 3},
            "task.sizes: expected a list in brackets, each an integer from 1 to 9, got 3",
        ),
        ({"name": 3}, "task.name: expected a string, got 3"),
        ({"flag": "no"}, "task.flag: expected true or false, got 'no'"),
        ({"inner": {}}, "task.inner: expected an instance of Inner, got {}"),
    ],
)
def test_what_is_not_allowed_is_refused_with_what_is(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Settings(**change)
    assert str(caught.value).startswith(message)


def test_what_is_allowed_is_converted() -> None:
    settings: Any = Settings(sizes=[1, 9], share=0, most=10**30, anything=int)  # pyrefly: ignore
    assert settings.sizes == (1, 9)
    assert type(settings.share) is float
    assert settings.most == 10**30
    assert Settings(most=None) == Settings()


def test_a_number_without_an_upper_limit_is_finite() -> None:
    for value in (math.inf, math.nan, -1e-9):
        with pytest.raises(RecipeError, match="x: expected a number of at least 0, got"):
            convert(value, Annotated[float, Range(0)], "x")
    assert convert(1e300, Annotated[float, Range(0)], "x") == 1e300
