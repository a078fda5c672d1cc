"""The audit: what the archive holds beside what the database says, over real HTTP, and repaired by the jobs."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest

from app.coverart.archive import Archive, PublicArchive
from app.coverart.audit import ArtFinding, FindGids, ReadDocument, audit, same_listing
from app.coverart.indexer import delete, index, move
from app.coverart.jobs import Delete, Index, Job, Move
from app.coverart.project import COVER_ART, EVENT_ART, Entity, Image, listing
from app.coverart.webservice import WebService
from config.settings import Settings
from tests.servers.archive import ArchiveServer
from tests.servers.musicbrainz_ws import MusicBrainz, metadata
from tests.servers.site import reply

pytestmark = pytest.mark.integration

A = "16ebbc86-670c-4ad3-980b-bfbd1eee4ff4"
B = "76df3287-6cda-33eb-8e9a-044b5e15ffdd"
BUCKET = f"mbid-{A}"
METADATA = f"{BUCKET}_mb_metadata.xml"


def image(number: int, suffix: str = "jpg") -> Image:
    return Image(number, suffix, "", 7, True, False, False, ("Front", "Medium"))


def file(number: int, suffix: str = "jpg", gid: str = A) -> str:
    return f"mbid-{gid}-{number}.{suffix}"


ONE = Entity(A, (image(1),))


@pytest.fixture
def server() -> Iterator[ArchiveServer]:
    """Yield an archive without items."""
    with ArchiveServer() as running:
        yield running


def settings_of(server: ArchiveServer, ws_url: str = "http://127.0.0.1:1") -> Settings:
    return Settings(musicbrainz_ws_url=ws_url, **server.settings)


def no_gids(images: Collection[int]) -> dict[int, str]:
    return {}


def unread() -> bytes | None:
    raise AssertionError("this document need not be compared")


def found(
    server: ArchiveServer, entity: Entity | None, find_gids: FindGids = no_gids, read_metadata: ReadDocument = unread
) -> list[tuple[str, str, Job | None]]:
    """Return the findings of A's item, which has metadata if it has anything."""
    if server.files(BUCKET) and METADATA not in server.files(BUCKET):
        server.upload(BUCKET, METADATA, b"<metadata/>")
    public = PublicArchive.of(settings_of(server))
    item, stored = public.item(BUCKET), partial(public.file, BUCKET, "index.json")
    findings = audit(COVER_ART, A, entity, item, find_gids=find_gids, read_listing=stored, read_metadata=read_metadata)
    assert {finding.gid for finding in findings} <= {A}
    return [(finding.kind, finding.file, finding.fix) for finding in findings]


def test_an_item_as_the_jobs_leave_it_has_no_finding_and_its_listing_is_not_even_read(server: ArchiveServer) -> None:
    server.upload(BUCKET, file(1), b"picture")
    server.upload(BUCKET, "index.json", listing(COVER_ART, ONE))
    server.upload(BUCKET, METADATA, b"<metadata/>")
    server.upload(BUCKET, "history/files/index.json.~1~", b"old")
    assert found(server, ONE) == []
    assert server.paths() == [f"/metadata/{BUCKET}"]


def test_an_entity_without_images_and_item_has_no_finding(server: ArchiveServer) -> None:
    assert found(server, Entity(A, ())) == []
    assert found(server, None) == []


def test_a_missing_listing_and_a_missing_image_are_found(server: ArchiveServer) -> None:
    server.upload(BUCKET, file(1), b"picture")
    two = Entity(A, (image(1), image(2)))
    assert found(server, two) == [
        ("listing-missing", "index.json", Index(A)),
        ("image-missing", file(2), None),
    ]
    # An item has a listing also when the last image is gone.
    assert found(server, Entity(A, ()))[0] == ("listing-missing", "index.json", Index(A))


def test_a_listing_that_says_something_else_is_stale_but_not_one_in_another_form(server: ArchiveServer) -> None:
    server.upload(BUCKET, file(1), b"picture")
    old = json.loads(listing(COVER_ART, ONE).replace(b"https:", b"http:"))
    old["images"][0]["id"] = "1"
    old["images"][0]["types"].reverse()
    server.upload(BUCKET, "index.json", json.dumps(old, indent=1).encode())
    assert found(server, ONE) == []
    endless = listing(COVER_ART, ONE).replace(b'"id": 1,', b'"id": 1e999,')
    others = listing(COVER_ART, Entity(A, ())), listing(COVER_ART, Entity(B, ONE.images))
    for other in (*others, endless, b"not JSON", b"[]"):
        server.upload(BUCKET, "index.json", other)
        assert found(server, ONE) == [("listing-stale", "index.json", Index(A))]
    assert server.paths()[-2:] == [f"/download/{BUCKET}/index.json", f"/serve/{BUCKET}/index.json"]


def test_what_a_deleted_entity_left_is_to_go(server: ArchiveServer) -> None:
    server.upload(BUCKET, file(1, "pdf"), b"picture")
    server.upload(BUCKET, "index.json", b"{}")
    assert found(server, None) == [
        ("listing-left", "index.json", Delete(A)),
        ("image-left", file(1, "pdf"), Delete(A, 1, "pdf")),
    ]


def test_images_of_a_merged_entity_are_to_move_and_others_to_go(server: ArchiveServer) -> None:
    server.upload(BUCKET, file(1), b"picture")
    server.upload(BUCKET, file(2), b"picture")
    assert found(server, Entity(B, (image(1),))) == [
        ("image-elsewhere", file(1), Move(1, A, B, "jpg")),
        ("image-left", file(2), Delete(A, 2, "jpg")),
    ]
    server.upload(BUCKET, "index.json", listing(COVER_ART, ONE))
    homes_of: list[Collection[int]] = []

    def find_gids(images: Collection[int]) -> dict[int, str]:
        homes_of.append(images)
        return {2: B}

    assert found(server, ONE, find_gids) == [("image-elsewhere", file(2), Move(2, A, B, "jpg"))]
    assert homes_of == [{2}]


