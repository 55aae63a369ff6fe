import csv
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from statistics import mean
from urllib.parse import unquote

import pytest
from lab.report.folders import make_recipe, write_run

from cayley.lab.recipes import find_recipe
from cayley.lab.recipes.views import find_view
from cayley.lab.report.figures import Figure
from cayley.lab.report.pages import draw_all, write_markdown, write_page
from cayley.lab.report.reading import Problem, read_runs
from cayley.lab.report.rows import Report, Section
from cayley.lab.report.summary import summarize

# moves the pointer over the first chart, then changes all axes
PROBE = """
<script>
setTimeout(() => {
  const chart = document.querySelector(".chart svg");
  const box = chart.getBoundingClientRect();
  const place = {clientX: box.x + box.width / 2, clientY: box.y + 60, bubbles: true};
  for (const kind of ["pointerover", "pointermove", "mouseover", "mousemove"])
    document.elementFromPoint(place.clientX, place.clientY)
      .dispatchEvent(new PointerEvent(kind, place));
  for (const box of document.querySelectorAll(".scales input")) box.click();
  for (const head of document.querySelectorAll('[data-key="ours"] button')) head.click();
  for (const box of document.querySelectorAll("figure select[name=time]")) {
    box.value = "time";
    box.dispatchEvent(new Event("change", {bubbles: true}));
  }
}, 1500);
</script>
"""

# puts into the title how many columns the legend below the last chart has, and whether it fits
LEGEND_PROBE = """
<script>
setTimeout(() => {
  const labels = document.querySelectorAll("#compare .chart .role-legend-label text");
  const boxes = [...labels].map((label) => label.getBoundingClientRect());
  const columns = new Set(boxes.map((box) => Math.round(box.left))).size;
  const inside = boxes.every((box) => box.right <= document.documentElement.clientWidth);
  document.title = `${columns} columns, all inside: ${inside}`;
}, 1500);
</script>
"""


