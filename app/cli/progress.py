"""The progress of a crawl on a terminal: a bar with pages, rate, waiting pages, delay and an estimate of the end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from app.crawl.frontier.values import Progress

#: Seconds over which the rate is measured, and seconds between two looks.
WINDOW = 60.0
EVERY = 1.0
#: Seconds between two lines where the output is no terminal.
LINE_EVERY = 10.0
#: Seconds of measurement from which a rate is shown.
_MIN_MEASURED = 3.0


class Meter:
    """Measures the rate of a crawl, and estimates its end. `former` is the number of pages of the former crawl."""

    def __init__(self, *, former: int = 0) -> None:
        self._former = former
        self._samples: deque[tuple[float, Progress]] = deque()

    def add(self, at: float, progress: Progress) -> None:
        """Add what was seen of the crawl at a time in seconds."""
        self._samples.append((at, progress))
        while at - self._samples[0][0] > WINDOW:
            self._samples.popleft()

    @property
    def rate(self) -> float | None:
        """Completed pages a second within the last minute, None before some seconds are measured."""
        (first, before), (last, after) = self._samples[0], self._samples[-1]
        return (after.done - before.done) / (last - first) if last - first >= _MIN_MEASURED else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the known pages are fetched; None while nothing is known of the rate.

        Not less than the delay of the host allows. Pages of the former crawl count as known.
        """
        progress = self._samples[-1][1]
        left = max(progress.open + progress.waiting, self._former - progress.done - progress.dead)
        by_delay = left * progress.delay
        if self.rate:
            return max(left / self.rate, by_delay)
        return by_delay or None

    @property
    def finds_pages(self) -> bool:
        """Whether the crawl has found new pages within the last minute: then its end is later than estimated."""
        return self._samples[-1][1].seen > self._samples[0][1].seen or len(self._samples) == 1

    def text(self) -> str:
        """Return the rate, what waits, the delay and the estimate, in words."""
        progress = self._samples[-1][1]
        parts = [f"{pages_done(progress)} of {progress.seen} known pages"]
        if self.rate is not None:
            parts.append(f"{self.rate:.1f} pages/s")
        parts.append(f"{progress.open + progress.waiting} wait")
        if progress.delay:
            parts.append(f"one request in {progress.delay:g} s")
        if progress.state != "running":
            parts.append(progress.state)
        elif self.seconds_left is not None:
            about = "at least" if self.finds_pages else "about"
            parts.append(f"{about} {duration(self.seconds_left)} left")
        return ", ".join(parts)


def pages_done(progress: Progress) -> int:
    """Return the known pages that are done. A start page is two messages, and sitemaps are messages without a page."""
    return max(0, progress.seen - progress.open - progress.waiting)


def duration(seconds: float) -> str:
    """Return a duration as `0:11:40`."""
    return str(timedelta(seconds=round(seconds)))


def watch(
    progress_of: Callable[[], Progress], *, console: Console, former: str = "", former_pages: int = 0
) -> Progress:
    """Show a crawl until it has ended, and return its last counts. `former` is the id of the crawl before it.

    On a terminal this is a bar; elsewhere a line each ten seconds, and when the number of known pages has doubled.
    """
    meter = Meter(former=former_pages)
    last = progress_of()
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn())
        with Bar(*columns, console=console, transient=True) as bar:
            shown = bar.add_task("the crawl begins")
            for last in _looks(progress_of, former):
                meter.add(time.monotonic(), last)
                bar.update(shown, description=meter.text(), completed=pages_done(last), total=last.seen)
        return last
    next_line, shown_pages = 0.0, 0
    for last in _looks(progress_of, former):
        meter.add(time.monotonic(), last)
        if time.monotonic() >= next_line or last.seen >= 2 * shown_pages:
            console.print(meter.text(), soft_wrap=True)
            next_line, shown_pages = time.monotonic() + LINE_EVERY, last.seen
    return last


def _looks(progress_of: Callable[[], Progress], former: str) -> Iterator[Progress]:
    """Yield the counts of the crawl after `former`, once a second, until it has ended."""
    while True:
        progress = progress_of()
        if progress.crawl is not None and progress.crawl.id != former and progress.seen:
            yield progress
            if not progress.open and not progress.waiting:
                return
        time.sleep(EVERY)
