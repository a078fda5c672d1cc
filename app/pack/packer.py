"""Build a domain's pack from its stored pages: completely after a crawl, or from what changed since the last pack."""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from app.broker.errors import ApplicationError
from app.errors import PackRefused, lacks_space
from app.pack import database as db
from app.pack import derivation, repeated_lines, rows
from app.pack.database import read_meta, write_meta
from app.pack.database_cache import DatabaseCache, note_version
from app.pack.download import require_space
from app.pack.frames import hashes_after, hashes_of
from app.pack.listing import Listing, difference_of
from app.pack.manifest import Manifest, PackDescription
from app.pack.plan import ALL_STORED_PAGES, FinishedCrawl, FullPackPlan, plan_full_pack
from app.pack.properties import are_ids_spent
from app.pack.publish import PreviousPack, download_previous, find_previous, is_present, publish
from app.pack.stored_pages import StoredContent, delete_tombstones, find_vanished, read_pages, write_tombstones
from app.pack.work_folder import work_folder
from app.storage.layout import content_key, list_pages
from app.storage.store import ObjectStore, Stat

#: Bytes of database for each byte of stored JSON (1.5 measured, rounded up), for the database and its compact copy.
SPACE_FACTOR: Final = 2 * 2
#: Bytes of an empty database and its compact copy, rounded up.
EMPTY_SIZE: Final = 2**20
#: Bytes of the databases that are cached in the folder `work`. The setting PACKER_DISK_MB limits them.
CACHE_BYTES: Final = sys.maxsize

