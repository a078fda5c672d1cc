"""Carry out decisions: publish the replacements, say how to answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum

from celery.utils.log import get_logger

from ..outgoing import Outgoing
from ..policies.base import Dead, Decision, Drop, Reject
from ..publishing import Publisher

logger = get_logger(__name__)


class Disposition(Enum):
    """What the consumer does with the original message afterwards."""

    ACKNOWLEDGE = "acknowledge"
    #: Without requeue: the broker dead-letters the message.
    REJECT = "reject"


def carry_out(
    decisions: Sequence[tuple[Decision, Outgoing | None]], *, publisher: Publisher
) -> list[Disposition | Exception]:
    """Publish the replacements of decisions, with one wait for confirms. Return what to do with each original.

    Where it is an exception, the original must stay unacknowledged. A second attempt passes the same object as
    replacement, so that one that arrived late is not sent twice. A message that the broker refuses or cannot route, or
    that cannot be encoded, fails alone. A lost connection is the failure of all that were not confirmed.
    """
    outcomes: list[Disposition | Exception] = [Disposition.ACKNOWLEDGE] * len(decisions)
    by_queue = {decision.queue.name: decision for decision, _ in decisions if not isinstance(decision, Drop)}
    failures: dict[str, Exception] = {}
    for name, each in by_queue.items():
        try:
            if not isinstance(each, Reject):
                publisher.declare([each.queue])
            # Without it the broker drops what is rejected on a classic queue, and holds back that of a quorum queue.
            elif publisher.declare_if_missing(each.queue):
                logger.warning("Queue %s was missing and is declared again", name)
        except Exception as error:  # noqa: BLE001 - It is the outcome of the decisions for this queue.
            failures[name] = error
    to_publish: dict[int, Outgoing] = {}
    for position, (decision, message) in enumerate(decisions):
        if not isinstance(decision, Drop) and decision.queue.name in failures:
            outcomes[position] = failures[decision.queue.name]
        elif isinstance(decision, Reject):
            outcomes[position] = Disposition.REJECT
        elif message:
            to_publish[position] = message
    positions = list(to_publish)
    for number, failure in publisher.publish_each(list(to_publish.values())).items():
        outcomes[positions[number]] = failure
    return outcomes


def return_time(decision: Decision) -> dict[str, str | None]:
    """Return the field `eta` of an event: when a message comes back, None if it does not. Flower shows it."""
    if isinstance(decision, Dead | Drop):
        return {"eta": None}
    return {"eta": (datetime.now(UTC) + timedelta(milliseconds=decision.delay_ms)).isoformat()}
