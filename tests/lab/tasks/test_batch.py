from typing import Any

import pytest

from cayley.lab.tasks.batch import Position, check_batch_size, following


def test_following_counts_epochs() -> None:
    positions = [Position()]
    for _ in range(7):
        positions.append(following(positions[-1], 3))
    assert positions == [Position(e, b) for e in range(3) for b in range(3)][:8]
    assert Position(0, 2) < Position(1, 0)


@pytest.mark.parametrize(
    ("B", "error"), [(0, ValueError), (-1, ValueError), (2.0, TypeError), (True, TypeError)]
)
def test_a_batch_has_a_positive_number_of_examples(B: Any, error: type[Exception]) -> None:
    check_batch_size(1)
    with pytest.raises(error, match="expected B to be"):
        check_batch_size(B)
