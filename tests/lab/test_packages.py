import sys
from importlib import metadata
from pathlib import Path

import pytest

from cayley.lab import packages
from cayley.lab.importing import import_class
from cayley.lab.packages import explain_missing, find_extra

MODULES = {
    "lab": "jinja2 matplotlib numpy rich safetensors scipy shtab tomli_w vl_convert",
    "graph": "torch_geometric",
    "hub": "huggingface_hub",
    "sweep": "optuna psycopg sqlalchemy",
    "cluster": "ray",
    "speech": "pesq pystoi soundfile",
    "tensorboard": "tensorboard",
    "": "torch",
}


@pytest.mark.parametrize("extra", MODULES)
def test_what_an_extra_installs_is_known_by_the_metadata(extra: str) -> None:
    assert {find_extra(module) for module in MODULES[extra].split()} == {extra}


def test_what_no_extra_installs() -> None:
    assert find_extra("package_of_nobody") is None
    # nor do those for developers count
    assert find_extra("pytest") is None
    assert find_extra("sphinx") is None


def missing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The message if a file of the user's own imports a module that is missing."""
    (tmp_path / "my_needy_file.py").write_text(f"import {name}\nclass Mine: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_needy_file", raising=False)
    with pytest.raises(ModuleNotFoundError) as caught:
        import_class("my_needy_file:Mine")
    return explain_missing(caught.value)


def test_the_file_that_imports_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a module that is missing in a package that is there
    for name in ("package_of_nobody", "numpy.of_nobody"):
        said = missing(name, tmp_path, monkeypatch)
        assert said.startswith(
            f"expected the module {name}, got none: {tmp_path / 'my_needy_file'}"
        )
        assert "pip install" not in said


def test_what_an_extra_installs_is_advised_whoever_imports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    said = missing("torch_geometric", tmp_path, monkeypatch)
    assert "pip install 'cayley[graph]' installs it" in said


def test_what_cayley_imports_is_in_an_extra_even_if_it_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def requires(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    monkeypatch.setattr(packages, "CAYLEY", Path(__file__).parent)
    with pytest.raises(ModuleNotFoundError) as caught:
        import package_of_nobody  # pyrefly: ignore[missing-import]  # noqa: F401
    assert "pip install 'cayley[lab]' installs it" in explain_missing(caught.value)
