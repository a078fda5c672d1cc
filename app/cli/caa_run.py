"""One run of a `perennial caa` command through the gids of an archive: selection, published jobs, rate and progress."""

from __future__ import annotations

import heapq
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, cached_property, partial
from itertools import islice
from typing import TypeVar, get_args

import typer
from rich.console import Console

from app.broker.errors import ApplicationError
from app.broker.publishing import Publisher
from app.cli.context import operator_context
from app.cli.progress import Show, shown_progress
from app.coverart import musicbrainz
from app.coverart.jobs import Job, canonical_gid, kind_of, message
from app.coverart.musicbrainz import FIRST_GID, Connection, GidKind
from app.coverart.project import Entity, served_projects
from app.errors import ArtNotServed, DatabaseUnavailable, InvalidJob, RemoteError, ResourceNotFound
from config.settings import get_settings

#: Seconds between attempts to reach a service that is away, or those that it asks for if they are more. Then the run
#: ends.
PAUSES = (1.0, 4.0, 15.0, 30.0, 60.0)
_LONGEST_PAUSE = 600.0

Result = TypeVar("Result")

#: Entities that are read at once: an audit compares them within seconds.
_PAGE = 200

#: Messages that are published before their confirms are awaited.
BATCH = 500

#: Seconds between two lines of progress where standard error is no terminal.
LINE_EVERY = 30.0


