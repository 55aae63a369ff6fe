import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import CONTEXT, call
from torch.distributed import HashStore, TCPStore

from cayley.lab.errors import MachineError
from cayley.lab.processes import Processes
from cayley.lab.runs import Interrupts
from cayley.lab.runs.connecting import connect, meet


def test_processes_that_are_started_again_do_not_believe_those_before_them() -> None:
    store = HashStore()
    words = []
    for _ in range(3):
        with ThreadPoolExecutor(3) as threads:
            found = [*threads.map(lambda rank: meet(store, rank, 3, 20.0), range(3))]
        assert len({*found}) == 1
        words += found[:1]
    assert len({*words}) == 3


def wait_for_others(port: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    with Interrupts():
        connect(Processes(0, 2), on_gpus=False)


@pytest.mark.slow
def test_torchrun_can_end_a_process_that_waits_for_others() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    process = CONTEXT.Process(target=call, args=(__file__, "wait_for_others", str(store.port)))
    process.start()
    store.wait(["cayley/words"])
    assert process.pid is not None
    os.kill(process.pid, signal.SIGTERM)
    process.join(20)
    code = process.exitcode
    process.kill()
    assert code == -signal.SIGTERM


def test_a_process_that_nobody_meets_says_so() -> None:
    store = HashStore()
    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(lambda rank: meet(store, rank, 2, 20.0), range(2))]
    for rank in range(2):
        with pytest.raises(MachineError, match="expected 2 processes of a run to connect"):
            meet(store, rank, 2, 0.05)
