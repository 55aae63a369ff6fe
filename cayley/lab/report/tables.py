"""Tables for readers and for programs: Markdown and LaTeX have words, CSV has all digits."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cayley.lab.report.rows import Line, Report, Row, Section
from cayley.lab.wording import escape_markdown, number, printed, signed, spread

__all__ = ["Table", "coverage_table", "describe_line", "escape_latex", "result_table"]

HEADS = (
    "recipe",
    "quantity",
    "ours",
    "published",
    "gap",
    "baseline",
    "seeds",
    "parameters",
    "time",
    "machine",
)
# how to write these characters in LaTeX; all others stay as they are
SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "±": r"$\pm$",
    "−": "$-$",
    "†": r"$\dagger$",
    "ρ": r"$\rho$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "θ": r"$\theta$",
    "λ": r"$\lambda$",
    "×": r"$\times$",
    "–": "--",
    "…": r"\dots{}",
}


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Attributes:
        name: For a file.
        title: What it shows.
        heads: The heads of the columns.
        rows: The cells of each row, as text.
        records: The same with all digits, by name.
        numeric: The indices of columns of numbers.
    """

    name: str
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    records: tuple[Mapping[str, Any], ...]
    numeric: frozenset[int] = frozenset()

    def markdown(self) -> str:
        """As Markdown."""
        places = range(len(self.heads))
        rules = ["---:" if place in self.numeric else "---" for place in places]
        rows = (map(escape_markdown, row) for row in self.rows)
        return "\n".join(f"| {' | '.join(cells)} |" for cells in (self.heads, rules, *rows))

    def latex(self) -> str:
        r"""As LaTeX, with the rules of the package booktabs.

        Example:
            >>> print(Table("a", "A & B", ("x", "y"), (("1_2", "3 ± 4"),), ()).latex())
            % \usepackage{booktabs}
            \begin{table}
              \caption{A \& B}
              \begin{tabular}{ll}
                \toprule
                x & y \\
                \midrule
                1\_2 & 3 $\pm$ 4 \\
                \bottomrule
              \end{tabular}
            \end{table}
        """
        columns = "".join("r" if k in self.numeric else "l" for k in range(len(self.heads)))
        heads, *rows = (
            "    " + " & ".join(map(escape_latex, cells)) + r" \\"
            for cells in (self.heads, *self.rows)
        )
        lines = [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            rf"  \caption{{{escape_latex(self.title)}}}",
            rf"  \begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            heads,
            r"    \midrule",
            *rows,
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines)

    def csv(self) -> str:
        r"""As CSV (RFC 4180): the names of the records, then a line for each; lists with ``; ``.

        Example:
            >>> Table("a", "", (), (), ({"x": 0.1, "y": ["a", "b,c"]}, {"x": None, "y": []})).csv()
            'x,y\r\n0.1,"a; b,c"\r\n,\r\n'
        """
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(self.records[0] if self.records else self.heads)
        writer.writerows(map(_cell, record.values()) for record in self.records)
        return text.getvalue()


def escape_latex(text: str) -> str:
    r"""Text that LaTeX shows as it is.

    Example:
        >>> print(escape_latex(r"50 % of a_b ± {c}"))
        50 \% of a\_b $\pm$ \{c\}
    """
    return "".join(SPECIAL.get(letter, letter) for letter in " ".join(text.split()))


def result_table(section: Section) -> Table:
    """The rows of a section."""
    lines = [(row, line) for row in section.rows for line in row.lines]
    return Table(
        section.name,
        section.title,
        HEADS,
        tuple(_words(row, line) for row, line in lines),
        tuple(describe_line(row, line) for row, line in lines),
        frozenset(range(2, 9)),
    )


def coverage_table(report: Report) -> Table:
    """The figures and tables of the papers, and how much of each was run."""
    records = tuple(
        {
            "view": one.name,
            "source": one.view.source,
            "title": one.title,
            "rows": len(one.shown),
            "run": len(one.shown) - len(one.missing),
            "missing": [shown.words for shown in one.missing],
        }
        for one in report.views
        if one.view is not None
    )
    rows = tuple((one["source"], one["title"], f"{one['run']} of {one['rows']}") for one in records)
    heads = ("where", "what", "rows run")
    return Table("coverage", "Figures and tables", heads, rows, records, frozenset({2}))


def describe_line(row: Row, line: Line) -> dict[str, Any]:
    """A line of a table with all digits."""
    published = line.published
    return {
        "table": row.recipe.table,
        "recipe": row.recipe.name,
        "variant": row.recipe.variant,
        "changes": list(row.changes),
        "split": line.quantity.split,
        "metric": line.quantity.metric,
        "scale": line.quantity.scale,
        "values": list(line.values),
        "mean": line.mean,
        "spread": line.spread,
        "published": None if published is None else published.value,
        "published_spread": None if published is None else published.std,
        "sources": [] if published is None else list(published.sources),
        "gap": line.gap,
        "verdict": line.verdict,
        "baseline": line.baseline,
        "chosen_by": line.chosen_by,
        "parameters": row.parameters,
        "machines": list(row.environments),
    }


def _words(row: Row, line: Line) -> tuple[str, ...]:
    published = gap = "–"
    if line.published is not None:
        value = printed(line.published.value, line.published.std)
        published = f"{value} ({line.published.source})"
    if line.gap is not None and line.mean is not None:
        gap = f"{signed(line.gap, line.mean)} {line.verdict}"
    return (
        row.label,
        line.quantity.label + (" †" if line.optimistic else ""),
        "–" if line.mean is None else spread(line.mean, line.spread),
        published,
        gap,
        "–" if line.baseline is None else number(line.baseline),
        row.seeds + (f", and {row.unfinished} unfinished" if row.unfinished else ""),
        f"{row.parameters:,}" + (f" (printed {row.printed})" if row.printed else ""),
        " ".join(row.time or "–"),
        ", ".join(row.environments),
    )


def _cell(value: Any) -> Any:
    return "; ".join(map(str, value)) if isinstance(value, list) else value
