from pathlib import Path

import pytest
import vl_convert

from cayley.lab.report.scripts import load_scripts


@pytest.fixture
def bundled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was bundled; bundling takes seconds."""
    calls: list[str] = []

    def bundle(snippet: str, version: str) -> str:
        calls.append(snippet)
        return f"scripts {version}"

    monkeypatch.setattr(vl_convert, "javascript_bundle", bundle)
    return calls


def test_scripts_are_bundled_once(
    tmp_path: Path, bundled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAYLEY_CACHE", str(tmp_path / "cache"))
    assert load_scripts() == load_scripts() == "scripts 6.1"
    assert len(bundled) == 1
    monkeypatch.setattr("cayley.lab.report.scripts.version", lambda _: "999")
    load_scripts()
    assert len(bundled) == 2


def test_a_cache_that_cannot_be_written_is_said(
    tmp_path: Path, bundled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CAYLEY_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match="set CAYLEY_CACHE to a folder of your own"):
        assert load_scripts() == "scripts 6.1"
    assert len(bundled) == 1
