"""A connection for an operator's command: an unreachable broker is one clear error, and none waits for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu.exceptions import OperationalError

from .connection import connection_to
from .errors import BrokerUnreachable
from .publishing import CONNECTION_ERRORS


@contextmanager
def connected(url: str, *, timeout: float = 5.0) -> Iterator[Any]:
    """Yield a kombu connection whose every answer must come within `timeout` seconds.

    Raises BrokerUnreachable, also for what breaks or is not answered within the block.
    """
    connection = connection_to(url, timeout=timeout)
    try:
        connection.connect()
        yield connection
    except (*CONNECTION_ERRORS, OperationalError) as error:
        raise BrokerUnreachable(f"broker {connection.as_uri()}: {told(error)}") from error
    finally:
        connection.collect(socket_timeout=1)


def told(error: BaseException) -> str:
    """Return what a broken connection is called in a message."""
    return f"no answer in time ({error})" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
