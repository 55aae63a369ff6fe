"""What is built: the names of wheels, what is in a source distribution, and what make says."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy with C code that compiles in no time."""
    folder = tmp_path / "cayley-checkout"
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "build", "*.egg-info", "lab")
    shutil.copytree(ROOT / "cayley", folder / "cayley", ignore=ignored)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
    for name in ("docs/_ext/generated.py", "docs/figures/copying.svg", "results/networks-cpu.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    (folder / "cayley/kernels/cpu/src/native.c").write_text("int cayley_best(void) { return 0; }\n")
    return folder


def build(checkout: Path, *command: str, **environment: str) -> list[str]:
    subprocess.run(
        [sys.executable, "setup.py", "-q", *command, "-d", "dist"],
        cwd=checkout,
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
    )
    return sorted(path.name for path in (checkout / "dist").iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="not in a checkout")
def test_wheels_are_named_by_what_is_in_them(checkout: Path) -> None:
    (name,) = build(checkout, "bdist_wheel", CAYLEY_NO_C="1")
    assert name.endswith("-py3-none-any.whl")
    if shutil.which("gcc") is None and shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    other, name = build(checkout, "bdist_wheel")
    assert other.endswith("-py3-none-any.whl")
    assert "-py3-none-" in name


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="not in a checkout")
def test_a_source_distribution_has_what_its_tests_need(checkout: Path) -> None:
    (name,) = build(checkout, "sdist")
    with tarfile.open(checkout / "dist" / name) as archive:
        members = {member.partition("/")[2] for member in archive.getnames()}
    wanted = {"CHANGELOG.md", "Makefile", "constraints.txt", "conftest.py", "tests/conftest.py"}
    wanted |= {"docs/_ext/generated.py", "docs/figures/copying.svg", "results/networks-cpu.json"}
    wanted |= {"SECURITY.md", "cayley/kernels/cpu/src/native.c", "cayley/kernels/cpu/src/elman.h"}
    assert wanted <= members
    assert not any(member.endswith(".so") for member in members)


@pytest.mark.skipif(not (ROOT / "Makefile").exists(), reason="not in a checkout")
@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_says_what_there_is() -> None:
    text = subprocess.run(
        ["make", "-s", "help"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for target in ("demo", "test", "lint", "bench", "clean"):
        assert f"\n{target} " in text


@pytest.mark.skipif(not (ROOT / "constraints.txt").exists(), reason="not in a checkout")
def test_what_is_pinned_is_asked_for() -> None:
    """Every package of the extras that `make` installs has a version in constraints.txt."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    for extra in ("lab", "graph", "onnx", "sweep", "cluster", "dev"):
        for requirement in extras["optional-dependencies"][extra]:
            name = re.split(r"[\[>]", requirement)[0].lower().replace("_", "-")
            assert name in pinned, requirement
