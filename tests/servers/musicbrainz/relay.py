"""A relay that brings what triggers wrote into the outbox to a broker: raw bytes, as the real producer sends them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from amqp import Message
from amqp.exceptions import AMQPError
from kombu import Connection
from psycopg import sql

log = logging.getLogger(__name__)

#: Messages that are published before their rows are deleted.
BATCH = 100

#: Seconds to wait for a confirm.
_CONFIRM_TIMEOUT = 5.0

#: Seconds between two checks whether it must end.
_ATTENTION = 0.1

_TAKE = sql.SQL(
    "SELECT id, exchange, routing_key, message, properties FROM amqp.outbox ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED"
)
_DELETE = sql.SQL("DELETE FROM amqp.outbox WHERE id = ANY(%s)")

_Db = psycopg.Connection[tuple[Any, ...]]


def run(database: str, broker: str, stop: threading.Event, *, poll: float = 1.0) -> None:
    """Relay until `stop` is set; after a failure, and without a notification, poll after `poll` seconds."""
    while not stop.is_set():
        try:
            _serve(database, broker, stop, poll)
        except (psycopg.OperationalError, AMQPError, OSError) as error:
            log.warning("outbox not relayed, trying again: %s", error)
            stop.wait(poll)


@contextmanager
def running(database: str, broker: str, *, poll: float = 1.0) -> Iterator[None]:
    """Relay in a thread for the block."""
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(database, broker, stop), kwargs={"poll": poll}, name="relay")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def deliver(database: _Db, channel: Any) -> int:
    """Publish up to BATCH messages in the order of their rows, then delete these; return how many.

    Rows are deleted only when the broker has confirmed all. A relay that dies or meets an error in between sends some
    twice, and loses none. Raises the errors of publishing, of which an unroutable message is one.
    """
    with database.transaction():
        rows = database.execute(_TAKE, (BATCH,)).fetchall()
        for _, *message in rows:
            _publish(channel, *message)
        database.execute(_DELETE, ([id for id, *_ in rows],))
    return len(rows)


def _publish(channel: Any, exchange: str, routing_key: str, message: str, properties: Mapping[str, Any]) -> None:
    channel.basic_publish_confirm(
        # Only the properties that a trigger sets: the message is not even persistent.
        Message(message.encode(), **properties),
        exchange=exchange,
        routing_key=routing_key,
        mandatory=True,
        confirm_timeout=_CONFIRM_TIMEOUT,
    )


def _serve(database: str, broker: str, stop: threading.Event, poll: float) -> None:
    with (
        psycopg.connect(database, autocommit=True) as db,
        Connection(broker, connect_timeout=60) as connection,
        connection.channel() as channel,
    ):
        db.execute("LISTEN amqp_outbox")
        while not stop.is_set():
            if not deliver(db, channel):
                _wait(db, stop, poll)


def _wait(database: _Db, stop: threading.Event, poll: float) -> None:
    """Wait until a transaction notifies, or `poll` seconds: rows that another relay held may be free by then."""
    deadline = time.monotonic() + poll
    while not stop.is_set() and time.monotonic() < deadline:
        if list(database.notifies(timeout=_ATTENTION, stop_after=1)):
            return
