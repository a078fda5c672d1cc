"""Publish a finished database: its new frames, and then its manifest, in place of the previous one.

The manifest is the pack. Without it, an object of frames is what a killed packer left, and is collected later.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from app.broker.errors import InvalidMessage
from app.errors import ObjectNotFound, PackCorrupt, PackNotFound, StoreError
from app.pack import database
from app.pack.database_cache import has_version
from app.pack.derivation import code_hash
from app.pack.download import read_table, write_database
from app.pack.frames import Frame, FrameTable, compressed, sha256
from app.pack.manifest import ROLLBACK, Manifest, PackDescription, check_domain, read_manifest, readable_manifest
from app.search.connections import SCHEMA_VERSION
from app.storage.layout import frames_key, frames_prefix, manifest_key
from app.storage.reading import get_if_present
from app.storage.store import ObjectStore, Stat

log = logging.getLogger(__name__)

#: Bytes of frames in an object. A packer holds those of one in memory.
OBJECT_SIZE: Final = 16 * 2**20
#: Objects of less than half of that size whose frames a pack may use. Beyond, all frames are written again. So they are
#: where a smaller share of the bytes of all its objects is used.
MAX_OBJECTS: Final = 64
MIN_USED: Final = 0.5
#: How long an object stays that no kept generation uses. Searchers may still read it, and another packer may be about
#: to write its manifest.
RETENTION: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousPack:
    """The pack that a new one replaces, on condition that the ETag of its manifest is still `etag` (None: no manifest).

    `path` is its database, `table` lists its frames, and `manifest` describes it; None if it is unreadable. A pack that
    cannot be updated has neither path nor table. Nor has one of which only the numbers were needed.
    """

    etag: str | None
    generation: int = 0
    pages: int = 0
    crawl_id: str = ""
    manifest: Manifest | None = None
    path: Path | None = None
    table: FrameTable | None = None


def find_previous(store: ObjectStore, domain: str) -> PreviousPack:
    """Return the numbers of the present pack. Without a readable manifest, only its generation is found."""
    stored = get_if_present(store, manifest_key(check_domain(domain)))
    if stored is None:
        return PreviousPack(etag=None, generation=_last_generation(store, domain))
    try:
        manifest = Manifest.from_json(stored.data, domain=domain)
    except PackCorrupt as error:
        log.warning("%s: rewriting the manifest: %s", domain, error)
        return PreviousPack(etag=stored.etag, generation=_last_generation(store, domain))
    return PreviousPack(
        etag=stored.etag,
        generation=manifest.generation,
        pages=manifest.pages,
        crawl_id=manifest.crawl_id,
        manifest=manifest,
    )


def download_previous(store: ObjectStore, domain: str, target: Path) -> PreviousPack:
    """Return the present pack with its database at `target`, or without it if this release cannot read it.

    What `target` has of it is not fetched.
    """
    previous = find_previous(store, domain)
    if previous.manifest is None:
        target.unlink(missing_ok=True)
        return previous
    try:
        table = read_table(store, previous.manifest)
        if not has_version(target, previous.manifest.sha256):
            write_database(store, previous.manifest, table, target)
        # What a packer wrote has been checked, or made from what was.
        database.check(target, is_intact=True)
        _check_code(target)
    except (PackCorrupt, ObjectNotFound) as error:
        log.warning("%s: rebuilding the pack from all stored pages: %s", domain, error)
        target.unlink(missing_ok=True)
        return previous
    return replace(previous, path=target, table=table)


def _last_generation(store: ObjectStore, domain: str) -> int:
    """Return the highest generation of which the store has frames."""
    names = (stat.key.rpartition("/")[2].partition("-")[0] for stat in store.list(frames_prefix(domain)))
    return max((int(number) for number in names if number.isdecimal()), default=0)


def _check_code(path: Path) -> None:
    if database.meta_of(path).get("code_hash") != code_hash():
        raise PackCorrupt(f"{path.name}: other code wrote it, so it cannot be updated")


def publish(
    store: ObjectStore, description: PackDescription, path: Path, hashes: Sequence[str], previous: PreviousPack
) -> Manifest:
    """Write the frames that the store lacks, then the manifest in place of that of `previous`; return the manifest.

    The pack is the database at `path`, whose frames have these `hashes`.
    Raises PreconditionFailed when the manifest in the store is no longer that of `previous`.
    """
    domain = description.domain
    # Whatever packs begin after this manifest was written, and however long they take: their frames are younger.
    oldest = datetime.now(UTC) - RETENTION
    table, last = _write_frames(store, domain, path, hashes, previous.table, description.generation)
    manifest = Manifest(
        **asdict(description),
        **write_table(store, domain, table, last),
        uncompressed_size=path.stat().st_size,
        schema_version=SCHEMA_VERSION,
        former=_kept(previous.manifest, description.crawl_id),
    )
    store.put(manifest_key(domain), manifest.to_json(), if_match=previous.etag, if_absent=previous.etag is None)
    try:
        for stat in unused_frames(store, domain, store.list(frames_prefix(domain)), oldest):
            store.delete(stat.key)
    except StoreError as error:
        log.warning("%s: frames that are not used any more stay until the next pack: %s", domain, error)
    return manifest


def new_object(generation: int) -> str:
    """Return the name of an object that a generation adds.

    No other packer has the random name, so the object is written without a condition. With one, a request that the S3
    client repeats after a lost reply would fail.
    """
    return f"{generation}-{secrets.token_hex(8)}"


def write_table(store: ObjectStore, domain: str, table: FrameTable, frames: BytesIO | None = None) -> dict[str, Any]:
    """Write the last object of the table: its frames, and then the table. Return the manifest's fields about it."""
    data, (name, size) = table.to_bytes(), table.objects[-1]
    # Unlike a join, it does not hold the frames twice.
    content = frames or BytesIO()
    content.write(data)
    store.put(frames_key(domain, name), content.getvalue())
    place = {"own_object": name, "table_start": size, "table_size": len(data)}
    return {"sha256": sha256(data), "size": table.size, **place}


