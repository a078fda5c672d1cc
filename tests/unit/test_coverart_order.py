"""Which jobs wait for the move of a merge, without services."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from redis import Redis

from app.broker.errors import Postpone
from app.coverart.archive import ArchiveItem
from app.coverart.coordination import MessageOrder
from app.coverart.project import COVER_ART, Entity, Image, Merge

pytestmark = pytest.mark.unit

OLD, NEW, OTHER = (f"{digit}a000000-0000-4000-8000-000000000001" for digit in "123")
OWN, MOVED = (Image(number, "jpg", "", 7, True, False, False, ()) for number in (1, 2))
DAY = 86_400.0

ReadItem = Callable[[str], ArchiveItem | None]


def merged(age: float = 60.0, *images: Image) -> Entity:
    return Entity(NEW, images or (OWN, MOVED), merged=(Merge(OTHER, 9 * DAY), Merge(OLD, age)))


def archive(files: Mapping[str, list[int]], read: list[str]) -> ReadItem:
    """Return a reader of items that have these images by gid; it notes the items that it reads."""

    def item(bucket: str) -> ArchiveItem | None:
        read.append(bucket)
        gid = bucket.removeprefix("mbid-")
        if gid not in files:
            return None
        return ArchiveItem({COVER_ART.image_file(gid, number, "jpg"): "" for number in files[gid]})

    return item


def wait(entity: Entity, item: ReadItem, *, listing: bool) -> Postpone | None:
    """Return why the listing of `entity`, or the deletion of that of OLD, waits."""
    merges = [merge for merge in entity.merged if listing or merge.gid == OLD]
    try:
        order = MessageOrder(redis=Redis(), project=COVER_ART, read_item=item, window=0, patience=DAY)
        order.require_moved(entity, merges, or_copied=listing)
    except Postpone as postponed:
        return postponed
    return None


@pytest.mark.parametrize(
    ("files", "listing", "deletion"),
    [
        ({NEW: [1], OLD: [2]}, True, True),
        ({OLD: [2]}, True, True),
        # The copy is done, and the delete of the same move is not.
        ({NEW: [1, 2], OLD: [2]}, False, True),
        # The same of one image, while the other one is in neither item.
        ({NEW: [2], OLD: [2]}, False, True),
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
    for is_listing, expected in ((True, listing), (False, deletion)):
        waits = wait(merged(), archive(files, []), listing=is_listing)
        assert (waits and waits.why) == (f"image 2 was not moved yet from {OLD} to {NEW}" if expected else None)


@pytest.mark.parametrize(("age", "seconds"), [(0.5, 1.0), (60.0, 30.0), (DAY - 1, 600.0), (DAY, None), (2 * DAY, None)])
@pytest.mark.parametrize("listing", [True, False])
def test_the_wait_grows_with_the_age_of_the_merge_and_ends(age: float, seconds: float | None, listing: bool) -> None:
    waits = wait(merged(age), archive({NEW: [1], OLD: [2]}, []), listing=listing)
    assert (waits and waits.seconds) == seconds


def test_only_items_that_can_make_a_job_wait_are_read() -> None:
    read: list[str] = []
    assert wait(merged(2 * DAY), archive({}, read), listing=True) is None
    assert wait(replace(merged(), images=()), archive({}, read), listing=True) is None
    assert read == []
    assert wait(merged(), archive({NEW: [1, 2]}, read), listing=True) is None
    assert read == [f"mbid-{NEW}"]