class GidRun:
    """Works on the given gids of an archive, or on all after `after` in their order, at most `limit` of them.

    At most `rate` a second are processed; None is no limit. `count` are done, `last` is the last of them.
    """

    def __init__(
        self,
        archive: str,
        gids: Sequence[str] | None,
        *,
        every: bool,
        after: str,
        limit: int | None,
        rate: float | None,
        primary: bool = False,
    ) -> None:
        """Take a command's arguments; an empty `archive` is the first one that is served.

        With `primary`, a standby of the database is refused.

        Raises a usage error for invalid arguments, and ArtNotServed where no archive is served.
        """
        if bool(gids) == every:
            raise typer.BadParameter("give GIDs, or --all")
        if not every and (after or limit):
            raise typer.BadParameter("--after and --limit go with --all")
        try:
            self.gids = tuple(dict.fromkeys(canonical_gid(gid) for gid in gids or ()))
            self.after = canonical_gid(after) if after else FIRST_GID
        except InvalidJob as error:
            raise typer.BadParameter(str(error)) from error
        self.settings = get_settings()
        projects = served_projects(self.settings)
        if not projects:
            raise ArtNotServed("cover art is not served here: MUSICBRAINZ_URL is empty")
        if archive and archive not in projects:
            raise typer.BadParameter(f"--archive {archive!r}: served are {', '.join(projects)}")
        self.project = projects[archive or next(iter(projects))]
        self.limit, self.rate = limit, rate
        self.count, self.last = 0, ""
        self.published = Counter[str]()
        self._ends_pauses = threading.Event()
        self._primary = primary
        self._next = 0.0

    def require_database(self) -> None:
        """Raise the error of a database that is away or, for a run that needs the primary, a standby."""
        with self._database():
            pass

    def read(self, query: Callable[[Connection], Result]) -> Result:
        """Return what a query of the database returns; while the database is away, pause as `patiently` does."""

        def read() -> Result:
            with self._database() as connection:
                return query(connection)

        return self.patiently(read, lambda error: isinstance(error, DatabaseUnavailable))

    def patiently(self, read: Callable[[], Result], is_outage: Callable[[RemoteError], bool]) -> Result:
        """Return what `read` returns; in an outage pause by PAUSES, or as long as the service says.

        A run of given gids does not pause, and no run does `without_pauses`.
        """
        for pause in () if self.gids else PAUSES:
            try:
                return read()
            except RemoteError as error:
                wanted = max(pause, error.retry_after or 0.0)
                if not is_outage(error) or wanted > _LONGEST_PAUSE or self._ends_pauses.wait(wanted):
                    raise
        return read()

    @contextmanager
    def without_pauses(self) -> Iterator[None]:
        """End all pauses of other threads for the block."""
        self._ends_pauses.set()
        try:
            yield
        finally:
            self._ends_pauses.clear()

    def _database(self) -> AbstractContextManager[Connection]:
        url = self.settings.musicbrainz_url.get_secret_value()
        return musicbrainz.kept_connection(url, primary=self._primary)

    def _gids_of(self, kind: GidKind) -> Iterator[str]:
        after = self.after
        next_gids = partial(musicbrainz.next_gids, kind, project=self.project)
        while page := self.read(partial(next_gids, after=after)):
            yield from page
            after = page[-1]

    def existing(self) -> Iterator[str]:
        """Yield the gids of the database; a merged gid is replaced by its target.

        Raises ResourceNotFound for a given gid that the database does not have, before the first one is yielded.
        """
        if not self.gids:
            return islice(self._gids_of("with_art"), self.limit)
        found = self._entities(self.gids)
        for gid in self.gids:
            if gid not in found:
                raise ResourceNotFound(f"{self.project.entity} {gid}: MusicBrainz's database does not have it")
        return iter(dict.fromkeys(found[gid].gid for gid in self.gids))

    def auditable(self) -> Iterator[list[tuple[str, Entity | None]]]:
        """Yield the gids whose items are compared with their entities, page by page, at the rate.

        Without given gids, also those that were merged into others or deleted.
        """
        every = map(self._gids_of, get_args(GidKind))
        gids = iter(self.gids) if self.gids else islice(heapq.merge(*every), self.limit)
        for page in self.batches(gids, most=_PAGE):
            self.wait(len(page))
            found = self._entities(page)
            yield [(gid, found.get(gid)) for gid in page]

    def _entities(self, gids: Sequence[str]) -> dict[str, Entity]:
        return self.read(lambda connection: musicbrainz.entities(connection, self.project, gids))

    def total(self, *, audited: bool) -> int:
        """Return the number of gids; `audited` counts those that were merged into others or deleted, too."""
        if self.gids:
            return len(self.gids)
        kinds: tuple[GidKind, ...] = get_args(GidKind) if audited else ("with_art",)
        count = partial(musicbrainz.count_gids, project=self.project, after=self.after)
        total = sum(self.read(partial(count, kind)) for kind in kinds)
        return total if self.limit is None else min(total, self.limit)

    def publish(self, jobs: Sequence[Job]) -> None:
        """Publish jobs as the plain messages of MusicBrainz, confirmed; raises PublishFailed."""
        if jobs:
            self._publisher.publish([message(job, self.project.prefix, str(uuid.uuid4())) for job in jobs])
            self.published.update(map(kind_of, jobs))

    @contextmanager
    def act(self, name: str, why: str) -> Iterator[None]:
        """Keep in the audit what the block enqueues, and for which gids."""
        given = list(self.gids) or "all"
        with operator_context().act(name, self.project.prefix, why=why, gids=given) as act:
            try:
                yield
            finally:
                act.details["enqueued"] = dict(self.published)

    @cached_property
    def _publisher(self) -> Publisher:
        return operator_context().client_publisher()

    def wait(self, count: int) -> None:
        """Wait until `count` more gids may be processed."""
        if self.rate is not None:
            threading.Event().wait(max(0.0, self._next - time.monotonic()))
            self._next = max(self._next, time.monotonic()) + count / self.rate

    def batches(self, gids: Iterator[str], *, most: int = BATCH) -> Iterator[list[str]]:
        """Yield the gids in lists of at most those of a second, and `most`."""
        size = most if self.rate is None else max(1, min(most, int(self.rate)))
        while batch := list(islice(gids, size)):
            yield batch

    def advance(self, gids: Sequence[str]) -> None:
        """Note that these gids are done."""
        self.count += len(gids)
        self.last = gids[-1]

    def count_text(self, count: int) -> str:
        """Return "1 release", "2 events"."""
        return f"{count:,} {self.project.entity}{'' if count == 1 else 's'}"

    def progress(self, total: Callable[[], int]) -> AbstractContextManager[Show]:
        """Lend a function that shows the progress through all gids. `total`, which takes seconds, is called once."""
        total, began = cache(total), time.monotonic()

        def state() -> tuple[str, int, int]:
            return self.progress_text(total(), time.monotonic() - began), self.count, total()

        console = Console(stderr=True, highlight=False, quiet=bool(self.gids))
        return shown_progress(console, state, line_every=LINE_EVERY)

    def progress_text(self, total: int, seconds: float) -> str:
        """Return "5,400 of 1,400,000, 45.0/s, 8 h 36 min left; continue with --after GID" after `seconds`."""
        rate = self.count / seconds
        minutes = round(max(0, total - self.count) / rate / 60)
        left = f"{minutes // 60:,} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
        return f"{self.count:,} of {total:,}, {rate:.1f}/s, {left} left; continue with --after {self.last}"

    @contextmanager
    def resumable(self) -> Iterator[None]:
        """Print after the block how to resume, if the block failed or reached the limit."""
        try:
            yield
        except (KeyboardInterrupt, typer.Abort, ApplicationError):
            self._print_resume_point()
            raise
        if self.count == self.limit:
            self._print_resume_point()

    def _print_resume_point(self) -> None:
        if self.last and not self.gids:
            typer.echo(f"{self.count:,} done; continue with --after {self.last}", err=True)
