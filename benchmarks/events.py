"""Row `events`: cover art events a second through reader and worker, their CPU time, and what a poll of them costs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import psycopg
from psycopg.sql import SQL

from app.coverart.event_publisher import ArtEventPublisher
from app.coverart.event_table import connect
from app.coverart.project import COVER_ART
from app.machine import wait_until
from app.processes.procfile import procfile
from benchmarks.errors import BenchmarkError
from benchmarks.figures import FigureTable, MeasuredRow, at_least, at_most, bullets
from benchmarks.processes import running
from benchmarks.system import BenchSystem, cpu_ms, empty_redis_and_queues, environment
from benchmarks.usage import usage
from tests.servers.musicbrainz import changes, database
from tests.servers.postgres import postgres
from tests.support.art import ArtSystem, art_system

#: Artists, each with that many releases of that many images. The changes to one artist's releases queue 37 events.
ARTISTS, SMALL_ARTISTS, RELEASES, IMAGES = 541, 60, 30, 3
#: Events that are measured, after those that are not.
EVENTS, SMALL_EVENTS, WARM_UP = 6_000, 800, 500
#: Aims: events a second, and CPU ms of the database for a poll of a queue, by its length.
RATE_AIM, POLL_AIMS = 100.0, {1_000: 5.0, 20_000: 10.0, 200_000: 20.0}
#: Polls of each queue, and seconds in which the events must run.
POLLS, TIMEOUT = 50, 300.0

METHOD = bullets(
    f"""Events: triggers on a real PostgreSQL queue 20,000 events before `eventreader` and `coverart`, with two pool
    processes, start. Each of {ARTISTS} artists has {RELEASES} releases of {IMAGES} images. It is renamed, two of
    its releases are merged, and an image is deleted: 29 `index`, 3 `copy_image`, 4 `delete_image`, 1 `deindex`.
    Threads of the benchmark stand in for archive and web service, and answer at once. {EVENTS:,} events are
    measured, after {WARM_UP}. A *poll* is one look at the table, which publishes 20 events. Its CPU time is that of
    the server's process, the mean of {POLLS} polls. As many events are queued as are published."""
)

_QUEUE = """INSERT INTO artwork_indexer.event_queue (entity_type, action, message)
    SELECT 'release', 'index', jsonb_build_object('gid', gen_random_uuid()) FROM generate_series(1, %s)"""
_COMPLETE = "UPDATE artwork_indexer.event_queue SET state = 'completed' WHERE state = 'running'"
_COUNT = "SELECT count(*) FROM artwork_indexer.event_queue WHERE state::text = %s"


@dataclass(frozen=True, slots=True)
class EventsRun:
    """Events a second, their CPU ms by group of processes, and the CPU ms of a poll by the length of the queue."""

    rate: float
    cpu: Mapping[str, float]
    polls: Mapping[int, float]
    others: float


def run(system: BenchSystem, *, small: bool) -> MeasuredRow:
    """Measure polls of queues of several lengths, and events through the processes."""
    with postgres() as url, database.template(url, "event_queue") as template, ExitStack() as stack:
        polled, filled = (stack.enter_context(database.copy_of(url, template)) for _ in range(2))
        polls = {queued: _poll_ms(polled, queued) for queued in list(POLL_AIMS)[: 2 if small else None]}
        return shown(_measured(system, filled, polls, small=small))


