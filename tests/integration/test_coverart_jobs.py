"""Jobs of the cover art archive over real HTTP: the requests they send, what is left, and what each fault becomes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pydantic import SecretStr

from app.broker.errors import ApplicationError
from app.coverart.archive import Archive
from app.coverart.indexer import delete, index, move
from app.coverart.jobs import Delete, Move
from app.coverart.project import COVER_ART, Entity, Image
from app.coverart.webservice import WebService
from app.errors import ArchiveError, ArchiveNotFound, ArchiveUnavailable, WebServiceError
from config.settings import Settings
from tests.servers import archive as stand_in
from tests.servers import hazards
from tests.servers.archive import ACCESS_KEY, SECRET_KEY, ArchiveServer
from tests.servers.musicbrainz_ws import MusicBrainz, busy
from tests.servers.site import Answer, Request, redirect
from tests.support import art
from tests.support.art import Sent

pytestmark = pytest.mark.integration

A = "16ebbc86-670c-4ad3-980b-bfbd1eee4ff4"
B = "76df3287-6cda-33eb-8e9a-044b5e15ffdd"
IMAGE = Image(829521842, "jpg", "Björk", 17462565, True, True, False, ("Front",))
RELEASE = Entity(A, (IMAGE,))
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


@pytest.fixture
def musicbrainz() -> Iterator[MusicBrainz]:
    """Return a web service that has the release and the event A."""
    with MusicBrainz() as running:
        for entity in ("release", "event"):
            running.set_entity(entity, A, "Début & more")
        yield running


@dataclass
class Ends:
    """Both ends of every job."""

    archive: Archive
    web_service: WebService


def ends(archive_url: str, ws_url: str) -> Ends:
    """Return clients with a short time-out."""
    settings = Settings(
        archive_url=archive_url,
        archive_keys=SecretStr(f"{ACCESS_KEY}:{SECRET_KEY}"),
        response_timeout=5.0,
        musicbrainz_ws_url=f"{ws_url}/",
        user_agent=AGENT,
    )
    return Ends(Archive.of(settings), WebService.of(settings))


@pytest.fixture
def both(server: ArchiveServer, musicbrainz: MusicBrainz) -> Ends:
    """Clients of the two servers."""
    return ends(server.path_url, musicbrainz.ws_url)


def run_index(both: Ends) -> str:
    return index(COVER_ART, RELEASE, archive=both.archive, web_service=both.web_service)


def sent(requests: list[Request]) -> list[Sent]:
    """Return requests as what their jobs are about."""
    return list(map(art.sent, requests))


# What is sent. The requests of `index` and `delete` are in tests/acceptance/test_event_queue.py.


def test_metadata_that_the_web_service_does_not_have_are_left_out(
    server: ArchiveServer, musicbrainz: MusicBrainz, both: Ends
) -> None:
    musicbrainz.remove_entity("release", A)
    assert run_index(both) == "no metadata"
    assert server.paths() == [f"/mbid-{A}/index.json"]


def test_move_copies_within_the_archive_then_deletes_with_thumbnails(server: ArchiveServer, both: Ends) -> None:
    server.upload(f"mbid-{A}", FILE, b"picture")
    assert move(COVER_ART, MOVE, archive=both.archive) == "done"
    source = {"x-amz-copy-source": f"/mbid-{A}/{FILE}"}
    assert sent(server.requests) == [
        ("PUT", f"/mbid-{B}/{NEW_FILE}", LOW | source | KEEP | BUCKET, b""),
        ("DELETE", f"/mbid-{A}/{FILE}", LOW | KEEP | CASCADE, b""),
    ]
    assert server.requests[0].headers["content-length"] == "0"
    assert server.files(f"mbid-{B}")[NEW_FILE] == b"picture"
    assert sorted(server.files(f"mbid-{A}")) == [f"history/files/{FILE}.~1~"]
    item = server.item(f"mbid-{B}")
    assert item is not None
    assert item.metadata == {"collection": "coverartarchive", "mediatype": "image", "noindex": "true"}


def test_a_move_that_ran_before_is_done_after_asking_whether_its_target_is_there(
    server: ArchiveServer, both: Ends
) -> None:
    server.upload(f"mbid-{A}", FILE, b"picture")
    move(COVER_ART, MOVE, archive=both.archive)
    assert move(COVER_ART, MOVE, archive=both.archive) == "skipped"
    assert sent(server.requests)[3:] == [("HEAD", f"/mbid-{B}/{NEW_FILE}", LOW, b"")]
    assert server.files(f"mbid-{B}")[NEW_FILE] == b"picture"


def test_a_move_cut_off_between_copy_and_delete_is_finished_by_the_next_run(server: ArchiveServer, both: Ends) -> None:
    server.upload(f"mbid-{A}", FILE, b"picture")
    server.faults.add(stand_in.broken(), method="DELETE")
    with pytest.raises(ArchiveError, match=r"DELETE .*500"):
        move(COVER_ART, MOVE, archive=both.archive)
    assert FILE in server.files(f"mbid-{A}")
    assert move(COVER_ART, MOVE, archive=both.archive) == "done"
    assert FILE not in server.files(f"mbid-{A}")
    assert server.files(f"mbid-{B}")[NEW_FILE] == b"picture"


@pytest.mark.parametrize("bucket_there", [False, True])
def test_a_move_of_what_is_in_neither_place_says_so(server: ArchiveServer, both: Ends, bucket_there: bool) -> None:
    if bucket_there:
        server.upload(f"mbid-{A}", "index.json", b"{}")
    with pytest.raises(ArchiveNotFound, match=r"cannot move .*: neither it nor .* exists") as caught:
        move(COVER_ART, MOVE, archive=both.archive)
    assert f"mbid-{A}/{FILE}" in str(caught.value)
    assert f"mbid-{B}/{NEW_FILE}" in str(caught.value)
    assert not caught.value.permanent
    assert "DELETE" not in [request.method for request in server.requests]


def test_a_read_that_is_redirected_to_another_machine_means_that_the_object_is_there(
    server: ArchiveServer, both: Ends
) -> None:
    server.faults.add(redirect("http://127.0.0.1:1/elsewhere", status=307), method="HEAD")
    assert move(COVER_ART, MOVE, archive=both.archive) == "skipped"


def test_an_image_that_moves_to_where_it_is_is_left_alone(server: ArchiveServer, both: Ends) -> None:
    server.upload(f"mbid-{A}", FILE, b"picture")
    assert move(COVER_ART, replace(MOVE, new_gid=A), archive=both.archive) == "skipped"
    assert server.requests == []


def test_deleting_from_what_is_no_more_is_no_error(server: ArchiveServer, both: Ends) -> None:
    assert delete(COVER_ART, Delete(A), archive=both.archive) == "skipped"
    server.faults.add(stand_in.not_retrievable())
    assert delete(COVER_ART, Delete(A), archive=both.archive) == "skipped"


def test_the_bucket_may_stand_in_the_host(
    server: ArchiveServer, musicbrainz: MusicBrainz, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def loopback(host: Any, *rest: Any, **options: Any) -> Any:
        # Names below `localhost` are loopback (RFC 6761 section 6.3), but not every resolver knows.
        return real("127.0.0.1" if str(host).endswith(".localhost") else host, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", loopback)
    server.upload(f"mbid-{A}", FILE, b"picture")
    assert move(COVER_ART, MOVE, archive=ends(server.host_url, musicbrainz.ws_url).archive) == "done"
    assert [(request.headers["host"], request.path) for request in server.requests] == [
        (f"mbid-{B}.localhost:{server.port}", f"/{NEW_FILE}"),
        (f"mbid-{A}.localhost:{server.port}", f"/{FILE}"),
    ]
    assert server.files(f"mbid-{B}")[NEW_FILE] == b"picture"


# What goes wrong

#: What further answers mean is in tests/unit/test_coverart_answers.py.
FAULTS: list[tuple[Callable[[], Answer], type[ApplicationError], str]] = [
    (stand_in.slow_down, ArchiveUnavailable, "503: SlowDown: Please reduce your request rate"),
    (lambda: stand_in.error(200, "InternalError", "Try again."), ArchiveError, "200: InternalError: Try again"),
    (hazards.reset, ArchiveError, "(?i)reset|aborted"),
    (lambda: redirect("http://127.0.0.1:1/other", status=307), ArchiveError, "307: redirected to http://127.0.0.1:1/"),
]


@pytest.mark.parametrize(("answer", "kind", "text"), FAULTS)
def test_every_fault_of_the_archive_is_an_error_of_its_kind(
    server: ArchiveServer,
    musicbrainz: MusicBrainz,
    answer: Callable[[], Answer],
    kind: type[ApplicationError],
    text: str,
) -> None:
    server.faults.add(answer(), method="PUT", path=f"/mbid-{A}/index.json")
    both = ends(server.path_url, musicbrainz.ws_url)
    with pytest.raises(kind, match=text) as caught:
        run_index(both)
    assert type(caught.value) is kind
    assert f"PUT {server.at(f'/mbid-{A}/index.json')}: " in str(caught.value)
    assert musicbrainz.requests == []
    # The fault is used up: the next run does all.
    assert run_index(both) == "done"


def test_an_archive_that_cannot_be_reached_is_unavailable(both: Ends) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/{{bucket}}/{{file}}"
        with pytest.raises(ArchiveUnavailable, match=r"PUT http://127.0.0.1:\d+/mbid-.*refused"):
            run_index(ends(url, both.web_service.url))
    with pytest.raises(ArchiveUnavailable, match=r"(?i)resolve"):
        run_index(ends("http://nowhere.invalid/{bucket}/{file}", both.web_service.url))


def test_an_image_whose_copy_begins_as_a_success_and_ends_as_an_error_is_not_deleted(
    server: ArchiveServer, both: Ends
) -> None:
    server.upload(f"mbid-{A}", FILE, b"picture")
    server.faults.add(stand_in.error(200, "InternalError", "We encountered an internal error."), method="PUT")
    with pytest.raises(ArchiveError, match="200: InternalError"):
        move(COVER_ART, MOVE, archive=both.archive)
    assert server.files(f"mbid-{A}")[FILE] == b"picture"
    assert [request.method for request in server.requests] == ["PUT"]


@pytest.mark.parametrize(("answer", "text", "retry_after"), [(busy("7"), "503", 7), (hazards.reset(), "reset", None)])
def test_metadata_that_cannot_be_had_is_not_written_and_may_be_tried_again(
    server: ArchiveServer, musicbrainz: MusicBrainz, both: Ends, answer: Answer, text: str, retry_after: float | None
) -> None:
    musicbrainz.faults.add(answer)
    with pytest.raises(WebServiceError, match=f"(?i){text}") as caught:
        run_index(both)
    assert (caught.value.permanent, caught.value.retry_after) == (False, retry_after)
    assert server.paths() == [f"/mbid-{A}/index.json"]
