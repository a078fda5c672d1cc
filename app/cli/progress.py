"""The progress of a command: a bar on a terminal, elsewhere lines. That of a crawl has its rate and an estimate."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from app.crawl.frontier.values import Progress
from app.sites.status import seconds_left

#: Seconds over which the rate is measured, and seconds between two looks.
WINDOW = 60.0
EVERY = 1.0
#: Seconds between two lines where the output is no terminal.
LINE_EVERY = 10.0
#: Seconds of measurement from which a rate is shown.
_MIN_MEASURED = 3.0

#: Shows the progress; with `at_once=True` a line that is not due, too.
Show = Callable[..., None]


@contextmanager
def shown_progress(console: Console, state: Callable[[], tuple[str, int, int]], *, line_every: float) -> Iterator[Show]:
    """Yield a function that shows a text, and how many of how many are done, as `state` returns them.

    On a terminal this is a bar; elsewhere the text is a line, each `line_every` seconds. `state` is called only when
    something is shown, which on a quiet console is never.
    """
    if console.quiet:
        yield lambda **_: None
    elif console.is_terminal:
        # Output to the terminal is printed above the bar; output to a pipe is not redirected.
        to_terminal = sys.stdout.isatty()
        columns = BarColumn(), TextColumn("{task.description}")
        with Bar(*columns, console=console, transient=True, redirect_stdout=to_terminal) as bar:
            task = bar.add_task("not begun yet")

            def move_bar(**_: bool) -> None:
                text, done, total = state()
                bar.update(task, description=text, completed=done, total=total)

            yield move_bar
    else:
        next_line = time.monotonic() + line_every

        def print_line(*, at_once: bool = False) -> None:
            nonlocal next_line
            if at_once or time.monotonic() >= next_line:
                next_line = time.monotonic() + line_every
                console.print(state()[0], soft_wrap=True)

        yield print_line


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
        return seconds_left(self._samples[-1][1], rate=self.rate, former=self._former)

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
    meter, shown_pages = Meter(former=former_pages), 0
    with shown_progress(console, lambda: (meter.text(), pages_done(last), last.seen), line_every=LINE_EVERY) as show:
        while True:
            last = progress_of()
            if last.crawl is not None and last.crawl.id != former and last.seen:
                meter.add(time.monotonic(), last)
                has_doubled = last.seen >= 2 * shown_pages
                shown_pages = last.seen if has_doubled else shown_pages
                show(at_once=has_doubled)
                if not last.open and not last.waiting:
                    return last
            time.sleep(EVERY)
