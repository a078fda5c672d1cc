"""`perennial caa` as a user runs it, on a database, an archive and a broker; a worker runs the jobs of an audit.

The commands run in this process, by the function that `perennial` calls: a start of a process takes longer than most.
"""

from __future__ import annotations

import errno
import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import Mock

import pytest
from kombu import Connection
from pydantic import SecretStr

from app.cli import caa as commands
from app.cli import caa_audit, caa_run
from app.cli.main import main
from app.coverart import musicbrainz
from app.coverart.project import COVER_ART, EVENT_ART, listing
from app.operations.art import ArtAudit, read_audits
from app.operations.context import OperatorContext
from app.operations.operators import command_operator
from app.private_services import Urls
from app.topology.queues import art_queues
from config.settings import Settings
from tests.servers.archive import slow_down
from tests.servers.musicbrainz import changes
from tests.servers.musicbrainz_ws import XML, busy, metadata
from tests.servers.site import Request, failure, reply
from tests.support.art import ArtSystem, art_corner
from tests.support.command import as_process_with

pytestmark = pytest.mark.acceptance

A, B, C, GONE = (f"{digit}a000000-0000-4000-8000-000000000001" for digit in "1234")
UNKNOWN = "ffffffff-0000-4000-8000-000000000001"
INDEX, MOVE, DELETE = (f"cover-art-archive.{kind}" for kind in ("index", "move", "delete"))
EVENT_INDEX = "event-art-archive.index"


