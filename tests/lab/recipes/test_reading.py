from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from cayley.lab.errors import RecipeError
from cayley.lab.recipes.reading import FURTHER, check_keys, from_table, to_table


@dataclass(frozen=True)
class Inner:
    rate: float
    rest: dict[str, Any] = field(default_factory=dict, metadata=FURTHER)


@dataclass(frozen=True)
class Outer:
    size: int
    inner: Inner
    names: tuple[str, ...] = ()
    when: Literal["epoch"] | int = "epoch"
    flag: bool = False
    limit: float | None = None


GOOD = {"size": 3, "inner": {"rate": 1, "further": [1, 2]}}


def test_types_become_those_of_the_fields() -> None:
    outer = from_table(Outer, GOOD | {"names": ["a", "b"], "when": 10, "limit": 2})
    assert outer == Outer(3, Inner(1.0, {"further": [1, 2]}), ("a", "b"), 10, False, 2.0)
    assert type(outer.inner.rate) is float


def test_scatter_is_the_inverse() -> None:
    outer = from_table(Outer, GOOD | {"limit": 2.5})
    assert from_table(Outer, to_table(outer)) == outer
    assert to_table(outer)["inner"] == {"rate": 1.0, "further": [1, 2]}
    assert "limit" not in to_table(from_table(Outer, GOOD))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sise": 3}, "unknown key sise: did you mean size?"),
        ({"xyz": 3}, "unknown key xyz: expected size, inner, names, when, flag, limit"),
        ({"size": "3"}, "size: expected an integer, got '3'"),
        ({"size": True}, "size: expected an integer, got True"),
        ({"size": 3.0}, "size: expected an integer, got 3.0"),
        ({"flag": 1}, "flag: expected true or false, got 1"),
        ({"names": "ab"}, "names: expected a list in brackets, each a string, got 'ab'"),
        ({"names": [1]}, "names: expected a string, got 1"),
        ({"when": "step"}, "when: expected 'epoch' or an integer, got 'step'"),
        ({"limit": "1"}, "limit: expected a number or nothing, got '1'"),
        ({"inner": 3}, "inner: expected a table, got 3"),
        ({"inner": {"rate": "fast"}}, "inner.rate: expected a number, got 'fast'"),
        ({"inner": {"rat": 1}}, "missing key inner.rate: is inner.rat misspelt?"),
        ({"inner": {"x": 1}}, "missing key inner.rate"),
    ],
)
def test_errors_say_where_and_what(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        from_table(Outer, GOOD | change)
    assert str(caught.value) == message


def test_missing_key() -> None:
    with pytest.raises(RecipeError, match="missing key size"):
        from_table(Outer, {"inner": {"rate": 1}})
    check_keys(["a"], ["a", "b"], ["a"])
