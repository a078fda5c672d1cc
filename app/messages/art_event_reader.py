"""`python -m app.messages.art_event_reader`: publish events of MusicBrainz's database as messages, until a signal."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial

import psycopg
from redis import RedisError

from app import error_reports
from app.broker.connection import connected
from app.broker.errors import ApplicationError, BrokerUnreachable, PublishFailed, error_with_class
from app.broker.outgoing import Outgoing
from app.broker.publishing import Publisher
from app.coverart.event_publisher import ArtEventPublisher
from app.coverart.event_state import ReaderStatus
from app.coverart.event_table import CHANNEL, any_running, connect, forget_completed
from app.coverart.musicbrainz import Connection
from app.coverart.project import served_projects
from app.errors import ArtNotServed, DatabaseFailed
from app.machine import touch_heartbeat
from app.redis_state.client import get_quick_redis
from app.topology.queues import art_queues
from config.logs import configure
from config.settings import Settings, get_settings

_log = logging.getLogger(__name__)

#: Seconds between two polls of the table; doubled up to the second while no event runs.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 32.0

#: Seconds between two polls at least, however many notifications come. Each costs reader and database milliseconds.
SHORTEST_PAUSE = 0.25

#: Seconds between two searches for lost and for old events.
_HOUSEKEEPING = 60.0

#: Seconds between two checks whether the process must end.
_ATTENTION = 0.5


class ArtEventReader:
    """Publishes events of one database. Several readers may run: each row is taken by one of them."""

    def __init__(self, settings: Settings, *, stopping: threading.Event) -> None:
        """Raise ArtNotServed for settings without a table or an archive."""
        self._url = settings.art_event_queue_url.get_secret_value()
        self._exchanges = served_projects(settings)
        if not self._url or not self._exchanges:
            raise ArtNotServed("no events to read: set ART_EVENT_QUEUE_URL and MUSICBRAINZ_URL")
        self._settings = settings
        self._stopping = stopping
        self._publisher = Publisher(settings.broker)
        self._status = ReaderStatus(get_quick_redis(settings.redis))
        self._archives = [
            ArtEventPublisher(
                project, self._publish, backoff=settings.art_event_backoff, is_paused=self._status.is_paused
            )
            for project in self._exchanges.values()
        ]
        self._paused = False
        self._next_housekeeping = 0.0

    def run(self) -> None:
        """Publish events until `stopping` is set. Without database, broker or Redis, try again after a pause."""
        pause = FIRST_PAUSE
        with closing(self._publisher):
            while not self._stopping.is_set():
                began = time.monotonic()
                try:
                    self._serve()
                except (DatabaseFailed, PublishFailed, BrokerUnreachable, RedisError) as error:
                    # A long time of service is not a failure in a row.
                    pause = FIRST_PAUSE if time.monotonic() - began > LONGEST_PAUSE else pause
                    _log.warning("Events wait in their table, retry in %g s: %s", pause, error)
                    self._stopping.wait(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)

    def _serve(self) -> None:
        pause = FIRST_PAUSE
        with connect(self._url) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            while not self._stopping.is_set():
                began = time.monotonic()
                paused = self._status.is_paused()
                if paused != self._paused:
                    _log.warning("Event reader %s by an operator", "paused" if paused else "resumed")
                self._paused = paused
                if not paused and began >= self._next_housekeeping:
                    self._next_housekeeping = began + _HOUSEKEEPING
                    self._keep_house(connection)
                count = 0 if paused else sum(each.publish_ready(connection) for each in self._archives)
                if count:
                    _log.info("Events published as messages: %d", count)
                touch_heartbeat(self._settings.heartbeat_dir / "eventreader")
                self._status.touch()
                goes_on = not paused and any(each.unfinished for each in self._archives)
                # What follows from running events is ready when they end, and a pooler may keep the notification.
                if count or any_running(connection):
                    pause = FIRST_PAUSE
                elif not goes_on:
                    pause = min(pause * 2, LONGEST_PAUSE)
                self._wait(connection, began, SHORTEST_PAUSE if goes_on else pause)

    def _wait(self, connection: Connection, began: float, pause: float) -> None:
        """Wait until the database notifies or the process must end, for `pause` seconds at most.

        Every job that ends notifies: one poll of the table follows what many of them did.
        """
        deadline = time.monotonic() + pause
        while not self._stopping.is_set() and (left := deadline - time.monotonic()) > 0:
            if list(connection.notifies(timeout=min(left, _ATTENTION), stop_after=1)):
                self._stopping.wait(max(0.0, began + SHORTEST_PAUSE - time.monotonic()))
                break
        # Notifications that came meanwhile are about what the next poll reads.
        list(connection.notifies(timeout=0))

    def _publish(self, messages: Sequence[Outgoing]) -> None:
        self._declare()
        self._publisher.publish(messages)

    def _declare(self) -> None:
        """Declare the work queues, each once per connection: no worker may have been here before."""
        for exchange in self._exchanges if self._settings.declare_topology else ():
            self._publisher.declare(art_queues(exchange, self._settings))

    def _keep_house(self, connection: Connection) -> None:
        """Queue lost events again, and delete those that were completed long ago. An error is logged only."""

        def queue_lost(archive: ArtEventPublisher) -> int:
            self._declare()
            with connected(self._settings.broker) as broker:
                channel = broker.channel()

                def idle(queue: str) -> bool:
                    return not channel.queue_declare(queue, passive=True).message_count

                return archive.queue_lost(connection, idle=idle, seconds=self._settings.art_event_timeout)

        lost = [partial(queue_lost, archive) for archive in self._archives]
        steps = dict.fromkeys(lost, (logging.WARNING, "Lost events queued again: %d"))
        steps[partial(forget_completed, connection)] = logging.INFO, "Completed events deleted: %d"
        for step, (level, text) in steps.items():
            try:
                if count := step():
                    _log.log(level, text, count)
            except (ApplicationError, psycopg.Error) as error:
                _log.warning("Lost or old events left as they are, retry in %g s: %s", _HOUSEKEEPING, error)


def main() -> int:
    """Return 0 after a signal, and 1 for settings without events to read."""
    configure()
    error_reports.begin("eventreader", get_settings())
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    try:
        ArtEventReader(get_settings(), stopping=stopping).run()
    except ApplicationError as error:
        _log.critical("Event reader ended: %s", error_with_class(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
