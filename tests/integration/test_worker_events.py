"""The events of a worker whose connection was closed, on a real RabbitMQ."""

from __future__ import annotations

from contextlib import closing

import pytest
from celery import Celery
from kombu import Connection

from app.broker.policies.base import RetryPolicies
from app.broker.policies.drop import DropAll
from app.broker.worker.install import install
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


def test_a_heartbeat_whose_connection_was_closed_connects_again_and_is_sent_or_kept(broker_url: str) -> None:
    app = Celery("events", broker=broker_url)
    install(app, RetryPolicies({}, default=DropAll()))
    with closing(Proxy(broker_url)) as proxy, Connection(proxy.url) as connection:
        dispatcher = app.events.Dispatcher(connection, hostname="worker@here")
        dispatcher.send("worker-heartbeat", retry=True)
        proxy.cut()

        def is_sent() -> bool:
            kept = len(dispatcher._outbound_buffer)
            dispatcher.send("worker-heartbeat", retry=True)  # As Celery's worker does.
            return proxy.tried > 1 and len(dispatcher._outbound_buffer) == kept

        eventually(is_sent, "it has connected again")
        assert proxy.tried <= 4
        kept = len(dispatcher._outbound_buffer)
        proxy.cut(reopen=False)
        dispatcher.send("worker-heartbeat", retry=True)
        dispatcher.send("worker-heartbeat", retry=True)
        assert len(dispatcher._outbound_buffer) > kept
