"""A vhost with a topology, which the tests of one process have one after the other: declaring it takes long."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import requests
from kombu import Connection

from app.private_services import Urls
from app.topology.declare import declare_all
from config.settings import Settings
from tests.support.corner import own_vhost


def declare_settings(broker_url: str) -> None:
    """Declare all queues of the default settings."""
    with Connection(broker_url) as connection:
        assert not declare_all(connection, Settings())


class DeclaredVhost:
    """Lends a vhost in which `declare` has declared queues, by default all of the default settings, and no message.

    What a test adds is deleted when it ends. If anything else differs, the vhost is deleted. A message in a delay queue
    is such a difference, because it may move by itself.
    """

    def __init__(self, services: Urls, declare: Callable[[str], None] = declare_settings) -> None:
        self._services = services
        self._declare = declare
        self._made = ExitStack()
        self._url = ""
        self._declared: dict[str, Any] = {}

    @contextmanager
    def lent(self) -> Iterator[str]:
        """Lend the vhost for the block, and yield its AMQP URL."""
        if not self._url:
            self._url = self._made.enter_context(own_vhost(self._services))
            self._declare(self._url)
            self._declared = self._definitions()
        try:
            yield self._url
        finally:
            if not self._is_restored():
                self.close()

    def close(self) -> None:
        """Delete the vhost."""
        self._made.close()
        self._url = ""

    def _is_restored(self) -> bool:
        """Return whether the vhost is again as it was declared."""
        with Connection(self._url) as connection, connection.channel() as channel:
            if (found := self._definitions()) != self._declared:
                for kind, delete in (("queues", channel.queue_delete), ("exchanges", channel.exchange_delete)):
                    for each in found[kind]:
                        if each not in self._declared[kind]:
                            delete(each["name"])
                found = self._definitions()
            return found == self._declared and all(
                self._is_purged(channel, queue) for queue in self._declared["queues"]
            )

    def _is_purged(self, channel: Any, queue: dict[str, Any]) -> bool:
        found = channel.queue_declare(queue["name"], passive=True)
        if found.message_count:
            channel.queue_purge(queue["name"])
        return found.consumer_count == 0 and not (found.message_count and "x-message-ttl" in queue["arguments"])

    def _definitions(self) -> dict[str, Any]:
        """Return what is declared in the vhost, in one order."""
        vhost = urlsplit(self._url).path[1:]
        answer = requests.get(f"{self._services.broker_api_url.rstrip('/')}/definitions/{vhost}", timeout=30)
        answer.raise_for_status()
        kinds = ("queues", "exchanges", "bindings", "policies", "parameters")
        return {kind: sorted(answer.json()[kind], key=json.dumps) for kind in kinds}
