"""Jobs of the cover art archive over real HTTP: the requests they send, what is left, and what goes wrong.

The requests of `index` and `delete` are in tests/acceptance/test_event_queue.py. What answers mean is in
tests/unit/test_coverart_answers.py.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pydantic import SecretStr
from redis import Redis

from app.coverart.indexer import Indexer
from app.coverart.jobs import Delete, Move
from app.coverart.project import COVER_ART
from app.errors import ArchiveError, ArchiveNotFound, ArchiveUnavailable
from config.settings import Settings
from tests.servers import archive as stand_in
from tests.servers import hazards
from tests.servers.archive import ACCESS_KEY, SECRET_KEY, ArchiveServer
from tests.servers.dns import resolved_here
from tests.servers.site import redirect
from tests.support import art

pytestmark = pytest.mark.integration

A = "16ebbc86-670c-4ad3-980b-bfbd1eee4ff4"
B = "76df3287-6cda-33eb-8e9a-044b5e15ffdd"
FILE = f"mbid-{A}-829521842.jpg"
NEW_FILE = f"mbid-{B}-829521842.jpg"
MOVE = Move(829521842, A, B, "jpg")

AGENT = "Perennial-Test/1.0"
LOW = {"user-agent": AGENT, "authorization": f"LOW {ACCESS_KEY}:{SECRET_KEY}"}
KEEP = {"x-archive-keep-old-version": "1"}
CASCADE = {"x-archive-cascade-delete": "1"}
BUCKET = {
    "x-archive-auto-make-bucket": "1",
    "x-archive-meta-collection": "coverartarchive",
    "x-archive-meta-mediatype": "image",
    "x-archive-meta-noindex": "true",
}


@pytest.fixture
def server() -> Iterator[ArchiveServer]:
    """Yield an archive without items."""
    with ArchiveServer() as running:
        yield running


def indexer_for(redis: Redis, archive_url: str) -> Indexer:
    """Return an indexer with a short time-out, whose database has each image in B."""
    settings = Settings(
        musicbrainz_url=SecretStr("postgresql://musicbrainz.invalid/x"),
        archive_url=archive_url,
        archive_keys=SecretStr(f"{ACCESS_KEY}:{SECRET_KEY}"),
        response_timeout=5.0,
        user_agent=AGENT,
    )
    indexer = Indexer.of(COVER_ART.prefix, settings, redis)
    return replace(indexer, read_entity=lambda _: None, read_gid_of_image=lambda _: B)


@pytest.fixture
def indexer(redis: Redis, server: ArchiveServer) -> Indexer:
    return indexer_for(redis, server.path_url)


def test_a_move_copies_within_the_archive_then_deletes_with_thumbnails_and_a_stopped_one_is_finished_by_the_next_run(
    server: ArchiveServer, indexer: Indexer
) -> None:
    server.upload(f"mbid-{A}", FILE, b"picture")
    server.faults.add(stand_in.broken(), method="DELETE")
    with pytest.raises(ArchiveError, match=r"DELETE .*500"):
        indexer.run(MOVE)
    assert FILE in server.files(f"mbid-{A}")
    assert indexer.run(MOVE) == "done"
    source = {"x-amz-copy-source": f"/mbid-{A}/{FILE}"}
    requests = [
        ("PUT", f"/mbid-{B}/{NEW_FILE}", LOW | source | KEEP | BUCKET, b""),
        ("DELETE", f"/mbid-{A}/{FILE}", LOW | KEEP | CASCADE, b""),
    ]
    assert [art.sent(each) for each in server.requests] == requests * 2
    assert server.requests[0].headers["content-length"] == "0"
    assert sorted(server.files(f"mbid-{A}")) == [f"history/files/{FILE}.~1~"]
    item = server.item(f"mbid-{B}")
    assert item is not None
    assert item.metadata == {"collection": "coverartarchive", "mediatype": "image", "noindex": "true"}
    # One that ran before asks only whether its target is there.
    assert indexer.run(MOVE) == "skipped"
    assert [art.sent(each) for each in server.requests][5:] == [("HEAD", f"/mbid-{B}/{NEW_FILE}", LOW, b"")]
    assert server.files(f"mbid-{B}")[NEW_FILE] == b"picture"


def test_a_move_of_what_is_nowhere_says_so(server: ArchiveServer, indexer: Indexer) -> None:
    with pytest.raises(ArchiveNotFound, match=r"cannot move .*: neither it nor .* exists") as caught:
        indexer.run(MOVE)
    assert f"mbid-{A}/{FILE}" in str(caught.value)
    assert f"mbid-{B}/{NEW_FILE}" in str(caught.value)
    assert not caught.value.permanent
    assert "DELETE" not in [request.method for request in server.requests]


def test_a_read_that_is_redirected_to_another_machine_means_that_the_object_is_there(
    server: ArchiveServer, indexer: Indexer
) -> None:
    server.faults.add(redirect("http://127.0.0.1:1/elsewhere", status=307), method="HEAD")
    assert indexer.run(MOVE) == "skipped"


def test_an_image_that_moves_to_where_it_is_is_left_alone(server: ArchiveServer, indexer: Indexer) -> None:
    server.upload(f"mbid-{A}", FILE, b"picture")
    assert replace(indexer, parents=[]).run(replace(MOVE, new_gid=A)) == "skipped"
    assert server.requests == []


def test_deleting_from_what_is_no_more_is_no_error(server: ArchiveServer, indexer: Indexer) -> None:
    assert indexer.run(Delete(A)) == "skipped"
    server.faults.add(stand_in.not_retrievable())
    assert indexer.run(Delete(A)) == "skipped"


def test_the_bucket_may_stand_in_the_host(server: ArchiveServer, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    # Names below `localhost` are loopback (RFC 6761 section 6.3), but not every resolver knows.
    resolved_here(monkeypatch, "localhost")
    server.upload(f"mbid-{A}", FILE, b"picture")
    assert indexer_for(redis, server.host_url).run(MOVE) == "done"
    assert [(request.headers["host"], request.path) for request in server.requests] == [
        (f"mbid-{B}.localhost:{server.port}", f"/{NEW_FILE}"),
        (f"mbid-{A}.localhost:{server.port}", f"/{FILE}"),
    ]
    assert server.files(f"mbid-{B}")[NEW_FILE] == b"picture"


def test_an_archive_that_cannot_be_reached_is_unavailable_and_one_that_breaks_off_is_not(
    server: ArchiveServer, indexer: Indexer, redis: Redis
) -> None:
    server.faults.add(hazards.reset())
    with pytest.raises(ArchiveError, match=r"(?i)reset|aborted") as caught:
        indexer.run(MOVE)
    assert not isinstance(caught.value, ArchiveUnavailable)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/{{bucket}}/{{file}}"
        with pytest.raises(ArchiveUnavailable, match=r"PUT http://127.0.0.1:\d+/mbid-.*refused"):
            indexer_for(redis, url).run(MOVE)
    with pytest.raises(ArchiveUnavailable, match=r"(?i)resolve"):
        indexer_for(redis, "http://nowhere.invalid/{bucket}/{file}").run(MOVE)
