from pathlib import Path

import pytest
from lab.sweeps.made_up import begin, finish

from cayley.lab.errors import RecipeError, RunError
from cayley.lab.sweeps import open_storage
from cayley.lab.sweeps.storage import _ServerLock, explain_storage

pytest.importorskip("optuna", reason="sweeps need the extra sweep")


def test_half_a_line_of_a_journal_is_cut_off(tmp_path: Path) -> None:
    sweep = begin(tmp_path)
    finish(sweep)
    with open(tmp_path / "sweeps.journal", "ab") as file:
        file.write(b'{"op_code": 4, "wor')
    assert finish(begin(tmp_path)) == 1
    assert [trial.number for trial in begin(tmp_path).study.trials] == [0, 1]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("runs/sweeps.journal", "expected journal:///path, sqlite:///path"),
        ("journal://", "expected journal:///path/of/a/file"),
        ("sqlite://", "expected sqlite:///path/of/a/file"),
        ("postgresql+psycopg2://me@host/db", "write postgresql+psycopg://"),
        ("mysql://me@host/db", "write mysql+pymysql://"),
        ("mysql+nonsense://me@host/db", "mysql.nonsense): pip install pymysql"),
        ("oracle://me@host/db", "expected journal:///path"),
    ],
)
def test_addresses_of_storages(url: str, words: str) -> None:
    with pytest.raises((RecipeError, RuntimeError)) as caught:
        open_storage(url)
    assert words in str(caught.value)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(RecipeError, match="me:\\*\\*\\*@host") as caught:
        open_storage("mariadb+pymysql://me:secret@host/db")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("got", ["0", "NULL"])
def test_a_lock_that_mysql_does_not_give(got: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_ServerLock.TAKE, "mysql", f"SELECT {got}")
    lock = _ServerLock("sqlite://", "mysql")
    with pytest.raises(RunError, match="expected a lock of the database server"), lock.hold():
        pass


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    url = f"postgresql+psycopg://me:secret@/db?host={tmp_path}"
    with pytest.raises(RunError, match="could not use the storage") as caught:
        open_storage(url)
    assert "secret" not in str(caught.value)


def test_an_error_names_the_reason_alone() -> None:
    """Not the statement, as SQLAlchemy does, which Optuna hides behind an error of its own."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import OperationalError

    reason = OperationalError("SELECT a FROM trials", None, Exception("connection lost"))
    words = "storage mysql://me@host/db: connection lost. The same"
    with pytest.raises(RunError, match=words), explain_storage("mysql://me@host/db"):
        raise StorageInternalError("raised during the commit") from reason
    with pytest.raises(RunError, match=words), explain_storage("mysql://me@host/db"):
        raise reason
