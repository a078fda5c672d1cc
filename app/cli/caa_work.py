"""What `perennial caa` works on and with: an archive, the gids that are meant, and the queue that jobs go to."""

from __future__ import annotations

import heapq
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

import typer

from app.broker.errors import ApplicationError
from app.broker.publishing import get_publisher
from app.coverart import musicbrainz
from app.coverart.archive import PublicArchive
from app.coverart.jobs import Job, canonical_gid, kind_of, message
from app.coverart.musicbrainz import FIRST_GID, Connection
from app.coverart.project import Project, served
from app.errors import ArtNotServed, EntityNotFound, InvalidJob
from app.topology.declare import base_queues
from config.settings import Settings

#: Messages whose confirms are awaited together.
BATCH = 500


@dataclass(frozen=True, slots=True)
class Place:
    """One archive as the settings have it."""

    settings: Settings
    project: Project

    @classmethod
    def named(cls, exchange: str, settings: Settings) -> Place:
        """Return the archive of an exchange, the first one for an empty name; raises ArtNotServed, or a usage error."""
        projects = served(settings)
        if not projects:
            empty = "MUSICBRAINZ_URL is" if not settings.musicbrainz_url.get_secret_value() else "its exchanges are"
            raise ArtNotServed(f"cover art is not served here: {empty} empty")
        if exchange and exchange not in projects:
            raise typer.BadParameter(f"--archive {exchange!r}: served are {', '.join(projects)}")
        return cls(settings, projects[exchange or next(iter(projects))])

    @property
    def holdings(self) -> PublicArchive:
        """What anybody may read of the archive."""
        return PublicArchive.of(self.settings)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Open the database for the block; raises as `musicbrainz.connect`."""
        with musicbrainz.connect(self.settings.musicbrainz_url.get_secret_value()) as connection:
            yield connection

    def things(self, count: int) -> str:
        """Return a number of what has the images in words."""
        return f"{count:,} {self.project.entity}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Scope:
    """Which gids are meant: some, or all behind `after` in their order, `limit` at most."""

    gids: tuple[str, ...]
    every: bool
    after: str
    limit: int | None

    @classmethod
    def of(cls, gids: Sequence[str] | None, *, every: bool, after: str, limit: int | None) -> Scope:
        """Return what the arguments say; a usage error where they do not go together or a gid is none."""
        if bool(gids) == every:
            raise typer.BadParameter("give GIDs, or --all")
        if not every and (after or limit):
            raise typer.BadParameter("--after and --limit go with --all")
        try:
            named = tuple(dict.fromkeys(canonical_gid(gid) for gid in gids or ()))
            return cls(named, every, canonical_gid(after) if after else FIRST_GID, limit)
        except InvalidJob as error:
            raise typer.BadParameter(str(error)) from error

    def existing(self, connection: Connection, project: Project) -> Iterator[str]:
        """Yield the gids that the database has, of a merged one the one that it leads to; raises EntityNotFound."""
        if self.every:
            return islice(musicbrainz.all_gids(connection, project, after=self.after), self.limit)
        # Looked for at once: where one is unknown, nothing is begun.
        return iter(dict.fromkeys([_canonical(connection, project, gid) for gid in self.gids]))

    def auditable(self, connection: Connection, project: Project) -> Iterator[str]:
        """Yield the gids whose items are to be looked at: of all, those that were merged away as well."""
        if not self.every:
            return iter(self.gids)
        merged = (old for old, _ in musicbrainz.merged_gids(connection, project, after=self.after))
        gids = musicbrainz.all_gids(connection, project, after=self.after)
        return islice(heapq.merge(gids, merged), self.limit)

    def count(self, connection: Connection, project: Project, *, merged: bool) -> int:
        """Return how many there are; with `merged`, also of those that were merged away."""
        if not self.every:
            return len(self.gids)
        with_art, gone = musicbrainz.count_gids(connection, project, after=self.after)
        total = with_art + (gone if merged else 0)
        return total if self.limit is None else min(total, self.limit)


@dataclass(slots=True)
class Sender:
    """Enqueues jobs as the plain messages that MusicBrainz itself would post, confirmed, and counts them by kind."""

    place: Place
    sent: Counter[str] = field(default_factory=Counter)

    def post(self, jobs: Sequence[Job]) -> None:
        """Enqueue jobs; raises PublishFailed."""
        if not jobs:
            return
        settings = self.place.settings
        publisher = get_publisher(settings.broker, timeout=settings.publish_timeout)
        publisher.declare(base_queues(settings))
        publisher.publish([message(job, self.place.project.prefix, str(uuid.uuid4())) for job in jobs])
        self.sent.update(map(kind_of, jobs))


class Pace:
    """Lets so many a second through; None is as many as come."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._next = time.monotonic()

    def wait(self, count: int = 1) -> None:
        """Wait until it is the turn of the next `count`."""
        if self._rate is None:
            return
        threading.Event().wait(max(0.0, self._next - time.monotonic()))
        self._next = max(self._next, time.monotonic()) + count / self._rate

    @property
    def batch(self) -> int:
        """How many may go together: those of a second at most."""
        return BATCH if self._rate is None else max(1, min(BATCH, int(self._rate)))


@dataclass(slots=True)
class Way:
    """How far a command has come in the order of the gids."""

    scope: Scope
    count: int = 0
    last: str = ""

    def went(self, gids: Sequence[str]) -> None:
        """Note that these are done."""
        self.count += len(gids)
        self.last = gids[-1]

    @contextmanager
    def told(self) -> Iterator[None]:
        """Say after the block where to go on, if it broke off or came to its limit."""
        try:
            yield
        except (KeyboardInterrupt, ApplicationError):
            self._tell()
            raise
        if self.count == self.scope.limit:
            self._tell()

    def _tell(self) -> None:
        if self.scope.every and self.last:
            typer.echo(f"{self.count:,} done; go on with --after {self.last}", err=True)


def batches(gids: Iterator[str], size: int) -> Iterator[list[str]]:
    """Yield the gids in lists of `size`."""
    while batch := list(islice(gids, size)):
        yield batch


def _canonical(connection: Connection, project: Project, gid: str) -> str:
    entity = musicbrainz.entity(connection, project, gid)
    if entity is None:
        raise EntityNotFound(f"{project.entity} {gid}: MusicBrainz's database does not have it")
    return entity.gid
