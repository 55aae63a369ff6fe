from pathlib import Path, PurePosixPath

from cayley.lab.report.figures import Figure
from cayley.lab.report.markdown import write_markdown
from cayley.lab.report.reading import read_runs
from cayley.lab.report.summary import summarize

FIGURE = Figure("curve", "a_b: test MSE", "A line a run.", {}, "step", True, True)


def write(runs: Path, folder: PurePosixPath | None) -> list[str]:
    report = summarize(*read_runs([runs]))
    figures = {section.name: [FIGURE] for section in report.sections}
    return write_markdown(report, figures, folder).splitlines()


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_rows(runs: Path) -> None:
    lines = write(runs, None)
    rows = [cells(line) for line in lines if line.startswith("|")]
    assert {len(row) for row in rows} == {10}
    (row,) = [row for row in rows if row[0] == "scornn/mnist-170"]
    assert row == [
        "scornn/mnist-170",
        "test accuracy †",
        "0.9728 ± 0.0017",
        "0.973 (Helfrich 2020, Table 2.1, and 1 more)",
        "−0.0002 within spread",
        "0.1135",
        "3",
        "16,415 (printed 16k)",
        "55 s an epoch",
        "A",
    ]
    (row,) = [row for row in rows if row[0] == "scornn/pmnist-170"]
    assert row[2:5] == ["–", "0.943 (Helfrich 2020, Table 2.1)", "–"]
    assert row[6] == "0, and 1 unfinished"


def test_problems_and_machines_are_named(runs: Path) -> None:
    lines = write(runs, None)
    assert len([line for line in lines if line.startswith("- `")]) == 4
    assert any(line.startswith("**B** (2 runs): device x86") for line in lines)


def test_figures_are_linked_where_they_are(runs: Path) -> None:
    assert not any(line.startswith("![") for line in write(runs, None))
    lines = write(runs, PurePosixPath("../figures"))
    assert lines.count("![a\\_b: test MSE](../figures/curve.png)") == 3
