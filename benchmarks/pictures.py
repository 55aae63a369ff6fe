"""Pictures of what the benchmarks measured, as PNG."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

# colour, line and marker: a colour for each recurrence, its peers dashed or dotted
STYLES = {
    "floor": ("black", "-", ""),
    "nn.RNN(relu)": ("tab:blue", "--", "."),
    "ScoRNN, naive loop": ("tab:blue", ":", "."),
    "ScoRNN": ("tab:blue", "-", "o"),
    "nn.GRU": ("tab:orange", "--", "."),
    "NCGRU": ("tab:orange", "-", "o"),
    "nn.LSTM": ("tab:green", "--", "."),
    "LSTM": ("tab:green", "-", "o"),
    "LSTM(layer)": ("tab:red", "-", "o"),
}


def draw_networks(rows: list[dict], machine: dict[str, object], path: Path) -> None:
    """A panel for each shape, a line for each network, its loops on the same line."""
    shapes = list(dict.fromkeys((row["B"], row["n"], row["T"]) for row in rows))
    every = dict.fromkeys(row["network"] for row in rows)
    names = [name for name in every if name != "floor" and not name.endswith("loop")]
    figure, grid = plt.subplots(
        1,
        len(shapes),
        figsize=(2 + 3.4 * len(shapes), 2 + 0.27 * len(names)),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for panel, shape in zip(grid[0], shapes, strict=True):
        here = {r["network"]: r for r in rows if (r["B"], r["n"], r["T"]) == shape}
        floor = here["floor"]["milliseconds"]
        panel.axvline(floor, color="black", linewidth=1, label="floor")
        for kind, mark, colour in (
            ("naive loop", "x", "tab:red"),
            ("compiled loop", "+", "tab:purple"),
            ("torch.nn", "s", "tab:gray"),
            ("ours", "o", "tab:blue"),
        ):
            loop = f", {kind}" if kind.endswith("loop") else ""
            chosen = [
                (here[name + loop], place)
                for place, name in enumerate(names)
                if name + loop in here and (loop or name.startswith("nn.") == (kind == "torch.nn"))
            ]
            if chosen:
                milliseconds = [row["milliseconds"] for row, _ in chosen]
                places = [place for _, place in chosen]
                panel.plot(milliseconds, places, mark, color=colour, label=kind, linestyle="")
        left, right = (end(row["milliseconds"] for row in here.values()) for end in (min, max))
        panel.set(
            xscale="log",
            xlim=(left / 1.5, right * 4),
            xlabel="forward + backward, ms",
            title="B = {}, n = {}, T = {}".format(*shape),
        )
        ratios = {
            place: f"{here[name]['over floor']:.1f}"
            for place, name in enumerate(names)
            if name in here
        }
        for place, ratio in {-1: "× floor", **ratios}.items():
            panel.text(right * 3.4, place, ratio, ha="right", va="center", fontsize=8)
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.tick_params(axis="x", labelsize=8)
        panel.set_yticks(range(len(names)), names)
        panel.set_ylim(len(names) - 0.5, -1.6)
        panel.grid(alpha=0.3)
    figure.legend(
        *grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False
    )
    _save(figure, machine, path)


def draw_curves(rows: list[dict], machine: dict[str, object], path: Path) -> None:
    """Times, and below them their ratio to the floor; a column for each curve."""
    curves = list(dict.fromkeys(row["curve"] for row in rows))
    figure, grid = plt.subplots(
        2, len(curves), figsize=(13, 7.5), sharex="col", sharey="row", layout="constrained"
    )
    for panels, axis in zip(grid.T, curves, strict=True):
        here = [row for row in rows if row["curve"] == axis]
        values = sorted({row[axis] for row in here})
        for name, (colour, line, mark) in STYLES.items():
            points = [row for row in here if row["network"] == name]
            for panel, key in zip(panels, ("milliseconds", "over floor"), strict=True):
                panel.loglog(
                    [row[axis] for row in points],
                    [row[key] for row in points],
                    label=name,
                    color=colour,
                    linestyle=line,
                    marker=mark,
                )
        panels[0].set_title(", ".join(f"{k} = {here[0][k]}" for k in "BnT" if k != axis))
        panels[1].set_xlabel(axis)
        for panel in panels:
            panel.minorticks_off()
            panel.set_xticks(values, map(str, values))
            panel.yaxis.set_major_formatter("{x:g}")
            panel.grid(alpha=0.3)
    grid[0, 0].set_ylabel("forward + backward, ms")
    grid[1, 0].set_ylabel("ratio to the floor")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    _save(figure, machine, path)


def draw_scaling_out(rows: list[dict], machine: dict[str, object], path: Path) -> None:
    """Steps a second and share of communication over the number of processes, by network."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    counts = sorted({row["processes"] for row in rows})
    for name in dict.fromkeys(row["network"] for row in rows):
        own = [row for row in rows if row["network"] == name]
        places = [row["processes"] for row in own]
        (line,) = left.plot(places, [row["steps a second"] for row in own], marker="o", label=name)
        ideal = [count * own[0]["steps a second"] / places[0] for count in counts]
        left.plot(counts, ideal, color=line.get_color(), linewidth=1, linestyle=":")
        right.plot(places, [100 * row["communication"] for row in own], marker="o", label=name)
    left.set(xlabel="processes", ylabel="steps a second (dotted: ideal)", xticks=counts)
    left.set_yscale("log")
    right.set(xlabel="processes", ylabel="share of communication in %", xticks=counts)
    left.legend()
    _save(figure, machine, path)


def draw_throughput(rows: list[dict], machine: dict[str, object], path: Path) -> None:
    """Runs per hour over the number of runs at once; one at a time is a level."""
    figure, panel = plt.subplots(figsize=(7, 4.5), layout="constrained")
    counts = sorted({row["runs"] for row in rows})
    for way in dict.fromkeys(row["way"] for row in rows):
        own = [row for row in rows if row["way"] == way]
        heights = [row["runs per hour"] for row in own]
        if way.startswith("one at a time"):
            style = "--" if way.endswith("graph") else ":"
            panel.axhline(heights[0], color="black", linewidth=1, linestyle=style, label=way)
        else:
            panel.plot([row["runs"] for row in own], heights, marker="o", label=way)
    panel.set(xlabel="runs at once", ylabel="runs per hour", xticks=counts, ylim=(0, None))
    panel.grid(alpha=0.3)
    panel.legend()
    _save(figure, machine, path)


def _save(figure: Figure, machine: dict[str, object], path: Path) -> None:
    figure.suptitle(
        f"{machine['machine']}, {machine['threads']} thread(s), torch {machine['torch']}, "
        f"{machine['precision']}, medians of {machine['repeat']}"
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)
