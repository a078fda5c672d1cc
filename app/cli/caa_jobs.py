"""What the commands of `perennial caa` share: the archive, the selected gids, publishing of jobs, rate and progress."""

from __future__ import annotations

import heapq
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import get_args

import typer
from rich.console import Console

from app.broker.errors import ApplicationError
from app.broker.publishing import Publisher
from app.cli.context import operations
from app.cli.progress import Show, shown_progress
from app.coverart import musicbrainz
from app.coverart.jobs import Job, canonical_gid, kind_of, message
from app.coverart.musicbrainz import FIRST_GID, Connection
from app.coverart.project import Entity, Project, served
from app.errors import ArtNotServed, EntityNotFound, InvalidJob
from config.settings import Settings

#: Entities that are read at once: an audit compares them within seconds.
_PAGE = 200

#: Messages that are published before their confirms are awaited.
BATCH = 500

#: Seconds between two lines of progress where standard error is no terminal.
LINE_EVERY = 30.0


@dataclass(frozen=True, slots=True)
class ServedArchive:
    """One archive that the settings serve."""

    settings: Settings
    project: Project

    @classmethod
    def of(cls, exchange: str, settings: Settings) -> ServedArchive:
        """Return the archive of an exchange, the first one for an empty name.

        Raises ArtNotServed where none is served, and a usage error for an exchange that is not.
        """
        projects = served(settings)
        if not projects:
            empty = "MUSICBRAINZ_URL is" if not settings.musicbrainz_url.get_secret_value() else "its exchanges are"
            raise ArtNotServed(f"cover art is not served here: {empty} empty")
        if exchange and exchange not in projects:
            raise typer.BadParameter(f"--archive {exchange!r}: served are {', '.join(projects)}")
        return cls(settings, projects[exchange or next(iter(projects))])

    def connect(self, *, primary: bool = False) -> AbstractContextManager[Connection]:
        """Open the database for a block; raises as `musicbrainz.connect`."""
        return musicbrainz.connect(self.settings.musicbrainz_url.get_secret_value(), primary=primary)

    def count_text(self, count: int) -> str:
        """Return "1 release", "2 events"."""
        return f"{count:,} {self.project.entity}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class GidSelection:
    """The gids that a command works on: given ones, or all after `after` in their order, at most `limit`."""

    gids: tuple[str, ...]
    every: bool
    after: str
    limit: int | None

    @classmethod
    def of(cls, gids: Sequence[str] | None, *, every: bool, after: str, limit: int | None) -> GidSelection:
        """Return the selection of a command's arguments; raises a usage error where they are invalid."""
        if bool(gids) == every:
            raise typer.BadParameter("give GIDs, or --all")
        if not every and (after or limit):
            raise typer.BadParameter("--after and --limit go with --all")
        try:
            given = tuple(dict.fromkeys(canonical_gid(gid) for gid in gids or ()))
            return cls(given, every, canonical_gid(after) if after else FIRST_GID, limit)
        except InvalidJob as error:
            raise typer.BadParameter(str(error)) from error

    def existing(self, connection: Connection, project: Project) -> Iterator[str]:
        """Yield the gids of the database; a merged gid is replaced by its target.

        Raises EntityNotFound for a given gid that the database does not have, before the first one is yielded.
        """
        if self.every:
            return islice(musicbrainz.gids_of("with_art", connection, project, after=self.after), self.limit)
        found: list[str] = []
        for gid in self.gids:
            entity = musicbrainz.entity(connection, project, gid)
            if entity is None:
                raise EntityNotFound(f"{project.entity} {gid}: MusicBrainz's database does not have it")
            found.append(entity.gid)
        return iter(dict.fromkeys(found))

    def auditable(self, connection: Connection, project: Project) -> Iterator[str]:
        """Yield the gids whose items are compared; with --all also those that were merged into others or deleted."""
        if not self.every:
            return iter(self.gids)
        kinds = get_args(musicbrainz.GidKind)
        gids = (musicbrainz.gids_of(kind, connection, project, after=self.after) for kind in kinds)
        return islice(heapq.merge(*gids), self.limit)

    def count(self, connection: Connection, project: Project, *, audited: bool) -> int:
        """Return the number of gids; `audited` counts those that were merged into others or deleted, too."""
        if not self.every:
            return len(self.gids)
        with_art, gone = musicbrainz.count_gids(connection, project, after=self.after)
        total = with_art + (gone if audited else 0)
        return total if self.limit is None else min(total, self.limit)