class Cells(HTMLParser):
    """The cells of the tables: for each body, the label, the exact value and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[list[tuple[str, float | None, str]]] = []
        self.tags: dict[str, int] = {}
        self.addresses: list[str] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags[tag] = self.tags.get(tag, 0) + 1
        # names of XML dialects are not addresses of anything
        self.addresses += [
            value for key, value in named.items() if value and "//" in value and "xmlns" not in key
        ]
        if tag == "tbody":
            self.bodies.append([])
        self.inside = tag in ("td", "th", "small", "strong", "span") and bool(self.bodies)
        if tag in ("td", "th") and self.bodies:
            value = named.get("data-value")
            label = named.get("data-label") or tag
            self.bodies[-1].append((label, None if value is None else float(value), ""))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside and self.bodies and self.bodies[-1]:
            label, value, text = self.bodies[-1][-1]
            self.bodies[-1][-1] = (label, value, (text + " " + data.strip()).strip())


def read_page(page: str) -> Cells:
    cells = Cells()
    cells.feed(page)
    return cells


def make_page(runs: Path) -> str:
    report = summarize(*read_runs([runs]))
    return write_page(report, draw_all(report), "2026-11-15")


def check_numbers(page: str, runs: Path) -> None:
    """The numbers of the page are those of the run folders, to the last digit."""
    bodies = {
        next((text for _, _, text in body), ""): {label: value for label, value, _ in body}
        for body in read_page(page).bodies
    }
    results = [
        json.loads(path.read_text())["selected"]["test"]["scores"]["accuracy"]
        for path in sorted(runs.glob("scornn/mnist-170/paper-seed????/result.json"))
    ]
    assert len(results) == 3
    assert bodies["scornn/mnist-170"]["Ours"] == mean(results)
    assert bodies["scornn/mnist-170"]["Published"] == 0.973
    assert bodies["scornn/mnist-170"]["Gap"] == mean(results) - 0.973
    (path,) = runs.glob("lstm/*/*/result.json")
    scores = json.loads(path.read_text())["selected"]["test"]["scores"]
    assert bodies["lstm/mnist-128"]["Ours"] == scores["accuracy"]
    assert bodies["scornn/pmnist-170"]["Ours"] is None


@pytest.mark.slow
def test_tables_need_no_scripts(runs: Path) -> None:
    page = make_page(runs)
    check_numbers(page, runs)
    speech = next(body for body in read_page(page).bodies if body[0][2] == "scornn/timit300-425")
    ours = [(value, text) for label, value, text in speech if label == "Ours"]
    assert ours == [
        (1.43, "1.430"),
        (4.2, "4.200"),
        (0.82, "0.8200"),
        (1.43, "1.430"),
        (2.31, "2.310"),
    ]
    # a chart does, and says so
    said = re.findall(r"<noscript>(.*?)</noscript>", page, re.DOTALL)
    assert len(said) == 4
    assert all("cayley report --figures" in one for one in said)
    assert "authors&#39; code. Not stated in the paper: training.batch." in page
    for word in ("0.9728 ± 0.0017", "within spread", "model.hidden=64", "16,415", "NVIDIA H200"):
        assert word in page
    assert "secret-host" not in page
    assert "/home/someone" not in page


def write_figure(folder: Path) -> Path:
    """Runs of two curves of a figure, one with several seeds, and of a row of another table."""
    names = {"scornn/mnist-170": (5544, 5545), "scornn/mnist-360": (5544,)}
    for name, seeds in (*names.items(), ("lstm/characters-350", (5544,))):
        recipe = find_recipe(name).recipe()
        for seed in seeds:
            write_run(
                folder,
                recipe,
                seed,
                scores={"accuracy": 0.96 + 0.01 * (seed - 5544), "cross_entropy": 0.1},
                start={"accuracy": 0.1, "cross_entropy": 2.3},
                baseline={"accuracy": 0.1135, "cross_entropy": 2.3},
            )
    return folder


def test_figures_and_tables_have_their_coverage(tmp_path: Path) -> None:
    page = make_page(write_figure(tmp_path))
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.partition("<script")[0]))
    assert "Helfrich 2020, Figure 2.8 Pixel MNIST in rows, over epochs 2 of 6" in text
    # one that another shows leads there
    assert re.search(r'Ye 2018, Figure 3</td><td><a href="#helfrich2020-figure-2.8">', page)
    assert "Helfrich 2020, Table 2.4: TIMIT, 300 epochs, with scores of the sound, 4 rows." in text
    section = page.partition('<section id="helfrich2020-figure-2.8">')[2].partition("</section>")[0]
    assert "<strong>2 of 6 rows run</strong>" in section
    assert "<summary>4 not run</summary>" in section
    assert "<code>scornn/mnist-512</code>" in section
    # its numbers are in the table
    assert '<table class="results">' not in section
    table = page.partition('<section id="helfrich2020-table-2.5">')[2].partition("</section>")[0]
    view = find_view("helfrich2020-table-2.5")
    rest, never = len(view.curves) - 1, len(view.not_runnable)
    assert f"<summary>{rest} not run, {never} cannot be</summary>" in table
    assert "GORU 512: Quoted from another paper" in table


def test_downloads_are_in_the_page(tmp_path: Path) -> None:
    """A table is a ``data:`` address, which needs no network."""
    page = make_page(write_figure(tmp_path))
    found = dict(re.findall(r'download="([^"]+)" href="data:[^,]+,([^"]+)"', page))
    assert {"coverage.csv", "helfrich2020-table-2.1.csv", "helfrich2020-table-2.1.tex"} <= {*found}
    rows = [*csv.DictReader(io.StringIO(unquote(found["helfrich2020-table-2.1.csv"])))]
    assert {row["recipe"] for row in rows} == {"scornn/mnist-170", "scornn/mnist-360"}
    assert unquote(found["helfrich2020-table-2.1.tex"]).startswith("% \\usepackage{booktabs}")


def test_a_sweep_stays_readable(tmp_path: Path) -> None:
    """What all rows share stands above them, and the chart has as many lines as can be told."""
    for k in range(48):
        changes = [
            "training.steps=100",
            f"model.hidden={8 + k // 8}",
            f"optim.lr={1e-4 * 2 ** (k % 8)}",
        ]
        recipe = find_recipe("quickstart").recipe(overrides=changes)
        write_run(
            tmp_path,
            recipe,
            scores={"mse": 0.1 + 0.001 * k},
            start={"mse": 1.0},
            baseline={"mse": 1.0},
            overrides=tuple(changes),
            suffix=f"-{k}",
        )
    report = summarize(*read_runs([tmp_path]))
    figures = draw_all(report)
    (section,) = report.sections
    assert len(section.rows) == 48
    assert section.common == ("training.steps = 100, not 2500",)
    page = write_page(report, figures, "2026-11-16")
    assert page.count("<small>training.steps = 100") == 0
    assert "All rows: <code>quickstart (training.steps = 100, not 2500)</code>." in page
    assert '<tbody data-recipe="model.hidden = 8, optim.lr = 0.0001"' in page
    (figure,) = figures[section.name]
    lines = [trace["row"] for trace in figure.spec["data"]["values"]]
    assert len(lines) == len(set(lines)) == 16
    assert lines[0] == "model.hidden = 8, optim.lr = 0.0001"
    assert "The 16 rows of 48 that end best" in figure.caption
    curves = re.search(r'name="curves">(.*?)</script>', page, re.DOTALL)
    assert curves is not None
    assert len(json.loads(curves[1])) == 48 * 2


def test_rows_can_be_sorted_by_every_number(runs: Path) -> None:
    page = make_page(runs)
    heads = set(re.findall(r'<th[^>]* data-key="(\w+)"', page))
    for body in re.findall(r"<tbody data-recipe=[^>]*>", page):
        assert heads - {"where", "what", "share"} <= set(re.findall(r"data-(\w+)=", body))
    assert 'data-recipe="scornn/mnist-170" data-ours="0.97283' in page


def test_samples_are_in_the_page(tmp_path: Path) -> None:
    runs = write_figure(tmp_path)
    folder = next((runs / "lstm" / "characters-350").iterdir())
    (folder / "sample.txt").write_text("to be <or> not")
    (folder / "sample-predicted.wav").write_bytes(b"RIFF")
    page = make_page(runs)
    assert "<pre>to be &lt;or&gt; not</pre>" in page
    assert '<audio controls src="data:audio/wav;base64,UklGRg=="></audio>' in page
    assert "media-src data:" in page


def test_links_have_places(tmp_path: Path) -> None:
    page = make_page(write_figure(tmp_path))
    links = re.findall(r'href="#([^"]+)"', page)
    assert len(links) > 5
    assert set(links) <= set(re.findall(r'<section id="([^"]+)"', page))


def test_coverage_in_markdown(tmp_path: Path) -> None:
    report = summarize(*read_runs([write_figure(tmp_path)]))
    text = write_markdown(report, draw_all(report), PurePosixPath("figures"))
    assert (
        "Helfrich 2020, Figure 2.8: 2 of 6 rows run, by `cayley reproduce "
        "helfrich2020-figure-2.8`. Numbers of its rows: Helfrich 2020, Table 2.1. Not run: "
        "`scornn/mnist-512`, `lstm/mnist-256`, `urnn/mnist-2170`, `full-urnn/mnist-512`." in text
    )
    assert "GORU 512 cannot be: Quoted from another paper" in text
    assert "![Figure 2.8: test accuracy](figures/helfrich2020-figure-2.8-test-accuracy.png)" in text


def test_nothing_comes_from_outside(runs: Path) -> None:
    page = make_page(runs)
    cells = read_page(page)
    assert cells.addresses == []
    assert not {"link", "img", "iframe", "object"} & set(cells.tags)
    # the scripts of the charts know addresses, which the policy of the page forbids to use
    assert "default-src 'none'" in page
    bundle: str = max(re.findall(r"<script>(.*?)</script>", page, re.DOTALL), key=len)
    rest = page.replace(bundle, "").replace("http://www.w3.org/", "")
    assert "://" not in rest


@pytest.mark.slow
def test_words_of_others_are_only_words(tmp_path: Path) -> None:
    recipe = make_recipe("mine", "mine", {"name": "LSTM", "hidden": 8})
    write_run(
        tmp_path,
        recipe,
        scores={"mse": 0.1},
        start={"mse": 1.0},
        baseline={"mse": 1.0},
        rule="</script><script>alert(1)</script>",
        overrides=("task.path=<b>&</b>",),
    )
    page = make_page(tmp_path)
    assert "alert(1)</script>" not in page
    assert "task.path=&lt;b&gt;&amp;&lt;/b&gt;" in page


def test_a_page_without_figures(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    page = make_page(tmp_path)
    assert "<script" not in page
    assert "left out: expected a run in" in page


def open_page(
    page: str, probe: str, folder: Path, width: int = 1200
) -> subprocess.CompletedProcess[str]:
    """Open a page in a browser, with a script at its end, and print what has become of it."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no chromium: apt-get install chromium")
    path = folder / "report.html"
    before, end, after = page.rpartition("</body>")
    path.write_text(before + probe + end + after)
    return subprocess.run(
        [
            browser,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            f"--user-data-dir={folder / 'profile'}",
            "--enable-logging=stderr",
            f"--window-size={width},3000",
            "--virtual-time-budget=6000",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )


def test_in_a_browser(runs: Path, tmp_path: Path) -> None:
    done = open_page(make_page(runs), PROBE, tmp_path)
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert said == []
    check_numbers(done.stdout, runs)
    live = re.sub(r"<noscript>.*?</noscript>", "", done.stdout, flags=re.DOTALL)
    # the last is that of all rows
    assert len(re.findall(r'<svg[^>]*class="marks"', live)) == 5
    assert live.count(">minutes of training</text>") == 5
    table = live.partition('<section id="images">')[2].partition("</section>")[0]
    ours = re.findall(r'<tbody data-recipe="([^"]+)" data-ours="([^"]*)"', table)
    numbers = [float(value) for _, value in ours if value]
    assert numbers == sorted(numbers)
    assert [name for name, value in ours if not value] == ["scornn/pmnist-170"]
    assert ours[-1][0] == "scornn/pmnist-170"
    tooltip = re.findall(r'<div id="vg-tooltip-element".*?</div>', done.stdout, re.DOTALL)
    assert len(tooltip) == 1
    assert re.search(r"curve.*(scornn|lstm)/mnist-", tooltip[0], re.DOTALL)
    assert re.search(r"epoch.*\d", tooltip[0], re.DOTALL)
    assert "undefined" not in tooltip[0]


@pytest.mark.parametrize(
    ("letters", "width", "columns"),
    [(4, 1200, 4), (24, 1200, 2), (48, 1200, 1), (14, 1200, 4), (14, 500, 3), (29, 500, 1)],
)
def test_the_legend_of_chosen_rows_fits_the_page(
    letters: int, width: int, columns: int, tmp_path: Path
) -> None:
    for letter in "abcd":
        recipe = make_recipe(letters * letter, "mine", {"name": "LSTM", "hidden": 8})
        scores = {"scores": {"mse": 0.1}, "start": {"mse": 1.0}, "baseline": {"mse": 1.0}}
        write_run(tmp_path, recipe, **scores)
    done = open_page(make_page(tmp_path), LEGEND_PROBE, tmp_path, width)
    assert f"<title>{columns} columns, all inside: true</title>" in done.stdout


FIGURE = Figure("curve", "a_b: test MSE", "A line a run.", {}, "step", {"step": "step"}, True, True)


def markdown(runs: Path, folder: PurePosixPath | None) -> list[str]:
    report = summarize(*read_runs([runs]))
    figures = {section.name: [FIGURE] for section in report.sections}
    return write_markdown(report, figures, folder).splitlines()


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_rows_of_markdown(runs: Path) -> None:
    lines = markdown(runs, None)
    rows = [cells(line) for line in lines if line.startswith("|")]
    assert {len(row) for row in rows} == {10}
    (row,) = [row for row in rows if row[0] == "scornn/mnist-170"]
    assert row == [
        "scornn/mnist-170",
        "test accuracy †",
        "0.9728 ± 0.0017",
        "0.973 (Helfrich 2020, Table 2.1, and 1 more)",
        "−0.0002 equal",
        "0.1135",
        "3",
        "16,415 (printed 16k)",
        "55 s an epoch",
        "A",
    ]
    (row,) = [row for row in rows if row[0] == "scornn/pmnist-170"]
    assert row[2:5] == ["–", "0.943 (Helfrich 2020, Table 2.1)", "–"]
    assert row[6] == "0, and 1 unfinished"


def test_markdown_names_problems_and_machines(runs: Path) -> None:
    lines = markdown(runs, None)
    assert len([line for line in lines if line.startswith("- ")]) == 4
    assert any(line.startswith("**B** (2 runs): device x86") for line in lines)


def test_markdown_of_headings_and_problems_is_text() -> None:
    """Names and messages are of the runs, which may be anybody's."""
    wild = "a`b` <b> [c](d)\n# e"
    section = Section("mine", wild, ())
    report = Report((section,), (), (Problem(Path("runs", "x`y\nz"), f"left out: {wild}"),))
    lines = write_markdown(report, {}, None).splitlines()
    tame = r"a\`b\` \<b\> \[c\](d) \# e"
    assert rf"## {tame}" in lines
    assert rf"- runs/x\`y z: left out: {tame}" in lines


def test_figures_of_markdown_are_linked_where_they_are(runs: Path) -> None:
    assert not any(line.startswith("![") for line in markdown(runs, None))
    lines = markdown(runs, PurePosixPath("../figures"))
    assert lines.count("![a\\_b: test MSE](../figures/curve.png)") == 3
    lines = markdown(runs, PurePosixPath("my figures"))
    assert lines.count("![a\\_b: test MSE](my%20figures/curve.png)") == 3
