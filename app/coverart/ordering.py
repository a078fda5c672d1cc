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
    merges = _recent(entity, patience)
    if not (merges and entity.images):
        return None
    own = read_item(project.bucket(entity.gid))
    missing = [each for each in entity.images if own is None or _file(project, entity.gid, each) not in own.files]
    for merge in merges if missing else ():
        old = read_item(project.bucket(merge.gid))
        for image in missing:
            if old is not None and _file(project, merge.gid, image) in old.files:
                return _wait(merge, f"image {image.id} was not moved yet from {merge.gid} to {entity.gid}")
    return None


def deletion_waits(
    project: Project, gid: str, entity: Entity | None, read_item: ReadItem, *, patience: float
) -> Postpone | None:
    """Return Postpone while the item of `gid`, merged into `entity`, still has an image that `entity` lists.

    `patience` and errors are those of `listing_waits`.
    """
    merge = next((each for each in _recent(entity, patience) if each.gid == gid), None)
    if merge is None or entity is None:
        return None
    item = read_item(project.bucket(gid))
    for image in entity.images if item is not None else ():
        if item is not None and _file(project, gid, image) in item.files:
            return _wait(merge, f"image {image.id} was not moved yet from {gid} to {entity.gid}")
    return None


def present_move(job: Move, home: str | None) -> Move | None:
    """Return the move of an image to `home`, the gid of its entity in the database now; None if nothing is to move.

    Nothing is to move if the database no longer has the image, or has it back at its old gid.
    """
    return None if home is None or home == job.old_gid else replace(job, new_gid=home)


def _recent(entity: Entity | None, patience: float) -> list[Merge]:
    return [each for each in (entity.merged if entity else ()) if each.age < patience]


def _file(project: Project, gid: str, image: Image) -> str:
    return project.image_file(gid, image.id, image.suffix)


def _wait(merge: Merge, why: str) -> Postpone:
    return Postpone(min(max(merge.age / 2, _SHORTEST), _LONGEST), why)
