"""How the demo is shown: coloured lines on a terminal, and plain ones elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from demo.display import printable
from tests.demo_caa.comparison import Row
from tests.demo_caa.events import DemoEvent, short

#: Width of the column of labels.
_LABEL = 9
_COLOURS = {"retry": "yellow", "failed": "red", "refused": "red", "SQL": "cyan", "equal": "green", "$": "bold"}


class CaaScreen:
    """Prints the story. `is_terminal` says whether a person reads it."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._console = (
            Console(highlight=False)
            if self.is_terminal
            else Console(color_system=None, force_terminal=False, highlight=False, soft_wrap=True)
        )

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(Text(printable(text)))

    def heading(self, text: str) -> None:
        """Print the name of a chapter."""
        self._console.print(Text(f"\n{printable(text)}", "bold"))

    def event(self, event: DemoEvent, count: int = 1) -> None:
        """Print what happened, and how often in a row."""
        text = printable(event.text) + (f"  ({count} times)" if count > 1 else "")
        style = _COLOURS.get(event.label, "")
        self._console.print(Text(f"  {event.label:<{_LABEL}}{text}", style))

    def table(self, rows: Sequence[Row]) -> None:
        """Print what was expected of each item and what was found."""
        cells = [("item", "expected", "", "found")]
        cells += [
            (short(row.gid), row.text(row.expected), "=" if row.equal else "≠", row.text(row.found)) for row in rows
        ]
        widths = [max(len(row[column]) for row in cells) for column in range(4)]
        for number, cell in enumerate(cells):
            line = " ".join(text.ljust(width) for text, width in zip(cell, widths, strict=True)).rstrip()
            self._console.print(Text(f"  {line}", "" if number else "dim"))
