"""Parts of pages that are made from the code and from results, so that they cannot go stale.

A line ``<!-- generated: KIND ARGUMENT -->`` of a page is replaced by what the function KIND below
makes of ARGUMENT, as Markdown.
"""

import argparse
import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints
from unittest.mock import patch

import torch
from sphinx.application import Sphinx

import cayley
import cayley.layers.recurrent
from cayley.cli import make_parser
from cayley.lab.recipes import schema
from cayley.lab.settings import words

__all__ = ["MARK", "PARTS", "expand", "setup"]

MARK = re.compile(r"^<!-- generated: (\w+) ?(.*?) -->$", re.MULTILINE)
# what subclasses of nn.Module have for torch, and layers for their base
HIDDEN = "   :exclude-members: extra_repr, reset_parameters, run"
DOCS = Path(__file__).parent.parent
RESULTS = DOCS.parent / "results"


def names(module: str) -> str:
    """All public names of a module: a table of them, then each with its docstring."""
    home = import_module(module)
    rows, blocks = [], []
    for name in sorted(home.__all__, key=str.lower):
        value = getattr(home, name)
        if inspect.ismodule(value):
            continue
        # the shortest path that users have
        short = name in cayley.__all__ and getattr(cayley, name) is value
        path = f"cayley.{name}" if short else f"{module}.{name}"
        if inspect.isclass(value):
            block = [f".. autoclass:: {path}", "   :members:", "   :show-inheritance:", HIDDEN]
        elif inspect.isroutine(value):
            block = [f".. autofunction:: {path}"]
        else:
            block = [f".. py:data:: {path}", "", f"   {_summary(value)}"]
        rows.append((f"{{py:obj}}`{path}`", _summary(value).replace("``", "`")))
        blocks.append("\n".join(("```{eval-rst}", *block, "```")))
    return "\n\n".join((_table(("name", "what it is"), rows), *blocks))


def _summary(value: Any) -> str:
    """The first sentence of a docstring, in Markdown, or what a constant holds."""
    if isinstance(value, Mapping):
        return f"A dictionary with the keys {', '.join(f'``{key}``' for key in value)}."
    if isinstance(value, (int, float, str, tuple)):
        return f"``{value!r}``"
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return f"The type ``{value}``.".replace("typing.", "").replace("collections.abc.", "")
    first = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")
    first = re.sub(r":math:`([^`]+)`", r"$\1$", first)
    first = re.sub(r":(\w+):`([^`]+)`", r"{py:\1}`\2`", first)
    return first.replace("``", "`")


def cli(_: str) -> str:
    """Every command of ``cayley`` with its options."""
    parser = make_parser()
    action = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    parts = []
    for name, sub in action.choices.items():
        example = (sub.epilog or "").split("\n")[1].strip()
        with patch.dict(os.environ, COLUMNS="88"):
            usage = sub.format_usage().removeprefix("usage: ")
        rows = [(_argument(a), _help(a)) for a in sub._actions if a.dest != "help"]
        parts += [
            f"## cayley {name}",
            _options_as_code(sub.description or "").strip(),
            f"```console\n$ {example}\n```",
            f"```text\n{usage.strip()}\n```",
            _table(("argument", "meaning"), rows),
        ]
    codes = (parser.epilog or "").partition("\n")[2]
    lines = (re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in codes.strip().split("\n"))
    return "\n\n".join((*parts, "## Exit codes", _table(("code", "meaning"), [*lines])))


def _options_as_code(text: str) -> str:
    return re.sub(r"(?<!\S)--[\w-]+", r"`\g<0>`", text)


def _argument(action: argparse.Action) -> str:
    value = action.metavar or ("" if action.nargs == 0 else action.dest.upper())
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    return ", ".join(f"`{option} {value}`".replace(" `", "`") for option in action.option_strings)


def _help(action: argparse.Action) -> str:
    text = _options_as_code(action.help or "").replace("%(default)s", f"`{action.default}`")
    if action.choices:
        text += f"{'; ' if text else ''}one of {', '.join(f'`{c}`' for c in action.choices)}"
    return text


