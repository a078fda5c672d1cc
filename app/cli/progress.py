"""The progress of a command: a bar on a terminal, elsewhere lines. That of a crawl has its rate and an estimate."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from app.crawl.frontier.values import Progress
from app.sites.status import crawl_rate, seconds_left

#: Seconds between two readings of a crawl.
EVERY = 1.0
#: Seconds between two lines where the output is no terminal.
LINE_EVERY = 10.0

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


def progress_text(progress: Progress, *, former_pages: int = 0) -> str:
    """Return the rate of a crawl since its start, what waits, the delay and how long the known pages take, in words.

    Pages of the former crawl count as known.
    """
    rate = crawl_rate(progress)
    done = pages_done(progress)
    parts = [f"{done} of {progress.seen} known pages"]
    if rate is not None:
        parts.append(f"{rate:.1f} pages/s")
    parts.append(f"{progress.seen - done} wait")
    if progress.delay:
        parts.append(f"one request in {progress.delay:g} s")
    if progress.state != "running":
        parts.append(progress.state)
    elif left := seconds_left(progress, rate=rate, former=former_pages):
        parts.append(f"at least {timedelta(seconds=round(left))} left")
    return ", ".join(parts)


def pages_done(progress: Progress) -> int:
    """Return the known pages that are done. A start page is two messages, and sitemaps are messages without a page."""
    return max(0, progress.seen - progress.open - progress.waiting)


def watch(
    progress_of: Callable[[], Progress], *, console: Console, former: str = "", former_pages: int = 0
) -> Progress:
    """Show a crawl until it has ended, and return its last counts. `former` is the id of the crawl before it.

    On a terminal this is a bar; elsewhere a line each ten seconds, and when the number of known pages has doubled.
    """

    def state() -> tuple[str, int, int]:
        return progress_text(last, former_pages=former_pages), pages_done(last), last.seen

    shown_pages = 0
    with shown_progress(console, state, line_every=LINE_EVERY) as show:
        while True:
            last = progress_of()
            if last.crawl is not None and last.crawl.id != former and last.seen:
                has_doubled = last.seen >= 2 * shown_pages
                shown_pages = last.seen if has_doubled else shown_pages
                show(at_once=has_doubled)
                if not last.open and not last.waiting:
                    return last
            time.sleep(EVERY)
