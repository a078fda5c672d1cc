"""`perennial caa` as a user runs it, on a database, an archive and a broker; a worker runs the jobs of an audit."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from kombu import Connection

from app.coverart import musicbrainz
from app.coverart.project import COVER_ART, EVENT_ART, listing
from app.topology.queues import art_queues
from config.settings import ROOT, Settings
from tests.servers.archive import broken, slow_down
from tests.servers.musicbrainz import changes
from tests.support.art import ArtSystem, art_system
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

A, B, C, GONE = (f"{digit}a000000-0000-4000-8000-000000000001" for digit in "1234")
UNKNOWN = "ffffffff-0000-4000-8000-000000000001"
INDEX, MOVE, DELETE = (f"cover-art-archive.{kind}" for kind in ("index", "move", "delete"))
EVENT_INDEX = "event-art-archive.index"


@dataclass(frozen=True)
class Command:
    """Runs `perennial caa` beside a system without a worker."""

    art: ArtSystem

    def __call__(self, *arguments: str, status: int | None = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(Path(sys.executable).with_name("perennial")), "caa", *arguments],
            cwd=ROOT,
            env={**self.art.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert status in (None, done.returncode), done
        assert "Traceback" not in done.stderr
        return done

    def failing(self, *arguments: str, **environment: str) -> str:
        """Return the one line of a command that fails."""
        done = self(*arguments, status=1, **environment)
        assert done.stdout == ""
        [line] = done.stderr.splitlines()
        return line

    def forget_messages(self) -> None:
        """Have no message on its way, as if it had been lost, once all are sent that were written."""
        eventually(lambda: self.art.database.execute("SELECT FROM amqp.outbox").rowcount == 0, "all is sent")
        for queue in (INDEX, MOVE, DELETE, EVENT_INDEX):
            self.art.broker.take(queue)

    def enqueued(self) -> list[tuple[str, bytes]]:
        """Remove and return routing key and body of everything that is enqueued, index first, delete last."""
        taken = [message for queue in (INDEX, MOVE, DELETE) for message in self.art.broker.take(queue)]
        assert {str(message.properties.get("delivery_mode")) for message in taken} <= {"2"}
        assert not any(message.headers or message.content_type for message in taken)
        return [(message.delivery_info["routing_key"], bytes(message.body)) for message in taken]


@pytest.fixture
def caa(settings: Settings, environment: dict[str, str], musicbrainz_url: str, tmp_path: Path) -> Iterator[Command]:
    """Releases A, B and C, each with an image, all written; of the messages that this made none is left."""
    with art_system(settings, environment, musicbrainz_url, tmp_path) as art:
        with Connection(settings.broker) as connection:
            for queue in (*art_queues(COVER_ART.prefix, settings), *art_queues(EVENT_ART.prefix, settings)):
                queue(connection.channel()).declare()
        artist = changes.add_artist(art.database, "Miles Davis")
        for number, gid in enumerate((C, A, B), 1):
            changes.add_release(art.database, "Kind of Blue", artist, gid=gid)
            art.web_service.set_entity("release", gid, "Kind of Blue")
            changes.add_cover(art.database, gid, number)
            art.archive.upload(COVER_ART.bucket(gid), COVER_ART.image_file(gid, number, "jpg"), b"picture")
            write(art, musicbrainz_url, gid)
        command = Command(art)
        command.forget_messages()
        yield command


def write(art: ArtSystem, musicbrainz_url: str, gid: str) -> None:
    """Write a release's listing as a worker would."""
    with musicbrainz.connect(musicbrainz_url) as connection:
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


def lines(done: subprocess.CompletedProcess[str]) -> list[tuple[str, ...]]:
    return [tuple(line.split("\t")) for line in done.stdout.splitlines()]


def test_a_release_that_is_named_is_enqueued_by_the_gid_that_it_has_now(caa: Command) -> None:
    changes.merge(caa.art.database, COVER_ART, C, B)
    caa.forget_messages()
    done = caa("reindex", A.upper(), C, B)
    assert done.stdout == "index of 2 releases enqueued\n"
    assert caa.enqueued() == [("index", A.encode()), ("index", B.encode())]
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


@pytest.mark.parametrize("enqueued", [False, pytest.param(True, marks=pytest.mark.long)])
def test_more_than_10_000_messages_need_a_confirmation(caa: Command, enqueued: bool) -> None:
    make_releases(caa.art, 10_000)
    refused = caa("reindex", "--all", status=2)
    assert "10,003 messages at once: confirm with --yes, or use --rate or --limit" in " ".join(refused.stderr.split())
    assert caa.enqueued() == []
    if not enqueued:
        assert caa("reindex", "--all", "--yes", "--limit", "2").stdout == "index of 2 releases enqueued\n"
        return
    assert caa("reindex", "--all", "--yes").stdout == "index of 10,003 releases enqueued\n"
    gids = [body for _, body in caa.enqueued()]
    assert len(gids) == 10_003
    assert gids == sorted(gids)


def make_releases(art: ArtSystem, count: int) -> None:
    """Add releases with an image each, without a message."""
    with art.database.transaction():
        art.database.execute("SET LOCAL session_replication_role = replica")
        art.database.execute(
            "WITH made AS (INSERT INTO musicbrainz.release (name, artist_credit) "
            "SELECT 'Many', 1 FROM generate_series(1, %s) RETURNING id) "
            "INSERT INTO cover_art_archive.cover_art (id, release, comment, edit, ordering, mime_type) "
            "SELECT 1000 + id, id, '', 1, 1, 'image/jpeg' FROM made",
            (count,),
        )


def test_an_audit_of_equal_items_finds_nothing(caa: Command) -> None:
    done = caa("audit", "--all")
    assert (done.stdout, done.stderr) == ("", "3 releases compared: 0 findings\n")


