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
