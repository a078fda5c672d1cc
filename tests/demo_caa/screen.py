"""What happens while the demo runs, in the order in which it is seen, and how it is shown."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from queue import SimpleQueue

from rich.console import Console
from rich.text import Text

from demo.display import printable
from tests.demo_caa.comparison import Row
from tests.servers.site import Answer, Request, Site, Wire

_GID = re.compile(r"([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
#: Width of the column of labels.
_LABEL = 9
_COLOURS = {"retry": "yellow", "failed": "red", "refused": "red", "SQL": "cyan", "equal": "green", "$": "bold"}

#: Called with a request and the status that it is about to be answered with.
Note = Callable[[Request, int], None]


@dataclass(frozen=True, slots=True)
class DemoEvent:
    """One thing that happened. `label` is one short word."""

    label: str
    text: str


class Events:
    """Takes events from any thread, and gives them out in their order."""

    def __init__(self) -> None:
        self._events: SimpleQueue[DemoEvent] = SimpleQueue()
        self.last = time.monotonic()

    def add(self, event: DemoEvent) -> None:
        """Note an event."""
        self._events.put(event)
        self.last = time.monotonic()

    def take(self) -> list[tuple[DemoEvent, int]]:
        """Remove and return what happened since, equal ones in a row as one with their number."""
        taken = (self._events.get() for _ in range(self._events.qsize()))
        return [(event, len(list(equal))) for event, equal in groupby(taken)]


def short(text: str) -> str:
    """Return a text in which of each gid the beginning is left."""
    return _GID.sub(r"\1…", text)


def observe(server: Site, note: Note) -> None:
    """Have a server report each request before it answers: what comes of the answer comes later."""
    route = server.route

    def noted(request: Request) -> Answer:
        answer = route(request)

        def note_and_answer(request: Request, wire: Wire) -> None:
            send = wire.send

            def send_first(data: bytes) -> None:
                wire.send = send  # type: ignore[method-assign]
                note(request, int(data.split(b" ", 2)[1]))
                send(data)

            wire.send = send_first  # type: ignore[method-assign]
            answer(request, wire)

        return note_and_answer

    server.route = noted  # type: ignore[method-assign]


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
