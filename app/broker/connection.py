"""Connections to a broker or to any node of a cluster: with timeouts, TLS that checks the host, and clear errors."""

from __future__ import annotations

import logging
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote, urlsplit

from amqp.exceptions import AMQPError, NotFound, ResourceLocked
from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.utils.url import maybe_sanitize_url

from . import amqp_internals
from .errors import BrokerUnreachable, error_text

logger = logging.getLogger(__name__)

#: What py-amqp and the socket raise when a connection or a channel breaks.
CONNECTION_ERRORS = (AMQPError, OSError, socket.timeout)

#: `ssl` of a kombu Connection, and Celery's `broker_use_ssl`.
TlsOptions = dict[str, str | None] | bool

#: Seconds to wait for the broker: for a connection, a read or a write, and a publisher confirm.
BROKER_TIMEOUT = 5.0
#: Seconds between two attempts to connect to the nodes of a list.
_NODE_PAUSE = 0.2
#: Seconds between two attempts to get an exclusive queue.
_LOCK_PAUSE = 0.5


class NodesConnection(Connection):  # type: ignore[misc]
    """A connection to one node of a list. kombu's own would try two of them, and check each by the first one's name."""

    def connect(self) -> Any:
        """Open the connection to the first node that answers, in the order of the list; raises the last node's error.

        A single node is tried twice, and not two seconds apart as by kombu: an operator waits for it.
        """
        pauses = {"interval_start": _NODE_PAUSE, "interval_step": 0}
        self.ensure_connection(max_retries=max(1, len(self.alt) - 1), reraise_as_library_errors=False, **pauses)
        return self.connection

    def switch(self, conn_str: str) -> None:
        """Take the next node, with its own name for the check of its certificate."""
        super().switch(conn_str)
        self.ssl = tls_options(conn_str)


def connection_to(
    url: str, *, timeout: float = BROKER_TIMEOUT, heartbeat: float = 0.0, **options: Any
) -> NodesConnection:
    """Return a connection to the broker at `url`, which is not open yet.

    `url` may name several nodes of a cluster, separated by semicolons. Opening the connection takes at most `timeout`
    seconds for each, and so does each read and write. `options` go to kombu's transport.
    """
    amqp_internals.install()
    bounds = {"read_timeout": timeout, "write_timeout": timeout}
    return NodesConnection(
        url, ssl=tls_options(url), connect_timeout=timeout, heartbeat=heartbeat, transport_options={**bounds, **options}
    )


def tls_options(url: str) -> TlsOptions:
    """Return kombu's `ssl` option for a broker's URL: false unless it begins with `amqps:`.

    The certificate must name the host (RFC 9525); kombu by itself accepts every certificate that an authority signed.
    The authorities are those of the system, or of the file SSL_CERT_FILE. Of several nodes, the options are those of
    the first one; NodesConnection replaces them when it takes another.
    """
    first = url.partition(";")[0]
    return {"server_hostname": urlsplit(first).hostname} if first.startswith("amqps:") else False


def broker_name(url: str) -> str:
    """Return a broker's URL for texts: every node, without passwords."""
    names = []
    for node in url.split(";"):
        text, host = str(maybe_sanitize_url(node)), urlsplit(node).hostname or ""
        # kombu escapes the colons of an IPv6 address.
        names.append(text.replace(quote(host), f"[{host}]", 1) if ":" in host else text)
    return ";".join(names)


@contextmanager
def connected(url: str, *, timeout: float = BROKER_TIMEOUT) -> Iterator[Any]:
    """Yield an open kombu connection for an operator's command, and close it.

    Raises BrokerUnreachable where the connection cannot be opened, and also where it breaks or the broker does not
    answer within `timeout` seconds during the block.
    """
    connection = connection_to(url, timeout=timeout)
    try:
        connection.connect()
        yield connection
    except (*CONNECTION_ERRORS, OperationalError) as error:
        raise BrokerUnreachable(f"broker {broker_name(url)}: {connection_error_text(error)}") from error
    finally:
        connection.collect(socket_timeout=1)


def close_answered(connection: Any) -> None:
    """Close an open kombu connection and wait for the broker's answer; raises one of CONNECTION_ERRORS without it.

    The answer means that the broker has handled all acknowledgements and requeued the other messages.
    """
    connection.connection.close()


@contextmanager
def closed_answered(connection: Any) -> Iterator[None]:
    """Close an open kombu connection after the block as `close_answered` does, also if the block raises."""
    try:
        yield
    except BaseException as error:
        # Closing without an answer would lose the acknowledgements of messages that were removed already. If it fails,
        # they may be lost: that is then the error, unless there is one of the connection already.
        is_reported = isinstance(error, CONNECTION_ERRORS) or not isinstance(error, Exception)
        with suppress(*CONNECTION_ERRORS if is_reported else ()):
            close_answered(connection)
        raise
    close_answered(connection)


def connection_error_text(error: BaseException) -> str:
    """Return the text for a connection error, which often has none of its own."""
    return f"no answer in time ({error})" if isinstance(error, TimeoutError) else error_text(error)


def backoff(failures: int, *, first: float, longest: float) -> float:
    """Return the seconds before the next attempt after `failures` in a row: from `first` to `longest`, doubled by each.

    The last half of them are random, so that processes that failed together do not return together.
    """
    most = min(first * 2.0 ** min(failures - 1, 30), longest)
    return most * (0.5 + 0.5 * random.random())  # noqa: S311 - Not a secret.


def wait_for_exclusive_queue(
    connection: Any, declare: Callable[[Any], Any], *, patience: float, meanwhile: Callable[[], None]
) -> bool:
    """Call `declare` with a new channel until no other connection holds the exclusive queue that it declares.

    After a connection broke, the broker may keep it and its exclusive queues for some time. Returns false if the queue
    is still held after `patience` seconds, and true also if the queue does not exist. `meanwhile` is called between two
    attempts; what it raises ends the wait.
    """
    until = time.monotonic() + patience
    waiting = False
    while True:
        try:
            with connection.channel() as channel:
                declare(channel)
        except ResourceLocked as error:
            if time.monotonic() > until:
                return False
            if not waiting:
                logger.warning("Waiting up to %g s for an exclusive queue of another connection: %s", patience, error)
            waiting = True
        except NotFound:
            return True
        else:
            return True
        meanwhile()
        time.sleep(_LOCK_PAUSE)
