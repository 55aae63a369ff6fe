import sys
from pathlib import Path

import pytest

from cayley.lab.importing import import_class


def test_a_module_that_is_missing_is_told_from_what_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needy.py").write_text("import package_of_nobody")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("module_of_nobody:Foo", "module_of_nobody.part:Foo", "collections.part:Foo"):
        with pytest.raises(ValueError, match=r"expected a module that Python finds, got .*PYTHON"):
            import_class(name)
    with pytest.raises(ModuleNotFoundError, match="package_of_nobody"):
        import_class("needy:Foo")
    assert import_class("collections:Foo") is None


def test_the_current_folder_is_looked_into_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_own_classes.py").write_text("class Mine: ...")
    (tmp_path / "collections.py").write_text("class Mine: ...")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.chdir(tmp_path)
    assert import_class("my_own_classes:Mine").__name__ == "Mine"
    assert import_class("collections:Mine") is None
