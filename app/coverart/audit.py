"""Compare an item of the archive with the database's entity, and name the jobs that repair the differences."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.broker.nesting import read_json
from app.coverart.archive import FRESH, ArchiveItem
from app.coverart.jobs import Delete, Index, Job, Move, kind_of
from app.coverart.project import LISTING_FILE, Entity, Project, listing

#: `left`: a file that should not exist; `elsewhere`: an image of another entity.
Kind = Literal[
    "dark",
    "listing-missing",
    "listing-stale",
    "listing-left",
    "metadata-missing",
    "metadata-stale",
    "image-missing",
    "image-left",
    "image-elsewhere",
]

#: Returns the gid of each image's entity; an image without an entity is left out.
FindGids = Callable[[Collection[int]], Mapping[int, str]]

#: Returns a document, or None if it does not exist.
ReadDocument = Callable[[], bytes | None]


@dataclass(frozen=True, slots=True)
class ArtFinding:
    """One difference. `fix` is the job that repairs it, or None where a person must look."""

    gid: str
    kind: Kind
    file: str
    fix: Job | None = None

    @property
    def repair(self) -> str:
        """The kind of the job that repairs it, empty without one."""
        return kind_of(self.fix) if self.fix else ""


def audit(
    project: Project,
    gid: str,
    entity: Entity | None,
    item: ArchiveItem | None,
    *,
    find_gids: FindGids,
    read_listing: ReadDocument,
    read_metadata: ReadDocument,
    every_metadata: bool = False,
) -> tuple[ArtFinding, ...]:
    """Return the differences between the item of `gid` and `entity`, which the database returned for it.

    There may be no entity, for a gid that the database does not have. The entity has another gid if `gid` was merged
    into it. Then the item should have nothing but its metadata, whose deletion is never requested. A dark item is
    reported without details, since nothing in it can be read or changed. With `every_metadata` also metadata are
    compared that are younger than the entity: the database has no time of some changes.

    `read_listing` returns the item's listing, `read_metadata` the metadata that the writer would write now. Calls no
    function where names, checksums and times of the files show that nothing differs. Raises the functions' errors.
    """
    if item is not None and item.dark:
        return (ArtFinding(gid, "dark", ""),)
    own = entity if entity is not None and entity.gid == gid else None
    merged = {image.id: entity.gid for image in entity.images} if entity is not None and own is None else {}
    # At most 18 digits, since the database could not store a larger id, and no leading zero.
    pattern = re.compile(rf"{re.escape(project.bucket(gid))}-([1-9][0-9]{{0,17}})\.([a-z0-9]{{1,8}})")
    matches = map(pattern.fullmatch, sorted(item.files) if item is not None else ())
    found = [(match[0], int(match[1]), match[2]) for match in matches if match]
    unexpected = {id for _, id, _ in found} - {image.id for image in (entity.images if entity else ())}
    expected = [project.image_file(gid, image.id, image.suffix) for image in (own.images if own else ())]
    gids = {**(find_gids(unexpected) if unexpected else {}), **merged}
    return (
        *_listing_findings(project, gid, own, item, read_listing),
        *(
            _metadata_findings(project, own, item, read_metadata, every=every_metadata)
            if own is not None and item is not None
            else ()
        ),
        *(ArtFinding(gid, "image-missing", file) for file in expected if item is None or file not in item.files),
        *(_surplus_images(gid, own, item, found, gids) if item is not None else ()),
    )


def same_listing(stored: bytes, expected: bytes) -> bool:
    """Return whether two listings mean the same.

    Older indexers wrote ids as text, URLs with http and types in any order; readers accept either form.
    """
    try:
        return _normalised(read_json(stored)) == _normalised(read_json(expected))
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError):
        return False


def _listing_findings(
    project: Project, gid: str, own: Entity | None, item: ArchiveItem | None, read_listing: ReadDocument
) -> Iterator[ArtFinding]:
    checksum = item.files.get(LISTING_FILE) if item is not None else None
    if own is None:
        if checksum is not None:
            yield ArtFinding(gid, "listing-left", LISTING_FILE, Delete(gid))
        return
    if checksum is None:
        # An entity that never had an image needs no item.
        if item is not None or own.images:
            yield ArtFinding(gid, "listing-missing", LISTING_FILE, Index(gid))
        return
    expected = listing(project, own)
    if checksum == _checksum(expected):
        return
    if not same_listing(read_listing() or b"", expected):
        yield ArtFinding(gid, "listing-stale", LISTING_FILE, Index(gid))


def _metadata_findings(
    project: Project, own: Entity, item: ArchiveItem, read_metadata: ReadDocument, *, every: bool
) -> Iterator[ArtFinding]:
    """Yield at most one finding: the metadata are missing, or other bytes than the writer would write now."""
    file = project.metadata_file(own.gid)
    written = item.written.get(file)
    if file not in item.files:
        yield ArtFinding(own.gid, "metadata-missing", file, Index(own.gid))
    # Those that were written before the entity last changed may be stale. The archive shows whole seconds.
    elif every or (written is not None and written + 1 < own.changed):
        expected = read_metadata()
        if expected is not None and item.files[file] != _checksum(expected):
            yield ArtFinding(own.gid, "metadata-stale", file, Index(own.gid))


def _surplus_images(
    gid: str, own: Entity | None, item: ArchiveItem, found: Iterable[tuple[str, int, str]], gids: Mapping[int, str]
) -> Iterator[ArtFinding]:
    suffixes = {image.id: image.suffix for image in (own.images if own else ())}
    for file, image_id, suffix in found:
        if suffixes.get(image_id) == suffix:
            continue
        owner = gids.get(image_id)
        if image_id in suffixes:  # It may be the only copy of an image that the database has under another suffix.
            yield ArtFinding(gid, "image-left", file)
        elif owner is not None and owner != gid:
            yield ArtFinding(gid, "image-elsewhere", file, Move(image_id, gid, owner, suffix))
        # An image that now belongs to this gid was added after `own` was read; the database may yet get a fresh one.
        elif owner is None and item.written.get(file, 0.0) < time.time() - FRESH:
            yield ArtFinding(gid, "image-left", file, Delete(gid, image_id, suffix))


def _checksum(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _normalised(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a listing in one form, whichever indexer wrote it."""
    images = [
        {**image, "id": int(image["id"]), "types": sorted(image["types"]), "image": _https(image["image"])}
        | {"thumbnails": {name: _https(url) for name, url in image["thumbnails"].items()}}
        for image in document["images"]
    ]
    return {**{name: _https(value) for name, value in document.items() if name != "images"}, "images": images}


def _https(url: str) -> str:
    return re.sub(r"^http:", "https:", url)
