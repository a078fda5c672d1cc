"""Unacknowledged deliveries: their count, and what follows from it.

Such a delivery ended with its worker or its connection. Quorum queues count them; on a classic queue the worker counts
them in a header of the message.
"""

from __future__ import annotations

import time

from ..delivery import Delivery
from ..headers import DELIVERIES, whole_number
from .base import Failure

#: Headers in which a quorum queue counts. RabbitMQ 4 has both, and sets the first for crashes only.
_COUNTED_BY_BROKER = ("x-delivery-count", "x-acquired-count")

#: Unacknowledged deliveries after which a message runs alone. A lost connection or a restart explains the first one.
SUSPECT_AFTER = 2


def unacknowledged(delivery: Delivery) -> int:
    """Return how many earlier deliveries of the message were neither acknowledged nor rejected."""
    # A producer may have sent the broker's header itself: it counts where the broker says that it delivered before.
    by_broker = whole_number(delivery.headers, _COUNTED_BY_BROKER[0], default=0) if delivery.redelivered else 0
    return by_broker + whole_number(delivery.headers, DELIVERIES, default=0)


def is_uncounted(delivery: Delivery) -> bool:
    """Return whether the message was delivered before, by a queue that does not count it."""
    return delivery.redelivered and not any(name in delivery.headers for name in _COUNTED_BY_BROKER)


def is_suspect(delivery: Delivery) -> bool:
    """Return whether the message may have crashed its workers, so that it has to run alone."""
    return unacknowledged(delivery) >= SUSPECT_AFTER


def limit_failure(delivery: Delivery, limit: int) -> Failure | None:
    """Return the failure of a message whose deliveries crashed `limit` workers, or None below the limit."""
    count = unacknowledged(delivery)
    if count < limit:
        return None
    text = f"{count} deliveries were neither acknowledged nor rejected"
    return Failure(reason="delivery-limit", exception="", message=text, at=time.time())
