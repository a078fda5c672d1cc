"""Jobs of a merge in the wrong order, on a real database, Redis and HTTP: no listing has a link to a missing image."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import psycopg
import pytest
from pydantic import SecretStr

from app.broker.errors import Postpone
from app.coverart.indexer import Indexer
from app.coverart.jobs import Delete, Index, Move
from app.coverart.project import COVER_ART
from app.errors import ArchiveError
from app.state.client import get_redis
from config.settings import Settings
from tests.servers.archive import ACCESS_KEY, SECRET_KEY, ArchiveServer, broken
from tests.servers.musicbrainz import changes
from tests.servers.musicbrainz_ws import MusicBrainz

pytestmark = pytest.mark.integration

OLD, NEW, LAST = (f"{digit}a000000-0000-4000-8000-000000000001" for digit in "123")
MOVE = Move(1, OLD, NEW, "jpg")


@dataclass
class Merged:
    """An archive of releases whose database has merged OLD, with image 1, into NEW, which has none."""

    db: changes.Db
    archive: ArchiveServer
    indexer: Indexer

    def files(self, gid: str) -> list[str]:
        """Return the names of the listing and the images in an item."""
        return sorted(
            name
            for name in self.archive.files(f"mbid-{gid}")
            if not name.startswith("history/") and "_thumb" not in name and not name.endswith(".xml")
        )


@pytest.fixture
def merged(musicbrainz_url: str, redis_url: str) -> Iterator[Merged]:
    with ArchiveServer() as archive, MusicBrainz() as web_service, psycopg.connect(musicbrainz_url) as db:
        db.autocommit = True
        settings = Settings(
            musicbrainz_url=SecretStr(musicbrainz_url),
            musicbrainz_ws_url=web_service.ws_url,
            archive_url=archive.path_url,
            archive_public_url=archive.public_url,
            archive_access_key=SecretStr(ACCESS_KEY),
            archive_secret_key=SecretStr(SECRET_KEY),
        )
        artist = changes.add_artist(db, "Miles Davis")
        for gid in (OLD, NEW, LAST):
            changes.add_release(db, "Kind of Blue", artist, gid=gid)
            web_service.set_entity("release", gid, "Kind of Blue")
        changes.add_cover(db, OLD, 1)
        archive.upload(f"mbid-{OLD}", f"mbid-{OLD}-1.jpg", b"picture")
        archive.upload(f"mbid-{OLD}", "index.json", b"{}")
        changes.merge(db, COVER_ART, OLD, NEW)
        yield Merged(db, archive, Indexer.of("cover-art-archive", settings, get_redis(redis_url)))


def test_while_the_copy_of_a_merge_fails_no_listing_is_written_or_deleted(merged: Merged) -> None:
    run = merged.indexer.run
    merged.archive.faults.add(broken(), method="PUT")
    with pytest.raises(ArchiveError, match="500"):
        run(MOVE)
    for job in (Index(NEW), Index(OLD), Delete(OLD)):
        with pytest.raises(Postpone, match="image 1 was not moved yet") as raised:
            run(job)
        assert 1 <= raised.value.seconds < 60
    assert (merged.files(OLD), merged.files(NEW)) == (["index.json", f"mbid-{OLD}-1.jpg"], [])
    assert [run(job) for job in (MOVE, Index(NEW), Delete(OLD))] == ["done"] * 3
    assert (merged.files(OLD), merged.files(NEW)) == ([], ["index.json", f"mbid-{NEW}-1.jpg"])


def test_a_merge_whose_move_failed_for_good_is_not_waited_for(merged: Merged) -> None:
    impatient = replace(merged.indexer, patience=0)
    assert [impatient.run(job) for job in (Index(NEW), Delete(OLD))] == ["done"] * 2
    assert (merged.files(OLD), merged.files(NEW)) == ([f"mbid-{OLD}-1.jpg"], ["index.json"])


def test_an_image_that_was_merged_again_is_moved_to_its_present_release(merged: Merged) -> None:
    changes.merge(merged.db, COVER_ART, NEW, LAST)
    with pytest.raises(Postpone, match=f"from {OLD} to {LAST}"):
        merged.indexer.run(Index(LAST))
    assert merged.indexer.run(MOVE) == "done"
    assert merged.indexer.run(replace(MOVE, old_gid=NEW, new_gid=LAST)) == "skipped"
    assert merged.indexer.run(Index(LAST)) == "done"
    assert (merged.files(NEW), merged.files(LAST)) == ([], ["index.json", f"mbid-{LAST}-1.jpg"])


def test_an_image_that_the_database_no_longer_has_is_not_moved(merged: Merged) -> None:
    changes.remove_art(merged.db, COVER_ART, 1)
    assert merged.indexer.run(MOVE) == "skipped"
    assert merged.files(NEW) == []


def test_a_release_without_art_gets_no_item_and_one_that_lost_its_art_an_empty_listing(merged: Merged) -> None:
    assert merged.indexer.run(Index(LAST)) == "skipped"
    assert merged.archive.item(f"mbid-{LAST}") is None
    merged.archive.upload(f"mbid-{LAST}", "index.json", b"{}")
    assert merged.indexer.run(Index(LAST)) == "done"
    assert b'"images"' in merged.archive.files(f"mbid-{LAST}")["index.json"]