@dataclass(frozen=True)
class Command:
    """Runs `perennial caa` beside a system without a worker."""

    art: ArtSystem

    def __call__(
        self, *arguments: str, status: int | None = 0, stdin: io.TextIOBase | None = None, **environment: str
    ) -> CompletedProcess[str]:
        out, err = io.StringIO(), io.StringIO()
        with (
            as_process_with({**self.art.environment, **environment}),
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            patch.setattr(sys, "argv", ["perennial", "caa", *arguments])
            patch.setattr(sys, "stdin", stdin or io.StringIO())
            with pytest.raises(SystemExit) as ended:
                main()
        done = CompletedProcess(arguments, int(ended.value.code or 0), out.getvalue(), err.getvalue())
        assert status in (None, done.returncode), done
        return done

    def failing(self, *arguments: str, **environment: str) -> str:
        """Return the one line of a command that fails."""
        done = self(*arguments, status=1, stdin=None, **environment)
        assert done.stdout == ""
        [line] = done.stderr.splitlines()
        return line

    @contextmanager
    def no_messages(self) -> Iterator[changes.Db]:
        """Change the database in the block as if the messages of the change had been lost."""
        with self.art.database.transaction():
            yield self.art.database
            self.art.database.execute("TRUNCATE amqp.outbox")

    @property
    def context(self) -> OperatorContext:
        with as_process_with(self.art.environment):
            return OperatorContext(Settings(), command_operator())

    def last_act(self) -> tuple[str, str, Mapping[str, Any]]:
        entry = next(self.context.audit.entries())
        return entry.act, entry.why, entry.details

    def enqueued(self) -> list[tuple[str, bytes]]:
        """Remove and return routing key and body of everything that is enqueued, index first, delete last."""
        taken = [message for queue in (INDEX, MOVE, DELETE) for message in self.art.broker.take(queue)]
        assert {str(message.properties.get("delivery_mode")) for message in taken} <= {"2"}
        assert not any(message.headers or message.content_type for message in taken)
        return [(message.delivery_info["routing_key"], bytes(message.body)) for message in taken]


class Terminal(io.TextIOBase):
    """A user who answers yes, after something happened."""

    def __init__(self, before: Callable[[], object]) -> None:
        self._before = before

    def isatty(self) -> bool:
        return True

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        self._before()
        return "y\n"


@pytest.fixture(scope="module")
def art(
    services: Urls, musicbrainz_template: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ArtSystem]:
    """One system for all tests here, whose database and archive are emptied for each test."""
    with art_corner(services, musicbrainz_template, tmp_path_factory.mktemp("caa")) as system:
        settings = Settings(musicbrainz_url=SecretStr("postgresql://unused/x"))
        with Connection(system.environment["BROKER_URL"]) as connection:
            for queue in (*art_queues(COVER_ART.prefix, settings), *art_queues(EVENT_ART.prefix, settings)):
                queue(connection.channel()).declare()
        yield system


@pytest.fixture
def caa(art: ArtSystem, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Releases A, B and C, each with an image, all written; of the messages that this made none is left."""
    command = Command(art)
    monkeypatch.setattr(caa_run, "PAUSES", (0.01,) * 5)
    art.archive.clear()
    art.archive.faults.clear()
    art.web_service.faults.clear()
    with command.no_messages() as db:
        db.execute(
            "TRUNCATE musicbrainz.artist, musicbrainz.artist_credit, musicbrainz.edit, musicbrainz.event,"
            " musicbrainz.deleted_entity RESTART IDENTITY CASCADE"
        )
        artist = changes.add_artist(db, "Miles Davis")
        for number, gid in enumerate((C, A, B), 1):
            changes.add_release(db, "Kind of Blue", artist, gid=gid)
            changes.add_cover(db, gid, number)
    for number, gid in enumerate((C, A, B), 1):
        xml = art.web_service.set_entity("release", gid, "Kind of Blue")
        art.archive.upload(COVER_ART.bucket(gid), COVER_ART.image_file(gid, number, "jpg"), b"picture")
        art.archive.upload(COVER_ART.bucket(gid), COVER_ART.metadata_file(gid), xml, at=time.time())
        write(art, gid)
    command.enqueued()
    art.broker.take(EVENT_INDEX)
    return command


def write(art: ArtSystem, gid: str) -> None:
    """Write a release's listing as a worker would."""
    with musicbrainz.connect(art.environment["MUSICBRAINZ_URL"]) as connection:
        entity = musicbrainz.entity(connection, COVER_ART, gid)
    assert entity is not None
    art.archive.upload(COVER_ART.bucket(gid), "index.json", listing(COVER_ART, entity))


def spoil(art: ArtSystem) -> None:
    """Make differences: A has an old listing, an image too many and one of B; GONE is not in the database any more."""
    art.archive.upload(COVER_ART.bucket(A), "index.json", b'{"images": [], "release": "old"}')
    art.archive.upload(COVER_ART.bucket(A), COVER_ART.image_file(A, 3, "jpg"), b"of B")
    art.archive.upload(COVER_ART.bucket(A), COVER_ART.image_file(A, 9, "png"), b"nobody's")
    art.archive.upload(COVER_ART.bucket(GONE), "index.json", b"{}")


SPOILT = [
    (A, "listing-stale", "index.json", "index"),
    (A, "image-elsewhere", f"mbid-{A}-3.jpg", "move"),
    (A, "image-left", f"mbid-{A}-9.png", "delete"),
    (GONE, "listing-left", "index.json", "delete"),
]


def lines(done: CompletedProcess[str]) -> list[tuple[str, ...]]:
    return [tuple(line.split("\t")) for line in done.stdout.splitlines()]


def test_a_release_that_is_named_is_enqueued_by_the_gid_that_it_has_now(caa: Command) -> None:
    with caa.no_messages() as db:
        changes.merge(db, COVER_ART, C, B)
    done = caa("reindex", A.upper(), C, B)
    assert done.stdout == "index of 2 releases enqueued\n"
    assert caa.enqueued() == [("index", A.encode()), ("index", B.encode())]
    assert caa.last_act() == ("art reindex", "", {"gids": [A, C, B], "enqueued": {"index": 2}})
    assert json.loads(caa("reindex", A, "--json").stdout) == {"archive": "cover-art-archive", "enqueued": 1, "last": A}


def test_all_are_enqueued_in_the_order_of_their_gids_and_a_part_says_where_to_go_on(caa: Command) -> None:
    assert caa("reindex", "--all").stdout == "index of 3 releases enqueued\n"
    assert caa.enqueued() == [("index", gid.encode()) for gid in (A, B, C)]
    first = caa("reindex", "--all", "--limit", "2")
    assert first.stderr == f"2 done; continue with --after {B}\n"
    assert caa.enqueued() == [("index", gid.encode()) for gid in (A, B)]
    began = time.monotonic()
    assert caa("reindex", "--all", "--after", A, "--rate", "1").stdout == "index of 2 releases enqueued\n"
    assert time.monotonic() - began > 1
    assert caa.enqueued() == [("index", gid.encode()) for gid in (B, C)]


def test_very_many_messages_need_a_confirmation(caa: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_UNCONFIRMED", 2)
    refused = caa("reindex", "--all", status=2)
    assert "3 messages at once: confirm with --yes, or use --rate or --limit" in " ".join(refused.stderr.split())
    assert caa.enqueued() == []
    assert caa("reindex", "--all", "--yes").stdout == "index of 3 releases enqueued\n"
    assert len(caa.enqueued()) == 3


def test_an_audit_of_equal_items_finds_nothing(caa: Command) -> None:
    before = len(caa.art.archive.requests)
    done = caa("audit", "--all")
    assert (done.stdout, done.stderr) == ("", "3 releases compared: 0 findings\n")
    # One request for each item.
    requested = [request.path for request in caa.art.archive.requests[before:]]
    assert sorted(requested) == [f"/metadata/mbid-{gid}" for gid in (A, B, C)]
    nothing = {"archive": "cover-art-archive", "items": 1, "unread": 0, "findings": []}
    assert json.loads(caa("audit", A, "--json").stdout) == nothing


def test_fixes_are_enqueued_and_images_are_deleted_only_with_a_confirmation(caa: Command) -> None:
    spoil(caa.art)
    caa("audit", A, GONE, status=1)
    assert caa.enqueued() == []
    done = caa("audit", "--fix", A, GONE, status=1)
    assert lines(done) == SPOILT
    assert done.stderr.splitlines() == [
        "1 image not deleted: standard input is not a terminal; confirm with --yes",
        "2 releases compared: 4 findings in 2 of them; 3 jobs (1 delete, 1 index, 1 move) enqueued",
    ]
    moved, unlisted = f"3\n{A}\n{B}\njpg\n".encode(), f"index.json\n{GONE}".encode()
    fixes = [("index", A.encode()), ("move", moved), ("delete", unlisted)]
    assert caa.enqueued() == fixes
    report = json.loads(caa("audit", "--fix", "--yes", "--json", "--why", "a test", A, GONE, status=1).stdout)
    assert caa.last_act() == ("art repair", "a test", {"gids": [A, GONE], "enqueued": report["enqueued"]})
    move = {"job": "move", "id": 3, "old_gid": A, "new_gid": B, "suffix": "jpg"}
    elsewhere = {"gid": A, "kind": "image-elsewhere", "file": f"mbid-{A}-3.jpg", "fix": move}
    assert (report["items"], report["unread"], report["findings"][1]) == (2, 0, elsewhere)
    assert (report["enqueued"], report["not_deleted"]) == ({"index": 1, "move": 1, "delete": 2}, 0)
    assert caa.enqueued() == [*fixes[:2], ("delete", f"9\n{A}\npng".encode()), fixes[2]]


def test_metadata_with_other_bytes_than_the_web_service_sends_are_found_at_one_request_for_each_item(
    caa: Command,
) -> None:
    # The database has no time of this change.
    new = metadata("release", A, "Kind of Blue").replace(b"</title>", b"</title><asin>B000002ADT</asin>")
    caa.art.web_service.faults.add(reply(new, content_type=XML), path=f"/ws/2/release/{A}*")
    before = len(caa.art.web_service.requests)
    expected = [(A, "metadata-stale", f"mbid-{A}_mb_metadata.xml", "index")]
    assert lines(caa("audit", "--all", "--metadata", status=1)) == expected
    assert len(caa.art.web_service.requests) == before + 3


def test_metadata_that_the_web_service_cannot_tell_are_not_compared(caa: Command) -> None:
    caa.art.web_service.faults.add(failure(500), path=f"/ws/2/release/{A}*")
    done = caa("audit", "--all", "--metadata", status=1)
    assert done.stderr.splitlines()[0].startswith(f"{A}: not compared: GET http://127.0.0.1:")
    assert done.stderr.splitlines()[1] == "2 releases compared: 0 findings; 1 could not be read"
    caa.art.web_service.faults.add(busy("3600"), path=f"/ws/2/release/{B}*")
    done = caa("audit", "--all", "--metadata", status=1)
    assert done.stderr.splitlines()[0] == f"1 done; continue with --after {A}"


def test_a_deletion_that_was_held_back_is_not_enqueued_if_the_database_has_the_image_by_then(caa: Command) -> None:
    for number in (8, 9):
        caa.art.archive.upload(f"mbid-{A}", f"mbid-{A}-{number}.jpg", b"nobody's")

    def add() -> None:
        with caa.no_messages() as db:
            changes.add_cover(db, A, 9)

    done = caa("audit", "--fix", A, status=1, stdin=Terminal(add))
    assert "Delete 2 images at the archive" in done.stderr
    assert "1 not deleted: the database has them now; audit again\n" in done.stderr
    deletion = ("delete", f"8\n{A}\njpg".encode())
    assert caa.enqueued() == [deletion]
    # An audit that ends early publishes it, too: it is continued after A.
    caa.art.archive.faults.add(slow_down("0"), path=f"/metadata/mbid-{B}", times=6)
    done = caa("audit", "--all", "--fix", status=1, stdin=Terminal(lambda: None))
    assert f"1 done; continue with --after {A}" in done.stderr
    assert deletion in caa.enqueued()


def test_a_change_between_the_reads_of_database_and_archive_is_no_finding(caa: Command) -> None:
    def change(_: Request) -> None:
        caa.art.archive.before = None
        caa.art.archive.upload(f"mbid-{A}", f"mbid-{A}-8.jpg", b"picture")
        with caa.no_messages() as db:
            changes.add_cover(db, A, 8)
        write(caa.art, A)

    caa.art.archive.before = change
    assert caa("audit", A).stderr == "1 release compared: 0 findings\n"


def kept_audits(caa: Command) -> dict[str, ArtAudit]:
    audits, trouble = read_audits(caa.context, ["cover-art-archive", "event-art-archive"])
    assert not trouble
    return audits


def test_how_the_last_audit_of_all_ended_is_kept_also_where_it_was_stopped(
    caa: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kept_audits(caa)
    caa("audit", A)
    assert kept_audits(caa) == before
    spoil(caa.art)
    done = caa("audit", "--all", "--fix", status=1)
    assert kept_audits(caa).keys() == {"cover-art-archive"}
    audit = kept_audits(caa)["cover-art-archive"]
    assert (audit.command, audit.operator) == ("perennial caa audit --all --fix", command_operator().name)
    assert [(each.gid, each.kind, each.file, each.fix) for each in audit.findings] == lines(done)
    assert sum(audit.kinds.values()) == len(lines(done))
    assert (audit.fixes, audit.held_back, audit.stopped) == (True, 1, "")
    assert audit.enqueued == {"index": 1, "move": 1}
    caa.art.archive.faults.add(slow_down("0"), path=f"/metadata/mbid-{B}", times=6)
    caa("audit", "--all", status=1)
    stopped = kept_audits(caa)["cover-art-archive"]
    assert (stopped.items, stopped.last) == (1, A)
    assert "SlowDown" in stopped.stopped
    monkeypatch.setattr(caa_audit, "print_lines", Mock(side_effect=OSError(errno.EPIPE, "Broken pipe")))
    caa("audit", "--all", status=1)
    assert kept_audits(caa)["cover-art-archive"].stopped == "[Errno 32] Broken pipe"


def test_an_audit_pauses_for_an_unavailable_archive_then_names_the_point_to_continue_at(caa: Command) -> None:
    began = time.monotonic()
    caa.art.archive.faults.add(slow_down(), path=f"/metadata/mbid-{B}", times=5)
    assert caa("audit", "--all").stderr == "3 releases compared: 0 findings\n"
    assert time.monotonic() - began > sum(caa_run.PAUSES)
    caa.art.archive.faults.add(slow_down("0"), path=f"/metadata/mbid-{B}", times=6)
    done = caa("audit", "--all", status=1)
    assert done.stderr.splitlines()[0] == f"1 done; continue with --after {A}"
    assert "503: SlowDown" in done.stderr.splitlines()[1]
    assert caa("audit", "--all", "--after", A, "--jobs", "16").stderr == "2 releases compared: 0 findings\n"


def test_a_restart_of_the_database_does_not_end_an_audit(caa: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caa_run, "_PAGE", 1)

    def end_connections(_: Request) -> None:
        caa.art.archive.before = None
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        caa.art.database.execute(f"SELECT pg_terminate_backend(pid, 10000) {others}")

    caa.art.archive.before = end_connections
    assert caa("audit", "--all").stderr == "3 releases compared: 0 findings\n"


def test_an_unreadable_item_is_reported_and_several_in_a_row_are_an_outage(
    caa: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caa_audit, "OUTAGE_ITEMS", 2)
    caa.art.archive.faults.add(reply("<html>"), path="/metadata/*", times=7)
    done = caa("audit", "--all", "--jobs", "1", status=1)
    assert done.stderr.splitlines()[0].startswith(f"{A}: not compared: GET http://127.0.0.1:")
    assert done.stderr.splitlines()[2] == "1 release compared: 0 findings; 2 could not be read"
    caa.art.archive.faults.add(failure(502), path="/metadata/*", times=8)
    done = caa("audit", "--all", "--jobs", "1", status=1)
    assert done.stderr.splitlines()[2] == f"2 done; continue with --after {B}"


def test_an_impossible_command_prints_one_line(caa: Command) -> None:
    for command in ("reindex", "audit"):
        assert f"release {UNKNOWN}: " in caa.failing(command, UNKNOWN)
    assert caa.failing("audit", A, MUSICBRAINZ_URL="") == (
        "perennial: cover art is not served here: MUSICBRAINZ_URL is empty"
    )
    nowhere = "postgresql://u:secret@127.0.0.1:1/musicbrainz"
    line = caa.failing("reindex", A, MUSICBRAINZ_URL=nowhere)
    assert line.startswith("perennial: MusicBrainz's database 'musicbrainz' at 127.0.0.1: ")
    assert "secret" not in line
    assert caa.enqueued() == []
    assert "Connection refused" in caa.failing("audit", A, ARCHIVE_PUBLIC_URL="http://127.0.0.1:1")
    assert "RabbitMQ does not answer" in caa.failing("reindex", A, BROKER_URL="amqp://127.0.0.1:1//")


def test_events_have_an_exchange_of_their_own(caa: Command) -> None:
    with caa.no_messages() as db:
        event = changes.add_event(db, "Newport")
        changes.add_art(db, EVENT_ART, event, 50)
    both = Command(replace(caa.art, environment={**caa.art.environment, "EVENT_ART_EXCHANGE": EVENT_ART.prefix}))
    done = both("audit", "--archive", "event-art-archive", event, status=1)
    assert [line[:3] for line in lines(done)] == [
        (event, "listing-missing", "index.json"),
        (event, "image-missing", f"mbid-{event}-50.jpg"),
    ]
    assert both("reindex", "--archive", "event-art-archive", "--all").stdout == "index of 1 event enqueued\n"
    assert [bytes(each.body).decode() for each in caa.art.broker.take(EVENT_INDEX)] == [event]