@dataclass(slots=True)
class JobPublisher:
    """Publishes jobs as the plain messages of MusicBrainz, confirmed, and counts them by kind."""

    archive: ServedArchive
    published: Counter[str] = field(default_factory=Counter)
    _publisher: Publisher | None = None

    def publish(self, jobs: Sequence[Job]) -> None:
        """Publish jobs; raises PublishFailed."""
        if not jobs:
            return
        if self._publisher is None:
            self._publisher = operations().client_publisher()
        self._publisher.publish([message(job, self.archive.project.prefix, str(uuid.uuid4())) for job in jobs])
        self.published.update(map(kind_of, jobs))


class Throttle:
    """Limits a loop to `rate` items a second; None is no limit."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._next = time.monotonic()

    def wait(self, count: int = 1) -> None:
        """Wait until `count` more items may be processed."""
        if self._rate is None:
            return
        threading.Event().wait(max(0.0, self._next - time.monotonic()))
        self._next = max(self._next, time.monotonic()) + count / self._rate

    @property
    def batch(self) -> int:
        """The items of one batch: those of a second, at most `BATCH`."""
        return BATCH if self._rate is None else max(1, min(BATCH, int(self._rate)))


@dataclass(slots=True)
class ResumePoint:
    """The number of processed gids, and the last one, after which a command can be resumed."""

    selection: GidSelection
    count: int = 0
    last: str = ""

    def advance(self, gids: Sequence[str]) -> None:
        """Note that these gids are done."""
        self.count += len(gids)
        self.last = gids[-1]

    def progress(self, count: Callable[[], int]) -> AbstractContextManager[Show]:
        """Lend a function that shows the progress through all gids. `count`, which takes seconds, is called once."""
        total, began = cache(count), time.monotonic()

        def state() -> tuple[str, int, int]:
            return progress_text(self, total(), time.monotonic() - began), self.count, total()

        console = Console(stderr=True, highlight=False, quiet=not self.selection.every)
        return shown_progress(console, state, line_every=LINE_EVERY)

    @contextmanager
    def printed(self) -> Iterator[None]:
        """Print after the block how to resume, if the block failed or reached the limit."""
        try:
            yield
        except (KeyboardInterrupt, ApplicationError):
            self._print()
            raise
        if self.count == self.selection.limit:
            self._print()

    def _print(self) -> None:
        if self.selection.every and self.last:
            typer.echo(f"{self.count:,} done; continue with --after {self.last}", err=True)


def progress_text(position: ResumePoint, total: int, seconds: float) -> str:
    """Return "5,400 of 1,400,000, 45.0/s, 8 h 36 min left; continue with --after GID"; `seconds` is the time so far."""
    rate = position.count / seconds
    minutes = round(max(0, total - position.count) / rate / 60)
    left = f"{minutes // 60:,} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
    return f"{position.count:,} of {total:,}, {rate:.1f}/s, {left} left; continue with --after {position.last}"


def entities(
    gids: Iterator[str], connection: Connection, project: Project, throttle: Throttle
) -> Iterator[tuple[str, Entity | None]]:
    """Yield each gid with its entity, not faster than `throttle` allows; they are read in pages."""
    for page in batches(gids, min(_PAGE, throttle.batch)):
        found = musicbrainz.entities(connection, project, page)
        for gid in page:
            throttle.wait()
            yield gid, found.get(gid)


def batches(gids: Iterator[str], size: int) -> Iterator[list[str]]:
    """Yield the gids in lists of `size`."""
    while batch := list(islice(gids, size)):
        yield batch
