from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from cayley.lab.errors import MachineError
from cayley.lab.runs.connecting import meet


def test_processes_that_are_started_again_do_not_believe_those_before_them() -> None:
    store = HashStore()
    words = []
    for _ in range(3):
        with ThreadPoolExecutor(3) as threads:
            found = [*threads.map(lambda rank: meet(store, rank, 3, 20.0), range(3))]
        assert len({*found}) == 1
        words += found[:1]
    assert len({*words}) == 3


def test_a_process_that_nobody_meets_says_so() -> None:
    store = HashStore()
    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(lambda rank: meet(store, rank, 2, 20.0), range(2))]
    for rank in range(2):
        with pytest.raises(MachineError, match="expected 2 processes of a run to meet"):
            meet(store, rank, 2, 0.05)