def test_an_image_under_another_suffix_than_the_databases_is_never_deleted(server: ArchiveServer) -> None:
    server.upload(BUCKET, file(1, "png"), b"picture")
    server.upload(BUCKET, "index.json", listing(COVER_ART, ONE))
    assert found(server, ONE) == [("image-missing", file(1), None), ("image-left", file(1, "png"), None)]


def test_an_image_that_came_while_we_looked_or_whose_row_may_yet_come_is_no_finding(server: ArchiveServer) -> None:
    server.upload(BUCKET, file(1), b"picture")
    server.upload(BUCKET, file(2), b"picture")
    server.upload(BUCKET, "index.json", listing(COVER_ART, ONE))
    assert found(server, ONE, lambda images: {2: A}) == []
    for age, expected in ((60, []), (2 * 86_400, [("image-left", file(2), Delete(A, 2, "jpg"))])):
        files = [{"name": file(number), "mtime": str(int(time.time() - age))} for number in (1, 2)]
        files += [{"name": "index.json"}, {"name": METADATA}]
        server.faults.add(reply(json.dumps({"files": files})), path="/metadata/*")
        assert found(server, ONE) == expected


def test_metadata_that_are_missing_or_older_than_a_change_that_they_lack_are_found(server: ArchiveServer) -> None:
    server.upload(BUCKET, file(1), b"picture")
    server.upload(BUCKET, "index.json", listing(COVER_ART, ONE))
    item = PublicArchive.of(settings_of(server)).item(BUCKET)
    [missing] = audit(COVER_ART, A, ONE, item, find_gids=no_gids, read_listing=unread, read_metadata=unread)
    assert missing == ArtFinding(A, "metadata-missing", METADATA, Index(A))

    xml = metadata("release", A, "Début & more")
    server.upload(BUCKET, METADATA, xml, at=1_000)
    stale = [("metadata-stale", METADATA, Index(A))]
    assert found(server, replace(ONE, changed=1_000.0)) == []
    changed = replace(ONE, changed=1_002.0)
    # The writer would write these bytes: only another checksum counts. One that is gone by now has nothing to write.
    for present, expected in ((xml, []), (xml.replace(b"more", b"more "), stale), (None, [])):
        assert found(server, changed, read_metadata=Mock(return_value=present)) == expected
    assert not any("/download/" in path for path in server.paths())


def test_with_every_metadata_also_those_are_compared_that_no_time_shows_as_stale(server: ArchiveServer) -> None:
    server.upload(BUCKET, file(1), b"picture")
    server.upload(BUCKET, "index.json", listing(COVER_ART, ONE))
    server.upload(BUCKET, METADATA, b"<metadata/>")
    item = PublicArchive.of(settings_of(server)).item(BUCKET)
    for present, kinds in ((b"<metadata/>", []), (b"<metadata></metadata>", ["metadata-stale"])):
        read = partial(audit, find_gids=no_gids, read_listing=unread, read_metadata=Mock(return_value=present))
        findings = read(COVER_ART, A, ONE, item, every_metadata=True)
        assert [finding.kind for finding in findings] == kinds


def test_a_dark_item_is_one_finding(server: ArchiveServer) -> None:
    server.upload(BUCKET, file(2), b"picture")
    server.darken(BUCKET)
    assert found(server, ONE) == [("dark", "", None)]


def test_the_jobs_of_an_audit_repair_its_findings(server: ArchiveServer) -> None:
    merged = Entity(B, (image(1), image(3)))
    server.upload(BUCKET, file(1), b"one")
    server.upload(BUCKET, file(2), b"two")
    server.upload(BUCKET, "index.json", listing(COVER_ART, ONE))
    server.upload(f"mbid-{B}", file(3, gid=B), b"three")
    server.upload(f"mbid-{B}", "index.json", b"{}")
    with MusicBrainz() as musicbrainz:
        musicbrainz.set_entity("release", B, "Merged")
        settings = settings_of(server, musicbrainz.ws_url)
        holdings = PublicArchive.of(settings)
        for gid in (A, B):
            for finding in looked_at(gid, merged, holdings):
                mend(finding.fix, merged, settings)
        assert [looked_at(gid, merged, holdings) for gid in (A, B)] == [(), ()]
    files = server.files(f"mbid-{B}")
    assert (files[file(1, gid=B)], files[file(3, gid=B)]) == (b"one", b"three")
    assert files["index.json"] == listing(COVER_ART, merged)
    assert not [name for name in server.files(BUCKET) if not name.startswith("history/")]


def looked_at(gid: str, entity: Entity, public: PublicArchive) -> tuple[ArtFinding, ...]:
    bucket = COVER_ART.bucket(gid)
    read_listing = partial(public.file, bucket, "index.json")
    item = public.item(bucket)
    return audit(COVER_ART, gid, entity, item, find_gids=no_gids, read_listing=read_listing, read_metadata=unread)


def mend(fix: Job | None, entity: Entity, settings: Settings) -> None:
    archive = Archive.of(settings)
    match fix:
        case Index():
            index(COVER_ART, entity, archive=archive, web_service=WebService.of(settings))
        case Move():
            move(COVER_ART, fix, archive=archive)
        case Delete():
            delete(COVER_ART, fix, archive=archive)


def test_a_listing_of_events_is_compared_too() -> None:
    expected = listing(EVENT_ART, ONE)
    assert same_listing(expected.replace(b"https:", b"http:"), expected)
    assert not same_listing(listing(COVER_ART, ONE), expected)
