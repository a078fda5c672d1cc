"""Serve the former generation of a pack again, by a new manifest that names its frames. Nothing is built or copied."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from app.errors import ActRefused, ObjectNotFound, PackCorrupt
from app.pack.download import read_table
from app.pack.frames import FrameTable
from app.pack.manifest import ROLLBACK, Manifest
from app.pack.publish import find_previous, new_object, write_table
from app.search.connections import SCHEMA_VERSION
from app.storage.layout import frames_key, frames_prefix, manifest_key
from app.storage.store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """A rollback of the `present` pack, whose manifest has the ETag, to its `former` generation with this table.

    `fetched` is what a searcher with the present pack reads: bytes of frames that this pack does not have.
    """

    present: Manifest
    etag: str | None
    former: Manifest
    table: FrameTable
    fetched: int

    def __str__(self) -> str:
        former, present = self.former, self.present
        return (
            f"generation {former.generation} of {former.built_at} ({former.pages:,} pages) in place of generation "
            f"{present.generation} ({present.pages:,}); a searcher reads {self.fetched:,} bytes"
        )

    def apply(self, store: ObjectStore) -> Manifest:
        """Publish the former generation as the next one, and return its manifest. The present one becomes the former.

        It counts as the pack of the present one's crawl, so that nothing finds this crawl unpacked. Raises
        PreconditionFailed, with the present pack as it is, when another pack was written meanwhile.
        """
        domain, generation = self.present.domain, self.present.generation + 1
        table = replace(self.table, objects=(*self.table.objects, (new_object(generation), 0)))
        manifest = replace(
            self.former,
            generation=generation,
            kind=ROLLBACK,
            built_at=datetime.now(UTC).isoformat(timespec="seconds"),
            crawl_id=self.present.crawl_id,
            former=replace(self.present, former=None),
            **write_table(store, domain, table),
        )
        store.put(manifest_key(domain), manifest.to_json(), if_match=self.etag)
        return manifest


def plan_rollback(store: ObjectStore, domain: str) -> Rollback:
    """Return the rollback of a domain's present pack, with nothing written.

    Raises ActRefused if no former generation is kept, or if it is incomplete or of another schema.
    """
    previous = find_previous(store, domain)
    present, former = previous.manifest, previous.manifest and previous.manifest.former
    if present is None or former is None:
        raise ActRefused(f"{domain}: no former generation is kept; there is one from the pack of a second crawl on")
    try:
        table = _complete_table(store, former)
    except (ObjectNotFound, PackCorrupt) as error:
        raise ActRefused(f"{domain}: generation {former.generation} cannot be served: {error}") from error
    held = set[str]()
    with suppress(ObjectNotFound, PackCorrupt):  # A damaged pack is a reason for a rollback.
        held = {frame.sha256 for frame in read_table(store, present).frames}
    fetched = sum(frame.size for frame in set(table.frames) if frame.sha256 not in held)
    return Rollback(present=present, etag=previous.etag, former=former, table=table, fetched=fetched)


def _complete_table(store: ObjectStore, manifest: Manifest) -> FrameTable:
    """Return the table of a pack that searchers can open; raises ObjectNotFound, also for frames, and PackCorrupt."""
    if manifest.schema_version != SCHEMA_VERSION:
        raise PackCorrupt("this release's packs have another schema")
    table, domain = read_table(store, manifest), manifest.domain
    listed = {stat.key for stat in store.list(frames_prefix(domain))}
    if missing := {frames_key(domain, name) for name, _ in table.objects} - listed:
        raise ObjectNotFound(f"without {', '.join(missing)}")
    return table
