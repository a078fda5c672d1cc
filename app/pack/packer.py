"""Builds a domain's pack from its stored pages: whole after a crawl, or by what changed since the last pack."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from app.broker.errors import InvalidMessage
from app.errors import PackRefused
from app.pack import database as db
from app.pack import previous as predecessor
from app.pack import rows
from app.pack.compress import require_space
from app.pack.manifest import Manifest, check_domain
from app.pack.previous import Previous
from app.pack.publish import publish, write_manifest
from app.pack.result import Kind, PackResult
from app.pack.source import list_content, read_content
from app.pack.vanished import bury, find_vanished
from app.storage.store import ObjectStore, Stat

__all__ = ["PackResult", "pack_full", "pack_incremental"]

#: Bytes of database for each byte of content JSON, above what was measured (1.5), and two copies while one is shipped.
ROOM: Final = 2 * 2
#: Bytes of an empty database and its dense copy, generously.
ROOM_EMPTY: Final = 2**20


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the packer: what it works on, where, and since when (seconds, monotonic)."""

    store: ObjectStore
    domain: str
    kind: Kind
    work: Path
    started: float

    def seconds(self) -> float:
        """Return how long the job has taken."""
        return time.monotonic() - self.started

    def meta(self, previous: Previous, crawl_id: str) -> dict[str, str]:
        """Return what the new database says of itself."""
        return {
            "domain": self.domain,
            "kind": self.kind,
            "generation": str(previous.generation + 1),
            "crawl_id": crawl_id,
            "built_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def pack_full(
    store: ObjectStore,
    domain: str,
    *,
    pages: Collection[str] | None,
    crawl_id: str,
    began: datetime | None,
    start_page: str | None = None,
    force: bool = False,
    work: Path | None = None,
) -> PackResult:
    """Write a new pack of the stored pages whose ids are in `pages` (None: of all), and bury those that vanished.

    Vanished are the stored pages that are not in `pages` and were not written since `began`, when the crawl began:
    they become tombstones, or the next incremental pack would bring them back. Without `began` there are none.
    `start_page` is the canonical key or id of the page where the crawl began, `work` a folder for temporary files.

    Raises PackRefused, with nothing written, for no pages at all, and without `force` when the start page is not among
    them or they are fewer than half of those in the present pack; PreconditionFailed when another pack was written
    meanwhile; PackError for want of disk space; InvalidMessage (domain, or `began` without a time zone); StoreError.
    """
    if began is not None and began.tzinfo is None:
        raise InvalidMessage(f"began {began}: has no time zone")
    with _job(store, domain, "full", work) as job:
        previous = predecessor.look_up(store, domain, job.work / "previous.sqlite")
        listed = list_content(store, domain)
        members = listed if pages is None else _members(listed, pages)
        with _loaded(job, members) as database:
            _refuse_worse(domain, database, previous, start_page=start_page, force=force)
            vanished = find_vanished(store, domain, database, listed, pages=members, began=began)
            manifest = _ship(job, database, previous, crawl_id)
        return _result(job, manifest, rows.Counts(manifest.pages, 0, bury(store, vanished)))


def pack_incremental(
    store: ObjectStore, domain: str, *, deletions: bool = True, work: Path | None = None
) -> PackResult:
    """Bring a domain's pack up to date with what is stored, reading only what changed.

    Nothing is written when nothing changed. A pack that is missing, damaged or of a newer release's schema is built
    anew from all stored pages. Without `deletions`, pages that are gone keep their rows. `work` is a folder for
    temporary files.

    Raises PackRefused when no page would be left of a pack that had some; PreconditionFailed when another pack was
    written meanwhile; PackError for want of disk space; InvalidMessage (domain); StoreError.
    """
    with _job(store, domain, "incremental", work) as job:
        previous = predecessor.download(store, domain, job.work / "previous.sqlite")
        listed = list_content(store, domain)
        if previous.path is None or previous.own is None:
            return _build_anew(job, previous, listed)
        return _update(job, previous, previous.path, previous.own, listed, deletions=deletions)


