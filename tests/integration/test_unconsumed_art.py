"""The queues without a consumer of an enabled archive are reported with the process that should consume them."""

from __future__ import annotations

import pytest
from kombu import Connection, Consumer
from pydantic import SecretStr

from app.cli.up import unconsumed_art
from app.topology.queues import art_queues
from config.settings import Settings

pytestmark = pytest.mark.integration

EVENTS = "event-art-archive"


def test_queues_without_consumer_are_named_with_the_process_that_should_consume_them(settings: Settings) -> None:
    assert unconsumed_art(settings) == {}
    database = SecretStr("postgresql://127.0.0.1/unused")
    enabled = settings.model_copy(update={"musicbrainz_url": database, "event_art_exchange": EVENTS})
    names = [f"{EVENTS}.{job}" for job in ("index", "move", "delete")]
    assert unconsumed_art(enabled)["eventart"] == names
    with Connection(settings.broker) as connection, connection.channel() as channel:
        index, *_ = queues = [queue(channel) for queue in art_queues(EVENTS, enabled)]
        for queue in queues:
            queue.declare()
        with Consumer(channel, [index], accept=[]):
            assert unconsumed_art(enabled)["eventart"] == names[1:]
    nowhere = enabled.model_copy(update={"broker_url": SecretStr("amqp://127.0.0.1:1//")})
    assert unconsumed_art(nowhere) == {}
