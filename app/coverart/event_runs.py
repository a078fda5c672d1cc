"""One run of the job of an event, whose row records how it ends."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from app.broker.errors import Postpone
from app.broker.headers import ATTEMPTS, whole_number
from app.coverart.event_record import EventRecord
from app.coverart.indexer import Indexer
from app.coverart.jobs import Job
from app.errors import DatabaseUnavailable

_log = logging.getLogger(__name__)

#: Seconds after which a job is tried again that did not reach the database.
_WITHOUT_DATABASE = 8.0


def run_event(record: EventRecord, indexer: Indexer, job: Job, message_id: str, headers: Mapping[str, Any]) -> None:
    """Run the job of an event, unless the event is completed or deleted, and complete the event.

    The table has already ordered the jobs and merged equal ones. Raises Postpone until the job may run and its event
    can be updated, and the errors of the job, which are noted with the event.
    """
    with _patient():
        begun = record.begin(whole_number(headers, ATTEMPTS, default=0))
    if not begun:
        _log.info("Event %d is completed or deleted: its message is dropped", record.event)
        return
    try:
        replace(indexer, ordered=True).handle(job, message_id, headers)
    except Postpone:
        raise
    except Exception as error:
        with _patient():
            record.note_failure(f"{type(error).__name__}: {error}")
        raise
    with _patient():
        record.complete()


@contextmanager
def _patient() -> Iterator[None]:
    """Raise Postpone where the database with the event is away: a run that is not recorded is repeated."""
    try:
        yield
    except DatabaseUnavailable as error:
        raise Postpone(_WITHOUT_DATABASE, str(error)) from error
