"""How the demo is shown: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from demo.answers import Answer
from demo.watch import Snapshot

#: Seconds between two plain lines while nothing else is to be told.
_EVERY = 1.0
_COLOURS = {"retry": "yellow", "dead": "red", "pack": "green"}


class Screen(Protocol):
    """Where the demo tells its story."""

    def say(self, text: str) -> None:
        """Print a line."""

    def show(self, snapshot: Snapshot) -> None:
        """Show how things stand."""

    def answer(self, answer: Answer) -> None:
        """Print a query and its hits."""


class Plain:
    """Lines of plain text, without any control character."""

    def __init__(self) -> None:
        self._console = Console(color_system=None, force_terminal=False, highlight=False, soft_wrap=True)
        self._shown = (0.0, "")

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(Text(printable(text)))

    def show(self, snapshot: Snapshot) -> None:
        """Print what happened since, and about once a second one line of how things stand."""
        for event in snapshot.fresh:
            self.say(f"  {event.text}")
        then, before = self._shown
        line, now = status_line(snapshot), time.monotonic()
        if now - then >= _EVERY and line != before:
            self.say(line)
            self._shown = (now, line)

    def answer(self, answer: Answer) -> None:
        """Print a query and its hits."""
        for line in answer_lines(answer):
            self._console.print(line)


class Terminal:
    """A panel that is drawn anew below the lines that were printed, while `live` lasts."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live: Live | None = None

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show a panel in the block."""
        with Live(console=self._console, auto_refresh=False, vertical_overflow="crop") as live:
            self._live = live
            yield
        self._live = None

    def say(self, text: str) -> None:
        """Print a line, above the panel if there is one."""
        self._console.print(Text(printable(text)))

    def show(self, snapshot: Snapshot) -> None:
        """Draw the panel anew."""
        if self._live is not None:
            self._live.update(panel(snapshot), refresh=True)

    def answer(self, answer: Answer) -> None:
        """Print a query and its hits, what matches in bold."""
        for line in answer_lines(answer):
            indent = len(line.plain) - len(line.plain.lstrip(" "))
            self._console.print(Padding(line[indent:], (0, 0, 0, indent)) if indent else line)


def status_line(snapshot: Snapshot) -> str:
    """Return how things stand in one line."""
    depths = snapshot.depths
    queues = " ".join(f"{name.removeprefix('site.')} {count}" for name, count in depths.work.items())
    return (
        f"{snapshot.indexed}/{snapshot.seen} pages, {snapshot.rate:.0f} a second; queues: {queues} "
        f"waiting {depths.waiting} dead {depths.dead}; {_timer(snapshot)}; {_pack(snapshot)}"
    )


def panel(snapshot: Snapshot) -> Panel:
    """Return the panel: it fits on 80 columns and 24 lines."""
    head = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=max(1, snapshot.seen), completed=snapshot.indexed, width=30)
    head.add_row("Pages", bar, f"{snapshot.indexed} of {snapshot.seen} indexed, {snapshot.rate:.0f} pages/s")
    facts = Table.grid(padding=(0, 1))
    facts.add_row("Timer", _timer(snapshot))
    facts.add_row("Pack", _pack(snapshot))
    lines = [_event_line(event.kind, event.text) for event in snapshot.events]
    events = Group(*(lines or [Text("No failure yet.", "dim")]))
    return Panel(Group(head, facts, _queues(snapshot), Text(), events), title="Perennial", border_style="dim")


def _queues(snapshot: Snapshot) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("Queue", style="cyan")
    table.add_column("ready", justify="right")
    for name, count in snapshot.depths.work.items():
        table.add_row(name, str(count))
    table.add_row("site.delay.*", str(snapshot.depths.waiting), style="yellow" if snapshot.depths.waiting else "")
    table.add_row("site.dead", str(snapshot.depths.dead), style="red" if snapshot.depths.dead else "")
    return table


def _event_line(kind: str, text: str) -> Text:
    return Text(printable(text), _COLOURS[kind], no_wrap=True, overflow="ellipsis")


def _timer(snapshot: Snapshot) -> str:
    if snapshot.timer is None:
        return "no timer"
    return f"{snapshot.callback} in {max(0.0, snapshot.timer):.0f} s" + (" or later" if snapshot.open else "")


def _pack(snapshot: Snapshot) -> str:
    pack = snapshot.pack
    if pack is None:
        return "no pack yet"
    return f"pack {pack.generation} ({pack.kind}): {pack.pages} pages, {pack.size / 1e6:.1f} MB"


def answer_lines(answer: Answer) -> Iterator[Text]:
    """Yield a query and its hits, what matches marked."""
    results = answer.found
    found = f"{results.total} pages" if results.total != 1 else "1 page"
    yield Text(f"\nSearch for “{printable(answer.query)}”: {found} in {results.seconds * 1_000:.0f} ms", "bold")
    for hit in results.hits:
        yield Text(f"  {printable(hit.title or hit.path)}", "bold cyan")
        yield Text(f"    {printable(hit.url)}", "cyan")
        snippet = Text("    ")
        for piece, marked in hit.snippet.pieces:
            snippet.append(printable(piece), "bold yellow" if marked else "")
        yield snippet
    if results.total > len(results.hits):
        yield Text(f"  and {results.total - len(results.hits)} more", "dim")


def printable(text: str) -> str:
    """Return the text without what a terminal would obey: a page must not write escape sequences of its own."""
    return "".join(character if character.isprintable() or character == "\n" else " " for character in text)
