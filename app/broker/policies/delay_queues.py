"""Exponential delays of 2^iteration x timeout, in one queue per duration; the message carries its own budget."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kombu import Exchange, Queue

from ..delivery import Delivery
from ..errors import InvalidMessage
from ..failure import Failure
from ..headers import ITERATION, ReplayBudget, dead_letter_headers, failure_headers, headers_for_replay, whole_number
from .base import Address, Dead, Policy, Postponed, Retry
from .delays import (
    DEAD_LETTER_EXCHANGE,
    MAX_TTL_MS,
    POSTPONE_LADDER_MS,
    QueueType,
    delay_for,
    delay_queue,
    rounded_up,
    safe_arguments,
    two_digits,
)

#: Delays of one iteration under jitter: the delay itself, and by even steps up to the longest one.
_JITTER_STEPS = 3

TIMEOUT, MAX = "retry-timeout-ms", "retry-max"


@dataclass(frozen=True, slots=True)
class DelayQueues(Policy):
    """The policy of the async-worker document. Its numbers are the defaults for messages without its headers.

    `retry_max` 3 means four runs, with waits of b, 2b and 4b between them. Delay queues are `<namespace>.delay.<ms>`,
    the dead set is `<namespace>.dead`. A delay queue returns a message to `exchange` with the work queue's name as the
    key, which must be bound there. The default exchange ("") routes every queue by its name. With a `jitter` of 0.5, a
    delay is longer by up to a half, so that messages that failed together do not return together.
    """

    namespace: str
    timeout_ms: int = 5_000
    retry_max: int = 5
    exchange: str = ""
    queue_type: QueueType = "quorum"
    delivery_limit: int = 50
    jitter: float = 0.0

    name: ClassVar[str] = "delay_queues"
    replay_budget: ClassVar[ReplayBudget] = "keep"

    @property
    def dead(self) -> Queue:
        """`<namespace>.dead`, a classic queue: to read a message of a quorum queue counts as a delivery."""
        exchange = Exchange(f"{self.namespace}.dead", type="fanout")
        return Queue(exchange.name, exchange=exchange, routing_key="", durable=True)

    def queues(self) -> list[Queue]:
        """Return the dead set, the delay queues of the default budget and those of postponements."""
        delays = sorted({*POSTPONE_LADDER_MS, *self.delays_ms()})
        return [self.dead, *(self.delay_queue(ms) for ms in delays)]

    def delays_ms(self) -> list[int]:
        """Return the delays of the default budget in ms, rounded as in the queues' names."""
        steps = range(_JITTER_STEPS if self.jitter else 1)
        return [
            self._exact_ms(self.timeout_ms, iteration, step) for iteration in range(self.retry_max) for step in steps
        ]

    def delay_ms(self, timeout_ms: int, iteration: int, step: int = 0) -> int:
        """Return the delay of a message's budget in ms: of the default budget exactly, of any other rounded up.

        `step` says how much of the jitter is added.
        """
        exact = self._exact_ms(timeout_ms, iteration, step)
        return exact if exact in self.delays_ms() else rounded_up(exact)

    def _exact_ms(self, timeout_ms: int, iteration: int, step: int) -> int:
        shortest: int = two_digits(timeout_ms << min(iteration, 31))
        jittered: int = two_digits(round(shortest * (1 + self.jitter * step / (_JITTER_STEPS - 1))))
        return jittered if jittered <= MAX_TTL_MS else shortest

    def delay_queue(self, delay_ms: int) -> Queue:
        """Return the queue of one duration in ms; raises ValueError for an invalid TTL."""
        return delay_queue(self.namespace, delay_ms, back_to=self.exchange, queue_type=self.queue_type)

    def work_arguments(self) -> dict[str, Any]:
        """Let the broker dead-letter a message that crashes `delivery_limit` workers.

        By default RabbitMQ 4 drops it after 20 deliveries, and RabbitMQ 3 delivers it without end.
        """
        limit = {} if self.queue_type == "classic" else {"x-delivery-limit": self.delivery_limit}
        return {DEAD_LETTER_EXCHANGE: f"{self.namespace}.dead", **limit, **safe_arguments(self.queue_type)}

    def work_queue(self, queue: str) -> Queue:
        """Return the queue, bound to `exchange` by its name."""
        exchange, arguments = Exchange(self.exchange, type="direct"), self.work_arguments()
        return Queue(queue, exchange, routing_key=queue, durable=True, queue_arguments=arguments)

    def budget_headers(self, *, timeout_ms: int | None = None, retry_max: int | None = None) -> dict[str, Any]:
        """Return the budget headers of a new message; raises InvalidMessage if its last delay is over 2^31 - 1 ms."""
        timeout_ms = self.timeout_ms if timeout_ms is None else timeout_ms
        retry_max = self.retry_max if retry_max is None else retry_max
        if type(timeout_ms) is not int or timeout_ms < 1:
            raise InvalidMessage(f"{TIMEOUT} {timeout_ms!r}: expected a whole number of milliseconds, 1 or more")
        if type(retry_max) is not int or retry_max < 0:
            raise InvalidMessage(f"{MAX} {retry_max!r}: expected a whole number, 0 or more")
        # 31 doublings of a millisecond exceed the limit already; `retry_max` may be huge.
        last_ms = two_digits(timeout_ms << min(retry_max - 1, 31)) if retry_max else 0
        if last_ms > MAX_TTL_MS:
            raise InvalidMessage(
                f"{TIMEOUT} {timeout_ms} and {MAX} {retry_max}: the last delay would be "
                f"{timeout_ms} * 2^{retry_max - 1} ms, and RabbitMQ waits {MAX_TTL_MS} ms (24.8 days) at most"
            )
        return {TIMEOUT: timeout_ms, MAX: retry_max, ITERATION: 0}

    def attempts(self, delivery: Delivery) -> int:
        """Return the current iteration, which counts failed runs."""
        return whole_number(delivery.headers, ITERATION, default=0)

    def retries(self, delivery: Delivery) -> int:
        """Return the message's own number of retries, or the default."""
        return whole_number(delivery.headers, MAX, default=self.retry_max)

    def retry_after(self, delivery: Delivery, failure: Failure) -> Retry | None:
        """Return the next delay of the message's budget; None if the broker cannot wait that long."""
        budget, jitter_step = self._budget(delivery), 0
        if self.jitter:
            # Always the same for the same retry.
            retry = f"{delivery.headers.get('id')} {delivery.properties.get('message_id')} {budget[ITERATION]}"
            jitter_step = zlib.crc32(retry.encode(errors="replace"), zlib.crc32(delivery.body)) % _JITTER_STEPS
        delay_ms = self.delay_ms(budget[TIMEOUT], budget[ITERATION], jitter_step)
        if delay_ms > MAX_TTL_MS:
            return None
        next_headers = budget | failure_headers(delivery, failure) | {ITERATION: budget[ITERATION] + 1}
        return Retry(self.delay_queue(delay_ms), delivery.queue, delay_ms, next_headers)

    def wait_ms(self, delivery: Delivery, run: int) -> int:
        """Return the wait of the message's own budget; runs after its last retry waited as long as that one."""
        budget = self._budget(delivery)
        return self.delay_ms(budget[TIMEOUT], min(run - 1, budget[MAX]))

    def end(self, delivery: Delivery, failure: Failure, *, attempts: int) -> Dead:
        """Return the way to the dead set."""
        headers = self._budget(delivery) | dead_letter_headers(delivery, failure, attempts=attempts)
        return Dead(self.dead, delivery.queue, headers)

    def postpone(self, delivery: Delivery, seconds: float, *, exactly: bool = False) -> Postponed:
        """Return a wait in delay queues."""
        delay_ms = delay_for(seconds, exactly=exactly)
        return Postponed(self.delay_queue(delay_ms), delivery.queue, delay_ms)

    def replay_address(self, queue: str, routing_key: str) -> Address:
        """Return the exchange to which delay queues return messages, with the queue's name."""
        del routing_key
        return Address(self.exchange, queue)

    def replay_headers(self, headers: Mapping[str, Any], budget: ReplayBudget) -> dict[str, Any]:
        """Keep the current iteration, as the document specifies, or set it to 0 for a fresh budget."""
        return headers_for_replay(headers, budget) | ({ITERATION: 0} if budget == "fresh" else {})

    def _budget(self, delivery: Delivery) -> dict[str, int]:
        """Return the message's own budget, with the defaults for what it does not say."""
        timeout_ms = whole_number(delivery.headers, TIMEOUT, default=self.timeout_ms) or self.timeout_ms
        return {TIMEOUT: timeout_ms, MAX: self.retries(delivery), ITERATION: self.attempts(delivery)}
