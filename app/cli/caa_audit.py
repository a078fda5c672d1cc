"""`perennial caa audit`: compares items in threads, reports in the order of the gids, and publishes the repairs."""

from __future__ import annotations

import json
import shlex
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial

import typer

from app.broker.errors import ApplicationError
from app.cli.caa_run import BATCH, GidRun, Result
from app.cli.context import operator_context
from app.cli.printing import print_lines
from app.coverart import musicbrainz
from app.coverart.archive import PublicArchive
from app.coverart.audit import ArtFinding, FindGids, audit
from app.coverart.jobs import Delete, kind_of
from app.coverart.musicbrainz import Connection
from app.coverart.outages import OUTAGE_ITEMS
from app.coverart.project import LISTING_FILE, Entity
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
from app.operations.art import MAX_FINDINGS, MAX_TEXT, ArtAudit, KeptFinding, keep_audit

_UNAVAILABLE = (ArchiveUnavailable, WebServiceUnavailable)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares items with the database's entities; its threads share a connection, which they need for differences.

    Where the user gave each gid, one that neither database nor archive has is an error.
    """

    run: GidRun
    public: PublicArchive
    web_service: WebService
    #: Whether the metadata of every item are compared, and not only those that a change may have made stale.
    every_metadata: bool
    _in_use: threading.Lock = field(default_factory=threading.Lock)
    #: Items that could not be read, since the last one that could.
    _unread: list[str] = field(default_factory=list)

    def compare(
        self, pages: Iterable[Sequence[tuple[str, Entity | None]]], *, jobs: int
    ) -> Generator[tuple[str, tuple[ArtFinding, ...] | RemoteError]]:
        """Yield each gid with what `findings` returns for it, in their order; `jobs` items are compared at a time."""
        pool = ThreadPoolExecutor(jobs, thread_name_prefix="audit")
        try:
            for page in pages:
                yield from zip((gid for gid, _ in page), pool.map(self.findings, page), strict=True)
        finally:
            # Threads that pause are awaited, also after an error.
            with self.run.without_pauses():
                pool.shutdown(cancel_futures=True)

    def findings(self, pair: tuple[str, Entity | None]) -> tuple[ArtFinding, ...] | RemoteError:
        """Return the differences of the item of a gid with its entity, or the error of an item that cannot be read.

        Sends one request where nothing differs. Raises the error of an outage when the pauses are used up.
        """
        gid, entity = pair
        try:
            found = self._compared(gid, entity)
        except (ArchiveError, WebServiceError) as error:
            if self._is_outage(error):
                raise
            if error.evidence != "answered":
                self._unread.append(gid)
            return error
        self._unread.clear()
        return found

    def _compared(self, gid: str, entity: Entity | None) -> tuple[ArtFinding, ...]:
        project = self.run.project
        bucket = project.bucket(gid)
        item = self._patiently(lambda: self.public.item(bucket))
        if self.run.gids and entity is None and item is None:
            name = f"{project.entity} {gid}"
            raise ResourceNotFound(f"{name}: neither MusicBrainz's database nor the archive has it")
        compare = partial(
            audit,
            project,
            gid,
            item=item,
            find_gids=self.gids_of_images,
            # Each is requested once, also where the item is compared twice.
            read_listing=cache(lambda: self._patiently(lambda: self.public.file(bucket, LISTING_FILE))),
            read_metadata=cache(lambda: self._patiently(lambda: self.web_service.metadata(project, gid))),
            every_metadata=self.every_metadata,
        )
        if not compare(entity):
            return ()
        # The entity was read some seconds before the item. What it is now decides.
        return compare(self._read(lambda connection: musicbrainz.entity(connection, project, gid)))

    def gids_of_images(self, images: Collection[int]) -> dict[int, str]:
        """Return the gid of the entity of each image that has one."""
        return self._read(lambda connection: musicbrainz.gids_of_images(connection, self.run.project, images))

    def _read(self, query: Callable[[Connection], Result]) -> Result:
        with self._in_use:
            return self.run.read(query)

    def _patiently(self, read: Callable[[], Result]) -> Result:
        return self.run.patiently(read, self._is_outage)

    def _is_outage(self, error: RemoteError) -> bool:
        """Return whether a service is away: it says so, or several items could not be read, one after another."""
        is_row = len(self._unread) >= OUTAGE_ITEMS and not self.run.gids
        return isinstance(error, _UNAVAILABLE) or (is_row and error.evidence != "answered")


class AuditReport:
    """Prints findings as they come, counts them and publishes the jobs that repair them."""

    def __init__(self, run: GidRun, *, fix: bool, yes: bool, as_json: bool) -> None:
        command = shlex.join(["perennial", *sys.argv[1:]])[:MAX_TEXT]
        self.audit = ArtAudit(
            archive=run.project.prefix, command=command, operator=operator_context().operator.name, fixes=fix
        )
        self._run, self._yes, self._as_json = run, yes, as_json
        #: Deletions of images that wait for the user's confirmation.
        self._held_back: list[Delete] = []

    def add(self, gid: str, found: tuple[ArtFinding, ...] | RemoteError) -> None:
        """Print the findings of an item and publish their repairs; an item that could not be read is counted."""
        if isinstance(found, RemoteError):
            self.audit.unread += 1
            typer.echo(f"{gid}: not compared: {found}", err=True)
            return
        if not found:
            return
        # As JSON, or a line each: gid, kind, file, kind of the repairing job.
        if self._as_json:
            values = (
                {"gid": each.gid, "kind": each.kind, "file": each.file}
                | {"fix": {"job": kind_of(each.fix), **asdict(each.fix)} if each.fix else None}
                for each in found
            )
            head = ", " if self.audit.differing else self._json_head
            typer.echo(head + ", ".join(map(json.dumps, values)), nl=False)
        else:
            print_lines((each.gid, each.kind, each.file, each.repair) for each in found)
        self.audit.differing += 1
        for each in found:
            self.audit.kinds[each.kind] = self.audit.kinds.get(each.kind, 0) + 1
        kept = [KeptFinding(gid, each.kind, each.file, each.repair) for each in found]
        self.audit.findings += kept[: MAX_FINDINGS - len(self.audit.findings)]
        if self.audit.fixes:
            fixes = list(dict.fromkeys(finding.fix for finding in found if finding.fix is not None))
            images = [job for job in fixes if isinstance(job, Delete) and job.id is not None and not self._yes]
            self._held_back += images
            self._run.publish([job for job in fixes if job not in images])

    @property
    def _json_head(self) -> str:
        """The beginning of the JSON document, whose findings are printed as they come."""
        return f'{{"archive": {json.dumps(self.audit.archive)}, "findings": ['

    @contextmanager
    def deleting_images(self, find_gids: FindGids) -> Iterator[None]:
        """Publish after the block the deletions that were held back, if the user confirms them.

        Also where the block failed: the user continues the audit after these items. Deletions of images that the
        database has by now are left out.
        """
        try:
            yield
        finally:
            if self._held_back:
                try:
                    self._delete_images(find_gids)
                except (KeyboardInterrupt, typer.Abort, ApplicationError):
                    typer.echo(f"{len(self._held_back):,} not deleted, or not all: audit these items again", err=True)
                    raise

    def _delete_images(self, find_gids: FindGids) -> None:
        images = f"{len(self._held_back):,} image{'' if len(self._held_back) == 1 else 's'}"
        if not sys.stdin.isatty():
            typer.echo(f"{images} not deleted: standard input is not a terminal; confirm with --yes", err=True)
            return
        if not typer.confirm(f"Delete {images} at the archive, which keeps an old version of each?", err=True):
            return
        gids = find_gids([job.id for job in self._held_back if job.id is not None])
        in_database = [job for job in self._held_back if job.id in gids]
        confirmed = [job for job in self._held_back if job.id not in gids]
        while confirmed:
            self._run.publish(confirmed[:BATCH])
            confirmed = confirmed[BATCH:]
            self._held_back = in_database + confirmed
        if self._held_back:
            typer.echo(f"{len(self._held_back):,} not deleted: the database has them now; audit again", err=True)

    def print_summary(self) -> None:
        """Print the numbers of findings and jobs."""
        audit, sent = self.audit, self._run.published
        if self._as_json:
            jobs = {"enqueued": dict(sent), "not_deleted": len(self._held_back)} if audit.fixes else {}
            summary = json.dumps({"items": self._run.count, "unread": audit.unread, **jobs})
            typer.echo(("" if audit.differing else self._json_head) + f"], {summary.removeprefix('{')}")
            return
        number = sum(audit.kinds.values())
        compared = self._run.count - audit.unread
        line = f"{self._run.count_text(compared)} compared: {number:,} finding{'' if number == 1 else 's'}"
        line += f" in {audit.differing:,} of them" if audit.differing and compared > 1 else ""
        line += f"; {audit.unread:,} could not be read" if audit.unread else ""
        if audit.fixes:
            kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(sent.items()))
            line += f"; {sent.total():,} job{'' if sent.total() == 1 else 's'}{f' ({kinds})' if kinds else ''} enqueued"
        # Standard output has one line for each finding, for programs.
        typer.echo(line, err=True)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep how an audit of all items ends, in the store; while that is away, say so and go on."""
        audit, run = self.audit, self._run
        try:
            yield
        except BaseException as error:
            audit.stopped = (str(error) or "interrupted")[:MAX_TEXT]
            raise
        finally:
            if not run.gids:
                audit.ended, audit.items, audit.last = time.time(), run.count, run.last
                audit.enqueued, audit.held_back = dict(run.published), len(self._held_back)
                try:
                    keep_audit(operator_context(), audit)
                except StoreError as error:
                    typer.echo(f"the operations page will not show this audit: {error}", err=True)
