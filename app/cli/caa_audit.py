"""`perennial caa audit`: compares items in threads, reports in the order of the gids, and publishes the repairs."""

from __future__ import annotations

import json
import shlex
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from itertools import islice
from typing import TypeVar

import typer

from app.broker.errors import ApplicationError
from app.cli.caa_jobs import BATCH, GidRun
from app.cli.context import operations
from app.cli.printing import print_lines
from app.coverart import musicbrainz
from app.coverart.archive import PublicArchive
from app.coverart.audit import ArtFinding, FindHomes, Kind, audit
from app.coverart.jobs import Delete, Move, kind_of
from app.coverart.musicbrainz import Connection
from app.coverart.project import Entity, Project
from app.coverart.webservice import WebService
from app.errors import (
    ArchiveError,
    ArchiveUnavailable,
    RemoteError,
    ResourceNotFound,
    StoreError,
    WebServiceError,
    WebServiceUnavailable,
)
from app.operations.art_audit import MAX_FINDINGS, MAX_TEXT, ArtAudit, KeptFinding, keep_audit

#: Items that are being compared or wait for an earlier one, for each job. One slow item holds up no other.
_AHEAD = 16

#: Seconds between attempts to reach an unavailable archive or web service, unless it names them; then the audit ends.
_PAUSES = (1.0, 4.0, 15.0, 30.0, 60.0)
_LONGEST_PAUSE = 600.0
_UNAVAILABLE = (ArchiveUnavailable, WebServiceUnavailable)

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

Given = TypeVar("Given")
Result = TypeVar("Result")


def in_order(
    work: Callable[[Given], Result], items: Iterable[Given], *, jobs: int, stop: Callable[[], None] = lambda: None
) -> Generator[tuple[Given, Result]]:
    """Yield each item with the result of `work` in the order of `items`, which threads work on, `jobs` at a time.

    Reads at most `jobs` * 16 items ahead. `stop` is called at the end, also after an error, before threads are awaited.
    """
    begun: deque[tuple[Given, Future[Result]]] = deque()
    with ThreadPoolExecutor(jobs, thread_name_prefix="audit") as pool:
        try:
            for item in items:
                begun.append((item, pool.submit(work, item)))
                while begun and (begun[0][1].done() or len(begun) >= jobs * _AHEAD):
                    first, result = begun.popleft()
                    yield first, result.result()
            while begun:
                first, result = begun.popleft()
                yield first, result.result()
        finally:
            stop()
            pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares items with the database's entities; its threads share a connection, which they need for differences."""

    project: Project
    public: PublicArchive
    web_service: WebService
    connection: Connection
    #: Whether the user gave each gid. Then one that neither database nor archive has is an error, and no pause is made.
    given: bool
    #: Whether the metadata of every item are compared, and not only those that a change may have made stale.
    every_metadata: bool
    _in_use: threading.Lock = field(default_factory=threading.Lock)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def findings(self, pair: tuple[str, Entity | None]) -> tuple[ArtFinding, ...] | RemoteError:
        """Return the differences of the item of a gid with its entity, or the error of an item that cannot be read.

        Sends one request where nothing differs. Raises ArchiveUnavailable and WebServiceUnavailable when the pauses
        are used up.
        """
        gid, entity = pair
        try:
            item = self._patiently(lambda: self.public.item(self.project.bucket(gid)))
            if self.given and entity is None and item is None:
                name = f"{self.project.entity} {gid}"
                raise ResourceNotFound(f"{name}: neither MusicBrainz's database nor the archive has it")
            compare = partial(
                audit,
                self.project,
                gid,
                item=item,
                # Each is requested once, also where the item is compared twice.
                read_file=cache(lambda bucket, name: self._patiently(lambda: self.public.file(bucket, name))),
                read_metadata=cache(self.metadata),
                find_homes=self.homes,
                every_metadata=self.every_metadata,
            )
            if not compare(entity):
                return ()
            # The entity was read some seconds before the item. What it is now decides.
            with self._in_use:
                entity = musicbrainz.entity(self.connection, self.project, gid)
            return compare(entity)
        except _UNAVAILABLE:
            raise
        except (ArchiveError, WebServiceError) as error:
            return error

    def homes(self, images: Collection[int]) -> dict[int, str]:
        """Return the gid of the entity of each image that has one."""
        with self._in_use:
            return musicbrainz.homes(self.connection, self.project, images)

    def metadata(self, gid: str) -> bytes | None:
        """Return the metadata that an `index` of a gid would write now, None for an entity that is gone."""
        return self._patiently(lambda: self.web_service.metadata(self.project, gid))

    def stop(self) -> None:
        """End the pauses of all threads."""
        self._stopped.set()

    def _patiently(self, read: Callable[[], Result]) -> Result:
        """Return what `read` returns; while its service is unavailable, pause as long as it says, or by `_PAUSES`."""
        for pause in () if self.given else _PAUSES:
            try:
                return read()
            except _UNAVAILABLE as error:
                wanted = pause if error.retry_after is None else error.retry_after
                if wanted > _LONGEST_PAUSE or self._stopped.wait(wanted):
                    raise
        return read()


