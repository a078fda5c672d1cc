"""The events of a worker whose connection was closed, on a real RabbitMQ."""

from __future__ import annotations

from contextlib import closing

import pytest
from celery import Celery
from kombu import Connection

from app.broker.policies.drop import DropAll
from app.broker.policies.registry import Policies
from app.broker.worker.install import install
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


def test_a_heartbeat_on_a_closed_connection_waits_for_the_next_one(broker_url: str) -> None:
    app = Celery("events", broker=broker_url)
    install(app, Policies({}, default=DropAll()))
    with closing(Proxy(broker_url)) as proxy, Connection(proxy.url) as connection:
        dispatcher = app.events.Dispatcher(connection, hostname="worker@here")
        dispatcher.send("worker-heartbeat", retry=True)
        assert not dispatcher._outbound_buffer
        proxy.cut()

        def is_kept() -> bool:
            dispatcher.send("worker-heartbeat", retry=True)  # As Celery's worker does.
            return bool(dispatcher._outbound_buffer)

        eventually(is_kept, "an event is kept")
        assert proxy.tried == 1
    with Connection(broker_url) as connection:
        second = app.events.Dispatcher(connection, hostname="worker@here")
        second.extend_buffer(dispatcher)
        second.flush()
        assert not second._outbound_buffer
