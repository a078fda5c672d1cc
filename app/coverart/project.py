"""The two archives, and their entities: releases or events with images, listed in `index.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from app.errors import InvalidJob
from config.routes import COVER_ART_EXCHANGE
from config.settings import Settings

#: Names of the thumbnails that the archive derives, and their longest side in pixels. All are JPEG.
_THUMBNAILS = {"250": 250, "500": 500, "1200": 1200, "small": 250, "large": 500}


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """One archive, which MusicBrainz's indexer calls a project.

    `dataclasses.replace` with another `prefix` serves it from another exchange.
    """

    #: Its exchange, and the beginning of its queues' names.
    prefix: str
    #: The Internet Archive's collection of its items.
    collection: str
    #: `release` or `event`: as in URLs, in `index.json` and in MusicBrainz's schema.
    entity: str
    #: URL of its public images, without a slash at the end.
    public_url: str
    #: Value of the web service's parameter `inc`.
    inc: str
    #: Whether an image can be a back cover.
    has_back: bool
    #: PostgreSQL schema and table of its images.
    schema: str
    table: str

    def bucket(self, gid: str) -> str:
        """Return the name of an entity's item."""
        return f"mbid-{gid}"

    def image_file(self, gid: str, image_id: int, suffix: str) -> str:
        """Return the name of an image within its item."""
        return f"{self.bucket(gid)}-{image_id}.{suffix}"

    def metadata_file(self, gid: str) -> str:
        """Return the name of an entity's metadata within its item."""
        return f"{self.bucket(gid)}_mb_metadata.xml"

    def image_url(self, gid: str, name: str) -> str:
        """Return the public URL of an image (`123.jpg`) or a thumbnail (`123-250.jpg`)."""
        return f"{self.public_url}/{self.entity}/{gid}/{name}"


COVER_ART = Project(
    prefix=COVER_ART_EXCHANGE,
    collection="coverartarchive",
    entity="release",
    public_url="https://coverartarchive.org",
    inc="artists",
    has_back=True,
    schema="cover_art_archive",
    table="cover_art",
)

EVENT_ART = Project(
    prefix="event-art-archive",
    collection="eventartarchive",
    entity="event",
    public_url="https://eventartarchive.org",
    # An event has no artist of its own: artists and places are its relationships.
    inc="artist-rels+place-rels",
    has_back=False,
    schema="event_art_archive",
    table="event_art",
)

PROJECTS = (COVER_ART, EVENT_ART)

#: The listing of an item's images.
LISTING_FILE = "index.json"


@dataclass(frozen=True, slots=True)
class Image:
    """One image. `id` is an integer, `suffix` has no dot (`jpg`); `approved` means that its edit is closed."""

    id: int
    suffix: str
    comment: str
    edit: int
    approved: bool
    front: bool
    back: bool
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """A gid that was merged into an entity, and the seconds since."""

    gid: str
    age: float


@dataclass(frozen=True, slots=True)
class Entity:
    """A release or an event with its images in order. `gid` is canonical; of a merged one, the target's.

    `merged` are the gids that lead to it; `changed` is when its row or those of its artists last changed, in seconds
    since 1970. Both change with time, and are not part of a comparison.
    """

    gid: str
    images: tuple[Image, ...]
    merged: tuple[Merge, ...] = field(default=(), compare=False)
    changed: float = field(default=0.0, compare=False)


def served_projects(settings: Settings) -> dict[str, Project]:
    """Return the archives that are served, by exchange: none without MUSICBRAINZ_URL."""
    given = {COVER_ART_EXCHANGE: COVER_ART, settings.event_art_exchange: EVENT_ART}
    return {exchange: replace(given[exchange], prefix=exchange) for exchange in settings.art_exchanges}


def settings_of(project: Project, settings: Settings) -> Settings:
    """Return the settings with a project's archive keys."""
    if project.entity != EVENT_ART.entity or not settings.event_art_keys.get_secret_value():
        return settings
    return settings.model_copy(update={"archive_keys": settings.event_art_keys})


def served_project(exchange: str, settings: Settings) -> Project:
    """Return the archive of an exchange; raises InvalidJob for one that is not served."""
    projects = served_projects(settings)
    if exchange not in projects:
        names = ", ".join(projects) or "none (is MUSICBRAINZ_URL set?)"
        raise InvalidJob(f"archive {exchange!r} is not served here; served: {names}")
    return projects[exchange]


def listing(project: Project, entity: Entity) -> bytes:
    """Return `index.json` of an entity: JSON with sorted keys, in ASCII with the separators of Python's default.

    MusicBrainz's present indexer (metabrainz/artwork-indexer) writes the same bytes, so their checksums are equal.
    """
    images = [
        {
            "approved": image.approved,
            **({"back": image.back} if project.has_back else {}),
            "comment": image.comment,
            "edit": image.edit,
            "front": image.front,
            "id": image.id,
            "image": project.image_url(entity.gid, f"{image.id}.{image.suffix}"),
            "thumbnails": {
                name: project.image_url(entity.gid, f"{image.id}-{side}.jpg") for name, side in _THUMBNAILS.items()
            },
            "types": list(image.types),
        }
        for image in entity.images
    ]
    document = {"images": images, project.entity: f"https://musicbrainz.org/{project.entity}/{entity.gid}"}
    return json.dumps(document, sort_keys=True).encode()
