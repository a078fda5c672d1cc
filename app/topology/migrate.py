"""Give a queue other arguments, none of which RabbitMQ can change: move its messages aside, declare it again.

Every step can be repeated, so after a kill the next run finishes the migration. A message is acknowledged only when
its copy is confirmed: after a kill it may exist twice, but is never lost. A copy keeps everything, `x-death` included;
RabbitMQ 3 continues that count, RabbitMQ 4 starts a new one. Only two properties change: a copy is persistent, and it
has no user id, because the broker refuses that of another user.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from kombu import Exchange, Queue

from app.broker.connection import connected
from app.broker.declaring import declare_exchanges
from app.broker.errors import InvalidMessage, MigrationRefused
from app.broker.headers import COUNTED_BY_BROKER
from app.broker.outgoing import Outgoing
from app.broker.publishing import Publisher
from app.topology.check import is_declared, management_api
from app.topology.compare import ASIDE
from app.topology.declare import all_queues
from app.topology.management_api import ManagementApi
from app.topology.model import exchanges_of
from config.settings import Settings

#: Messages that are copied before their confirms are awaited; after a kill, at most one batch exists twice.
_BATCH = 100

#: Seconds to wait until the API's statistics (every 5 s) show an empty queue.
_STATISTICS_TIMEOUT = 30.0

#: The header that keeps a message's expiration while it is in the aside queue, where it must not expire.
_EXPIRATION = "perennial-aside-expiration"


def migrate(name: str, settings: Settings, report: Callable[[str], None]) -> int:
    """Give one of our queues the arguments of the code; return the number of messages moved back.

    `report` is called with a line for each step. Raises InvalidMessage for an unknown queue; MigrationRefused for a
    stream or an exclusive queue, and while the queue has consumers or unacknowledged messages; TopologyDiffers for its
    exchange; ManagementFailed without the management API, as only that shows bindings and unacknowledged messages.
    """
    queue = {queue.name: queue for queue in all_queues(settings)}.get(name)
    if queue is None:
        raise InvalidMessage(f"unknown queue {name!r}: perennial topology show lists the queues")
    with (
        connected(settings.broker) as connection,
        closing(Publisher(settings.broker)) as publisher,
    ):
        api = management_api(settings, connection)
        return _Migration(queue, connection, api, publisher, report).run()


class _Migration:
    """The migration of one queue. Messages move by way of fanout exchanges, which keep the routing keys."""

    def __init__(
        self, queue: Queue, connection: Any, api: ManagementApi, publisher: Publisher, report: Callable[[str], None]
    ) -> None:
        self._queue = queue
        self._connection = connection
        self._api = api
        self._publisher = publisher
        self._report = report
        self._name = queue.name
        aside = Exchange(f"{self._name}{ASIDE}", type="fanout")
        # Classic: a quorum queue counts each get as a delivery, and RabbitMQ 4 drops a message after 20.
        self._aside = Queue(aside.name, exchange=aside, routing_key="", durable=True)
        self._back = Exchange(f"{aside.name}.back", type="fanout")

    def run(self) -> int:
        """Run the steps that no earlier run has completed; return the number of messages moved back."""
        found = self._api.topology().queues.get(self._name)
        if found and found.type == "stream":
            raise MigrationRefused(f"{self._name} is a stream, whose messages stay in it: read them, then delete it")
        if found and "exclusive" in found.flags:
            raise MigrationRefused(f"{self._name} is exclusive: stop the program whose connection has it")
        declared = is_declared(self._connection, self._queue)
        if declared and is_declared(self._connection, self._aside) is None:
            self._report(f"{self._name} already has the arguments of the code")
            return 0
        if declared is False:
            declare_exchanges(self._connection, exchanges_of(self._queue))
            self._refuse_if_used()
            self._set_aside()
            self._replace()
        with self._connection.channel() as channel:
            self._queue(channel).declare()
            self._back(channel).declare()
            channel.queue_bind(self._name, self._back.name)
            self._aside(channel).declare()
            self._rebind(self._aside.name, self._name)
            moved = self._move(self._aside.name, self._back.name)
            channel.queue_delete(self._aside.name, if_unused=True, if_empty=True)
            channel.exchange_delete(self._aside.exchange.name)
            channel.exchange_delete(self._back.name)
        self._report(f"{moved} message(s) moved back to {self._name}")
        return moved

    def _refuse_if_used(self) -> None:
        with self._connection.channel() as channel:
            consumers = channel.queue_declare(self._name, passive=True).consumer_count
        _, unacknowledged = self._api.message_counts(self._name)
        if consumers or unacknowledged:
            use = f"{consumers} consumer(s)" if consumers else f"{unacknowledged} message(s) unacknowledged 5 s ago"
            raise MigrationRefused(f"{self._name} has {use}: stop its workers, and clients that publish to it by name")

    def _set_aside(self) -> None:
        """Route new messages to the aside queue, and move those of the old queue there."""
        with self._connection.channel() as channel:
            self._aside(channel).declare()
        self._rebind(self._name, self._aside.name)
        moved, deadline = 0, time.monotonic() + _STATISTICS_TIMEOUT
        while True:
            moved += self._move(self._name, self._aside.exchange.name)
            messages, _ = self._api.message_counts(self._name)
            if not messages:
                break
            if time.monotonic() > deadline:
                raise MigrationRefused(
                    f"{self._name}: {messages} message(s) are unacknowledged or were just published; run it again"
                )
            time.sleep(0.5)
        self._report(f"{moved} message(s) moved from {self._name} to {self._aside.name}, each confirmed there")

    def _replace(self) -> None:
        """Delete the old queue and declare it again at once: messages published to it by name have no queue between."""
        self._refuse_if_used()
        # RabbitMQ refuses these conditions for a quorum queue, which was empty and unused just now.
        conditional = self._api.topology().queues[self._name].type == "classic"
        with self._connection.channel() as channel:
            lost = channel.queue_delete(self._name, if_unused=conditional, if_empty=conditional)
            self._queue(channel).declare()
        self._report(f"{self._name} deleted and declared again")
        if lost:
            self._report(f"{lost} message(s) were published to {self._name} at that moment, and are LOST")

    def _rebind(self, old: str, new: str) -> None:
        """Bind the new queue like the old one, then unbind the old one: in between, both get each message."""
        own = (self._aside.exchange.name, self._back.name)
        bindings = [binding for binding in self._api.bindings_of(old) if binding[0] not in own]
        with self._connection.channel() as channel:
            for source, key, arguments in bindings:
                channel.queue_bind(new, source, key, arguments=arguments)
            for source, key, arguments in bindings:
                channel.queue_unbind(old, source, key, arguments=arguments)

    def _move(self, queue: str, exchange: str) -> int:
        """Move all messages in their order; each batch is confirmed in its new queue, then acknowledged."""
        moved = 0
        with self._connection.channel() as channel:
            # Bodies are copied as bytes; kombu's own messages would be decompressed.
            channel.auto_decode = False
            while True:
                batch: list[Any] = []
                while len(batch) < _BATCH and (message := channel.basic_get(queue, no_ack=False)) is not None:
                    batch.append(message)
                if not batch:
                    return moved
                to_aside = exchange == self._aside.exchange.name
                self._publisher.publish([_copy(message, exchange, to_aside=to_aside) for message in batch])
                channel.basic_ack(batch[-1].delivery_tag, multiple=True)
                moved += len(batch)


def _copy(message: Any, exchange: str, *, to_aside: bool) -> Outgoing:
    """Return a copy to publish. In the aside queue its expiration is a header: it would be dropped there."""
    properties = {"message_id": None, **message.properties, "delivery_mode": 2, "user_id": None}
    headers = dict(properties.pop("application_headers", None) or {})
    if not to_aside:
        properties["expiration"] = headers.pop(_EXPIRATION, None)
    elif (expiration := properties.pop("expiration", None)) is not None:
        headers[_EXPIRATION] = expiration
    return Outgoing(
        exchange=exchange,
        routing_key=message.delivery_info["routing_key"],
        body=bytes(message.body or b""),
        headers={name: value for name, value in headers.items() if name not in COUNTED_BY_BROKER},
        content_type=properties.pop("content_type", None),
        content_encoding=properties.pop("content_encoding", None),
        properties=properties,
    )
