"""Retries by the broker: reject, a retry queue with a TTL, the broker's count in `x-death`, then the error queue."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, ClassVar, Literal

from kombu import Exchange, Queue, binding

from ..delivery import Delivery
from ..failure import MAX_MESSAGE, Failure
from ..headers import ATTEMPTS, FIRST_FAILED, dead_letter_headers, deaths, whole_number
from ..nesting import read_json
from .base import Address, Dead, Policy, Postponed, Reject
from .delays import DEAD_LETTER_EXCHANGE, QueueType, delay_for, delay_queue, safe_arguments

RETRY_INFO = "retry_info"

#: A delivery limit that no message reaches; RabbitMQ 4 sets 20 by default. Beyond it the broker would dead-letter the
#: message to the retry queue without a reject, and drop it as a loop when it returns.
NO_LIMIT = 2**31 - 1

#: Entries of `retry_info`, one for each time that the message was dead-lettered, and lines of a traceback in each.
MAX_ENTRIES, MAX_LINES = 10, 10

#: Characters of `retry_info`, in which only the newest entry may be longer. All headers share a frame of 131,072 bytes.
MAX_INFO = 40_000

#: Characters of the headers in an entry of `retry_info`. Longer ones are left out: the message itself has them.
MAX_HEADERS = 3_000


@dataclass(frozen=True, slots=True)
class XDeath(Policy):
    """The policy of the AMQP clients document for one queue; `retry_max` 5 means six runs.

    The queue must be declared with `work_arguments`, whose dead-letter exchange is `<queue>.retry`. Sneakers declares
    topic exchanges instead of fanout, and separates the suffix by a dash. Both are options, since RabbitMQ refuses to
    redeclare an exchange with another type. A message may crash `delivery_limit` workers.

    The queue is bound to the `exchange` of its publishers by one or more routing keys.
    """

    queue: str
    retry_after_ms: int = 5_000
    retry_max: int = 5
    exchange_type: Literal["fanout", "topic"] = "fanout"
    queue_type: QueueType = "quorum"
    delivery_limit: int = 50
    separator: str = "."
    exchange: Exchange | None = None
    routing_key: str | Sequence[str] = "#"

    name: ClassVar[str] = "x_death"
    rejects: ClassVar[bool] = True

    @property
    def dead(self) -> Queue:
        """`<queue>.error`, the client's error queue."""
        return self._queue(self._named("error"), {})

    @property
    def retry(self) -> Queue:
        """`<queue>.retry`, to which the broker dead-letters rejected messages."""
        arguments = {"x-message-ttl": self.retry_after_ms, DEAD_LETTER_EXCHANGE: self.requeue.name}
        return self._queue(self._named("retry"), {**arguments, **safe_arguments(self.queue_type)})

    @property
    def requeue(self) -> Exchange:
        """`<queue>.retry-requeue`, the exchange through which retried messages return."""
        return self._exchange(self._named("retry-requeue"))

    @property
    def client(self) -> Queue:
        """The client's queue, bound to its publishers' exchange and to that through which retried messages return."""
        bindings = [binding(self.requeue, routing_key="#")]
        if self.exchange:
            keys = [self.routing_key] if isinstance(self.routing_key, str) else self.routing_key
            bindings += [binding(self.exchange, routing_key=key) for key in keys]
        arguments = self.work_arguments()
        return Queue(self.queue, routing_key=self.queue, bindings=bindings, durable=True, queue_arguments=arguments)

    def queues(self) -> list[Queue]:
        """Return the error queue, the retry queue and the client's queue."""
        return [self.dead, self.retry, self.client]

    def work_arguments(self) -> dict[str, Any]:
        """Return the arguments of the client's queue."""
        limit = {} if self.queue_type == "classic" else {"x-delivery-limit": NO_LIMIT}
        return {DEAD_LETTER_EXCHANGE: self._named("retry"), **limit, **safe_arguments(self.queue_type)}

    def attempts(self, delivery: Delivery) -> int:
        """Return the failures that `x-death` counts for this queue, plus those before a postponement.

        RabbitMQ keeps one entry for each queue and reason, with a `count`. An entry without one counts once.
        """
        counts = (whole_number(entry, "count", default=1) for entry in self._failures(delivery))
        return whole_number(delivery.headers, ATTEMPTS, default=0) + sum(counts)

    def retries(self, delivery: Delivery) -> int:
        """Return `retry_max`."""
        del delivery
        return self.retry_max

    def retry_after(self, delivery: Delivery, failure: Failure) -> Reject | None:
        """Return Reject; None for a message of another queue, where the broker may drop what is rejected."""
        del failure
        return Reject(self.retry, self.retry_after_ms) if delivery.queue == self.queue else None

    def wait_ms(self, delivery: Delivery, run: int) -> int:
        """Return `retry_after_ms`."""
        del delivery, run
        return self.retry_after_ms

    def end(self, delivery: Delivery, failure: Failure, *, attempts: int) -> Dead:
        """Return the way to the error queue; an earlier `retry_info` is kept, and the broker's time of the failure."""
        headers: dict[str, Any] = {RETRY_INFO: retry_info(delivery, failure, attempts)}
        headers |= dead_letter_headers(delivery, failure, attempts=attempts)
        first = self._first_failure(delivery)
        if first and FIRST_FAILED not in delivery.headers:
            headers[FIRST_FAILED] = first
        return Dead(self.dead, delivery.routing_key, headers)

    def postpone(self, delivery: Delivery, seconds: float, *, exactly: bool = False) -> Postponed:
        """Return a wait in delay queues. A replacement has no `x-death`; `perennial-attempts` keeps the count."""
        delay_ms = delay_for(seconds, exactly=exactly)
        first = self._first_failure(delivery)
        headers = {ATTEMPTS: self.attempts(delivery)} | ({FIRST_FAILED: first} if first else {})
        return Postponed(self.delay_queue(delay_ms), delivery.routing_key, delay_ms, headers)

    def delay_queue(self, delay_ms: int) -> Queue:
        """Return the queue of one duration in ms; raises ValueError for an invalid TTL."""
        return delay_queue(self.queue, delay_ms, back_to=self.requeue.name, queue_type=self.queue_type)

    def queue_of(self, routing_key: str) -> str:
        """Return the client's queue, whatever the key."""
        del routing_key
        return self.queue

    def replay_address(self, queue: str, routing_key: str) -> Address:
        """Return the exchange through which retried messages return: only the client's queue is bound to it."""
        del queue
        return Address(self.requeue.name, routing_key)

    def _failures(self, delivery: Delivery) -> list[Mapping[str, Any]]:
        """Return the entries of `x-death` that are failures in this queue."""
        return [
            entry
            for entry in deaths(delivery)
            if entry.get("queue") == self.queue and entry.get("reason") == "rejected"
        ]

    def _first_failure(self, delivery: Delivery) -> float | None:
        """Return when the message first failed in this queue, in seconds since the epoch; the broker writes UTC."""
        times = [entry.get("time") for entry in self._failures(delivery)]
        seconds = [time.replace(tzinfo=UTC).timestamp() for time in times if isinstance(time, datetime)]
        return min(seconds, default=None)

    def _named(self, suffix: str) -> str:
        return f"{self.queue}{self.separator}{suffix}"

    def _exchange(self, name: str) -> Exchange:
        return Exchange(name, type=self.exchange_type)

    def _queue(self, name: str, arguments: Mapping[str, Any]) -> Queue:
        return Queue(name, self._exchange(name), "#", durable=True, queue_arguments=dict(arguments) or None)


