"""The audit over real HTTP: an item as the archive shows it, and the jobs that repair what is found."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from pydantic import SecretStr
from redis import Redis

from app.coverart.archive import PublicArchive
from app.coverart.audit import ArtFinding, audit
from app.coverart.indexer import Indexer
from app.coverart.project import COVER_ART, Entity, Image, listing
from config.settings import Settings
from tests.servers.archive import ArchiveServer
from tests.servers.musicbrainz_ws import MusicBrainz

pytestmark = pytest.mark.integration

A = "16ebbc86-670c-4ad3-980b-bfbd1eee4ff4"
B = "76df3287-6cda-33eb-8e9a-044b5e15ffdd"
BUCKET = f"mbid-{A}"


def image(number: int) -> Image:
    return Image(number, "jpg", "", 7, True, False, False, ("Front", "Medium"))


def file(number: int, gid: str = A) -> str:
    return COVER_ART.image_file(gid, number, "jpg")


ONE = Entity(A, (image(1),))


def findings(gid: str, entity: Entity, public: PublicArchive) -> tuple[ArtFinding, ...]:
    bucket = COVER_ART.bucket(gid)
    item, read_listing = public.item(bucket), partial(public.file, bucket, "index.json")
    return audit(
        COVER_ART, gid, entity, item, find_gids=lambda _: {}, read_listing=read_listing, read_metadata=lambda: None
    )


def test_thumbnails_and_old_versions_are_no_files_and_a_listing_is_read_only_where_its_checksum_differs() -> None:
    with ArchiveServer() as server:
        public = PublicArchive.of(Settings(**server.settings))
        server.upload(BUCKET, file(1), b"picture")
        server.upload(BUCKET, "index.json", listing(COVER_ART, ONE))
        server.upload(BUCKET, COVER_ART.metadata_file(A), b"<metadata/>", at=1_000)
        server.upload(BUCKET, "history/files/index.json.~1~", b"old")
        item = public.item(BUCKET)
        assert item is not None
        assert set(item.files) == {file(1), "index.json", COVER_ART.metadata_file(A)}
        assert item.written == {COVER_ART.metadata_file(A): 1_000}
        assert findings(A, ONE, public) == ()
        assert not any("/download/" in path for path in server.paths())
        server.upload(BUCKET, "index.json", b"[]")
        assert [each.kind for each in findings(A, ONE, public)] == ["listing-stale"]
        assert server.paths()[-2:] == [f"/download/{BUCKET}/index.json", f"/serve/{BUCKET}/index.json"]
        server.darken(BUCKET)
        assert [each.kind for each in findings(A, ONE, public)] == ["dark"]
        assert public.item("mbid-none") is None


def test_the_jobs_of_an_audit_repair_its_findings(redis: Redis) -> None:
    merged = Entity(B, (image(1), image(3)))
    with ArchiveServer() as server, MusicBrainz() as musicbrainz:
        server.upload(BUCKET, file(1), b"one")
        server.upload(BUCKET, file(2), b"two")
        server.upload(BUCKET, "index.json", listing(COVER_ART, ONE))
        server.upload(f"mbid-{B}", file(3, gid=B), b"three")
        server.upload(f"mbid-{B}", "index.json", b"{}")
        musicbrainz.set_entity("release", B, "Merged")
        url = SecretStr("postgresql://musicbrainz.invalid/x")
        settings = Settings(musicbrainz_url=url, musicbrainz_ws_url=musicbrainz.ws_url, **server.settings)
        indexer = replace(
            Indexer.of(COVER_ART.prefix, settings, redis),
            read_entity=lambda _: merged,
            read_gid_of_image=lambda _: B,
        )
        for gid in (A, B):
            for finding in findings(gid, merged, indexer.public):
                assert finding.fix is not None
                indexer.run(finding.fix)
        assert [findings(gid, merged, indexer.public) for gid in (A, B)] == [(), ()]
        files = server.files(f"mbid-{B}")
        assert (files[file(1, gid=B)], files[file(3, gid=B)]) == (b"one", b"three")
        assert files["index.json"] == listing(COVER_ART, merged)
        assert not [name for name in server.files(BUCKET) if not name.startswith("history/")]
