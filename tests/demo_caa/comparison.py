"""What the archive should hold, by the database, beside what it holds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from app.coverart import musicbrainz
from app.coverart.project import COVER_ART, LISTING_FILE, listing
from tests.servers.archive import ArchiveServer
from tests.servers.musicbrainz_ws import metadata


@dataclass(frozen=True, slots=True)
class Row:
    """One item: `expected` and `found` are its files by name."""

    gid: str
    expected: Mapping[str, bytes] = field(repr=False)
    found: Mapping[str, bytes] = field(repr=False)

    @property
    def equal(self) -> bool:
        """Whether every file is there, byte for byte, and no other."""
        return self.expected == self.found

    def text(self, files: Mapping[str, bytes]) -> str:
        """Return the files of one side in words."""
        parts = []
        if LISTING_FILE in files:
            parts.append(f"{LISTING_FILE} {hashlib.md5(files[LISTING_FILE]).hexdigest()[:4]}")
        images = sum(not name.endswith((".json", ".xml")) for name in files)
        parts += [f"{images} image{'' if images == 1 else 's'}"] if images else []
        parts += ["XML"] if any(name.endswith(".xml") for name in files) else []
        return ", ".join(parts) or "nothing"


def compare(database_url: str, archive: ArchiveServer, gids: Sequence[str], pictures: Mapping[int, bytes]) -> list[Row]:
    """Return a row for each gid. `pictures` are the images that users uploaded, by their ids."""
    rows = []
    with musicbrainz.connect(database_url) as connection:
        for gid in gids:
            expected = _expected(connection, gid, pictures)
            files = archive.files(COVER_ART.bucket(gid)).items()
            found = {name: data for name, data in files if not name.startswith("history/") and "_thumb" not in name}
            if not expected:
                # No message asks for the deletion of an item's metadata, so that these stay.
                found.pop(COVER_ART.metadata_file(gid), None)
            rows.append(Row(gid, expected, found))
    return rows


def _expected(
    connection: psycopg.Connection[tuple[Any, ...]], gid: str, pictures: Mapping[int, bytes]
) -> dict[str, bytes]:
    entity = musicbrainz.entity(connection, COVER_ART, gid)
    if entity is None or entity.gid != gid:
        return {}
    named = connection.execute("SELECT name FROM musicbrainz.release WHERE gid = %s", (gid,)).fetchone()
    images = {COVER_ART.image_file(gid, image.id, image.suffix): pictures[image.id] for image in entity.images}
    described = metadata(COVER_ART.entity, gid, str(named[0] if named else ""))
    return {LISTING_FILE: listing(COVER_ART, entity), COVER_ART.metadata_file(gid): described, **images}