def recipe(_: str) -> str:
    """What a recipe says, table by table."""
    parts = []
    tables = {"": schema.Recipe} | dict(_tables(schema.Recipe))
    for path, kind in tables.items():
        said, hints = _attributes(kind), get_type_hints(kind, include_extras=True)
        rows = []
        for field in fields(kind):
            if field.metadata:  # further keys
                continue
            default = field.default
            if field.default_factory is not MISSING:
                default = field.default_factory()
            shown = "required" if default is MISSING else f"`{default!r}`"
            may_be = words(hints[field.name])
            if is_dataclass(default) or is_dataclass(hints[field.name]):
                may_be, shown = "a table, below", "required" if default is MISSING else ""
            rows.append((f"`{field.name}`", may_be, shown, said.get(field.name, "")))
        first = (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("``", "`")
        first = re.sub(r":(\w+):`~?([^`]+)`", r"`\2`", first)
        title = f"## The table `[{path}]`" if path else "## The recipe"
        parts += [title, first, _table(("key", "may be", "default", "meaning"), rows)]
    return "\n\n".join(parts)


def _tables(kind: type[Any], above: str = "") -> Iterator[tuple[str, type[Any]]]:
    for name, hint in get_type_hints(kind).items():
        for one in (hint, *get_args(hint)):
            if is_dataclass(one) and isinstance(one, type):
                yield above + name, one
                yield from _tables(one, f"{above}{name}.")


def _attributes(kind: type[Any]) -> dict[str, str]:
    """What the section ``Attributes`` of a docstring says of each, in Markdown."""
    text = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2]
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \S)", text):
        keys, _, meaning = " ".join(entry.split()).partition(": ")
        meaning = re.sub(r":(\w+):`~?([^`]+)`", r"{py:\1}`\2`", meaning).replace("``", "`")
        found |= dict.fromkeys(re.split(r", ", keys), meaning)
    return found


def measured(recipes: str) -> str:
    """Rows of the page of results, which the command has written."""
    lines = (DOCS / "results.md").read_text().splitlines()
    found: dict[str, list[str]] = {}
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 10:
            found.setdefault(cells[0].strip(), cells)
    places = {"quantity": 1, "ours": 2, "published": 3, "baseline": 5, "seeds": 6, "parameters": 7}
    chosen = [found[name] for name in recipes.split()]
    if all(cells[3] == "–" for cells in chosen):
        del places["published"]
    rows = []
    for cells in chosen:
        values = (cells[k].partition(" (")[0] for k in places.values())
        # numbers are not broken into lines
        kept = (value.replace(" ± ", "\u00a0±\u00a0").replace("e-", "e\u2011") for value in values)
        rows.append((f"`{cells[0]}`", *kept))
    return _table(("recipe", *places), rows)


def speed(name: str) -> str:
    """A table of one file of results, with the machine that it was measured on."""
    content = json.loads((RESULTS / f"{name}.json").read_text())
    machine, rows = content["machine"], content["rows"]
    where = (
        f"{machine['machine']}, {machine['threads']} thread{'s' * (machine['threads'] > 1)}, torch "
        f"{machine['torch']}, {machine['date']} ([{name}.json](../../results/{name}.json))."
    )
    if "run" in rows[0]:
        table = _steps(rows)
    elif "processes" in rows[0]:
        table = _processes(rows)
    elif "networks" in rows[0]:
        table = _ensembles(rows)
    elif "ours, ms" in rows[0]:
        table = _complex(rows)
    elif "memory over output" in rows[0]:
        table = _inference(rows)
    elif "network" in rows[0] and "B" in rows[0]:
        table = _by_network(rows)
    elif "network" in rows[0]:
        table = _training(rows)
    elif "what" in rows[0]:
        table = _formation(rows)
    elif "workers" in rows[0]:
        table = _sweeps(rows)
    else:
        table = _by_shape(rows)
    return f"{where}\n\n{table}"


