"""Beat during an outage of its broker, with single lines, ever more rarely; and its stop."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.beat import ScheduleEntry, SchedulingError
from celery.schedules import schedule

from app.broker.worker.celery_internals import BeatScheduler

pytestmark = pytest.mark.unit


class Outage(BeatScheduler):
    """A scheduler whose broker is away until a test says otherwise."""

    is_away = True

    def apply_async(self, *_: Any, **__: Any) -> None:
        if self.is_away:
            raise SchedulingError("Couldn't apply scheduled task: connection refused")


def test_an_outage_is_logged_in_single_lines_ever_more_rarely_and_its_end_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Celery("clock", broker="memory://", set_as_current=False)
    scheduler, entry = Outage(app, lazy=True), ScheduleEntry("tick", task="tick", schedule=schedule(1), app=app)
    caplog.set_level(logging.WARNING)
    for _ in range(50):
        scheduler.apply_entry(entry)
    assert [record.getMessage() for record in caplog.records] == [
        "Not sent, failure 1 in a row, next attempt when it is due: Couldn't apply scheduled task: connection refused"
    ]
    assert caplog.records[0].exc_info is None
    scheduler._next_line = 0.0
    scheduler.apply_entry(entry)
    assert "failure 51 in a row" in caplog.text
    scheduler.is_away = False
    for _ in range(3):
        scheduler.apply_entry(entry)
    assert [record.getMessage() for record in caplog.records[2:]] == ["tick is sent again, after 51 failure(s)"]


def test_a_signal_while_a_message_is_written_does_not_wait_for_the_connection_that_writes_it() -> None:
    scheduler = BeatScheduler(Celery("clock", broker="memory://", set_as_current=False), lazy=True)
    scheduler.__dict__["connection"] = SimpleNamespace(release=lambda: pytest.fail("the lock of a write is held"))
    scheduler.close()