def _kept(previous: Manifest | None, crawl_id: str) -> Manifest | None:
    """Return the generation that is kept beside a new one of this crawl: the last one before the crawl's packs.

    A pack after a rollback may bring back the fault, so what the rollback served is kept.
    """
    if previous is None:
        return None
    if previous.kind == ROLLBACK or crawl_id not in ("", previous.crawl_id):
        return replace(previous, former=None)
    return previous.former


def _write_frames(
    store: ObjectStore, domain: str, path: Path, hashes: Sequence[str], former: FrameTable | None, generation: int
) -> tuple[FrameTable, BytesIO]:
    """Store the frames of a database that `former` lacks. Return the table of all, and its last object's content.

    `hashes` are those of the database's frames. The last object is stored with the table.
    """
    used = _used(former, hashes) if former else {}
    # Objects are numbered again: some of the former ones are not used any more.
    numbers = {before: number for number, before in enumerate(sorted({frame.number for frame in used.values()}))}
    objects = [former.objects[number] for number in numbers if former]
    frames = {hashed: Frame(hashed, numbers[frame.number], frame.start, frame.size) for hashed, frame in used.items()}
    new: dict[str, int] = {}
    for number, hashed in enumerate(hashes):
        if hashed not in frames:
            new.setdefault(hashed, number)
    name, content = new_object(generation), BytesIO()
    for hashed, frame in zip(new, compressed(path, new.values()), strict=True):
        if content.tell() and content.tell() + len(frame) > OBJECT_SIZE:
            store.put(frames_key(domain, name), content.getvalue())
            objects.append((name, content.tell()))
            name, content = new_object(generation), BytesIO()
        frames[hashed] = Frame(hashed, len(objects), content.tell(), len(frame))
        content.write(frame)
    objects.append((name, content.tell()))
    return FrameTable(tuple(objects), tuple(frames[hashed] for hashed in hashes)), content


def _used(former: FrameTable, hashes: Sequence[str]) -> Mapping[str, Frame]:
    """Return the former frames to use again, by hash: none where their objects have too much that is not used."""
    wanted = set(hashes)
    used = {frame.sha256: frame for frame in former.frames if frame.sha256 in wanted}
    numbers = {frame.number for frame in used.values()}
    stored = sum(former.objects[number][1] for number in numbers)
    is_dense = sum(frame.size for frame in used.values()) >= MIN_USED * stored
    small = [number for number in numbers if former.objects[number][1] < OBJECT_SIZE // 2]
    return used if is_dense and len(small) < MAX_OBJECTS else {}


def unused_frames(store: ObjectStore, domain: str, listed: Iterable[Stat], oldest: datetime) -> list[Stat]:
    """Return the listed objects of frames that were written before `oldest`, and that no kept generation uses.

    The manifest is read after the listing. Later generations use no other old objects than the ones that it leads to.
    Nothing is returned where the present table cannot be read.
    """
    old = {stat.key: stat for stat in listed if stat.modified < oldest}
    try:
        manifest = read_manifest(store, domain) if old else None
        used = read_table(store, manifest).objects if manifest else ()
    except (PackNotFound, InvalidMessage):
        return list(old.values())  # A domain without a pack uses none of them, nor does what is no domain.
    except (PackCorrupt, ObjectNotFound) as error:
        log.warning("%s: no frames are collected: %s", domain, error)
        return []
    with suppress(PackCorrupt, ObjectNotFound):  # A former generation whose table is lost cannot be served again.
        used += read_table(store, manifest.former).objects if manifest and manifest.former else ()
    for name, _ in used:
        old.pop(frames_key(domain, name), None)
    return list(old.values())


def is_present(store: ObjectStore, manifest: Manifest) -> bool:
    """Return whether the store holds the pack that the manifest describes: no later writer has replaced it."""
    return readable_manifest(store, manifest.domain) == manifest
