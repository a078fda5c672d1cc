"""What the archive should hold, by the database, beside what it holds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from app.coverart import musicbrainz
from app.coverart.project import LISTING_FILE, Project, listing
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


def compare(
    database_url: str, project: Project, archive: ArchiveServer, gids: Sequence[str], pictures: Mapping[int, bytes]
) -> list[Row]:
    """Return a row for each gid. `pictures` are the images that users uploaded, by their ids."""
    with musicbrainz.connect(database_url) as connection:
        return [_row(project, gid, archive, _expected(connection, project, gid, pictures)) for gid in gids]


def _row(project: Project, gid: str, archive: ArchiveServer, expected: dict[str, bytes]) -> Row:
    found = {
        name: data
        for name, data in archive.files(project.bucket(gid)).items()
        if not name.startswith("history/") and "_thumb" not in name
    }
    if not expected:
        # No message asks for the deletion of an item's metadata, so that these stay.
        found.pop(project.metadata_file(gid), None)
    return Row(gid, expected, found)


def _expected(
    connection: psycopg.Connection[tuple[Any, ...]], project: Project, gid: str, pictures: Mapping[int, bytes]
) -> dict[str, bytes]:
    entity = musicbrainz.entity(connection, project, gid)
    if entity is None or entity.gid != gid:
        return {}
    named = connection.execute("SELECT name FROM musicbrainz.release WHERE gid = %s", (gid,)).fetchone()
    images = {project.image_file(gid, image.id, image.suffix): pictures[image.id] for image in entity.images}
    described = metadata(project.entity, gid, str(named[0] if named else ""))
    return {LISTING_FILE: listing(project, entity), project.metadata_file(gid): described, **images}
