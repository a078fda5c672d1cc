"""Output of `perennial caa`: findings as text for people, as lines for programs and as JSON, and a progress bar."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.coverart.audit import ArtFinding, Kind
from app.coverart.jobs import Move, kind_of

#: The text of each kind of finding.
MEANING: Mapping[Kind, str] = {
    "dark": "the item is dark: nothing in it can be read or changed",
    "listing-missing": "the item has no listing",
    "listing-stale": "differs from the database",
    "listing-left": "should not exist",
    "image-missing": "is in the database, but not in the archive",
    "image-left": "should not exist",
    "image-elsewhere": "belongs to",
}


def show(gid: str, findings: Sequence[ArtFinding], *, to_people: bool) -> None:
    """Print the findings of an item: a block for people, else a line each with tabs (gid, kind, file, fix)."""
    if to_people:
        typer.echo(gid)
        for finding in findings:
            typer.echo(f"  {finding.kind:<15} {finding.file}".rstrip())
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


def jobs(sent: Counter[str]) -> str:
    """Return "3 jobs (1 delete, 2 index)"."""
    total = sent.total()
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(sent.items()))
    return f"{total:,} job{'' if total == 1 else 's'}" + (f" ({kinds})" if kinds else "")


@contextmanager
def progress(total: Callable[[], int], *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances a progress bar; without a terminal it does nothing, and `total` is not called."""
    if not (shown and sys.stderr.isatty()):
        yield lambda _: None
        return
    columns = TextColumn("{task.percentage:>3.0f} %"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    # Output to the terminal is printed above the bar; output to a pipe is not redirected.
    console, to_terminal = Console(stderr=True), sys.stdout.isatty()
    with Progress(*columns, console=console, transient=True, redirect_stdout=to_terminal) as bar:
        task = bar.add_task("", total=total())
        yield lambda count: bar.advance(task, count)
