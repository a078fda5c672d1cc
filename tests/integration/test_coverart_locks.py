"""One job at a time for each item, in a real Redis; the order of a merge's jobs at a real database and archive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psycopg
import pytest
from pydantic import SecretStr
from redis import Redis

from app.broker.errors import Postpone
from app.coverart.coordination import ItemLocks
from app.coverart.indexer import Indexer
from app.coverart.jobs import Delete, Index, Job, Move
from app.coverart.project import COVER_ART, EVENT_ART, Entity
from app.errors import ArchiveError
from app.redis_state.client import get_redis
from config.settings import ROOT, Settings
from tests.servers.archive import ArchiveServer, broken
from tests.servers.musicbrainz import changes
from tests.servers.musicbrainz_ws import MusicBrainz
from tests.servers.site import Answer, Request
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

A, B = "0a000000-0000-4000-8000-000000000001", "0a000000-0000-4000-8000-000000000002"

#: Seconds: long enough to be renewed in time on a busy machine.
LEASE = 4

HOLDER = f"""
import sys
from app.coverart.coordination import ItemLocks
from app.coverart.project import COVER_ART
from app.broker.errors import Postpone
from app.redis_state.client import get_redis

try:
    with ItemLocks(get_redis(sys.argv[1]), COVER_ART, seconds={LEASE}).hold("{A}"):
        print("held", flush=True)
        sys.stdin.readline()
    print("done")
except Postpone as error:
    print(error.why)
