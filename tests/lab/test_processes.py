import sys

import pytest
import torch.distributed as dist

from cayley.lab.processes import Processes, find_processes

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "mine",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
}


def test_torchrun_says_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not find_processes().several
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    found = find_processes()
    assert found == Processes(5, 8, 1, 4, 2)
    assert (found.several, found.first) == (True, False)


def test_only_the_first_process_prints(capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        with Processes(rank, 2).alone_aloud():
            print(f"process {rank}")
            print(f"process {rank}", file=sys.stderr)
    assert capsys.readouterr() == ("process 0\n", "process 0\n")


def test_one_process_reports_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Processes().claim_report()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    assert [Processes(rank, 3).claim_report() for rank in (2, 0, 1)] == [True, False, False]
    # those that torchrun has started again
    assert Processes(1, 3, restarts=1).claim_report()
