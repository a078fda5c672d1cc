"""The audit without services: what an item holds beside what the database says."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest

from app.coverart.archive import ArchiveItem
from app.coverart.audit import audit, same_listing
from app.coverart.jobs import Delete, Index, Job, Move
from app.coverart.project import COVER_ART, EVENT_ART, Entity, Image, listing

pytestmark = pytest.mark.unit

A = "16ebbc86-670c-4ad3-980b-bfbd1eee4ff4"
B = "76df3287-6cda-33eb-8e9a-044b5e15ffdd"
LISTING, METADATA = "index.json", f"mbid-{A}_mb_metadata.xml"
XML = b"<metadata/>"

Found = tuple[str, str, Job | None]


def image(number: int) -> Image:
    return Image(number, "jpg", "", 7, True, False, False, ("Front", "Medium"))


def file(number: int, suffix: str = "jpg") -> str:
    return f"mbid-{A}-{number}.{suffix}"


ONE, NONE = Entity(A, (image(1),)), Entity(A, ())
RIGHT = listing(COVER_ART, ONE)


def unread() -> bytes | None:
    raise AssertionError("this document need not be compared")


def found(entity: Entity | None, item: ArchiveItem | None, gids: Mapping[int, str] = {}, **more: Any) -> list[Found]:
    find_gids = Mock(return_value=gids)
    given = {"read_listing": unread, "read_metadata": unread, **more}
    findings = audit(COVER_ART, A, entity, item, find_gids=find_gids, **given)
    assert {finding.gid for finding in findings} <= {A}
    assert not any(image.id in call.args[0] for call in find_gids.mock_calls for image in (entity or NONE).images)
    return [(finding.kind, finding.file, finding.fix) for finding in findings]


def item_of(*images: str, stored: bytes | None = RIGHT, written: Mapping[str, float] | None = None) -> ArchiveItem:
    """Return an item with metadata, with images, and with a listing if there is one."""
    documents = {METADATA: XML, **({} if stored is None else {LISTING: stored})}
    files = {name: hashlib.md5(data).hexdigest() for name, data in documents.items()}
    return ArchiveItem(files | dict.fromkeys(images, ""), written=written or {})


NO_LISTING: Found = ("listing-missing", LISTING, Index(A))
LEFT: Found = ("image-left", file(2), Delete(A, 2, "jpg"))

CASES: dict[str, tuple[Entity | None, ArchiveItem | None, Mapping[int, str], list[Found]]] = {
    "as the jobs leave it": (ONE, item_of(file(1)), {}, []),
    "without images and item": (NONE, None, {}, []),
    "unknown, without an item": (None, None, {}, []),
    "dark": (ONE, ArchiveItem({}, dark=True), {}, [("dark", "", None)]),
    "an image is missing": (
        Entity(A, (image(1), image(2))),
        item_of(file(1), stored=None),
        {},
        [NO_LISTING, ("image-missing", file(2), None)],
    ),
    "an item has a listing also when the last image is gone": (NONE, item_of(stored=None), {}, [NO_LISTING]),
    "without an item": (ONE, None, {}, [NO_LISTING, ("image-missing", file(1), None)]),
    "deleted": (
        None,
        item_of(file(1, "pdf")),
        {},
        [("listing-left", LISTING, Delete(A)), ("image-left", file(1, "pdf"), Delete(A, 1, "pdf"))],
    ),
    "merged": (
        Entity(B, (image(1),)),
        item_of(file(1), file(2), stored=None),
        {},
        [("image-elsewhere", file(1), Move(1, A, B, "jpg")), LEFT],
    ),
    "of another one": (ONE, item_of(file(1), file(2)), {2: B}, [("image-elsewhere", file(2), Move(2, A, B, "jpg"))]),
    "another suffix, which is never deleted": (
        ONE,
        item_of(file(1, "png")),
        {},
        [("image-missing", file(1), None), ("image-left", file(1, "png"), None)],
    ),
    "an image that came meanwhile": (ONE, item_of(file(1), file(2)), {2: A}, []),
    "an image whose row may yet come": (ONE, item_of(file(1), file(2), written={file(2): time.time() - 3_600}), {}, []),
    "an old image": (ONE, item_of(file(1), file(2), written={file(2): time.time() - 2 * 86_400}), {}, [LEFT]),
}


@pytest.mark.parametrize("case", CASES)
def test_each_difference_is_found_with_the_job_that_repairs_it(case: str) -> None:
    entity, item, gids, expected = CASES[case]
    assert found(entity, item, gids) == expected


def test_a_listing_that_says_something_else_is_stale_but_not_one_in_another_form() -> None:
    old = json.loads(RIGHT.replace(b"https:", b"http:"))
    old["images"][0]["id"] = "1"
    old["images"][0]["types"].reverse()
    others = listing(COVER_ART, NONE), listing(COVER_ART, Entity(B, ONE.images)), b"not JSON", b"[]"
    for stored in (json.dumps(old, indent=1).encode(), *others, RIGHT.replace(b'"id": 1,', b'"id": 1e999,')):
        findings = found(ONE, item_of(file(1), stored=stored), read_listing=Mock(return_value=stored))
        assert findings == ([] if b"http:" in stored else [("listing-stale", LISTING, Index(A))])


def test_a_listing_of_events_is_compared_too() -> None:
    expected = listing(EVENT_ART, ONE)
    assert same_listing(expected.replace(b"https:", b"http:"), expected)
    assert not same_listing(RIGHT, expected)


def test_metadata_that_are_missing_or_older_than_a_change_that_they_lack_are_found() -> None:
    item = item_of(file(1), written={METADATA: 1_000.0})
    without = replace(item, files={name: md5 for name, md5 in item.files.items() if name != METADATA})
    assert found(ONE, without) == [("metadata-missing", METADATA, Index(A))]
    assert found(replace(ONE, changed=1_000.0), item) == []
    stale = [("metadata-stale", METADATA, Index(A))]
    # The writer would write these bytes: only another checksum counts. One that is gone by now has nothing to write.
    for present, expected in ((XML, []), (b"<metadata> </metadata>", stale), (None, [])):
        read = Mock(return_value=present)
        assert found(replace(ONE, changed=1_002.0), item, read_metadata=read) == expected
        # No time shows these as stale.
        assert found(ONE, item_of(file(1)), read_metadata=read, every_metadata=True) == expected
