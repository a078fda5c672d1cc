"""Which jobs wait for the move of a merge, and where an image is moved to, without services."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from app.coverart.archive import ArchiveItem
from app.coverart.jobs import Move
from app.coverart.ordering import ReadItem, deletion_waits, listing_waits, present_move
from app.coverart.project import COVER_ART, Entity, Image, Merge

pytestmark = pytest.mark.unit

OLD, NEW, OTHER = (f"{digit}a000000-0000-4000-8000-000000000001" for digit in "123")
OWN, MOVED = (Image(number, "jpg", "", 7, True, False, False, ()) for number in (1, 2))
DAY = 86_400.0


def merged(age: float = 60.0, *images: Image) -> Entity:
    return Entity(NEW, images or (OWN, MOVED), merged=(Merge(OTHER, 9 * DAY), Merge(OLD, age)))


def archive(files: Mapping[str, list[int]], read: list[str]) -> ReadItem:
    """Return a reader of items that have these images by gid; it notes the items that it reads."""

    def item(bucket: str) -> ArchiveItem | None:
        read.append(bucket)
        gid = bucket.removeprefix("mbid-")
        if gid not in files:
            return None
        return ArchiveItem(bucket, {COVER_ART.image_file(gid, number, "jpg"): "" for number in files[gid]})

    return item


@pytest.mark.parametrize(
    ("files", "listing", "deletion"),
    [
        ({NEW: [1], OLD: [2]}, True, True),
        ({OLD: [2]}, True, True),
        # The copy is done, and the delete of the same move is not.
        ({NEW: [1, 2], OLD: [2]}, False, True),
        ({NEW: [1, 2], OLD: []}, False, False),
        # It is in neither item, so no move waits; an image that the database does not list is no reason either.
        ({NEW: [1]}, False, False),
        ({NEW: [1, 2], OLD: [9]}, False, False),
        ({NEW: [1], OTHER: [2]}, False, False),
    ],
)
def test_a_merges_listings_wait_while_an_image_is_in_the_old_item(
    files: Mapping[str, list[int]], listing: bool, deletion: bool
) -> None:
    item = archive(files, [])
    waits = listing_waits(COVER_ART, merged(), item, patience=DAY)
    assert (waits is not None) is listing
    assert (deletion_waits(COVER_ART, OLD, merged(), item, patience=DAY) is not None) is deletion
    if waits is not None:
        assert waits.why == f"image 2 was not moved yet from {OLD} to {NEW}"


@pytest.mark.parametrize(("age", "seconds"), [(0.5, 1.0), (60.0, 30.0), (DAY - 1, 600.0), (DAY, None), (2 * DAY, None)])
def test_the_wait_grows_with_the_age_of_the_merge_and_ends(age: float, seconds: float | None) -> None:
    item = archive({NEW: [1], OLD: [2]}, [])
    for waits in (
        listing_waits(COVER_ART, merged(age), item, patience=DAY),
        deletion_waits(COVER_ART, OLD, merged(age), item, patience=DAY),
    ):
        assert (waits and waits.seconds) == seconds


def test_without_a_recent_merge_no_item_is_read() -> None:
    read: list[str] = []
    item = archive({}, read)
    assert listing_waits(COVER_ART, merged(2 * DAY), item, patience=DAY) is None
    assert deletion_waits(COVER_ART, NEW, merged(), item, patience=DAY) is None
    assert deletion_waits(COVER_ART, OLD, None, item, patience=DAY) is None
    assert read == []
    assert listing_waits(COVER_ART, merged(), archive({NEW: [1, 2]}, read), patience=DAY) is None
    assert read == [f"mbid-{NEW}"]


@pytest.mark.parametrize(
    ("home", "target"),
    [(NEW, NEW), (OTHER, OTHER), (OLD, None), (None, None)],
    ids=["there", "merged again", "back", "deleted"],
)
def test_an_image_is_moved_to_where_the_database_has_it_now(home: str | None, target: str | None) -> None:
    assert present_move(Move(1, OLD, NEW, "jpg"), home) == (target and Move(1, OLD, target, "jpg"))
