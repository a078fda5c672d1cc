"""Where the archive and the database differ about one entity, and the job that would mend it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.coverart.holdings import Holdings, Item
from app.coverart.listing import listing
from app.coverart.project import LISTING_FILE, Project
from app.coverart.values import Delete, Entity, Image, Index, Job, Move

#: `left`: what should be gone; `elsewhere`: what another entity's item should have.
Kind = Literal[
    "dark", "listing-missing", "listing-stale", "listing-left", "image-missing", "image-left", "image-elsewhere"
]

#: Returns the gid of the entity that each of some images belongs to; one that is nobody's is left out.
Homes = Callable[[Collection[int]], Mapping[int, str]]


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference. `fix` is the job that mends it, or None where a person must look."""

    gid: str
    kind: Kind
    file: str
    fix: Job | None = None


def audit(
    project: Project, gid: str, entity: Entity | None, item: Item | None, holdings: Holdings, *, homes: Homes
) -> tuple[Finding, ...]:
    """Compare what the archive holds of `gid` with `entity`, what the database has for it.

    `homes` is asked about the images that are no entity's here. Raises what it and `Holdings` raise.
    """
    strange = _images(project, gid, item) - {image.id for image in (entity.images if entity else ())}
    bucket = project.bucket(gid)
    return compare(
        project,
        gid,
        entity,
        item,
        read=lambda: holdings.file(bucket, LISTING_FILE) or b"",
        homes=homes(strange) if strange else {},
    )


def compare(
    project: Project,
    gid: str,
    entity: Entity | None,
    item: Item | None,
    *,
    read: Callable[[], bytes],
    homes: Mapping[int, str],
) -> tuple[Finding, ...]:
    """Return the differences. `read` is called for the item's listing if its checksum alone does not tell.

    `entity` is None if the database has none, and has another gid if this one was merged into it: then everything
    in this item is to go. Of a dark item nothing more is said, since nothing in it can be seen or changed.
    """
    if item is not None and item.dark:
        return (Finding(gid, "dark", ""),)
    files = dict(item.files) if item is not None else {}
    own = entity if entity is not None and entity.gid == gid else None
    images = own.images if own else ()
    merged = {image.id: entity.gid for image in entity.images} if entity is not None and own is None else {}
    return (
        *_listing_findings(project, gid, own, item, read),
        *_missing(project, gid, images, files),
        *_surplus(project, gid, images, item, {**homes, **merged}),
    )


def _images(project: Project, gid: str, item: Item | None) -> set[int]:
    """Return the ids of the images in an item."""
    files = item.files if item is not None else ()
    return {int(match[1]) for match in map(_image_pattern(project, gid).fullmatch, files) if match}


def same(held: bytes, expected: bytes) -> bool:
    """Tell whether two listings say the same.

    Older indexers wrote ids as text, URLs with http and types in any order; readers take these alike.
    """
    try:
        return _plain(json.loads(held)) == _plain(json.loads(expected))
    except (ValueError, TypeError, AttributeError, KeyError):
        return False


def _listing_findings(
    project: Project, gid: str, own: Entity | None, item: Item | None, read: Callable[[], bytes]
) -> Iterator[Finding]:
    checksum = item.files.get(LISTING_FILE) if item is not None else None
    if own is None:
        if checksum is not None:
            yield Finding(gid, "listing-left", LISTING_FILE, Delete(gid))
        return
    if checksum is None:
        # An entity that never had an image has no item, and needs none.
        if item is not None or own.images:
            yield Finding(gid, "listing-missing", LISTING_FILE, Index(gid))
        return
    expected = listing(project, own)
    if checksum != hashlib.md5(expected, usedforsecurity=False).hexdigest() and not same(read(), expected):
        yield Finding(gid, "listing-stale", LISTING_FILE, Index(gid))


def _missing(project: Project, gid: str, images: tuple[Image, ...], files: Mapping[str, str]) -> Iterator[Finding]:
    for image in images:
        file = project.image_file(gid, image.id, image.suffix)
        if file not in files:
            yield Finding(gid, "image-missing", file)


def _surplus(
    project: Project, gid: str, images: tuple[Image, ...], item: Item | None, homes: Mapping[int, str]
) -> Iterator[Finding]:
    pattern = _image_pattern(project, gid)
    known = {image.id: image.suffix for image in images}
    for file in sorted(item.files) if item is not None else ():
        match = pattern.fullmatch(file)
        if match is None or known.get(number := int(match[1])) == match[2]:
            continue
        home = homes.get(number)
        if number in known:  # It may be the only copy of an image that the database has under another suffix.
            yield Finding(gid, "image-left", file)
        elif home is not None and home != gid:
            yield Finding(gid, "image-elsewhere", file, Move(number, gid, home, match[2]))
        # One that is at home here was added since `images` were read; one that is fresh may yet be added.
        elif home is None and item is not None and file not in item.fresh:
            yield Finding(gid, "image-left", file, Delete(gid, number, match[2]))


def _image_pattern(project: Project, gid: str) -> re.Pattern[str]:
    # No number that the database could not hold, and none in two forms.
    return re.compile(rf"{re.escape(project.bucket(gid))}-([1-9][0-9]{{0,17}})\.([a-z0-9]{{1,8}})")


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a listing in one form, whoever wrote it."""
    images = [
        {**image, "id": int(image["id"]), "types": sorted(image["types"]), "image": _https(image["image"])}
        | {"thumbnails": {name: _https(url) for name, url in image["thumbnails"].items()}}
        for image in document["images"]
    ]
    return {**{name: _https(value) for name, value in document.items() if name != "images"}, "images": images}


def _https(url: str) -> str:
    return re.sub(r"^http:", "https:", url)