def networks(_: str) -> str:
    """Parameters of the recurrent matrix and speed of every network, at 170 real units."""
    rows = json.loads((RESULTS / "networks-cpu.json").read_text())["rows"]
    shape = {"B": 128, "n": 170, "T": 784}
    speeds = {
        row["network"]: row["speed over nn.LSTM"] for row in rows if shape.items() <= row.items()
    }
    layers: dict[str, tuple[cayley.layers.recurrent.Recurrent, str, str]] = {
        "ScoRNN": (cayley.ScoRNN(1, 170), "n(n−1)/2", "does not forget"),
        "ExpRNN": (cayley.ExpRNN(1, 170), "n(n−1)/2", "does not forget"),
        "ORNN": (cayley.ORNN(1, 170), "about n l, l = 16 reflections", "does not forget"),
        "SpectralRNN": (
            cayley.SpectralRNN(1, 170),
            "about 2 n l + n, l = 16",
            "fades by at most 1 ± r a step",
        ),
        "ScuRNN": (cayley.ScuRNN(1, 85), "n² + n, n complex units", "does not forget"),
        "URNN": (cayley.URNN(1, 85), "7 n, n complex units", "does not forget"),
        "EURNN": (cayley.EURNN(1, 85), "about n (L + 1), L = 2 layers", "does not forget"),
        "FullURNN": (cayley.FullURNN(1, 85), "n², stored as 2 n²", "does not forget"),
        "ENRNN": (
            cayley.ENRNN(1, 114, 56),
            "q(q−1)/2 + s² + q s, q + s = n",
            "one state does, one does not",
        ),
        "NCGRU": (cayley.NCGRU(1, 170), "n² + n(n−1)", "gates decide"),
        "LSTM": (cayley.LSTM(1, 170), "4 n²", "gates decide"),
    }
    lines = []
    for name, (layer, formula, memory) in layers.items():
        matrices = (layer.structured or layer).named_parameters()
        count = sum(
            torch.view_as_real(p).numel() if p.is_complex() else p.numel()
            for key, p in matrices
            if layer.structured or key == "weight_hh_l0"
        )
        lines.append(
            (f"{{py:obj}}`cayley.{name}`", formula, f"{count:,}", f"{speeds[name]:.1f}", memory)
        )
    head = ("network", "parameters of W", "at 170 units", "times as fast as nn.LSTM", "memory")
    return _table(head, lines)


def _shape(row: dict[str, Any]) -> str:
    return f"B{row['B']} n{row['n']} T{row['T']}"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _by_network(rows: list[dict[str, Any]]) -> str:
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        ratio = row["speed over nn.LSTM"]
        cell = f"{_ms(row['milliseconds'])} ({ratio:.1f})"
        found.setdefault(row["network"], {})[_shape(row)] = cell
    shapes = [*dict.fromkeys(map(_shape, rows))]
    lines = [(name, *(cells.get(s, "–") for s in shapes)) for name, cells in found.items()]
    return _table(("ms (times as fast as nn.LSTM)", *shapes), lines)


def _complex(rows: list[dict[str, Any]]) -> str:
    peers = {"real": "a real matrix", "matrix": "W instead of its factors"}
    lines = []
    for row in rows:
        peer = next(key for key in peers if f"{key}, ms" in row)
        times = []
        for key in ("ours", peer):
            alone = row.get(f"{key} on the GPU, ms")
            times.append(_ms(row[f"{key}, ms"]) + ("" if alone is None else f" ({_ms(alone)})"))
        lines.append((row["network"], *times, peers[peer], f"{row[f'over {peer}']:.2f}"))
    gpu = any("ours on the GPU, ms" in row for row in rows)
    head = "ms (the GPU alone)" if gpu else f"{rows[0]['B']} × {rows[0]['T']} steps, ms"
    return _table((head, "ours", "beside", "which has", "times as fast"), lines)


