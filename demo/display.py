"""How the demo shows its progress: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from app.search.contract import SearchResult
from demo.monitor import Snapshot

#: Seconds between two plain status lines.
_INTERVAL = 1.0
_COLOURS = {"retry": "yellow", "dead": "red", "pack": "green"}


class PlainDisplay:
    """Lines of plain text without control characters."""

    def __init__(self) -> None:
        self._console = Console(color_system=None, force_terminal=False, highlight=False, soft_wrap=True)
        self._last_status = (0.0, "")

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(Text(printable(text)))

    def show(self, snapshot: Snapshot) -> None:
        """Print the new events, and about once a second a changed status line."""
        for event in snapshot.new_events:
            self.say(f"  {event.text}")
        then, previous = self._last_status
        line, now = status_line(snapshot), time.monotonic()
        if now - then >= _INTERVAL and line != previous:
            self.say(line)
            self._last_status = (now, line)

    def show_result(self, query: str, result: SearchResult) -> None:
        """Print a query and its hits."""
        for line in result_lines(query, result):
            self._console.print(line)


class TerminalDisplay(PlainDisplay):
    """A panel that is redrawn below the printed lines during the `live` block."""

    def __init__(self) -> None:
        super().__init__()
        self._console = Console(highlight=False)
        self._live: Live | None = None

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show the panel during the block."""
        with Live(console=self._console, auto_refresh=False, vertical_overflow="crop") as live:
            self._live = live
            yield
        self._live = None

    def show(self, snapshot: Snapshot) -> None:
        """Redraw the panel."""
        if self._live is not None:
            self._live.update(panel(snapshot), refresh=True)

    def show_result(self, query: str, result: SearchResult) -> None:
        """Print a query and its hits, matches in bold."""
        for line in result_lines(query, result):
            indent = len(line.plain) - len(line.plain.lstrip(" "))
            self._console.print(Padding(line[indent:], (0, 0, 0, indent)) if indent else line)


def status_line(snapshot: Snapshot) -> str:
    """Return the state in one line."""
    depths = snapshot.depths
    queues = ", ".join(f"{name.removeprefix('site.')} {count}" for name, count in depths.work.items())
    return (
        f"{snapshot.indexed}/{snapshot.seen} pages, {snapshot.rate:.0f} pages/s; "
        f"queues: {queues}, delayed {depths.delayed}, dead {depths.dead}; {_timer(snapshot)}; {_pack(snapshot)}"
    )


def panel(snapshot: Snapshot) -> Panel:
    """Return the panel, which fits on 80 columns and 24 lines."""
    head = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=max(1, snapshot.seen), completed=snapshot.indexed, width=30)
    head.add_row("Pages", bar, f"{snapshot.indexed} of {snapshot.seen} indexed, {snapshot.rate:.0f} pages/s")
    facts = Table.grid(padding=(0, 1))
    facts.add_row("Timer", _timer(snapshot))
    facts.add_row("Pack", _pack(snapshot))
    depths = snapshot.depths
    queues = Table(box=None, padding=(0, 2, 0, 0))
    queues.add_column("Queue", style="cyan")
    queues.add_column("ready", justify="right")
    for name, count in depths.work.items():
        queues.add_row(name, str(count))
    queues.add_row("site.delay.*", str(depths.delayed), style="yellow" if depths.delayed else "")
    queues.add_row("site.dead", str(depths.dead), style="red" if depths.dead else "")
    lines = [
        Text(printable(event.text), _COLOURS[event.kind], no_wrap=True, overflow="ellipsis")
        for event in snapshot.recent_events
    ]
    events = Group(*(lines or [Text("No failure yet.", "dim")]))
    return Panel(Group(head, facts, queues, Text(), events), title="Perennial", border_style="dim")


def _timer(snapshot: Snapshot) -> str:
    if snapshot.timer is None:
        return "no timer"
    return f"{snapshot.callback} in {max(0.0, snapshot.timer):.0f} s" + (" or later" if snapshot.open else "")


def _pack(snapshot: Snapshot) -> str:
    pack = snapshot.pack
    if pack is None:
        return "no pack yet"
    return f"pack {pack.generation} ({pack.kind}): {pack.pages} pages, {pack.size / 1e6:.1f} MB"


def result_lines(query: str, result: SearchResult) -> Iterator[Text]:
    """Yield a query and its hits, with matches marked."""
    pages = f"{result.total} pages" if result.total != 1 else "1 page"
    yield Text(f"\nSearch for “{printable(query)}”: {pages} in {result.seconds * 1_000:.0f} ms", "bold")
    for hit in result.hits:
        yield Text(f"  {printable(hit.title or hit.path)}", "bold cyan")
        yield Text(f"    {printable(hit.url)}", "cyan")
        snippet = Text("    ")
        for piece, marked in hit.snippet.pieces:
            snippet.append(printable(piece), "bold yellow" if marked else "")
        yield snippet
    if result.total > len(result.hits):
        yield Text(f"  and {result.total - len(result.hits)} more", "dim")


def printable(text: str) -> str:
    """Return the text without control characters, so that a page cannot send escape sequences to the terminal."""
    return "".join(character if character.isprintable() or character == "\n" else " " for character in text)
