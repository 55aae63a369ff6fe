"""Which units each layer of rotations joins, n = 8: neighbours, and the pattern of the FFT."""

from _style import BLUE, GREY, figure, tidy
from matplotlib.figure import Figure

from cayley.parametrizations import fft_pattern, tunable_pattern

N = 8


def draw() -> Figure:
    picture, pair = figure(2, size=(7, 3), sharey=True)
    patterns = (("layers=4", tunable_pattern(N, 4)), ('layers="fft"', fft_pattern(N)))
    for axes, (title, pattern) in zip(pair, patterns, strict=True):
        for unit in range(N):
            axes.axhline(unit, color=GREY, linewidth=0.5)
        for layer, pairs in enumerate(pattern):
            starts = [
                pairs.offset + 2 * pairs.stride * block + i
                for block in range(pairs.blocks)
                for i in range(pairs.stride)
            ]
            for k, unit in enumerate(starts):
                x = layer + 0.12 * (k % 4) - 0.18
                axes.plot([x, x], [unit, unit + pairs.stride], "o-", color=BLUE, markersize=3)
        tidy(axes, title=title, xlabel="layer of rotations")
        axes.set_xticks(range(len(pattern)), range(1, len(pattern) + 1))
        axes.grid(visible=False)
    pair[0].set_ylabel("unit")
    return picture
