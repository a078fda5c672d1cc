"""Notifications of the whole program: a receiver that is away gets each event once and in order when it is back."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.broker.publishing import Publisher
from app.messages.envelopes import event_message, site_message
from config.settings import Settings
from tests.servers.site import Site, failure, page, reply
from tests.support.broker import Broker
from tests.support.system import beat
from tests.support.waiting import eventually
from tests.support.worker import worker

pytestmark = pytest.mark.acceptance

QUEUES = ("site.index", "site.crawl", "site.page", "site.timer", "site.tick", "site.pack")


def event(number: int) -> dict[str, Any]:
    return {"version": 1, "id": f"event-{number}", "at": datetime.now(UTC).isoformat(), "site": f"{number}.gov"}


@pytest.mark.slow
def test_a_receiver_that_was_away_gets_each_event_once_and_in_order_though_workers_were_killed(
    environment: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    broker, publisher = Broker(settings.broker), Publisher(settings.broker)
    with Site({"/hook": reply(b"")}) as hook, Site({"/": page("Home", "amber"), "/robots.txt": failure(404)}) as site:
        given = {
            "WEBHOOK_URL": hook.at("/hook"),
            "WEBHOOK_SECRET": "0123456789abcdef",
            "RETRY_TIMEOUT_MS": "200",
        }
        environment = {**environment, **given}
        with hook.away(), beat(environment, tmp_path / "beat.log"):
            with worker(environment, tmp_path / "first.log", queues=QUEUES) as first:
                publisher.publish([event_message("site.unreachable", event(number)) for number in range(3)])
                eventually(lambda: "next attempt in" in first.log, "an attempt failed", seconds=90)
                first.kill()
            publisher.publish([event_message("site.unreachable", event(number)) for number in range(3, 5)])
            with worker(environment, tmp_path / "second.log", queues=QUEUES) as second:
                publisher.publish([site_message("index+crawl", url=site.url)])
                eventually(lambda: "next attempt in" in second.log, "an attempt failed", seconds=90)
                eventually(lambda: broker.depth("notify.webhook") == 7, "all events wait", seconds=60)
                second.kill()
        with beat(environment, tmp_path / "beat.log"), worker(environment, tmp_path / "third.log", queues=QUEUES):
            eventually(lambda: len(hook.requests) >= 7, "every event arrived", seconds=120)
            eventually(lambda: broker.depth("notify.webhook") == 0, "every event is acknowledged")
    publisher.close()
    found = [(request.headers["perennial-event"], json.loads(request.body)["site"]) for request in hook.requests]
    assert found == [
        *(("site.unreachable", f"{number}.gov") for number in range(5)),
        ("crawl.finished", site.domain),
        ("pack.written", site.domain),
    ]
    assert broker.depth("site.dead") == 0
