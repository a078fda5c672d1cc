"""Medians, ratios of one round and tables: what turns runs into a page that people read."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table as RichTable


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of several runs."""

    median: float
    low: float
    high: float

    def text(self, digits: int) -> str:
        """Return `median (low-high)` with so many decimal places; one run alone has no range."""
        if self.low == self.high:
            return f"{self.median:.{digits}f}"
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of one or more values."""
    return Spread(statistics.median(values), min(values), max(values))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Return the spread of ours / theirs, each taken within one round.

    A noisy neighbour slows both sides of a round alike; the ratio of two medians would mix rounds.
    """
    return spread([mine / other for mine, other in zip(ours, theirs, strict=True)])


def verdict(reached: float, aim: float) -> str:
    """Return in words whether a ratio of which more is better reached its aim."""
    return "reached" if reached >= aim else f"not reached: {reached / aim:.0%} of it"


def verdict_below(reached: float, aim: float) -> str:
    """Return in words whether a figure of which less is better came down to its aim."""
    return "reached" if reached <= aim else f"not reached: {reached / aim:.2f} times it"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text below a header, the first column to the left and the others to the right."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

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