PackKind = Literal["full", "incremental"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackResult:
    """A pack that was written, or found to be up to date (`written` false).

    `pages` is the number of its pages. An incremental pack counts rows added, changed and removed. A full pack counts
    all its pages as added, and vanished pages as removed. `sha256` and `size` (bytes) are those of the manifest. They
    are empty or 0, for a domain without pages and pack.
    """

    domain: str
    kind: PackKind
    written: bool
    pages: int
    added: int = 0
    changed: int = 0
    removed: int = 0
    generation: int = 0
    sha256: str = ""
    size: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        if not self.generation:
            return "not built, because no pages are stored"
        if not self.written:
            return f"generation {self.generation} is up to date with {self.pages} pages"
        return (
            f"generation {self.generation} ({self.kind}) is published with {self.pages} pages: {self.added} added, "
            f"{self.changed} changed, {self.removed} removed; {self.size} bytes, built in {self.seconds:.1f} s"
        )

    def as_event(self) -> dict[str, Any]:
        """Return the payload of an `update` message."""
        return asdict(self) | {"seconds": round(self.seconds, 3)}


@dataclass(frozen=True, slots=True)
class PackRun:
    """One build of a domain's pack in the temporary folder `work`, since `started` (seconds, monotonic)."""

    store: ObjectStore
    domain: str
    kind: PackKind
    work: Path
    started: float
    cache: DatabaseCache

    @property
    def _former(self) -> Path:
        return self.work / "former.sqlite"

    @property
    def _compact(self) -> Path:
        return self.work / "compact.sqlite"

    def download_previous(self) -> PreviousPack:
        """Return the present pack with its database in the work folder, or without it if it cannot be read."""
        self.cache.take(self.domain, self._former)
        return download_previous(self.store, self.domain, self._former)

    def cache_latest(self) -> None:
        """Put the latest database into the cache, whether or not it was published."""
        latest = next((path for path in (self._compact, self._former) if path.exists()), None)
        if latest is not None:
            self.cache.put(self.domain, latest)

    def list_stored(self, is_packed: Callable[[str], bool] = ALL_STORED_PAGES.has) -> Listing:
        """List the stored content; `is_packed` says of a page id whether its page is packed."""
        return Listing(self.work / "listing.sqlite", self.domain, list_pages(self.store, self.domain), is_packed)

    def publish(self, database: sqlite3.Connection, previous: PreviousPack, *, crawl_id: str, is_new: bool) -> Manifest:
        """Publish the database in place of `previous`, compacted if it is new or needs it. Return its manifest."""
        needs_compaction = not is_new and derivation.needs_compaction(database)
        description = PackDescription(
            domain=self.domain,
            kind=self.kind,
            generation=previous.generation + 1,
            crawl_id=crawl_id,
            built_at=datetime.now(UTC).isoformat(timespec="seconds"),
            pages=rows.count(database),
        )
        write_meta(database, description.as_meta())
        written = [] if is_new else db.written_ranges(database)
        if needs_compaction:
            derivation.merge_indexes(database)
        if is_new or needs_compaction or previous.table is None:
            path = db.write_compact(database, self._compact)
            hashes = list(hashes_of(path))
        else:
            path = self._former
            hashes = hashes_after(path, [frame.sha256 for frame in previous.table.frames], written)
        manifest = publish(self.store, description, path, hashes, previous)
        note_version(path, manifest.sha256)
        return manifest

    def result(self, manifest: Manifest, counts: rows.RowCounts, *, written: bool = True) -> PackResult:
        """Return the result for the pack that the manifest describes."""
        return PackResult(
            domain=self.domain,
            kind=self.kind,
            written=written,
            pages=manifest.pages,
            added=counts.added,
            changed=counts.changed,
            removed=counts.removed,
            generation=manifest.generation,
            sha256=manifest.sha256,
            size=manifest.size,
            seconds=time.monotonic() - self.started,
        )


def pack_crawl(
    store: ObjectStore,
    domain: str,
    crawl: FinishedCrawl | None,
    *,
    met_since: Callable[[], Collection[str]] = frozenset,
    force: bool = False,
    work: Path | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> PackResult:
    """Build the pack that `plan_full_pack` chooses; `crawl` None is an unknown crawl. Raises as `pack_full`."""
    plan = plan_full_pack(domain, crawl, force=force)
    if plan is None:
        return pack_incremental(store, domain, work=work, cache_bytes=cache_bytes)
    return pack_full(store, domain, plan, met_since=met_since, force=force, work=work, cache_bytes=cache_bytes)


def pack_full(
    store: ObjectStore,
    domain: str,
    plan: FullPackPlan = ALL_STORED_PAGES,
    *,
    met_since: Callable[[], Collection[str]] = frozenset,
    force: bool = False,
    work: Path | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> PackResult:
    """Write a new pack of the plan's pages, and replace vanished pages by tombstones.

    A page that `met_since` returns does not count as vanished: it was fetched after the plan's ids were read. Without
    tombstones the next incremental pack would restore vanished pages. Those that were read, of earlier packs, are
    deleted in the end.

    Rows of pages that have not changed are those of the present pack. Nothing is written if it has exactly the pages of
    the crawl already. With `force`, neither is so. `work` is a folder for temporary files, and for a cache of
    `cache_bytes` of databases.

    Raises PackRefused, with nothing written, for a pack without pages, and without `force` for one with fewer than half
    the pages of the present pack; PreconditionFailed when another pack was written meanwhile; PackError for a full
    disk; InvalidMessage (domain); StoreError.
    """
    with _start(store, domain, "full", work, cache_bytes) as run:
        previous = find_previous(store, domain) if force else run.download_previous()
        listing = run.list_stored(plan.has)
        unmet = listing.stats(packed=False)
        vanished, tombstones = find_vanished(store, unmet, began=plan.began) if plan.began else ([], [])
        with _full_database(run, previous, listing) as (database, counts):
            if counts is not None and not counts and plan.crawl_id and not vanished and previous.manifest is not None:
                delete_tombstones(store, domain, {each.page_id: each.etag for each in tombstones})
                return run.result(previous.manifest, counts, written=False)
            pages = rows.count(database)
            _refuse_empty(domain, pages, previous)
            if 2 * pages < previous.pages and not force:
                raise PackRefused(
                    f"{domain}: {pages} pages are fewer than half of the {previous.pages} in the present pack"
                )
            noted = rows.pop_tombstones(database) | {each.page_id: each.etag for each in tombstones}
            manifest = run.publish(database, previous, crawl_id=plan.crawl_id, is_new=counts is None)
        delete_tombstones(store, domain, noted)
        removed = write_tombstones(
            store, vanished, still_valid=lambda: is_present(store, manifest), met_since=met_since
        )
        return run.result(manifest, rows.RowCounts(manifest.pages, 0, removed))


def pack_incremental(
    store: ObjectStore,
    domain: str,
    *,
    page_ids: Collection[str] | None = None,
    deletions: bool = True,
    work: Path | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> PackResult:
    """Bring a domain's pack up to date with the stored pages, reading only what changed.

    With `page_ids`, only these pages are compared with the store; without, all stored pages are listed.
    Nothing is written if nothing changed. A pack that is missing, damaged or of another schema, or has used up its row
    ids, is rebuilt from all stored pages. Without `deletions`, rows of deleted pages stay. `work` is a folder for
    temporary files, and for a cache of `cache_bytes` of databases.

    Raises PackRefused when no page would be left of a pack that had some; PreconditionFailed when another pack was
    written meanwhile; PackError for a full disk; InvalidMessage (domain); StoreError.
    """
    with _start(store, domain, "incremental", work, cache_bytes) as run:
        previous = run.download_previous()
        if previous.path is not None and previous.manifest is not None:
            updated = _update(run, previous, previous.path, previous.manifest, page_ids, deletions=deletions)
            if updated is not None:
                return updated
        with _new_database(run, run.list_stored()) as database:
            pages = rows.count(database)
            if not pages and not previous.pages:
                seconds = time.monotonic() - run.started
                return PackResult(domain=domain, kind=run.kind, written=False, pages=0, seconds=seconds)
            _refuse_empty(domain, pages, previous)
            manifest = run.publish(database, previous, crawl_id=previous.crawl_id, is_new=True)
        return run.result(manifest, rows.RowCounts(pages, 0, 0))


def _update(
    run: PackRun,
    previous: PreviousPack,
    path: Path,
    present: Manifest,
    page_ids: Collection[str] | None,
    *,
    deletions: bool,
) -> PackResult | None:
    """Apply what changed to the previous database at `path`, described by `present`; publish it if rows differ.

    Return None, with nothing published, where pages that came and went have used up the row ids.
    """
    with db.open_for_update(path) as database:
        changed, deleted, unchanged = difference_of(database, run.store, run.domain, page_ids)
        if not changed and not deleted:
            return run.result(present, rows.RowCounts(0, 0, 0), written=False)
        counts = _apply(run, database, present, changed, deleted, (*changed, *unchanged), deletions=deletions)
        if counts is None:
            return None
        if not counts:
            return run.result(present, counts, written=False)
        _refuse_empty(run.domain, rows.count(database), previous)
        return run.result(run.publish(database, previous, crawl_id=previous.crawl_id, is_new=False), counts)


def _apply(
    run: PackRun,
    database: sqlite3.Connection,
    present: Manifest,
    changed: Sequence[Stat],
    deleted: Collection[str],
    listed: Iterable[Stat],
    *,
    deletions: bool = True,
) -> rows.RowCounts | None:
    """Apply what changed since the pack that `present` describes, and return the numbers of rows that differ.

    If any do, the versions of the `listed` objects are noted.
    Return None for a database that must be built again: pages that came and went have used up the row ids.
    """
    changed_bytes = sum(stat.size for stat in changed)
    require_space(run.work, SPACE_FACTOR * changed_bytes + 2 * present.uncompressed_size)
    db.note_written_pages(database)
    with db.transaction(database):
        contents = read_pages(run.store, (stat.key for stat in changed))
        lines = repeated_lines.in_meta(read_meta(database))
        counts = rows.apply(database, contents, deleted, lines, deletions=deletions)
        if counts and are_ids_spent(database):
            return None
        if counts:
            derivation.derive_changed(database, partial(_read_again, run), counts.total)
            rows.note_versions(database, listed)
    return counts


@contextmanager
def _full_database(
    run: PackRun, previous: PreviousPack, listing: Listing
) -> Iterator[tuple[sqlite3.Connection, rows.RowCounts | None]]:
    """Open a database with the rows of exactly these pages, and what differs from `previous`; None for a new one.

    Where few rows differ, it is the previous database: its other rows are as a new one would have them.
    """
    if previous.path is not None and previous.manifest is not None:
        with db.open_for_update(previous.path) as database:
            changed, deleted = listing.difference(database)
            if not derivation.must_rebuild(database, len(changed) + len(deleted)):
                counts = _apply(run, database, previous.manifest, changed, deleted, listing.stats(packed=True))
                if counts is not None:
                    yield database, counts
                    return
    with _new_database(run, listing) as database:
        yield database, None


def _read_again(run: PackRun, page_ids: Iterable[str]) -> Iterator[StoredContent]:
    return read_pages(run.store, (content_key(run.domain, page_id) for page_id in page_ids))


@contextmanager
def _start(store: ObjectStore, domain: str, kind: PackKind, work: Path | None, cache_bytes: int) -> Iterator[PackRun]:
    started = time.monotonic()
    with ExitStack() as stack:
        parent = work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = stack.enter_context(work_folder(parent))
        run = PackRun(store, domain, kind, folder, started, DatabaseCache(parent / "cache", cache_bytes))
        stack.callback(run.cache_latest)
        try:
            yield run
        except (ApplicationError, OSError) as error:
            if lacks_space(error):  # The message comes again, and finds the room of the cache.
                run.cache.clear()
            raise


@contextmanager
def _new_database(run: PackRun, listing: Listing) -> Iterator[sqlite3.Connection]:
    """Create a database with the rows of the listed pages that are packed, and all that is derived from them."""
    require_space(run.work, SPACE_FACTOR * listing.size + EMPTY_SIZE)
    with db.create(run.work / "new.sqlite") as database:
        with db.transaction(database):
            rows.reserve_ids(database, listing.count)
            stored = read_pages(run.store, (stat.key for stat in listing.stats(packed=True)))
            derivation.derive_all(database, rows.load(database, stored, partial(_read_again, run)))
            rows.note_versions(database, listing.stats(packed=True))
        yield database


def _refuse_empty(domain: str, pages: int, previous: PreviousPack) -> None:
    if not pages:
        raise PackRefused(f"{domain}: no pages; the present pack has {previous.pages}")
