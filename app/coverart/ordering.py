"""The order of jobs of one merge, whose messages are in three queues: `move` before `index` and `delete`.

A message does not name the others. But the database has the merge, and the archive shows which image is where. While an
image of the database's entity is still in the merged gid's item, a `move` waits: in a queue, in retry, or running.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from app.broker.errors import Postpone
from app.coverart.archive import ArchiveItem
from app.coverart.jobs import Move
from app.coverart.project import Entity, Image, Merge, Project

#: Seconds between two checks whether an image was moved: half the age of the merge, within these limits.
_SHORTEST, _LONGEST = 1.0, 600.0

ReadItem = Callable[[str], ArchiveItem | None]


def listing_waits(project: Project, entity: Entity, read_item: ReadItem, *, patience: float) -> Postpone | None:
    """Return Postpone while an image of `entity` is in the item of a gid that was merged into it, and not in its own.

    A merge older than `patience` seconds is not waited for: its `move` must be dead. Reads no item where there is
    no younger one. Raises the errors of `read_item`, which gets the name of an item.
    """
    merges = _recent(entity, patience) if entity.images else []
    there = _images_in(project, entity.gid, entity, read_item) if merges else ()
    missing = replace(entity, images=tuple(image for image in entity.images if image not in there))
    waits = (_wait(project, merge, missing, read_item) for merge in merges if missing.images)
    return next(filter(None, waits), None)


def deletion_waits(
    project: Project, gid: str, entity: Entity | None, read_item: ReadItem, *, patience: float
) -> Postpone | None:
    """Return Postpone while the item of `gid`, merged into `entity`, still has an image that `entity` lists.

    `patience` and errors are those of `listing_waits`.
    """
    merges = [each for each in _recent(entity, patience) if each.gid == gid]
    return _wait(project, merges[0], entity, read_item) if merges and entity is not None else None


def present_move(job: Move, home: str | None) -> Move | None:
    """Return the move of an image to `home`, the gid of its entity in the database now; None if nothing is to move.

    Nothing is to move if the database no longer has the image, or has it back at its old gid.
    """
    return None if home is None or home == job.old_gid else replace(job, new_gid=home)


def _recent(entity: Entity | None, patience: float) -> list[Merge]:
    return [each for each in (entity.merged if entity else ()) if each.age < patience]


def _images_in(project: Project, gid: str, entity: Entity, read_item: ReadItem) -> list[Image]:
    """Return the images of an entity that are in the item of a gid."""
    item = read_item(project.bucket(gid))
    files = item.files if item is not None else ()
    return [image for image in entity.images if project.image_file(gid, image.id, image.suffix) in files]


def _wait(project: Project, merge: Merge, entity: Entity, read_item: ReadItem) -> Postpone | None:
    """Return Postpone if the item of a merged gid still has an image of the entity."""
    for image in _images_in(project, merge.gid, entity, read_item):
        why = f"image {image.id} was not moved yet from {merge.gid} to {entity.gid}"
        return Postpone(min(max(merge.age / 2, _SHORTEST), _LONGEST), why, code="image-not-moved")
    return None
