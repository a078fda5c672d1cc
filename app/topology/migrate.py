"""Gives a queue other arguments: its messages wait aside while it is deleted and declared anew.

RabbitMQ can change no argument. Each step can be done again, so that whoever was killed in the middle finishes by
starting over. A message is acknowledged only when its copy is confirmed: after a kill it may be there twice, and is not
lost. A copy is as it came, `x-death` included: RabbitMQ 3 goes on counting there, RabbitMQ 4 begins a new count. What
changes is that it is persistent, and that a user id, which the broker lets nobody copy, is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kombu import Exchange, Queue

from app.broker.connection import connected
from app.broker.errors import InvalidMessage, ManagementFailed, MigrationRefused
from app.broker.publishing import Outgoing, Publisher
from app.topology.by_amqp import declared
from app.topology.check import management, our_queues
from app.topology.management_api import ManagementApi
from config.settings import Settings

#: Messages that are copied before their confirms are awaited; so many may be there twice after a kill.
_BATCH = 100

#: Seconds until the statistics of the API must have seen that a queue is empty: they are taken every 5 s.
_STATISTICS = 30.0

#: Where the expiration of a message waits while it must not expire.
_EXPIRATION = "perennial-aside-expiration"

#: Headers that a quorum queue adds to what it delivers again.
_COUNTS = ("x-delivery-count", "x-acquired-count")

Tell = Callable[[str], None]


def migrate(name: str, settings: Settings, tell: Tell) -> int:
    """Make a queue of ours stand as the code says; return the messages that were brought back.

    `tell` gets a line for every step. Raises InvalidMessage for a queue that is not ours; MigrationRefused while
    somebody works on it or holds its messages, and where the management API cannot be asked.
    """
    queue = {each.name: each for each in our_queues(settings)}.get(name)
    if queue is None:
        raise InvalidMessage(f"queue {name!r}: not one of ours; perennial topology show lists them")
    with connected(settings.broker, timeout=settings.publish_timeout) as connection, _publisher(settings) as publisher:
        try:
            api = management(settings, connection)
        except ManagementFailed as error:
            raise MigrationRefused(f"{error}: without it nobody can tell who is bound, or holds messages") from error
        return _Migration(queue, connection, api, publisher, tell).run()


class _Migration:
    """One queue, its messages' way aside and back. Fanout exchanges on both keep the routing keys."""

    def __init__(self, queue: Queue, connection: Any, api: ManagementApi, publisher: Publisher, tell: Tell) -> None:
        self._queue = queue
        self._connection = connection
        self._api = api
        self._publisher = publisher
        self._tell = tell
        self._name = queue.name
        # Classic: a quorum queue would count each look as a delivery, and RabbitMQ 4 drops a message after 20.
        self._aside = _behind_fanout(f"{self._name}.aside")
        self._back = Exchange(f"{self._name}.aside.back", type="fanout")

    def run(self) -> int:
        """Do what is left to do."""
        stands = declared(self._connection, self._queue)
        if stands and declared(self._connection, self._aside) is None:
            self._tell(f"{self._name} stands as the code says; nothing to do")
            return 0
        if stands is False:
            self._refuse_if_used()
            self._set_aside()
            self._replace()
        return self._bring_back()

    def _refuse_if_used(self) -> None:
        with self._connection.channel() as channel:
            consumers = channel.queue_declare(self._name, passive=True).consumer_count
        _, held = self._api.held(self._name)
        if consumers or held:
            who = f"{consumers} consumer(s)" if consumers else f"{held} message(s) that somebody held 5 s ago"
            raise MigrationRefused(f"{self._name} has {who}: stop its workers, and whoever posts to it by its name")

    def _set_aside(self) -> None:
        """Let new messages go to the aside queue, and take there what is in the old one."""
        with self._connection.channel() as channel:
            self._aside(channel).declare()
        self._rebind(self._name, self._aside.name)
        moved, deadline = 0, time.monotonic() + _STATISTICS
        while True:
            moved += self._move(self._name, self._aside.exchange.name, _parked)
            messages, _ = self._api.held(self._name)
            if not messages:
                break
            if time.monotonic() > deadline:
                raise MigrationRefused(
                    f"{self._name}: somebody holds {messages} message(s), or posts more; run it again"
                )
            time.sleep(0.5)
        self._tell(f"{moved} message(s) moved from {self._name} to {self._aside.name}, each confirmed there")

    def _replace(self) -> None:
        """Delete the old queue and declare it anew, at once: what is posted in between by its name has no queue."""
        self._refuse_if_used()
        # A quorum queue knows no conditions; it was seen empty and unused just now.
        careful = self._api.topology().queues[self._name].type == "classic"
        with self._connection.channel() as channel:
            lost = channel.queue_delete(self._name, if_unused=careful, if_empty=careful)
            self._queue(channel).declare()
        self._tell(f"{self._name} deleted and declared anew")
        if lost:
            self._tell(f"{lost} message(s) were posted to {self._name} in that moment, and are LOST")

    def _bring_back(self) -> int:
        with self._connection.channel() as channel:
            self._queue(channel).declare()
            self._back(channel).declare()
            channel.queue_bind(self._name, self._back.name)
            self._aside(channel).declare()
            self._rebind(self._aside.name, self._name)
            moved = self._move(self._aside.name, self._back.name, _unparked)
            channel.queue_delete(self._aside.name, if_unused=True, if_empty=True)
            channel.exchange_delete(self._aside.exchange.name)
            channel.exchange_delete(self._back.name)
        self._tell(f"{moved} message(s) brought back to {self._name}")
        return moved

    def _rebind(self, old: str, new: str) -> None:
        """Bind the new queue wherever the old one is bound, then unbind the old one: in between both get a message."""
        ours = (self._aside.exchange.name, self._back.name)
        bindings = [each for each in self._api.bindings_of(old) if each[0] not in ours]
        with self._connection.channel() as channel:
            for source, key, arguments in bindings:
                channel.queue_bind(new, source, key, arguments=arguments)
            for source, key, arguments in bindings:
                channel.queue_unbind(old, source, key, arguments=arguments)

    def _move(self, queue: str, exchange: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> int:
        """Move what is there, in its order: each batch is confirmed in its new place, then acknowledged."""
        moved = 0
        with self._connection.channel() as channel:
            channel.auto_decode = False  # Bytes go out as they came.
            while batch := list(_take(channel, queue)):
                self._publisher.publish([_copy(message, exchange, change) for message in batch])
                channel.basic_ack(batch[-1].delivery_tag, multiple=True)
                moved += len(batch)
        return moved


@contextmanager
def _publisher(settings: Settings) -> Iterator[Publisher]:
    publisher = Publisher(settings.broker, timeout=settings.publish_timeout)
    try:
        yield publisher
    finally:
        publisher.close()


def _behind_fanout(name: str) -> Queue:
    return Queue(name, exchange=Exchange(name, type="fanout"), routing_key="", durable=True)


def _take(channel: Any, queue: str) -> Iterator[Any]:
    """Yield a batch of raw messages: kombu's would be decompressed, and no longer what was sent."""
    for _ in range(_BATCH):
        message = channel.basic_get(queue, no_ack=False)
        if message is None:
            return
        yield message


def _copy(message: Any, exchange: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Outgoing:
    properties = change({"message_id": None, **message.properties, "delivery_mode": 2, "user_id": None})
    headers = properties.pop("application_headers", None) or {}
    return Outgoing(
        exchange=exchange,
        routing_key=message.delivery_info["routing_key"],
        body=bytes(message.body or b""),
        headers={name: value for name, value in headers.items() if name not in _COUNTS},
        content_type=properties.pop("content_type", None),
        content_encoding=properties.pop("content_encoding", None),
        properties=properties,
    )


def _parked(properties: dict[str, Any]) -> dict[str, Any]:
    """Keep a message from expiring aside, where nothing is bound for the expired."""
    expiration = properties.pop("expiration", None)
    if expiration is None:
        return properties
    headers = {**properties.get("application_headers", {}), _EXPIRATION: expiration}
    return {**properties, "application_headers": headers}


def _unparked(properties: dict[str, Any]) -> dict[str, Any]:
    headers = dict(properties.get("application_headers", {}))
    expiration = headers.pop(_EXPIRATION, None)
    return {**properties, "application_headers": headers, "expiration": expiration}
