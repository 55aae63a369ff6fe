import csv
import io
from pathlib import Path

import pytest

from cayley.lab.report.pages import list_tables
from cayley.lab.report.reading import read_runs
from cayley.lab.report.summary import summarize
from cayley.lab.report.tables import Table, escape_latex


@pytest.fixture
def tables(runs: Path) -> dict[str, Table]:
    return {table.name: table for table in list_tables(summarize(*read_runs([runs])))}


def test_every_section_and_the_coverage_are_tables(tables: dict[str, Table]) -> None:
    assert {*tables} == {"coverage", "images", "quickstart", "speech"}
    assert all(len(row) == len(one.heads) for one in tables.values() for row in one.rows)


def test_csv_has_all_digits(tables: dict[str, Table]) -> None:
    found = [*csv.DictReader(io.StringIO(tables["images"].csv()))]
    (row,) = (one for one in found if one["recipe"] == "scornn/mnist-170" and not one["changes"])
    values = [float(value) for value in row["values"].split("; ")]
    assert values == [0.9712, 0.9745, 0.9728]
    assert float(row["mean"]) == sum(values) / 3
    assert float(row["published"]) == 0.973
    assert (row["split"], row["metric"], row["verdict"]) == ("test", "accuracy", "equal")
    coverage = [*csv.DictReader(io.StringIO(tables["coverage"].csv()))]
    (figure,) = (one for one in coverage if one["view"] == "helfrich2020-figure-2.8")
    assert (figure["rows"], figure["run"]) == ("6", "0")
    assert "scornn/mnist-512" in figure["missing"].split("; ")


def test_latex_has_a_line_for_each_row(tables: dict[str, Table]) -> None:
    lines = tables["images"].latex().splitlines()
    rows = [line for line in lines if line.endswith(r" \\")]
    assert len(rows) == 1 + len(tables["images"].rows)
    assert all(row.count(" & ") == len(tables["images"].heads) - 1 for row in rows)
    assert r"0.9728 $\pm$ 0.0017" in tables["images"].latex()
    assert r"\begin{tabular}{llrrrrrrrl}" in tables["images"].latex()


def test_no_letter_of_a_name_is_an_instruction() -> None:
    words = escape_latex("\\input{x} 100% #1 ~^_&$ a\nb")
    assert words == (
        r"\textbackslash{}input\{x\} 100\% \#1 \textasciitilde{}\textasciicircum{}\_\&\$ a b"
    )


def test_a_table_without_records_has_its_heads() -> None:
    assert Table("a", "", ("x", "y"), (), ()).csv() == "x,y\r\n"
