"""Exclusive queues of a connection that broke: the broker may believe in it for a while, and nobody else gets them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from amqp.exceptions import NotFound, ResourceLocked

#: Seconds between two attempts.
_AGAIN_AFTER = 0.5

logger = logging.getLogger(__name__)


def until_free(
    connection: Any, declare: Callable[[Any], Any], *, patience: float, meanwhile: Callable[[], None]
) -> bool:
    """Call `declare` with a new channel until it is not refused for an exclusive queue of another connection.

    Returns false where it still is after `patience` seconds. `meanwhile` is called between attempts, and may raise to
    end them. A queue that is not there is free.
    """
    until = time.monotonic() + patience
    told = False
    while not _is_free(connection, declare):
        if time.monotonic() > until:
            return False
        if not told:
            logger.warning("A queue belongs to another connection; waiting for %g s at most until it is gone", patience)
            told = True
        meanwhile()
        time.sleep(_AGAIN_AFTER)
    return True


def _is_free(connection: Any, declare: Callable[[Any], Any]) -> bool:
    try:
        with connection.channel() as channel:
            declare(channel)
    except ResourceLocked:
        return False
    except NotFound:
        return True
    return True
