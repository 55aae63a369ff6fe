"""Arguments that make no sense are refused, with what was expected and what was got."""

import math
from collections.abc import Callable
from typing import Any

import pytest

import cayley
from cayley.checks import check_integer, check_number
from cayley.parametrizations import (
    ComplexScaledCayley,
    EigenvalueNormalization,
    GivensLayers,
    HouseholderProduct,
    LongShort,
    NeumannCayley,
    ScaledCayley,
    Skew,
    SpectralSVD,
)

WRONG_INTEGERS = (None, "3", 2.5, 3.0, True, math.nan, [3])
WRONG_NUMBERS = (None, "0.5", True, math.nan, -1, math.inf, [0.5], 0.5j)


@pytest.mark.parametrize("value", WRONG_INTEGERS)
def test_integers(value: Any) -> None:
    check_integer("size", 1)
    check_integer("size", 0, at_least=0)
    with pytest.raises(TypeError, match="expected size to be an int, got"):
        check_integer("size", value)
    with pytest.raises(ValueError, match="expected size to be at least 2, got 1"):
        check_integer("size", 1, at_least=2)


@pytest.mark.parametrize("value", WRONG_NUMBERS)
def test_numbers(value: Any) -> None:
    check_number("SGD", "lr", 0)
    with pytest.raises((TypeError, ValueError), match=r"SGD: expected .*lr.*, got"):
        check_number("SGD", "lr", value)
    check_number("SGD", "momentum", 1.0, below=1.0, closed=True)
    with pytest.raises(ValueError, match="SGD: expected momentum from 0 to 1, 1 excluded, got 1"):
        check_number("SGD", "momentum", 1.0, below=1.0)


Make = Callable[[Any], object]

# what takes an integer, and whether None has a meaning there
INTEGERS: list[tuple[Make, str, bool]] = [
    (lambda v: cayley.RNN(v, 8), "input_size", False),
    (lambda v: cayley.RNN(3, v), "hidden_size", False),
    (lambda v: cayley.RNN(3, 8, v), "num_layers", False),
    (lambda v: cayley.ScoRNN(3, v), "hidden_size", False),
    (lambda v: cayley.ScoRNN(3, 8, negative_ones=v), "negative_ones", True),
    (lambda v: cayley.ScoRNN(3, 8, bandwidth=v), "bandwidth", True),
    (lambda v: cayley.ScuRNN(3, v), "hidden_size", False),
    (lambda v: cayley.EURNN(3, 8, layers=v), "layers", False),
    (lambda v: cayley.ORNN(3, 8, reflections=v), "reflections", False),
    (lambda v: cayley.SpectralRNN(3, 8, reflections=v), "reflections", False),
    (lambda v: cayley.ENRNN(3, v, 4), "long_size", False),
    (lambda v: cayley.ENRNN(3, 4, v), "short_size", False),
    (lambda v: cayley.ENRNN(3, 4, 4, negative_ones=v), "negative_ones", True),
    (lambda v: cayley.NCGRU(3, 8, order=v), "order", True),
    (lambda v: cayley.NCGRU(3, 8, refresh_every=v), "refresh_every", True),
    (lambda v: cayley.NCGRU(3, 8, negative_ones=v), "negative_ones", True),
    (lambda v: Skew(v), "Skew", False),
    (lambda v: Skew(8, bandwidth=v), "bandwidth", True),
    (lambda v: ScaledCayley(v), "ScaledCayley", False),
    (lambda v: ComplexScaledCayley(8, bandwidth=v), "bandwidth", True),
    (lambda v: GivensLayers(8, layers=v), "layers", False),
    (lambda v: HouseholderProduct(8, reflections=v), "reflections", True),
    (lambda v: NeumannCayley(8, order=v), "order", False),
    (lambda v: NeumannCayley(8, refresh_every=v), "refresh_every", True),
]


@pytest.mark.parametrize(("make", "name", "or_none"), INTEGERS)
def test_constructors_take_integers_only(make: Make, name: str, or_none: bool) -> None:
    for value in WRONG_INTEGERS:
        if value is None and or_none:
            make(value)
            continue
        with pytest.raises(
            (TypeError, ValueError), match=rf"(?s){name}.*expected|expected.*{name}"
        ):
            make(value)


NUMBERS: list[tuple[Make, str, bool]] = [
    (lambda v: cayley.RNN(3, 8, 2, dropout=v), "dropout", False),
    (lambda v: cayley.NCGRU(3, 8, 2, dropout=v), "dropout", False),
    (lambda v: cayley.SpectralRNN(3, 8, margin=v), "margin", False),
    (lambda v: cayley.ENRNN(3, 4, 4, eps=v), "eps", False),
    (lambda v: cayley.NCGRU(3, 8, tolerance=v), "tolerance", True),
    (lambda v: SpectralSVD(8, margin=v), "margin", False),
    (lambda v: EigenvalueNormalization(8, eps=v), "eps", False),
    (lambda v: LongShort(4, 4, eps=v), "eps", False),
]


@pytest.mark.parametrize(("make", "name", "or_none"), NUMBERS)
def test_constructors_take_numbers_only(make: Make, name: str, or_none: bool) -> None:
    for value in WRONG_NUMBERS:
        # a tolerance without an end tolerates everything
        if (value is None and or_none) or (name, value) == ("tolerance", math.inf):
            make(value)
            continue
        with pytest.raises((TypeError, ValueError), match=rf"expected.*{name}.*got"):
            make(value)


def test_constructors_take_names_and_functions_only() -> None:
    for value in (None, 3, ["tanh"], "nonsense"):
        for network in (cayley.RNN, cayley.ScoRNN, cayley.NCGRU):
            with pytest.raises(ValueError, match=r"expected the nonlinearity .*got"):
                network(3, 8, nonlinearity=value)  # pyrefly: ignore[bad-argument-type]
        if value is not None:
            with pytest.raises((TypeError, ValueError), match=r"expected .*maps.*got"):
                cayley.RNN(3, 8, recurrent=value)  # pyrefly: ignore[bad-argument-type]
    for value in (None, 3, "reset", ("output",), ([],)):
        with pytest.raises(ValueError, match=r"expected orthogonal to hold .*got"):
            cayley.NCGRU(3, 8, orthogonal=value)  # pyrefly: ignore[bad-argument-type]
    for value in ({"bias": 3}, {"bais": None}, ["bias"], 3):
        with pytest.raises((TypeError, ValueError), match=r"expected .*initializers|unknown init"):
            cayley.RNN(3, 8, initializers=value)  # pyrefly: ignore[bad-argument-type]
