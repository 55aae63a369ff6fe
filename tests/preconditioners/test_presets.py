"""The settings of the documents."""

import pytest
from torch import nn

from cayley.preconditioners import BNP, Damping, presets


@pytest.mark.parametrize(
    ("name", "damping", "momentum"),
    [
        ("HELFRICH_2020", Damping(0.5), None),
        ("POSPISIL_2023", Damping(1e-4, 1e-2, q=True), 0.99),
        ("RECURRENT", Damping(1e-3), None),
        ("GRAPH", Damping(0.1), None),
    ],
)
def test_presets(name: str, damping: Damping, momentum: float | None) -> None:
    bnp = BNP(nn.Linear(2, 2), **getattr(presets, name))
    assert bnp.damping == damping
    assert bnp.momentum == momentum
    assert name in presets.__all__
