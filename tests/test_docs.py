"""The site: every block of code runs, and what pages name exists."""

import ast
import doctest
import importlib
import json
import re
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch

import cayley
from cayley.lab.recipes import published, tables
from cayley.lab.recipes.data import data_set

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# what the command writes has no code
WRITTEN = {"results.md", "verdicts.md"}
PAGES = sorted(
    path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if path.name not in WRITTEN
)
BLOCK = re.compile(
    r"^(?:% needs: (?P<needs>[\w, ]+)\n)?```(?P<kind>python|pycon)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
FIGURES = sorted(path.stem for path in (DOCS / "figures").glob("*.py") if path.stem[0] != "_")

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="the site is not installed")


@pytest.fixture
def as_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In float32, as a reader's session, and where files may be written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    before = set(sys.modules)
    yield
    torch.set_default_dtype(dtype)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith((str(tmp_path), "./")):
            del sys.modules[name]


def run_block(kind: str, code: str, name: str, names: dict[str, object]) -> None:
    if kind == "python":
        exec(compile(code, name, "exec"), names)
        return
    test = doctest.DocTestParser().get_doctest(code, names, name, name, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    said: list[str] = []
    runner.run(test, out=said.append, clear_globs=False)
    assert not runner.failures, "".join(said)
    names |= test.globs


def is_there(need: str) -> bool:
    """Whether what a block needs is there: a package, or ``gpu``."""
    return torch.cuda.is_available() if need == "gpu" else find_spec(need) is not None


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.usefixtures("as_a_reader")
def test_code_of_a_page_runs(page: str) -> None:
    """All blocks of a page, in order, in one namespace."""
    text = (DOCS / page).read_text()
    names: dict[str, object] = {"__name__": "page"}
    torch.manual_seed(0)
    for block in BLOCK.finditer(text):
        needs = re.findall(r"\w+", block["needs"] or "")
        if all(map(is_there, needs)):
            line = text[: block.start("code")].count("\n")
            # the numbers of lines in a traceback are those of the page
            code = "\n" * line * (block["kind"] == "python") + block["code"]
            with warnings.catch_warnings():
                if needs:
                    # those of other packages are not ours to cure
                    warnings.simplefilter("ignore")
                run_block(block["kind"], code, page, names)


def test_every_block_of_python_is_seen() -> None:
    """An indented or otherwise unusual fence would not be run."""
    for page in PAGES:
        text = (DOCS / page).read_text()
        assert len(re.findall(r"```(?:python|pycon)", text)) == len(BLOCK.findall(text)), page


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.usefixtures("as_a_reader")
def test_figures_are_drawn_by_their_scripts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    assert (DOCS / "figures" / f"{name}.svg").exists(), "python docs/figures draws it"
    monkeypatch.syspath_prepend(str(DOCS / "figures"))
    # under a name of its own: modules of the tests have some of these names
    spec = spec_from_file_location(f"figure_{name}", DOCS / "figures" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.draw().axes


def test_figures_are_shown_and_drawn() -> None:
    text = "".join((DOCS / page).read_text() for page in PAGES)
    assert set(re.findall(r"figures/(\w+)\.svg", text)) == set(FIGURES)


def test_tests_that_pages_name_exist() -> None:
    for page in PAGES:
        for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (DOCS / page).read_text()):
            tree = ast.parse((ROOT / path).read_text())
            found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            assert name in found, f"{page}: {path}::{name}"


def test_every_public_module_has_a_page() -> None:
    text = "".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    pages = re.findall(r"<!-- generated: names ([\w.]+) -->", text)
    modules = {f"cayley.{name}" for name in cayley.__all__ if name in MODULES}
    assert modules <= set(pages)


MODULES = {path.stem for path in (ROOT / "cayley").glob("*.py")} | {
    path.parent.name for path in (ROOT / "cayley").glob("*/__init__.py")
}


@pytest.mark.parametrize("name", ["docstrings", "equations"])
def test_examples_of_the_extensions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx")
    pytest.importorskip("latex2mathml")
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_generated_parts_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx")
    pytest.importorskip("rich", reason="the command needs the extra lab")
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    generated = importlib.import_module("generated")
    for page in PAGES:
        text = (DOCS / page).read_text()
        if generated.MARK.search(text):
            assert "<!-- generated" not in generated.expand(text), page


def test_times_of_steps_are_a_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS / "_ext"))
    generated = importlib.import_module("generated")
    monkeypatch.setattr(generated, "RESULTS", tmp_path)
    machine = {"machine": "a machine", "threads": 1, "torch": "2", "date": "today"}
    rows = [
        {"run": "nn.RNNCell", "n": 32, "milliseconds": 0.05, "ratio": 1.0},
        {"run": "ScoRNN.step", "n": 170, "milliseconds": 0.25, "ratio": 4.0},
    ]
    (tmp_path / "steps.json").write_text(json.dumps({"machine": machine, "rows": rows}))
    text = generated.expand("<!-- generated: speed steps -->")
    assert "| nn.RNNCell | 50 (1.0) | – |" in text
    assert "| ScoRNN.step | – | 250 (4.0) |" in text


