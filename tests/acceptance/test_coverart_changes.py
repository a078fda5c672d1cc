"""From a change in MusicBrainz's database to requests at the archive: SQL, trigger, relay, broker, worker, HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from app.coverart import musicbrainz
from app.coverart.project import COVER_ART, listing
from app.services import Urls
from config.settings import Settings
from tests.servers.archive import ACCESS_KEY, SECRET_KEY, broken
from tests.servers.musicbrainz import changes
from tests.servers.site import Request, Wire
from tests.support.art import ArtSystem, Sent, art_corner, sent
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance


def gid_of(number: int) -> str:
    return str(UUID(int=number, version=4))


INSERTED, COMMENTED, REMOVED, RETYPED, BY_ARTIST, RENAMED, OLD, NEW, GONE, BARE = map(gid_of, range(1, 11))
FRONT, BACK, BOOKLET = 1, 2, 3


# The expected requests, written out

AGENT = {"user-agent": Settings.model_fields["user_agent"].default}
LOW = AGENT | {"authorization": f"LOW {ACCESS_KEY}:{SECRET_KEY}"}
KEEP = {"x-archive-keep-old-version": "1"}
CASCADE = {"x-archive-cascade-delete": "1"}
BUCKET = {
    "x-archive-auto-make-bucket": "1",
    "x-archive-meta-collection": "coverartarchive",
    "x-archive-meta-mediatype": "image",
    "x-archive-meta-noindex": "true",
}


def image(gid: str, number: int, edit: int, *, types: str = '"Front"', comment: str = "", suffix: str = "jpg") -> str:
    """Return what `index.json` says of an image."""
    front, back = (str(f'"{name}"' in types).lower() for name in ("Front", "Back"))
    url = f"https://coverartarchive.org/release/{gid}/{number}"
    return (
        f'{{"approved": true, "back": {back}, "comment": "{comment}", "edit": {edit}, "front": {front}, '
        f'"id": {number}, "image": "{url}.{suffix}", "thumbnails": {{"1200": "{url}-1200.jpg", "250": "{url}-250.jpg", '
        f'"500": "{url}-500.jpg", "large": "{url}-500.jpg", "small": "{url}-250.jpg"}}, "types": [{types}]}}'
    )


def indexing(gid: str, title: str, *images: str) -> list[Sent]:
    json = f'{{"images": [{", ".join(images)}], "release": "https://musicbrainz.org/release/{gid}"}}'
    xml = (
        '<?xml version="1.0" encoding="UTF-8"?>\n<metadata xmlns="http://musicbrainz.org/ns/mmd-2.0#">'
        f'<release id="{gid}"><title>{title}</title></release></metadata>'
    )
    json_type, xml_type = ({"content-type": f"application/{kind}; charset=utf-8"} for kind in ("json", "xml"))
    return [
        ("PUT", f"/mbid-{gid}/index.json", LOW | json_type | KEEP | BUCKET, json.encode()),
        ("GET", f"/ws/2/release/{gid}?inc=artists", AGENT | {"accept": "application/xml"}, b""),
        ("PUT", f"/mbid-{gid}/mbid-{gid}_mb_metadata.xml", LOW | xml_type | BUCKET, xml.encode()),
    ]


def moving(file: str, old: str, new: str) -> list[Sent]:
    source = f"/mbid-{old}/mbid-{old}-{file}"
    return [
        ("PUT", f"/mbid-{new}/mbid-{new}-{file}", LOW | {"x-amz-copy-source": source} | KEEP | BUCKET, b""),
        ("DELETE", source, LOW | KEEP | CASCADE, b""),
    ]


def deleting(gid: str, file: str) -> list[Sent]:
    return [("DELETE", f"/mbid-{gid}/{file}", LOW | KEEP | CASCADE, b"")]


@dataclass
class Library:
    """Releases with art whose messages are not relayed yet; `edits` has the number of each image's edit."""

    art: ArtSystem
    artist: int
    edits: dict[int, int] = field(default_factory=dict)

    def add(self, gid: str, title: str, *images: int, artist: int = 0, mime: str = "image/jpeg") -> None:
        db = self.art.database
        changes.add_release(db, title, artist or self.artist, gid=gid)
        self.art.web_service.set_entity("release", gid, title)
        for number in images:
            self.edits[number] = changes.add_art(db, COVER_ART, gid, number, types=(FRONT,), mime_type=mime)
            self.upload(gid, number, mime)

    def upload(self, gid: str, number: int, mime: str = "image/jpeg") -> None:
        bucket = COVER_ART.bucket(gid)
        suffix = {"image/jpeg": "jpg", "application/pdf": "pdf"}[mime]
        self.art.archive.upload(bucket, f"{bucket}-{number}.{suffix}", f"picture {number}".encode())

    def retitle(self, gid: str, title: str) -> None:
        changes.rename(self.art.database, COVER_ART, gid, title)
        self.art.web_service.set_entity("release", gid, title)


