"""Numbers for readers: four digits, and the same decimals for numbers that are compared."""

import math
import re
import textwrap
from collections.abc import Sequence

__all__ = [
    "align",
    "counted",
    "decimals",
    "duration",
    "escape_markdown",
    "natural_key",
    "number",
    "printed",
    "short_number",
    "signed",
    "spread",
    "time_words",
]

DIGITS = 4


def align(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Lines of columns; only the last one is wrapped, since the others are for copying.

    Arguments:
        rows: The cells, the same number in each row.
        width: The width of a line.

    Example:
        >>> align([["mnist", "0.97"], ["cifar10", "0.5, 0.6"]], 13)
        ['mnist    0.97', 'cifar10  0.5,', '         0.6']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    lines = []
    for *first, last in rows:
        start = "".join(f"{cell:<{w}}  " for cell, w in zip(first, widths, strict=True))
        space = max(width - len(start), 1)
        parts = textwrap.wrap(last, space, break_long_words=False) or [""]
        lines += [(start + parts[0]).rstrip(), *(" " * len(start) + part for part in parts[1:])]
    return lines


def counted(count: int, what: str) -> str:
    """A number of things in words.

    Example:
        >>> counted(1, "run"), counted(2, "run")
        ('1 run', '2 runs')
    """
    return f"{count} {what}" + ("" if count == 1 else "s")


def decimals(value: float) -> int | None:
    """How many decimals show four digits of a number; None if it needs an exponent.

    Example:
        >>> decimals(0.97312), decimals(97.312), decimals(1.2e-5)
        (4, 2, None)
    """
    if value == 0:
        return DIGITS
    if not 1e-3 <= abs(value) < 1e6:
        return None
    return max(0, DIGITS - 1 - math.floor(math.log10(abs(value))))


def natural_key(text: str) -> list[tuple[float, str]]:
    """A key that sorts texts with numbers in them as a reader would.

    Example:
        >>> sorted(["n = 16, x", "n = 8, y", "m"], key=natural_key)
        ['m', 'n = 8, y', 'n = 16, x']
        >>> sorted(["lr = 0.01", "lr = 1e-05", "lr = 0.002"], key=natural_key)
        ['lr = 1e-05', 'lr = 0.002', 'lr = 0.01']
    """
    # words and numbers in turn, a word first
    parts = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", text)
    return [(float(part), "") if k % 2 else (0.0, part) for k, part in enumerate(parts)]


def number(value: float, like: float | None = None) -> str:
    """A number with four digits, or with the decimals of another one.

    Example:
        >>> number(0.9731), number(0.97, like=12.0), number(0.0), number(1.23456e-5)
        ('0.9731', '0.97', '0.0000', '1.235e-05')
    """
    places = decimals(value if like is None else like)
    return f"{value:.{DIGITS - 1}e}" if places is None else f"{value:.{places}f}"


def short_number(value: float) -> str:
    """A number with at most four digits.

    Example:
        >>> short_number(0.16666), short_number(97.312), short_number(1e-5)
        ('0.1667', '97.31', '1e-05')
    """
    return f"{value:.4g}"


def spread(mean: float, deviation: float | None) -> str:
    """A mean with its standard deviation, if that is known.

    Example:
        >>> spread(0.97312, 0.00119), spread(0.97312, None)
        ('0.9731 ± 0.0012', '0.9731')
    """
    if deviation is None:
        return number(mean)
    return f"{number(mean)} ± {number(deviation, like=mean)}"


def printed(value: float, deviation: float | None) -> str:
    """A published number, with no digit added.

    Example:
        >>> printed(0.973, None), printed(81.5, 0.6)
        ('0.973', '81.5 ± 0.6')
    """
    return f"{value:g}" if deviation is None else f"{value:g} ± {deviation:g}"


def signed(value: float, like: float) -> str:
    """A difference, with its sign and the decimals of the numbers it is a difference of.

    Example:
        >>> signed(-0.004, like=0.9731), signed(0.0, like=97.0)
        ('−0.0040', '0.00')
    """
    words = number(abs(value), like)
    if float(words) == 0:
        return words
    return ("−" if value < 0 else "+") + words


def time_words(seconds: float) -> str:
    """A time in a suitable unit.

    Example:
        >>> time_words(0.00312), time_words(62.07), time_words(725)
        ('3.12 ms', '62.1 s', '12.1 min')
    """
    for factor, unit in ((1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h")):
        # 1000 ms, 120 s and 120 min are where the next unit begins
        if seconds < factor * (1000 if unit == "ms" else 120) or unit == "h":
            break
    value = seconds / factor
    return f"{value:.3g} {unit}" if value < 100 else f"{value:.0f} {unit}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds.

    Example:
        >>> duration(3725.2)
        '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def escape_markdown(text: str) -> str:
    r"""Text that Markdown shows as it is, in one line.

    Example:
        >>> print(escape_markdown("a_b|c\n# d"))
        a\_b\|c \# d
    """
    text = " ".join(text.splitlines())
    return "".join("\\" + letter if letter in "\\|_*`[]<>#&~" else letter for letter in text)