def _build_anew(job: Job, previous: Previous, listed: Mapping[str, Stat]) -> PackResult:
    with _loaded(job, listed) as database:
        pages = db.count(database)
        if not pages and not previous.pages:
            return PackResult(domain=job.domain, kind=job.kind, written=False, pages=0, seconds=job.seconds())
        _refuse_none(job.domain, pages, previous)
        manifest = _ship(job, database, previous, previous.crawl_id)
    return _result(job, manifest, rows.Counts(pages, 0, 0))


def _update(
    job: Job, previous: Previous, path: Path, own: Manifest, listed: Mapping[str, Stat], *, deletions: bool
) -> PackResult:
    with db.open_for_changes(path) as database:
        counts = _apply(job, database, listed, own, deletions=deletions)
        if not counts.any and previous.described:
            return _result(job, own, counts, written=False)
        if not counts.any and own.generation == previous.generation:
            # A writer died before it described its pack. Searchers have not heard of it: it counts as written now.
            write_manifest(job.store, own)
            return _result(job, own, counts)
        _refuse_none(job.domain, db.count(database), previous)
        manifest = _ship(job, database, previous, previous.crawl_id)
    return _result(job, manifest, counts)


def _apply(
    job: Job, database: sqlite3.Connection, listed: Mapping[str, Stat], own: Manifest, *, deletions: bool
) -> rows.Counts:
    found = rows.difference(database, listed)
    require_space(job.work, ROOM * sum(stat.size for stat in found.changed) + 2 * own.uncompressed_size)
    with db.transaction(database):
        contents = read_content(job.store, found.changed)
        return rows.apply(database, contents, found.vanished, deletions=deletions)


@contextmanager
def _job(store: ObjectStore, domain: str, kind: Kind, work: Path | None) -> Iterator[Job]:
    started = time.monotonic()
    check_domain(domain)
    with tempfile.TemporaryDirectory(prefix="perennial-pack-", dir=work) as folder:
        yield Job(store, domain, kind, Path(folder), started)


@contextmanager
def _loaded(job: Job, members: Mapping[str, Stat]) -> Iterator[sqlite3.Connection]:
    require_space(job.work, ROOM * sum(stat.size for stat in members.values()) + ROOM_EMPTY)
    with db.create(job.work / "new.sqlite") as database:
        with db.transaction(database):
            rows.load(database, read_content(job.store, members.values()))
            db.rebuild_index(database)
        yield database


def _ship(job: Job, database: sqlite3.Connection, previous: Previous, crawl_id: str) -> Manifest:
    dense = job.work / "dense.sqlite"
    db.ship(database, dense, job.meta(previous, crawl_id))
    return publish(job.store, job.domain, dense, previous)


def _result(job: Job, manifest: Manifest, counts: rows.Counts, *, written: bool = True) -> PackResult:
    return PackResult(
        domain=job.domain,
        kind=job.kind,
        written=written,
        pages=manifest.pages,
        added=counts.added,
        changed=counts.changed,
        removed=counts.removed,
        generation=manifest.generation,
        sha256=manifest.sha256,
        size=manifest.size,
        etag=manifest.etag,
        seconds=job.seconds(),
    )


def _members(listed: Mapping[str, Stat], pages: Collection[str]) -> dict[str, Stat]:
    known = pages if isinstance(pages, Set) else frozenset(pages)
    return {name: stat for name, stat in listed.items() if name in known}


def _refuse_worse(
    domain: str, database: sqlite3.Connection, previous: Previous, *, start_page: str | None, force: bool
) -> None:
    pages = db.count(database)
    _refuse_none(domain, pages, previous)
    if force:
        return
    if start_page is not None and not rows.has_page(database, start_page):
        raise PackRefused(f"{domain}: the start page {start_page} is not among the {pages} pages of this crawl")
    if 2 * pages < previous.pages:
        raise PackRefused(f"{domain}: {pages} pages are fewer than half of the {previous.pages} in the present pack")


def _refuse_none(domain: str, pages: int, previous: Previous) -> None:
    if not pages:
        raise PackRefused(f"{domain}: no pages; the present pack has {previous.pages}")