@pytest.fixture
def art(
    services: Urls, musicbrainz_template: tuple[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[ArtSystem]:
    """Return a system with a coalescing window of the parameter's seconds, by default long enough for many changes."""
    with art_corner(services, musicbrainz_template, tmp_path, ART_WINDOW=getattr(request, "param", "2")) as system:
        yield system


@pytest.fixture
def library(art: ArtSystem) -> Library:
    db = art.database
    with db.transaction():
        library = Library(art, changes.add_artist(db, "Björk"))
        other = changes.add_artist(db, "Sugarcubes")
        library.add(INSERTED, "Debut")
        library.add(COMMENTED, "Post", 20)
        library.add(REMOVED, "Homogenic", 30, 31)
        library.add(RETYPED, "Vespertine", 40)
        library.add(BY_ARTIST, "Life's Too Good", 50, 51, artist=other)
        library.add(RENAMED, "Medulla", 60)
        library.add(OLD, "Volta (a copy)", 70)
        library.add(NEW, "Volta", 80)
        library.add(GONE, "Biophilia", 90)
        library.edits[91] = changes.add_art(db, COVER_ART, GONE, 91, mime_type="application/pdf")
        library.upload(GONE, 91, "application/pdf")
        library.add(BARE, "Vulnicura")
        db.execute("TRUNCATE amqp.outbox")
    return library


def change_everything(library: Library) -> None:
    """Make each change in a transaction of its own, all within the window."""
    db = library.art.database
    with db.transaction():
        library.edits[10] = changes.add_cover(db, INSERTED, 10)
        library.upload(INSERTED, 10)
    with db.transaction():
        changes.comment_on(db, COVER_ART, 20, "Ýdalir")
    with db.transaction():
        changes.remove_art(db, COVER_ART, 30)
    with db.transaction():
        changes.set_types(db, COVER_ART, 40, [BOOKLET, BACK])
    with db.transaction():
        changes.rename_artist(db, library.artist + 1, "The Sugarcubes")
    with db.transaction():
        library.retitle(RENAMED, "Medúlla")
        library.retitle(BARE, "Vulnicura Strings")
    with db.transaction():
        changes.merge(db, COVER_ART, OLD, NEW)
    with db.transaction():
        changes.delete(db, COVER_ART, GONE)


def jobs_expected(edits: dict[int, int]) -> dict[str, list[Sent]]:
    both = '"Back", "Booklet"'
    return {
        "a cover is inserted": indexing(INSERTED, "Debut", image(INSERTED, 10, edits[10])),
        "a cover is updated": indexing(COMMENTED, "Post", image(COMMENTED, 20, edits[20], comment="\\u00dddalir")),
        "a cover is deleted": indexing(REMOVED, "Homogenic", image(REMOVED, 31, edits[31])),
        "types are changed": indexing(RETYPED, "Vespertine", image(RETYPED, 40, edits[40], types=both)),
        "an artist is renamed": indexing(
            BY_ARTIST,
            "Life's Too Good",
            image(BY_ARTIST, 50, edits[50]),
            image(BY_ARTIST, 51, edits[51]).replace('"front": true', '"front": false'),
        ),
        "a release is renamed": indexing(RENAMED, "Medúlla", image(RENAMED, 60, edits[60])),
        "a release is merged: its image moves": moving("70.jpg", OLD, NEW),
        "a release is merged: the other one's listing": indexing(
            NEW,
            "Volta",
            image(NEW, 80, edits[80]),
            image(NEW, 70, edits[70]).replace('"front": true', '"front": false'),
        ),
        "a release is merged: its listing goes": deleting(OLD, "index.json"),
        "a release is deleted: its image": deleting(GONE, f"mbid-{GONE}-90.jpg"),
        "a release is deleted: its PDF": deleting(GONE, f"mbid-{GONE}-91.pdf"),
        "a release is deleted: its listing": deleting(GONE, "index.json"),
    }


def test_each_change_in_sql_is_exactly_these_requests(art: ArtSystem, library: Library) -> None:
    change = threading.Thread(target=change_everything, args=(library,))
    copy, *_ = moving("70.jpg", OLD, NEW)
    art.archive.faults.add(broken(), method="PUT", path=copy[1])
    with art.worker("changes") as _:
        change.start()
        change.join()
        count = 1 + sum(len(job) for job in jobs_expected(library.edits).values())
        eventually(lambda: len(changes_requested(art)) >= count, f"{count} requests", seconds=60)
        eventually(lambda: not art.waiting(), "no job is left over")
    requests = changes_requested(art)
    # The first copy failed. Before the second one, no listing with the image was written, and the old one not deleted.
    first, second, gone = (index for index, each in enumerate(requests) if each in moving("70.jpg", OLD, NEW))
    merged = [index for index, each in enumerate(requests) if each[1] in (path_of(NEW), path_of(OLD))]
    assert first < second < gone < min(merged)
    requests.pop(first)
    for job_name, job in jobs_expected(library.edits).items():
        found = [request for request in requests if request in job]
        assert found == job, job_name
        requests = [request for request in requests if request not in job]
    assert requests == [], "requests that no change asks for"
    assert art.broker.depth(art.failed) == 0


def changes_requested(art: ArtSystem) -> list[Sent]:
    """Return the requests but for reads of items, of which a job that waits for a move may need any number."""
    return [sent(request) for request in art.requests() if not request.path.startswith("/metadata/")]


def path_of(gid: str) -> str:
    return f"/mbid-{gid}/index.json"


def test_an_older_listing_never_overwrites_a_newer_one(art: ArtSystem, library: Library) -> None:
    begun = threading.Event()

    def late(request: Request, wire: Wire) -> None:
        begun.set()
        wire.pause(2)
        art.archive.route(request)(request, wire)

    art.archive.faults.add(late, method="PUT", path=f"/mbid-{COMMENTED}/index.json")
    with art.worker("older"):
        changes.comment_on(art.database, COVER_ART, 20, "older")
        assert begun.wait(30)
        changes.comment_on(art.database, COVER_ART, 20, "newer")
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
        library = Library(art, changes.add_artist(art.database, "Various Artists"))
        for number, gid in enumerate(releases):
            library.add(gid, f"Volume {number}", number + 1)
        art.database.execute("TRUNCATE amqp.outbox")

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
