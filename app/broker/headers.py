"""The headers that this package writes to messages: their names, and functions that build and read them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Literal

from .delivery import Delivery, own_headers
from .failure import MAX_MESSAGE, MAX_TRACEBACK, Failure

#: Budget of a replayed message: with `keep` its next failure dead-letters it, with `fresh` it has all its retries.
ReplayBudget = Literal["keep", "fresh"]

#: Every header of this package begins with it.
PREFIX = "perennial-"

DEAD_ID = "perennial-dead-id"
REASON = "perennial-reason"
QUEUE = "perennial-queue"
TASK = "perennial-task"
EXCEPTION = "perennial-exception"
MESSAGE = "perennial-message"
TRACEBACK = "perennial-traceback"
WORKER = "perennial-worker"
FIRST_FAILED = "perennial-first-failed-at"
FAILED = "perennial-failed-at"
LAST_ERROR = "perennial-last-error"
ATTEMPTS = "perennial-attempts"

#: Failed runs of a message of the policy `delay_queues`, as its convention has it.
ITERATION = "current-iteration"

#: Marks a replayed message and holds its retry budget.
REPLAY = "perennial-replay"

#: The replay history: the dead ids under which a message was in a dead set before, the latest first.
REPLAY_HISTORY = "perennial-replay-of"
#: Dead ids of a replay history that are kept.
MAX_REPLAY_HISTORY = 20

#: What operators changed of the message when they replayed it: `<dead id>: <changes>`, the latest first.
REPLAY_CHANGES = "perennial-replay-changes"

#: The queue that receives the outcome of a replayed message's next run, through the exchange of outcomes.
OUTCOME_TO = "perennial-outcome-to"

#: How often a message waited elsewhere because the node of its dead set or retry queue was down.
DETOURS = "perennial-detours"

#: Marks a message whose task rejected it with `requeue`: its next run sees it as redelivered.
REQUEUED = "perennial-requeued"

#: Where a dead letter was before it was moved to a shard, or restored: exchange, routing key and properties.
MOVED_FROM = "perennial-moved-from"
#: What a message of the index of a dead set is about: number and state of a shard.
SHARD = "perennial-shard"

#: Unacknowledged deliveries of the message, as counted by workers: a classic queue does not count them.
DELIVERIES = "perennial-deliveries"
#: Headers in which a quorum queue counts them. RabbitMQ 4 has both, and sets the first for crashes only.
COUNTED_BY_BROKER = ("x-delivery-count", "x-acquired-count")
#: Unacknowledged deliveries after which a message runs alone. A lost connection or a restart explains the first one.
SUSPECT_AFTER = 2

#: Celery's header with the time after which a worker discards a message.
EXPIRES = "expires"

#: Limit of durations (ms) and counts in headers: above every real value, and below the 64 bits of a header.
MAX_NUMBER = 2**40


def dead_letter_headers(delivery: Delivery, failure: Failure, *, attempts: int) -> dict[str, Any]:
    """Return the headers that a dead letter gets: a new id, the failure and its worker. Times are epoch seconds."""
    return {
        DEAD_ID: str(uuid.uuid4()),
        REASON: failure.reason,
        QUEUE: delivery.queue,
        TASK: failure.task,
        EXCEPTION: failure.exception,
        MESSAGE: failure.message[:MAX_MESSAGE],
        TRACEBACK: failure.traceback[-MAX_TRACEBACK:],
        FIRST_FAILED: delivery.headers.get(FIRST_FAILED, failure.at),
        FAILED: failure.at,
        ATTEMPTS: attempts,
        WORKER: failure.worker,
    }


def failure_headers(delivery: Delivery, failure: Failure) -> dict[str, Any]:
    """Return the headers that a message gets for a retry: the time of its first failure and its latest error."""
    return {FIRST_FAILED: delivery.headers.get(FIRST_FAILED, failure.at), LAST_ERROR: str(failure)[:MAX_MESSAGE]}


def headers_for_replay(headers: Mapping[str, Any], budget: ReplayBudget) -> dict[str, Any]:
    """Return the headers with which a dead letter is replayed: its own ones, the budget and the replay history.

    Celery's `expires` is left out: a worker would discard a letter that is replayed after that time. So are those that
    send copies: the producer has sent these.
    """
    own = own_headers(headers).items()
    kept = {name: value for name, value in own if not name.startswith(PREFIX) and name != EXPIRES}
    history = [str(headers.get(DEAD_ID, "")), *replay_history(headers)][:MAX_REPLAY_HISTORY]
    return kept | {REPLAY: budget, REPLAY_HISTORY: history}


def replay_history(headers: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the dead ids under which a message was in a dead set before, the latest first."""
    return _texts(headers.get(REPLAY_HISTORY))


def replay_changes(headers: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what replays changed of a message, the latest first: anyone may have written the header."""
    return tuple(change[:MAX_MESSAGE] for change in _texts(headers.get(REPLAY_CHANGES)))


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def keeps_budget(delivery: Delivery) -> bool:
    """Return whether the message is a replay whose retry budget stays spent."""
    return delivery.headers.get(REPLAY) == "keep"


def whole_number(headers: Mapping[str, Any], name: str, *, default: int, most: int = MAX_NUMBER) -> int:
    """Return a header as an integer from 0 to `most`, else the default. Foreign producers write integers as text.

    A larger number is not accepted: it could not be written to a header again, or would retry a message forever.
    """
    number = integer(headers.get(name))
    return default if number is None or not 0 <= number <= most else number


def integer(value: Any) -> int | None:
    """Return a header's value as an integer, or None where it is not one."""
    if isinstance(value, bool):
        return None
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def unacknowledged(delivery: Delivery) -> int:
    """Return how many earlier deliveries of the message ended with their worker or connection, without an answer.

    Quorum queues count them; on a classic queue the worker counts them in a header of the message.
    """
    # A producer may have sent the broker's header itself: it counts where the broker says that it delivered before.
    by_broker = whole_number(delivery.headers, COUNTED_BY_BROKER[0], default=0) if delivery.redelivered else 0
    # A quorum queue of RabbitMQ 4 counts rejections as well, and the count survives dead-lettering. On former brokers,
    # whose count begins again, crashes after rejections may count late.
    rejected = (entry for entry in deaths(delivery) if entry.get("reason") == "rejected")
    rejections = sum(whole_number(entry, "count", default=1) for entry in rejected)
    if by_broker >= rejections:
        by_broker -= rejections
    return by_broker + whole_number(delivery.headers, DELIVERIES, default=0)


def deaths(delivery: Delivery) -> list[Mapping[str, Any]]:
    """Return the entries of `x-death`, the latest first; a client may have sent an invalid header."""
    entries = delivery.headers.get("x-death")
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []


def is_uncounted(delivery: Delivery) -> bool:
    """Return whether the message was delivered before, by a queue that does not count it."""
    return delivery.redelivered and not any(name in delivery.headers for name in COUNTED_BY_BROKER)


def is_suspect(delivery: Delivery) -> bool:
    """Return whether the message may have crashed its workers, so that it has to run alone."""
    return unacknowledged(delivery) >= SUSPECT_AFTER
