import math
from typing import Any

import pytest
import torch

from cayley.lab.tasks.synthetic import Copying
from cayley.lab.tasks.synthetic.copying import copying


@pytest.mark.parametrize("T", [1, 5, 30])
@pytest.mark.parametrize("delta", [0, 1])
def test_layout(T: int, delta: int) -> None:
    """δ = 1: T zeros, 9, nine zeros. δ = 0: T − 1 zeros, 9, ten zeros."""
    x, y = copying(torch.arange(50), T, delta=delta)
    zeros = T if delta else T - 1
    for column, target in zip(x.t().tolist(), y.t().tolist(), strict=True):
        digits = column[:10]
        assert all(1 <= digit <= 8 for digit in digits)
        assert column[10:] == [0] * zeros + [9] + [0] * (20 + T - 10 - zeros - 1)
        assert target == [0] * (T + 10) + digits
        # the first digit is due at the marker, or one step after it
        assert target.index(digits[0]) - column.index(9) == 1 - delta


def test_digits_are_uniform() -> None:
    x, _ = copying(torch.arange(4000), 1)
    counts = torch.stack([(x[:10] == digit).sum(1) for digit in range(1, 9)]).double()
    assert (counts - 500).abs().max() < 4 * math.sqrt(500)


@pytest.mark.parametrize(
    ("T", "printed"), [(100, 0.17329), (200, 0.09452), (1000, 0.020387), (2000, 0.010294)]
)
def test_baselines_of_the_papers(T: int, printed: float) -> None:
    digits = len(str(printed)) - 2
    assert round(Copying(T=T).baseline("test")["cross_entropy"], digits) == printed


def test_input_is_one_hot() -> None:
    batch: Any = next(Copying(T=3).batches("test", 7))
    symbols, _ = copying(torch.arange(7), 3, stream=("copying", 0, "test"))
    assert torch.equal(batch.input.argmax(-1), symbols)
    assert torch.equal(batch.input.sum(-1), torch.ones(23, 7))


def test_sizes_of_the_paper() -> None:
    task = Copying()
    assert (task.input_size, task.output_size) == (10, 9)
    assert [task.size(split) for split in ("train", "test")] == [20_000, 1_000]


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"task\.delta: expected 0 or 1, got 2"):
        Copying(delta=2)  # pyrefly: ignore[bad-argument-type]