@dataclass(slots=True)
class AuditReport:
    """Prints findings as they come, counts them and publishes the jobs that repair them."""

    run: GidRun
    fix: bool
    yes: bool
    as_json: bool
    #: Deletions of images that wait for the user's confirmation.
    held_back: list[Delete] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    differing: int = 0
    unread: int = 0
    #: The first findings.
    first: list[ArtFinding] = field(default_factory=list)

    def add(self, gid: str, found: tuple[ArtFinding, ...] | RemoteError) -> None:
        """Print the findings of an item and publish their repairs; an item that could not be read is counted."""
        if isinstance(found, RemoteError):
            self.unread += 1
            typer.echo(f"{gid}: not compared: {found}", err=True)
            return
        if not found:
            return
        self._print_findings(gid, found)
        self.differing += 1
        self.kinds.update(finding.kind for finding in found)
        self.first += found[: MAX_FINDINGS - len(self.first)]
        if self.fix:
            fixes = list(dict.fromkeys(finding.fix for finding in found if finding.fix is not None))
            images = [job for job in fixes if isinstance(job, Delete) and job.id is not None and not self.yes]
            self.held_back += images
            self.run.publish([job for job in fixes if job not in images])

    def _print_findings(self, gid: str, findings: tuple[ArtFinding, ...]) -> None:
        """Print the findings of an item: as JSON, as a block for people, or a line each (gid, kind, file, fix)."""
        if self.as_json:
            values = (
                {"gid": each.gid, "kind": each.kind, "file": each.file}
                | {"fix": {"job": kind_of(each.fix), **asdict(each.fix)} if each.fix else None}
                for each in findings
            )
            typer.echo((", " if self.differing else self._json_head) + ", ".join(map(json.dumps, values)), nl=False)
            return
        if not sys.stdout.isatty():
            print_lines((each.gid, each.kind, each.file, each.repair) for each in findings)
            return
        typer.echo(gid)
        for finding in findings:
            typer.echo(f"  {finding.kind:<16} {finding.file}".rstrip())
            home = f" {finding.fix.new_gid}" if isinstance(finding.fix, Move) else ""
            typer.echo(f"    {MEANING[finding.kind]}{home}; {finding.repair or 'no job'} repairs it")

    @property
    def _json_head(self) -> str:
        """The beginning of the JSON document, whose findings are printed as they come."""
        return f'{{"archive": {json.dumps(self.run.project.prefix)}, "findings": ['

    def delete_images(self, find_homes: FindHomes) -> None:
        """Publish the deletions that were held back if the user confirms them.

        Those of images that the database has by now are left out.
        """
        if not self.held_back:
            return
        images = f"{len(self.held_back):,} image{'' if len(self.held_back) == 1 else 's'}"
        if not sys.stdin.isatty():
            typer.echo(f"{images} not deleted: standard input is not a terminal; confirm with --yes", err=True)
            return
        if not typer.confirm(f"Delete {images} at the archive, which keeps an old version of each?", err=True):
            return
        confirmed, self.held_back = iter(self.held_back), []
        while batch := list(islice(confirmed, BATCH)):
            homes = find_homes([job.id for job in batch if job.id is not None])
            self.run.publish([job for job in batch if job.id not in homes])
            self.held_back += [job for job in batch if job.id in homes]
        if self.held_back:
            typer.echo(f"{len(self.held_back):,} not deleted: the database has them now; audit again", err=True)

    def print_summary(self) -> None:
        """Print the numbers of findings and jobs."""
        sent = self.run.published
        if self.as_json:
            jobs = {"enqueued": dict(sent), "not_deleted": len(self.held_back)} if self.fix else {}
            summary = json.dumps({"items": self.run.count, "unread": self.unread, **jobs})
            typer.echo(("" if self.differing else self._json_head) + f"], {summary.removeprefix('{')}")
            return
        line = f"{self.run.count_text(self.run.count)} compared: "
        line += f"{self.kinds.total():,} finding{'' if self.kinds.total() == 1 else 's'}"
        line += f" in {self.differing:,} of them" if self.differing and self.run.count > 1 else ""
        line += f"; {self.unread:,} could not be read" if self.unread else ""
        if self.fix:
            kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(sent.items()))
            line += f"; {sent.total():,} job{'' if sent.total() == 1 else 's'}{f' ({kinds})' if kinds else ''} enqueued"
        # Standard output has one line for each finding, for programs.
        typer.echo(line, err=True)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep how an audit of all items ends, in the store; while that is away, say so and go on."""
        began, stopped = time.time(), ""
        try:
            yield
        except (KeyboardInterrupt, ApplicationError) as error:
            stopped = str(error) or "interrupted"
            raise
        finally:
            if not self.run.gids:
                self._keep(began, stopped)

    def _keep(self, began: float, stopped: str) -> None:
        ops = operations()
        result = ArtAudit(
            archive=self.run.project.prefix,
            command=shlex.join(["perennial", *sys.argv[1:]])[:MAX_TEXT],
            operator=ops.operator.name,
            began=began,
            ended=time.time(),
            items=self.run.count,
            unread=self.unread,
            differing=self.differing,
            kinds=dict(self.kinds),
            fixes=self.fix,
            enqueued=dict(self.run.published),
            held_back=len(self.held_back),
            last=self.run.last,
            stopped=stopped[:MAX_TEXT],
            findings=[
                KeptFinding(gid=each.gid, kind=each.kind, file=each.file, fix=each.repair) for each in self.first
            ],
        )
        try:
            keep_audit(ops, result)
        except StoreError as error:
            typer.echo(f"the operations page will not show this audit: {error}", err=True)
