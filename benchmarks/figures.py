"""Medians, ratios within a round, aims and tables."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table as RichTable

from benchmarks.plots import Plot

#: Figure, aim, measured value, and whether the aim is reached.
Aim = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, lowest and highest value of several runs."""

    median: float
    low: float
    high: float

    def text(self, digits: int) -> str:
        """Return `median (low-high)` with this number of decimal places, without range for a single run."""
        if self.low == self.high:
            return f"{self.median:.{digits}f}"
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of one or more values."""
    return Spread(statistics.median(values), min(values), max(values))


def ratios(values: Sequence[float], others: Sequence[float]) -> Spread:
    """Return the spread of the ratios, each taken within one round.

    Other programs slow both sides of a round alike; the ratio of two medians would mix rounds.
    """
    return spread([own / other for own, other in zip(values, others, strict=True)])


def at_most(figure: str, aim: float, reached: float | Spread, *, digits: int) -> Aim:
    """Return the aim of a figure that must not exceed it; `digits` are decimal places of what it reached."""
    value, text = _value(reached, digits)
    return figure, f"<= {aim:g}", text, "reached" if value <= aim else f"not reached: {value / aim:.2f} times it"


def at_least(figure: str, aim: float, reached: float | Spread, *, digits: int, unit: str = "") -> Aim:
    """Return the aim of a figure that must not be lower; `digits` are decimal places of what it reached."""
    value, text = _value(reached, digits)
    verdict = "reached" if value >= aim else f"not reached: {value / aim:.0%} of it"
    return figure, f">= {aim:g}{unit}", f"{text}{unit}", verdict


def _value(reached: float | Spread, digits: int) -> tuple[float, str]:
    if isinstance(reached, Spread):
        return reached.median, reached.text(digits)
    return reached, f"{reached:.{digits}f}"


@dataclass(frozen=True, slots=True)
class FigureTable:
    """Rows of text below a header, the first column aligned left and the others right."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of_figures(cls, title: str, runs: Iterable[str], figures: Mapping[str, Iterable[str]]) -> FigureTable:
        """Return a table with a row for each figure, whose cells are those of the runs."""
        rows = tuple((name, *cells) for name, cells in figures.items())
        return cls(title, ("figure", *runs), rows)

    def markdown(self) -> str:
        """Return the table as Markdown, its title in bold above it."""
        rule = ("---", *("---:" for _ in self.header[1:]))
        lines = ["| " + " | ".join(row) + " |" for row in (self.header, rule, *self.rows)]
        return "\n".join([f"**{self.title}**", "", *lines])

    def rich(self) -> RichTable:
        """Return the table for a terminal."""
        table = RichTable(title=self.title, title_justify="left")
        for number, name in enumerate(self.header):
            table.add_column(name, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*row)
        return table


def bullets(*texts: str) -> str:
    """Return the texts as a Markdown list, wrapped at 120 characters."""
    wrapper = textwrap.TextWrapper(
        120, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return "".join(f"{wrapper.fill(' '.join(text.split()))}\n" for text in texts)


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A row as it is shown. `others` is the share of the machine, 0 to 1, that other programs took at most."""

    aims: tuple[Aim, ...]
    tables: tuple[FigureTable, ...]
    plots: tuple[Plot, ...] = ()
    others: float = 0.0
