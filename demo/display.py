"""What the demo prints: events, about once a second a line of the present state, and results of searches."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from app.search.contract import SearchResult
from demo.monitor import Snapshot

#: Seconds between two lines of the state.
_INTERVAL = 1.0


class Display:
    """Lines without control characters of pages; with colours on a terminal."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._console = Console(force_terminal=self.is_terminal, highlight=False, soft_wrap=True)
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


def status_line(snapshot: Snapshot) -> str:
    """Return the state in one line."""
    depths = snapshot.depths
    queues = ", ".join(f"{name.removeprefix('site.')} {count}" for name, count in depths.work.items())
    return (
        f"{snapshot.indexed}/{snapshot.seen} pages, {snapshot.rate:.0f} pages/s; "
        f"queues: {queues}, delayed {depths.delayed}, dead {depths.dead}; {_timer(snapshot)}; {_pack(snapshot)}"
    )


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
