import signal

from cayley.lab.processes import Processes
from cayley.lab.training.agreement import Agreement


def test_one_process_need_not_ask() -> None:
    alone = Agreement(Processes())
    for number, due in ((0, False), (0, True), (signal.SIGTERM, False)):
        assert alone.agree(signal=number, due=due) == (number, due)
    assert alone.longest(1.5) == 1.5