def test_numbers_of_the_readme_are_those_of_the_results() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    results = (DOCS / "results.md").read_text()
    needs = {
        number: data_set(entry.recipe().task)
        for table in tables().values()
        for entry in table.entries
        for number in entry.recipe().reported
    }
    closed = ("timit", "ogbn-products", "ogbn-proteins")
    runnable = sum(name not in closed for name in needs.values())
    printed = len(published.results())
    assert f"The papers print {printed} numbers. {runnable} of them can be run" in text
    assert 2 * sum(name == "timit" for name in needs.values()) > printed - runnable
    counts = re.search(r"(\d+) published numbers measured", results)
    places = re.search(r"printed in (\d+) places", results)
    assert counts is not None
    assert places is not None
    assert f"{places[1]} have been measured so far, {counts[1]} without repetitions" in text
    for words in ("better", "equal", "within spread", "worse", "from one seed"):
        count = re.search(rf"(\d+) {words}", results)
        assert count is not None
        assert re.search(rf"{count[1]} (are )?{words}", text), words
    for network, recipe in (("ScoRNN", "scornn/pmnist-170"), ("LSTM", "lstm/pmnist-128")):
        accuracy = re.search(rf"^\| {recipe} \| test accuracy † \| ([\d.]+)", results, re.MULTILINE)
        assert accuracy is not None
        assert f"{network} {100 * float(accuracy[1]):.1f} %" in text
    verdicts = (DOCS / "verdicts.md").read_text()
    for outcome, words in (
        ("claims", "claims"),
        ("hold", "hold"),
        ("do not hold", "do not"),
        ("undecided", "are undecided"),
        ("cannot be run", "cannot be run"),
    ):
        count = re.search(rf"(\d+) {outcome}", verdicts)
        assert count is not None
        assert f"{count[1]} {words}" in text, outcome


def test_speeds_of_the_readme_are_those_of_the_results() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    rows = json.loads((ROOT / "results" / "networks-cpu.json").read_text())["rows"]
    cpu = [row["speed over nn.LSTM"] for row in rows if row["network"] == "ScoRNN"]
    numbers = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight"}
    least, most = (numbers[round(find(cpu))] for find in (min, max))
    assert f"ScoRNN is {least} to {most} times as fast as `nn.LSTM`" in text
    rows = json.loads((ROOT / "results" / "recurrences-gpu.json").read_text())["rows"]
    gpu = [row["cuDNN LSTM, ms"] / row["both, ms"] for row in rows]
    assert f"{min(gpu):.2g} to {max(gpu):.2g} times as fast as cuDNN's LSTM" in text


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (ROOT / link).exists(), link
