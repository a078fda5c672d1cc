"""The two archives, and all in which they differ."""

from __future__ import annotations

from dataclasses import dataclass, replace

from config.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """One archive. Use `dataclasses.replace` to serve it below another exchange than its own, as tests do."""

    #: Its exchange, and what its queues' names start with.
    prefix: str
    #: The collection at the Internet Archive that its items belong to.
    collection: str
    #: What has the images: a word of URLs, of `index.json` and of MusicBrainz's schema.
    entity: str
    #: Where the public gets images; no slash at its end.
    public_url: str
    #: What the web service is asked to include.
    inc: str
    #: Whether an image can be the back of something.
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

    def entity_url(self, gid: str) -> str:
        """Return the URL of an entity at MusicBrainz."""
        return f"https://musicbrainz.org/{self.entity}/{gid}"

    def image_url(self, gid: str, name: str) -> str:
        """Return the public URL of an image (`123.jpg`) or a thumbnail (`123-250.jpg`)."""
        return f"{self.public_url}/{self.entity}/{gid}/{name}"


COVER_ART = Project(
    prefix="cover-art-archive",
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


def served(settings: Settings) -> dict[str, Project]:
    """Return the archives that are served, by their exchanges."""
    given = {settings.cover_art_exchange: COVER_ART, settings.event_art_exchange: EVENT_ART}
    return {prefix: replace(given[prefix], prefix=prefix) for prefix in settings.art_exchanges}