def _measured(system: BenchSystem, url: str, polls: Mapping[int, float], *, small: bool) -> EventsRun:
    empty_redis_and_queues(system.settings)
    with TemporaryDirectory(prefix="events-", dir=system.folder) as name, ExitStack() as stack:
        home, variables = Path(name), environment(system.settings, Path(name), {"WORKER_CONCURRENCY": 2})
        art = stack.enter_context(art_system(system.settings, variables, url, home, "event_queue"))
        _queue_changes(art, SMALL_ARTISTS if small else ARTISTS)
        pids = {"PostgreSQL": psutil.Process(art.database.info.backend_pid).ppid(), **system.pids}
        for name, process, ready in (("worker", "coverart", " ready."), ("reader", "eventreader", "Events published")):
            command = running(procfile()[process], art.environment, home / f"{process}.log", ready=ready)
            pids[name] = stack.enter_context(command).pid
        first = _wait(art, WARM_UP)
        before, began = usage(pids), time.monotonic()
        done = _wait(art, first + (SMALL_EVENTS if small else EVENTS)) - first
        seconds, spent = time.monotonic() - began, usage(pids).since(before)
    more = {"event reader": ["reader"], "stand-ins": ["own"], "PostgreSQL": ["PostgreSQL", "PostgreSQL children"]}
    cpu = cpu_ms(spent.cpu, done)
    cpu |= {title: 1_000 * sum(map(spent.cpu.__getitem__, groups)) / done for title, groups in more.items()}
    return EventsRun(done / seconds, cpu, polls, spent.others)


def _queue_changes(art: ArtSystem, artists: int) -> None:
    """Make releases whose images are in the archive, and change them."""
    gids = [f"00000000-0000-4000-8000-{number:012x}" for number in range(artists * RELEASES)]
    fill = SQL(Path(__file__).with_suffix(".sql").read_text())
    with art.database.transaction():
        art.database.execute(fill.format(artists=artists, releases=RELEASES, images=IMAGES))
    art.database.execute("ANALYZE")
    for number, gid in enumerate(gids):
        art.web_service.set_entity("release", gid, f"Release {number}")
        for image in range(number * IMAGES + 1, (number + 1) * IMAGES + 1):
            art.archive.upload(COVER_ART.bucket(gid), COVER_ART.image_file(gid, image, "jpg"), b"image")
    for artist, first in enumerate(range(0, len(gids), RELEASES), start=1):
        changes.rename_artist(art.database, artist, "Another name")
        changes.merge(art.database, COVER_ART, gids[first], gids[first + 1])
        changes.remove_art(art.database, COVER_ART, (first + 2) * IMAGES + 1)


def _wait(art: ArtSystem, events: int) -> int:
    """Return how many events are completed, once there are `events`; raises BenchmarkError for a failed one."""

    def count(state: str) -> int:
        return int(art.database.execute(_COUNT, (state,)).fetchall()[0][0])

    if not wait_until(lambda: count("completed") >= events, TIMEOUT, every=0.5) or count("failed"):
        raise BenchmarkError(f"{events:,} events: {count('completed'):,} completed, {count('failed'):,} failed")
    return count("completed")


def _poll_ms(url: str, queued: int) -> float:
    """Return the CPU ms that the server's process takes for a poll of that many queued events."""
    with psycopg.connect(url, autocommit=True) as db, connect(url) as connection:
        db.execute("TRUNCATE artwork_indexer.event_queue CASCADE")
        db.execute(_QUEUE, (queued,))
        backend = psutil.Process(connection.info.backend_pid)
        before = sum(backend.cpu_times()[:2])
        for _ in range(POLLS):
            # Each is the first one of a reader, which has seen no event end: so all take as many events.
            reader = ArtEventPublisher(COVER_ART, lambda _: None, backoff=3_600)
            db.execute(_QUEUE, (reader.publish_ready(connection),))
            db.execute(_COMPLETE)
        return 1_000 * (sum(backend.cpu_times()[:2]) - before) / POLLS


def shown(run: EventsRun) -> MeasuredRow:
    """Return table and aims of a run."""
    aims = (
        at_least("events a second, 20,000 queued, two pool processes", RATE_AIM, run.rate, digits=0),
        *(
            at_most(f"CPU ms of the database for a poll, {queued:,} queued", POLL_AIMS[queued], ms, digits=1)
            for queued, ms in run.polls.items()
        ),
    )
    cpu = {**run.cpu, "all but the stand-ins": sum(run.cpu.values()) - run.cpu["stand-ins"]}
    rows = {
        "events a second": [f"{run.rate:.0f}"],
        **{f"CPU ms an event, {name}": [f"{cpu[name]:.2f}"] for name in cpu},
    }
    table = FigureTable.of_figures("Events through reader and worker", ["20,000 queued"], rows)
    return MeasuredRow(aims, (table,), others=run.others)
