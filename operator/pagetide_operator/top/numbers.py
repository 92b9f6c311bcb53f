"""How numbers are printed. Pure."""

from __future__ import annotations

from rich.text import Text

NOTHING = "–"
GOOD, WARN, BAD = "green", "yellow", "red"
# From where a ratio is coloured: nearly full, full.
NEARLY, FULL = 0.8, 0.95


def plain(text: object) -> str:
    """Text from elsewhere, on one line and without what would steer the terminal."""
    return "".join(c if c.isprintable() else " " for c in str(text))


def seconds(value: float | None) -> str:
    """`12 ms`, `1.25 s`."""
    if value is None:
        return NOTHING
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def percent(value: float | None) -> str:
    """`42 %`."""
    return NOTHING if value is None else f"{value * 100:.0f} %"


def count(value: float | None) -> str:
    """`7`."""
    return NOTHING if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """`0.4`, `1,250`."""
    if value is None:
        return NOTHING
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def fullness(value: float | None) -> Text:
    """A share, coloured as it nears 1."""
    style = "" if value is None or value < NEARLY else WARN if value < FULL else BAD
    return Text(percent(value), style)
