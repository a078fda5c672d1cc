"""Changes of one release at the same time: what the archive has in the end is what the database says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from app.coverart import musicbrainz
from app.coverart.project import COVER_ART, listing
from app.private_services import Urls
from tests.servers.musicbrainz import changes
from tests.servers.site import Request, Wire
from tests.support.art import ArtSystem, art_corner
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance


def gid_of(number: int) -> str:
    return str(UUID(int=number, version=4))


COMMENTED = gid_of(1)


@pytest.fixture
def art(
    services: Urls, musicbrainz_template: tuple[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[ArtSystem]:
    """Return a system with a coalescing window of the parameter's seconds."""
    with art_corner(services, musicbrainz_template, tmp_path, ART_WINDOW=getattr(request, "param", "2")) as system:
        yield system


def test_an_older_listing_never_overwrites_a_newer_one(art: ArtSystem) -> None:
    begun = threading.Event()
    with art.database.transaction():
        art.add_releases([COMMENTED])
        art.forget_changes()

    def late(request: Request, wire: Wire) -> None:
        begun.set()
        wire.pause(2)
        art.archive.route(request)(request, wire)

    art.archive.faults.add(late, method="PUT", path=f"/mbid-{COMMENTED}/index.json")
    with art.worker("older"):
        changes.comment_on(art.database, COVER_ART, 1, "older")
        assert begun.wait(30)
        changes.comment_on(art.database, COVER_ART, 1, "newer")
        path = f"/mbid-{COMMENTED}/index.json"
        eventually(lambda: art.archive.hits(path) == 2, "the newer one is written, too")
    older, newer = (each for each in art.archive.requests if each.path == path)
    assert b"older" in older.body
    assert b"newer" in newer.body
    assert newer.at - older.at >= 2
    assert art.listing(COMMENTED)["images"][0]["comment"] == "newer"


@pytest.mark.slow
@pytest.mark.parametrize("count", [200, pytest.param(1_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("art", ["0.4"], indirect=True)
def test_after_hundreds_of_changes_at_once_every_listing_is_what_the_database_says(art: ArtSystem, count: int) -> None:
    releases = [gid_of(number) for number in range(100, 100 + count // 20)]
    with art.database.transaction():
        art.add_releases(releases)
        art.forget_changes()

    # Ten at a time, again and again, so that a job is often still running when its release changes once more.
    changed = [number // 200 * 10 + number % 10 for number in range(count)]

    def change_on() -> None:
        for number, which in enumerate(changed):
            changes.comment_on(art.database, COVER_ART, which + 1, f"change {number}")
            threading.Event().wait(0.004)

    def some_are_late(request: Request) -> None:
        if request.method == "PUT" and request.path.endswith("index.json") and chance.random() < 0.3:
            threading.Event().wait(chance.uniform(0.2, 0.9))

    chance = Random(1)
    art.archive.before = some_are_late
    art.finish(threading.Thread(target=change_on), "all is written", concurrency=4)
    with musicbrainz.connect(art.environment["MUSICBRAINZ_URL"]) as connection:
        for which, gid in enumerate(releases):
            entity = musicbrainz.entity(connection, COVER_ART, gid)
            assert entity is not None
            assert entity.images[0].comment == f"change {max(n for n in range(count) if changed[n] == which)}"
            assert art.archive.files(f"mbid-{gid}")["index.json"] == listing(COVER_ART, entity)
    assert art.broker.depth(art.failed) == 0