def test_an_audit_reports_the_differences_and_changes_nothing(caa: Command) -> None:
    spoil(caa.art)
    done = caa("audit", A, B, GONE, status=1)
    assert lines(done) == SPOILT
    assert done.stderr == "3 releases compared: 4 findings in 2 of them\n"
    report = json.loads(caa("audit", A, "--json", status=1).stdout)
    assert (report["items"], report["unread"], len(report["findings"])) == (1, 0, 3)
    assert report["findings"][1] == {
        "gid": A,
        "kind": "image-elsewhere",
        "file": f"mbid-{A}-3.jpg",
        "fix": {"job": "move", "id": 3, "old_gid": A, "new_gid": B, "suffix": "jpg"},
    }
    assert caa.enqueued() == []


def test_fixes_are_enqueued_and_images_are_deleted_only_with_a_confirmation(caa: Command) -> None:
    spoil(caa.art)
    done = caa("audit", "--fix", A, GONE, status=1)
    assert lines(done) == SPOILT
    assert done.stderr.splitlines() == [
        "1 image not deleted: standard input is not a terminal; confirm with --yes",
        "2 releases compared: 4 findings in 2 of them; 3 jobs (1 delete, 1 index, 1 move) enqueued",
    ]
    fixes = [
        ("index", A.encode()),
        ("move", f"3\n{A}\n{B}\njpg\n".encode()),
        ("delete", f"index.json\n{GONE}".encode()),
    ]
    assert caa.enqueued() == fixes
    report = json.loads(caa("audit", "--fix", "--yes", "--json", A, GONE, status=1).stdout)
    assert (report["enqueued"], report["not_deleted"]) == ({"index": 1, "move": 1, "delete": 2}, 0)
    assert caa.enqueued() == [*fixes[:2], ("delete", f"9\n{A}\npng".encode()), fixes[2]]


def test_all_includes_merged_releases_and_a_worker_repairs_the_findings(caa: Command) -> None:
    changes.merge(caa.art.database, COVER_ART, C, B)
    caa.forget_messages()
    spoil(caa.art)
    done = caa("audit", "--all", "--fix", "--yes", status=1)
    assert {line[:2] for line in lines(done)} == {
        (A, "listing-stale"),
        (A, "image-elsewhere"),
        (A, "image-left"),
        (B, "listing-stale"),
        (B, "image-missing"),
        (C, "listing-left"),
        (C, "image-elsewhere"),
    }
    with caa.art.worker():
        eventually(lambda: caa("audit", "--all", "--json", status=None).returncode == 0, "all is repaired", seconds=90)
    assert caa.art.images(B) == [3, 1]
    assert not [name for name in caa.art.archive.files(COVER_ART.bucket(C)) if not name.startswith("history/")]


def test_an_unreadable_item_is_reported_and_the_others_are_compared(caa: Command) -> None:
    caa.art.archive.faults.add(broken(), path=f"/metadata/mbid-{A}")
    done = caa("audit", "--all", status=1)
    assert done.stderr.splitlines()[0].startswith(f"{A}: not compared: GET http://127.0.0.1:")
    assert done.stderr.splitlines()[1] == "3 releases compared: 0 findings; 1 could not be read"


def test_an_unavailable_archive_ends_an_audit_which_names_the_point_to_continue_at(caa: Command) -> None:
    caa.art.archive.faults.add(slow_down(), path=f"/metadata/mbid-{B}")
    done = caa("audit", "--all", status=1)
    assert done.stderr.splitlines()[0] == f"1 done; continue with --after {A}"
    assert "503: SlowDown" in done.stderr.splitlines()[1]
    assert caa("audit", "--all", "--after", A).stderr == "2 releases compared: 0 findings\n"


@pytest.mark.parametrize("command", ["reindex", "audit"])
def test_an_impossible_command_prints_one_line(caa: Command, command: str) -> None:
    assert f"release {UNKNOWN}: " in caa.failing(command, UNKNOWN)
    assert caa.failing(command, A, MUSICBRAINZ_URL="") == (
        "perennial: cover art is not served here: MUSICBRAINZ_URL is empty"
    )
    nowhere = "postgresql://u:secret@127.0.0.1:1/musicbrainz"
    line = caa.failing(command, A, MUSICBRAINZ_URL=nowhere)
    assert line.startswith("perennial: MusicBrainz's database 'musicbrainz' at 127.0.0.1: ")
    assert "secret" not in line
    assert caa.enqueued() == []


def test_an_unreachable_archive_or_broker_is_one_line(caa: Command) -> None:
    assert "Connection refused" in caa.failing("audit", A, ARCHIVE_PUBLIC_URL="http://127.0.0.1:1")
    assert "RabbitMQ does not answer" in caa.failing("reindex", A, BROKER_URL="amqp://127.0.0.1:1//")


def test_events_have_an_exchange_of_their_own(caa: Command) -> None:
    event = changes.add_event(caa.art.database, "Newport")
    changes.add_art(caa.art.database, EVENT_ART, event, 50)
    caa.forget_messages()
    both = Command(replace(caa.art, environment={**caa.art.environment, "EVENT_ART_EXCHANGE": EVENT_ART.prefix}))
    done = both("audit", "--archive", "event-art-archive", event, status=1)
    assert [line[:3] for line in lines(done)] == [
        (event, "listing-missing", "index.json"),
        (event, "image-missing", f"mbid-{event}-50.jpg"),
    ]
    assert both("reindex", "--archive", "event-art-archive", "--all").stdout == "index of 1 event enqueued\n"
    assert [bytes(each.body).decode() for each in caa.art.broker.take(EVENT_INDEX)] == [event]