def _inference(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        cells = (
            f"{_ms(row[key])} ({row[memory]:.2f})" if key in row else "–"
            for key, memory in (
                ("ms", "memory over output"),
                ("whole, ms", "whole, memory over output"),
            )
        )
        lines.append((row["network"], *cells))
    head = f"{_shape(rows[0])}, ms (memory over that of the output)"
    return _table((head, "layer", "the same, not divided"), lines)


def _by_shape(rows: list[dict[str, Any]]) -> str:
    shown = {
        "both, ms": "ours",
        "ScoRNN, ms": "ScoRNN, W formed",
        "ScoRNN, graphs, ms": "the same as a CUDA graph",
        "NC-GRU, ms": "NC-GRU, W given",
        "LSTM, ms": "LSTM",
        "LN-LSTM, ms": "LN-LSTM",
        "ATN-LSTM, ms": "ATN-LSTM, windows of 10",
        "BN-LSTM, ms": "BN-LSTM",
        "ATN over batch, ms": "ATN over the batch, windows of 25",
        "loop, ms": "BN-LSTM as a loop of torch operations",
        "cuDNN RNN, ms": "cuDNN tanh RNN",
        "cuDNN RNN, graphs, ms": "the same as a CUDA graph",
        "cuDNN GRU, ms": "cuDNN GRU",
        "cuDNN LSTM, ms": "cuDNN LSTM",
    }
    keys = [key for key in shown if key in rows[0]]
    lines = [(_shape(row), *(_ms(row[key]) for key in keys)) for row in rows]
    return _table(("ms", *(shown[key] for key in keys)), lines)


def _steps(rows: list[dict[str, Any]]) -> str:
    found: dict[str, dict[int, str]] = {}
    for row in rows:
        cell = f"{_ms(1e3 * row['milliseconds'])} ({row['ratio']:.1f})"
        found.setdefault(row["run"], {})[row["n"]] = cell
    sizes = [*dict.fromkeys(row["n"] for row in rows)]
    lines = [(run, *(cells.get(n, "–") for n in sizes)) for run, cells in found.items()]
    return _table(("µs a step (over nn.RNNCell)", *(f"n = {n}" for n in sizes)), lines)


def _processes(rows: list[dict[str, Any]]) -> str:
    lines = [
        (
            row["network"],
            f"B{row['B']} T{row['T']}",
            str(row["processes"]),
            f"{row['steps a second']:.2f}",
            f"{row['speedup']:.2f}",
            f"{100 * row['communication']:.0f} %",
        )
        for row in sorted(rows, key=lambda row: (row["network"], row["processes"]))
    ]
    head = ("network", "shape", "processes", "steps a second", "speedup", "communication")
    return _table(head, lines)


def _ensembles(rows: list[dict[str, Any]]) -> str:
    kinds = ("one at a time", "together", "one at a time, graph", "together, graph")
    lines = [
        (
            row["network"],
            f"B{row['B']} T{row['T']}",
            str(row["networks"]),
            *(_ms(row[f"{kind}, ms"]) for kind in kinds),
        )
        for row in rows
        if row["kind"] == "whole steps"
    ]
    return _table(("ms a step and network", "shape", "networks", *kinds), lines)


def _training(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        share, epoch = row["share of forming W"], row["seconds of an epoch"]
        shown = "–" if share is None else f"{100 * share:.0f} %"
        lines.append((row["network"], _ms(row["milliseconds"]), _ms(epoch), shown))
    return _table(("network", "ms a step", "s an epoch", "forming W"), lines)


def _formation(rows: list[dict[str, Any]]) -> str:
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        found.setdefault(row["what"], {})[row["n"]] = row["milliseconds"]
    sizes = [*dict.fromkeys(row["n"] for row in rows)]
    lines = [(what, *(_ms(cells.get(n)) for n in sizes)) for what, cells in found.items()]
    return _table(("ms", *(f"n = {n}" for n in sizes)), lines)


def _sweeps(rows: list[dict[str, Any]]) -> str:
    lines = [
        (
            str(row["workers"]),
            f"{row['seconds']:.1f}",
            f"{60 * row['trials'] / row['seconds']:.0f}",
            f"{row['speed']:.2f}",
            ", ".join(map(str, row["trials of each"])),
        )
        for row in rows
    ]
    return _table(("workers", "s", "trials a minute", "speed", "trials of each"), lines)


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(c.replace('|', chr(92) + '|') for c in r)} |" for r in lines)


PARTS: dict[str, Callable[[str], str]] = {
    "cli": cli,
    "measured": measured,
    "names": names,
    "networks": networks,
    "recipe": recipe,
    "speed": speed,
}


def expand(page: str) -> str:
    """A page with its generated parts."""
    return MARK.sub(lambda mark: PARTS[mark[1]](mark[2]), page)


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    source[0] = expand(source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Expand every page that is read."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
