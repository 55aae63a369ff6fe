"""The package as a whole: what importing it does, and what the README shows."""

import ast
import importlib
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from processes import run_after_torch

import cayley

ROOT = Path(__file__).parent.parent


def test_public_names_exist_and_are_sorted() -> None:
    for module in (
        cayley,
        cayley.activations,
        cayley.layers,
        cayley.diagnostics,
        cayley.norms,
        cayley.optim,
        cayley.parametrizations,
        cayley.preconditioners,
        cayley.recurrences,
    ):
        assert len(set(module.__all__)) == len(module.__all__)
        for name in module.__all__:
            assert hasattr(module, name), f"{module.__name__}.{name}"


def test_an_installation_has_all_files() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["cayley"]
    # setup.py compiles the C code
    compiled = ("kernels/cpu/src", "__pycache__")
    package = ROOT / "cayley"
    for path in package.rglob("*"):
        name = path.relative_to(package)
        if (
            path.is_dir()
            or path.suffix in (".py", ".so")
            or any(part in name.as_posix() for part in compiled)
        ):
            continue
        assert any(name.match(pattern) for pattern in patterns), name


def test_texts_are_read_and_written_alike_on_every_machine() -> None:
    for path in Path(cayley.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "_text(" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                names = [keyword.arg for keyword in node.keywords]
                is_file = node.func.attr in ("read_text", "write_text")
                assert not is_file or "encoding" in names, f"{path}:{node.lineno}"


def test_modules_import_public_names_of_one_another() -> None:
    """What a module gives to others is in its ``__all__``; the rest may change at will."""
    folder = Path(cayley.__file__).parent
    files = [*folder.rglob("*.py")]
    names = [".".join(path.relative_to(folder.parent).with_suffix("").parts) for path in files]
    modules = {name.removesuffix(".__init__") for name in names} - {"cayley.__main__", "cayley.cli"}
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module in modules - {"cayley"}:
                source = importlib.import_module(node.module)
                for name in (alias.name for alias in node.names):
                    known = f"{node.module}.{name}" in modules or name in source.__all__
                    assert known, f"{path}: {name} is not in the __all__ of {node.module}"


def test_every_network_of_the_registry_is_public() -> None:
    for name, network in cayley.layers.NETWORKS.items():
        assert network.__name__ == name
        assert getattr(cayley, name) is network
        assert name in cayley.__all__
        assert name in cayley.layers.__all__


def test_import_brings_torch_and_nothing_else() -> None:
    script = (
        "import sys, torch; before = set(sys.modules); rng = torch.get_rng_state()\n"
        "import cayley\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "new -= set(sys.stdlib_module_names) | {'cayley', 'torch'}\n"
        "assert not new, new\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert torch.equal(rng, torch.get_rng_state())\n"
        "assert 'torch._dynamo' not in set(sys.modules) - before\n"
    )
    run_after_torch(script)


@pytest.mark.slow
def test_in_the_command_torch_is_imported_with_the_first_name_that_needs_it() -> None:
    script = (
        "import pickle, sys\n"
        "sys.argv[0] = '/usr/bin/cayley'\n"
        "import cayley\n"
        "assert set(cayley.__all__) <= set(dir(cayley))\n"
        "assert 'torch' not in sys.modules\n"
        "from cayley import ScoRNN\n"
        "assert 'torch' in sys.modules\n"
        "assert cayley.layers.ScoRNN is cayley.ScoRNN is ScoRNN\n"
        "assert 'ScoRNN' in vars(cayley)\n"
        "assert pickle.loads(pickle.dumps(ScoRNN)) is ScoRNN\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


@pytest.mark.slow
def test_operators_are_there_for_saved_programs() -> None:
    names = ("elman", "gru", "lstm", "window_statistics", "dominant_eigenpair", "inverse_of")
    script = f"assert all(hasattr(torch.ops.cayley, name) for name in {names})"
    run_after_torch(f"import torch, cayley\n{script}")
    script = f"import cayley, torch\n{script}"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_names_are_those_of_their_modules() -> None:
    with pytest.raises(AttributeError, match="module 'cayley' has no attribute 'ScoRMN'"):
        _ = cayley.ScoRMN  # pyrefly: ignore[missing-attribute]
    tree = ast.parse(Path(cayley.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    # what a type checker is told is what there is
    assert set(typed) == set(cayley.__all__)
    for name, module in typed.items():
        home = importlib.import_module(f"cayley.{name}" if module == "cayley" else str(module))
        assert getattr(cayley, name) is (home if module == "cayley" else getattr(home, name))


@pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="the README is not installed")
def test_code_of_the_readme_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        # in float32, as a reader's session, whatever this suite's default is
        script = f"import torch\ntorch.set_default_dtype(torch.float32)\n{block}"
        exec(compile(script, "README.md", "exec"), {})


def test_the_package_is_the_command() -> None:
    pytest.importorskip("rich", reason="the command needs the extra lab")
    command = [sys.executable, "-m", "cayley", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: cayley ")


def test_ctrl_c_during_the_imports_of_the_command_is_a_line(tmp_path: Path) -> None:
    """The module that stands for any of them is one that only the command imports."""
    (tmp_path / "argparse.py").write_text("raise KeyboardInterrupt")
    command = [sys.executable, "-m", "cayley", "list"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGINT
    assert (done.stdout, done.stderr) == ("", "cayley: stopped before anything had begun\n")
    (tmp_path / "argparse.py").write_text("raise ValueError('other')")
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ValueError: other" in done.stderr
