"""Workers that are killed at any moment: no trial is lost, none is counted twice."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import mariadb_server
import postgres
import pytest
from processes import start

pytest.importorskip("optuna", reason="sweeps need the extra sweep")

SCRIPT = Path(__file__).with_name("killed.py")


def kill_workers(folder: Path, url: str) -> dict[str, Any]:
    process = start(folder, str(SCRIPT), "main", folder, url)
    process.join(280)
    errors = (folder / "err").read_text()
    assert process.exitcode == 0, errors
    assert not errors
    return json.loads((folder / "out").read_text().splitlines()[-1])


def check(found: dict[str, Any]) -> None:
    numbers = list(range(20))
    assert found["kills"] >= 10
    assert found["resumed"] > 0
    assert found["states"] == ["COMPLETE"] * 20
    assert found["numbers"] == numbers
    assert found["folders"] == 20
    assert found["reported"] == [[4, 8]] * 20
    # the value of each is that of its run, and of one that nobody disturbed
    assert found["same"]
    assert found["as if undisturbed"]
    # workers with a seed in common do not choose the same
    assert found["different"] == 20
    # nobody was told of one twice; a worker that dies between telling two may leave one out
    assert sorted({*found["told"]}) == found["told"]
    assert {*found["told"]} <= {*numbers}


@pytest.mark.slow
def test_in_a_journal(tmp_path: Path) -> None:
    check(kill_workers(tmp_path, f"journal://{tmp_path / 'sweeps.journal'}"))


@pytest.mark.slow
@pytest.mark.parametrize("server", [postgres, mariadb_server], ids=["postgresql", "mariadb"])
def test_in_a_database(server: ModuleType, tmp_path: Path) -> None:
    with server.serve() as url:
        check(kill_workers(tmp_path, url))