def retry_info(delivery: Delivery, failure: Failure, attempts: int) -> str:
    """Return the JSON of Sneakers' error handler; if there is an earlier one, a list with the newest first."""
    # What Sneakers' handler writes as the error: how the run ended, or the text of its exception.
    error = "reject" if failure.exception == "Reject" else (failure.message or failure.exception)[:MAX_MESSAGE]
    entry = {
        "error": "timeout" if failure.reason in ("time-limit", "soft-time-limit") else error,
        "num_attempts": attempts,
        "failed_at": datetime.fromtimestamp(failure.at, UTC).isoformat(timespec="seconds"),
        "error_class": failure.exception,
        "error_message": failure.message[:MAX_MESSAGE],
        "backtrace": failure.traceback.splitlines()[-MAX_LINES:],
        "properties": _properties(delivery),
    }
    header = delivery.headers.get(RETRY_INFO)
    if not isinstance(header, str):
        return json.dumps(entry)
    try:
        info = read_json(header)
    except ValueError:
        info = header[:MAX_MESSAGE]
    former = info if isinstance(info, list) else [info]
    if not former:
        return json.dumps(entry)
    entries = [json.dumps(each) for each in [entry, *former][:MAX_ENTRIES]]
    lengths = accumulate(len(each) + 2 for each in entries)
    fitting = [each for each, length in zip(entries, lengths, strict=True) if length <= MAX_INFO]
    return f"[{', '.join(fitting or entries[:1])}]"


def _properties(delivery: Delivery) -> dict[str, Any]:
    """Return the properties and headers with which the message came, numbers as numbers; times are ISO 8601."""
    properties = {name: value for name, value in delivery.properties.items() if name != "application_headers"}
    headers = json.dumps({name: value for name, value in delivery.headers.items() if name != RETRY_INFO}, default=_text)
    kept = {"headers": json.loads(headers)} if len(headers) <= MAX_HEADERS else {}
    return {**json.loads(json.dumps(properties, default=_text)), **kept}


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)[:MAX_MESSAGE]
