"""Cover art while something is killed or refuses to answer: every job is done in the end."""

from __future__ import annotations

import signal
import threading
import uuid
from pathlib import Path

import pytest

from app.coverart.outages import FIRST_FREE_RUNS, FREE_RUNS, OUTAGE_ITEMS
from app.private_services import Urls
from tests.servers import archive as stand_in
from tests.servers.archive import ArchiveServer
from tests.servers.site import Request, Wire
from tests.support.art import ArtSystem, art_corner, art_system
from tests.support.corner import environment_of
from tests.support.kill import Killable
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

FAILED = "cover-art-archive.failed"


def gids(count: int) -> list[str]:
    return [str(uuid.uuid4()) for _ in range(count)]


def path_of(gid: str) -> str:
    return f"/mbid-{gid}/index.json"


def post(art: ArtSystem, gid: str, **headers: object) -> None:
    """Post the job that is one request."""
    art.post("delete", f"index.json\n{gid}".encode(), headers=headers, delivery_mode=2)


def done(server: ArchiveServer, wanted: list[str]) -> bool:
    """Return whether each was requested at least once."""
    return {path_of(gid) for gid in wanted} <= set(server.paths())


def test_a_worker_killed_in_mid_job_and_during_the_window_loses_nothing_and_a_stopping_one_takes_nothing(
    services: Urls, musicbrainz_template: tuple[str, str], tmp_path: Path
) -> None:
    running, last, *waiting = gids(7)
    begun, begun_again, go_on = threading.Event(), threading.Event(), threading.Event()

    def hang(request: Request, wire: Wire) -> None:
        begun.set()
        wire.pause(60)

    def hold(request: Request, wire: Wire) -> None:
        begun_again.set()
        assert go_on.wait(60)
        art.archive.route(request)(request, wire)

    with art_corner(services, musicbrainz_template, tmp_path, ART_WINDOW="8") as art:
        art.archive.faults.add(hang, path=path_of(running))
        with art.worker("killed") as first:
            post(art, running, **{"mb-retries": 4})
            assert begun.wait(30)
            for gid in waiting:
                post(art, gid)
                post(art, gid)
            eventually(lambda: art.waiting().get("cover-art-archive.delay.8000") == 10, "all wait in the broker")
            first.kill()
        with art.worker("second") as second:
            eventually(lambda: done(art.archive, waiting), "what waited is done")
            eventually(lambda: art.archive.hits(path_of(running)) == 2, "what ran is run again")
            eventually(lambda: not art.waiting(), "nothing is left")
            assert {art.archive.hits(path_of(gid)) for gid in waiting} == {1}
            assert art.broker.depth(FAILED) == 0
            art.archive.faults.add(hold, path=path_of(last))
            post(art, last, **{"mb-retries": 4})
            assert begun_again.wait(30)
            second.process.send_signal(signal.SIGTERM)
            eventually(lambda: art.broker.consumers("cover-art-archive.delete") == 0, "it consumes no more")
            # Longer than between two checks of the circuit breaker.
            assert not threading.Event().wait(1.5)
            assert [art.broker.consumers(queue) for queue in art.queues] == [0, 0, 0]
            go_on.set()
            second.process.wait(60)


@pytest.mark.long
@pytest.mark.slow
def test_a_broker_that_is_killed_loses_no_job_that_is_to_be_retried(
    killable: Killable, musicbrainz_url: str, tmp_path: Path
) -> None:
    own, wanted = killable.settings, gids(OUTAGE_ITEMS - 1)
    more = {"ART_RETRY_MS": "3000", "ART_WINDOW": "0", "RETRY_TIMEOUT_MS": "3000"}
    with art_system(own, environment_of(own), musicbrainz_url, tmp_path, **more) as art, art.worker() as worker:
        art.archive.faults.add(stand_in.broken(), times=len(wanted))
        for gid in wanted:
            # The next failed run spends a retry.
            post(art, gid, **{FREE_RUNS: FIRST_FREE_RUNS})
        eventually(lambda: art.broker.depth("cover-art-archive.retry") == len(wanted), "all wait to be retried")
        killable.kill("beam.smp")
        killable.start()
        # Twice at least: one whose acknowledgement the broker did not live to see is run once more.
        eventually(lambda: all(art.archive.hits(path_of(gid)) >= 2 for gid in wanted), "all are run again", seconds=60)
        # The breaker works on the new connection, too.
        last = gids(OUTAGE_ITEMS)
        art.archive.faults.add(stand_in.slow_down("1"), times=len(last))
        for gid in last:
            post(art, gid)
        eventually(lambda: art.broker.consumers("cover-art-archive.delete") == 0, "nobody consumes")
        # One may meet the fault twice, and another one not at all.
        eventually(
            lambda: done(art.archive, last) and sum(art.archive.hits(path_of(gid)) for gid in last) >= 2 * len(last),
            "they are done",
            seconds=60,
        )
        assert worker.process.poll() is None
        assert art.broker.depth(FAILED) == 0
