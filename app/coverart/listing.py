"""`index.json`: what images an item holds, for those who read the archive."""

from __future__ import annotations

import json
from typing import Any

from app.coverart.project import Project
from app.coverart.values import Entity, Image

#: Names of the thumbnails that the archive derives, and their longest side in pixels. They are JPEG, whatever of.
_THUMBNAILS = {"250": 250, "500": 500, "1200": 1200, "small": 250, "large": 500}


def listing(project: Project, entity: Entity) -> bytes:
    """Return the listing as UTF-8 JSON with sorted keys; that of an entity without images has an empty list."""
    images = [_described(project, entity.gid, image) for image in entity.images]
    document = {"images": images, project.entity: project.entity_url(entity.gid)}
    return json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def _described(project: Project, gid: str, image: Image) -> dict[str, Any]:
    thumbnails = {name: project.image_url(gid, f"{image.id}-{side}.jpg") for name, side in _THUMBNAILS.items()}
    return {
        "approved": image.approved,
        **({"back": image.back} if project.has_back else {}),
        "comment": image.comment,
        "edit": image.edit,
        "front": image.front,
        "id": image.id,
        "image": project.image_url(gid, f"{image.id}.{image.suffix}"),
        "thumbnails": thumbnails,
        "types": list(image.types),
    }
