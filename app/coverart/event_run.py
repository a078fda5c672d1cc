"""Runs of an event's message: the job runs in its turn, and the event's row records how it ended."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

from app.broker.errors import Postpone, error_with_class
from app.broker.headers import integer
from app.broker.policies.fixed_ttl import RETRIES
from app.coverart import event_table, musicbrainz
from app.coverart.event_table import MAX_ATTEMPTS
from app.coverart.indexer import Indexer
from app.coverart.jobs import Job
from app.coverart.musicbrainz import Connection
from app.errors import ArtNotServed, DatabaseUnavailable, ImageInUse
from config.settings import Settings

_log = logging.getLogger(__name__)

#: Seconds after which a job is tried again that did not reach the database.
_WITHOUT_DATABASE = 8.0

#: Seconds that each statement about a dead letter may take, locks included: the worker's event loop waits for it.
QUICK_SECONDS = 2.0

_QUICK = "SELECT set_config('statement_timeout', %(ms)s, true), set_config('lock_timeout', %(ms)s, true)"


@dataclass(frozen=True, slots=True)
class ArtEventRun:
    """A run of the message of an event, whose table is in the database at `url`."""

    url: str
    event: int

    @classmethod
    def of(cls, event: int, settings: Settings) -> Self:
        """Return the run of an event; raises ArtNotServed for settings without its database."""
        url = settings.art_event_queue_url.get_secret_value()
        if not url:
            raise ArtNotServed(f"a message of event {event} came, and ART_EVENT_QUEUE_URL is not set here")
        return cls(url, event)

    def handle(self, indexer: Indexer, job: Job, message_id: str, headers: Mapping[str, Any]) -> None:
        """Run the job, unless the event is completed, deleted or queued again, and complete the event.

        The table has already ordered the jobs and merged equal ones. A failed run queues the event again, and its
        message is done. Raises Postpone until the job may run and its event can be updated, and the error of the last
        run.
        """
        run = run_number(headers)
        with self._table() as connection:
            parents = event_table.begin(connection, self.event, run)
        if parents is None:
            _log.info("Event %d is completed, deleted or queued again: its message is dropped", self.event)
            return
        try:
            replace(indexer, parents=parents).handle(job, message_id, headers)
        except Postpone:
            raise
        except Exception as error:
            reason = error_with_class(error)
            with self._table() as connection:
                if isinstance(error, ImageInUse):
                    event_table.fail(connection, self.event, reason)
                elif event_table.end_failed_run(connection, self.event, reason):
                    text = "Run %d of %d of event %d failed, it is queued again: %s"
                    _log.warning(text, run, MAX_ATTEMPTS, self.event, reason)
                    return
            raise
        with self._table() as connection:
            event_table.complete(connection, self.event)

    def fail(self, reason: str) -> None:
        """Fail the event of a dead letter and its descendants. This waits for the database for a short time only."""
        with event_table.connect(self.url, timeout=2) as connection, connection.transaction():
            connection.execute(_QUICK, {"ms": str(round(QUICK_SECONDS * 1_000))})
            event_table.fail(connection, self.event, reason)

    @contextmanager
    def _table(self) -> Iterator[Connection]:
        """Lend the table for a block; raises Postpone while it is away: a run that is not recorded is repeated."""
        try:
            with musicbrainz.kept_connection(self.url) as connection:
                yield connection
        except DatabaseUnavailable as error:
            raise Postpone(_WITHOUT_DATABASE, str(error), code=error.reason) from error


def run_number(headers: Mapping[str, Any]) -> int:
    """Return the number of the run that a message begins, from 1 to MAX_ATTEMPTS: what it has left says so.

    A replay with a fresh budget begins with the first run.
    """
    left = integer(headers.get(RETRIES))
    return 1 if left is None else min(MAX_ATTEMPTS, max(1, MAX_ATTEMPTS - max(0, left)))