"""


@pytest.fixture
def locks(redis_url: str) -> ItemLocks:
    return ItemLocks(get_redis(redis_url), COVER_ART, seconds=LEASE, retry_after=3)


@contextmanager
def holder(redis_url: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that holds the lock of A, for a while after it was killed, until a line is written to it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, redis_url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def is_free(locks: ItemLocks, *gids: str) -> bool:
    try:
        with locks.hold(*gids):
            return True
    except Postpone:
        return False


def test_a_second_job_for_an_item_is_postponed_and_the_first_frees_its_lock_even_if_it_fails(locks: ItemLocks) -> None:
    with pytest.raises(ZeroDivisionError), locks.hold(A):  # noqa: PT012
        with pytest.raises(Postpone, match=f"cover-art-archive:{A} is held") as raised, locks.hold(A):
            pass
        assert raised.value.seconds == 3
        raise ZeroDivisionError
    assert is_free(locks, A)


def test_locks_of_other_gids_and_of_the_other_archive_are_others(locks: ItemLocks, redis_url: str) -> None:
    events = ItemLocks(get_redis(redis_url), EVENT_ART)
    with locks.hold(A):
        assert is_free(locks, B)
        assert is_free(events, A)


def test_a_job_that_gets_only_one_of_two_locks_keeps_none(locks: ItemLocks) -> None:
    with locks.hold(B):
        assert not is_free(locks, A, B)
        assert is_free(locks, A)
    with locks.hold(A, B):
        assert not is_free(locks, A)
        assert not is_free(locks, B)


def test_a_lock_is_renewed_while_its_holder_lives_and_one_that_slept_longer_learns_that_it_must_run_again(
    locks: ItemLocks, redis_url: str
) -> None:
    with holder(redis_url) as process:
        deadline = time.monotonic() + 2 * LEASE
        seen_free = []

        def two_leases_have_passed() -> bool:
            seen_free.append(is_free(locks, A))
            return time.monotonic() > deadline

        eventually(two_leases_have_passed, "two leases have passed")
        assert not any(seen_free)
        # As that of a killed one.
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: is_free(locks, A), "the lock ran out")
        with locks.hold(A):
            process.send_signal(signal.SIGCONT)
            output, _ = process.communicate("go on\n", timeout=20)
            assert "while the job ran; another job may have run" in output
            assert not is_free(locks, A)


class RedisLosingArchive(ArchiveServer):
    """An archive; Redis loses its data when the first image is copied."""

    def __init__(self, redis: Redis) -> None:
        super().__init__()
        self._redis: Redis | None = redis

    def route(self, request: Request) -> Answer:
        if request.method == "PUT" and self._redis is not None:
            self._redis.flushdb()
            self._redis = None
        return super().route(request)


def test_a_move_that_lost_its_locks_with_redis_deletes_nothing_and_runs_again(locks: ItemLocks) -> None:
    bucket, file = COVER_ART.bucket(A), COVER_ART.image_file(A, 1, "jpg")
    with RedisLosingArchive(locks.redis) as server:
        server.upload(bucket, file, b"picture")
        settings = Settings(musicbrainz_url=SecretStr("postgresql://musicbrainz.invalid/x"), **server.settings)
        indexer = replace(
            Indexer.of("cover-art-archive", settings, locks.redis), read_gid_of_image=lambda _: B, locks=locks
        )
        with pytest.raises(Postpone, match="lost"):
            indexer.run(Move(1, A, B, "jpg"))
        assert server.files(bucket)[file] == b"picture"
        assert indexer.run(Move(1, A, B, "jpg")) == "done"
        assert file not in server.files(bucket)


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
            **archive.settings,
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


def test_an_image_that_was_merged_again_is_moved_to_its_present_release(merged: Merged) -> None:
    changes.merge(merged.db, COVER_ART, NEW, LAST)
    with pytest.raises(Postpone, match=f"from {OLD} to {LAST}"):
        merged.indexer.run(Index(LAST))
    assert merged.indexer.run(MOVE) == "done"
    assert merged.indexer.run(replace(MOVE, old_gid=NEW, new_gid=LAST)) == "skipped"
    assert merged.indexer.run(Index(LAST)) == "done"
    assert (merged.files(NEW), merged.files(LAST)) == ([], ["index.json", f"mbid-{LAST}-1.jpg"])


@pytest.mark.parametrize("gid", [None, OLD], ids=["deleted", "back"])
def test_an_image_that_is_deleted_or_back_at_its_first_release_is_not_moved(merged: Merged, gid: str | None) -> None:
    assert replace(merged.indexer, read_gid_of_image=lambda _: gid).run(MOVE) == "skipped"
    assert merged.files(NEW) == []


def test_a_release_without_art_gets_no_item_and_one_that_lost_its_art_an_empty_listing(merged: Merged) -> None:
    assert merged.indexer.run(Index(LAST)) == "skipped"
    assert merged.archive.item(f"mbid-{LAST}") is None
    merged.archive.upload(f"mbid-{LAST}", "index.json", b"{}")
    assert merged.indexer.run(Index(LAST)) == "done"
    assert b'"images"' in merged.archive.files(f"mbid-{LAST}")["index.json"]


def test_what_a_merged_gid_leads_to_is_locked_too_and_read_under_its_lock(merged: Merged, locks: ItemLocks) -> None:
    locked: list[list[str]] = []
    claimed: list[tuple[Job, ...]] = []

    def read(gid: str) -> Entity | None:
        found = merged.indexer.read_entity(gid)
        locked.append([each for each in (OLD, NEW, LAST) if not is_free(locks, each)])
        if len(locked) == 1:
            # It goes on to a third release between the first read and the lock of the second release.
            changes.merge(merged.db, COVER_ART, NEW, LAST)
        return found

    def claim(*jobs: Job) -> bool:
        claimed.append(jobs)
        return True

    assert (
        replace(merged.indexer, read_entity=read, order=replace(merged.indexer.order, patience=0)).run(
            Index(OLD), claim
        )
        == "done"
    )
    assert locked == [[OLD], [OLD, NEW], [OLD, NEW, LAST]]
    assert claimed == [tuple(map(Index, gids)) for gids in locked]
    assert merged.files(LAST) == ["index.json"]
    assert is_free(locks, OLD, NEW, LAST)
