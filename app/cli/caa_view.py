"""Output of `perennial caa`: findings as text for people, as lines for programs and as JSON, and a progress bar."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.cli.caa_jobs import ResumePoint
from app.coverart.audit import ArtFinding, Kind
from app.coverart.jobs import Move, kind_of

#: The text of each kind of finding.
MEANING: Mapping[Kind, str] = {
    "dark": "the item is dark: nothing in it can be read or changed",
    "listing-missing": "the item has no listing",
    "listing-stale": "differs from the database",
    "listing-left": "should not exist",
    "metadata-missing": "is missing",
    "metadata-stale": "differs from the database",
    "image-missing": "is in the database, but not in the archive",
    "image-left": "should not exist",
    "image-elsewhere": "belongs to",
}


def show(gid: str, findings: Sequence[ArtFinding], *, to_people: bool) -> None:
    """Print the findings of an item: a block for people, else a line each with tabs (gid, kind, file, fix)."""
    if to_people:
        typer.echo(gid)
        for finding in findings:
            typer.echo(f"  {finding.kind:<16} {finding.file}".rstrip())
            home = f" {finding.fix.new_gid}" if isinstance(finding.fix, Move) else ""
            fix = f"{kind_of(finding.fix)} repairs it" if finding.fix else "no job repairs it"
            typer.echo(f"    {MEANING[finding.kind]}{home}; {fix}")
        return
    for finding in findings:
        typer.echo("\t".join([finding.gid, finding.kind, finding.file, kind_of(finding.fix) if finding.fix else ""]))


def fields(finding: ArtFinding) -> dict[str, Any]:
    """Return a finding for JSON."""
    fix = {"job": kind_of(finding.fix), **asdict(finding.fix)} if finding.fix else None
    return {"gid": finding.gid, "kind": finding.kind, "file": finding.file, "fix": fix}


def show_json(exchange: str, findings: Sequence[ArtFinding], *, first: bool) -> None:
    """Print the findings of an item within the report's list, which the first ones begin."""
    text = ", ".join(json.dumps(fields(finding)) for finding in findings)
    typer.echo((_json_head(exchange) if first else ", ") + text, nl=False)


def show_json_end(exchange: str, summary: Mapping[str, object], *, first: bool) -> None:
    """Print the end of the report, or all of it where there was no finding."""
    typer.echo((_json_head(exchange) if first else "") + f"], {json.dumps(summary).removeprefix('{')}")


def _json_head(exchange: str) -> str:
    return f'{{"archive": {json.dumps(exchange)}, "findings": ['


def jobs(sent: Counter[str]) -> str:
    """Return "3 jobs (1 delete, 2 index)"."""
    total = sent.total()
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(sent.items()))
    return f"{total:,} job{'' if total == 1 else 's'}" + (f" ({kinds})" if kinds else "")


@contextmanager
def progress(total: Callable[[], int], position: ResumePoint, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances a progress bar; without a terminal it prints a line every half minute.

    `total` is called when the first one is shown, and takes seconds.
    """
    if not shown:
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        yield ProgressLines(total, position).advance
        return
    columns = TextColumn("{task.percentage:>3.0f} %"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    # Output to the terminal is printed above the bar; output to a pipe is not redirected.
    console, to_terminal = Console(stderr=True), sys.stdout.isatty()
    with Progress(*columns, console=console, transient=True, redirect_stdout=to_terminal) as bar:
        task = bar.add_task("", total=total())
        yield lambda count: bar.advance(task, count)


class ProgressLines:
    """Prints now and then how far a command is, when it will end, and how to continue it if it is killed."""

    def __init__(self, total: Callable[[], int], position: ResumePoint, *, every: float = 30.0) -> None:
        self._total = cache(total)
        self._position = position
        self._every = every
        self._began = self._printed = time.monotonic()

    def advance(self, count: int) -> None:  # noqa: ARG002 - As a progress bar is advanced.
        """Print a line if the last one is `every` seconds old."""
        now = time.monotonic()
        if now - self._printed < self._every:
            return
        self._printed = now
        typer.echo(progress_text(self._position, self._total(), now - self._began), err=True)


def progress_text(position: ResumePoint, total: int, seconds: float) -> str:
    """Return "5,400 of 1,400,000, 45.0/s, 8 h 36 min left; continue with --after GID"; `seconds` is the time so far."""
    rate = position.count / seconds
    minutes = round(max(0, total - position.count) / rate / 60)
    left = f"{minutes // 60:,} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
    return f"{position.count:,} of {total:,}, {rate:.1f}/s, {left} left; continue with --after {position.last}"
