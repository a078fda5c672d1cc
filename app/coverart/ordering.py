"""The order of jobs of one merge, whose messages are in three queues: `move` before `index` and `delete`.

A message does not name the others. But the database has the merge, and the archive shows which image is where. While an
image of the database's entity is still in the merged gid's item, a `move` waits: in a queue, in retry, or running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from app.broker.errors import Postpone
from app.coverart.archive import ArchiveItem
from app.coverart.project import Entity, Image, Merge, Project

#: Seconds between two checks whether an image was moved: half the age of the merge, within these limits.
_SHORTEST, _LONGEST = 1.0, 600.0

ReadItem = Callable[[str], ArchiveItem | None]


def require_moved(
    project: Project,
    entity: Entity,
    merges: Iterable[Merge],
    read_item: ReadItem,
    *,
    patience: float,
    or_copied: bool = False,
) -> None:
    """Raise Postpone while an image of `entity` is in the item of one of its `merges`.

    With `or_copied`, an image is not waited for that the entity's own item has, too. Nor is a merge that is older than
    `patience` seconds: its `move` must be dead. Reads no item where there is no younger one. Raises the errors of
    `read_item`, which gets the name of an item.
    """

    def images_in(gid: str) -> set[Image]:
        item = read_item(project.bucket(gid))
        files = item.files if item is not None else ()
        return {image for image in entity.images if project.image_file(gid, image.id, image.suffix) in files}

    recent = [merge for merge in merges if merge.age < patience] if entity.images else []
    done = images_in(entity.gid) if recent and or_copied else set()
    for merge in recent if len(done) < len(entity.images) else ():
        if left := images_in(merge.gid) - done:
            image = min(image.id for image in left)
            why = f"image {image} was not moved yet from {merge.gid} to {entity.gid}"
            raise Postpone(min(max(merge.age / 2, _SHORTEST), _LONGEST), why, code="image-not-moved")
