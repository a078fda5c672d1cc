"""100,000 failed messages wait in delay queues at once: what that costs the broker, and whether all come back."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import psutil
from kombu import Connection, Queue

from app.broker.delivery import Delivery
from app.broker.policies.base import Retry
from app.broker.policies.delay_queues import DelayQueues
from app.broker.policies.waiting import QueueType
from app.broker.publishing import Outgoing, Publisher
from app.broker.worker.carry_out import replacement
from app.broker.worker.failures import failure_of
from app.errors import FetchError
from benchmarks.crawl import System
from benchmarks.errors import BenchmarkError
from benchmarks.usage import Usage, usage

COUNT = 100_000
#: Delays in ms, which the messages take in turn; all must be waiting before the first one is over.
DELAYS_MS = (90_000, 100_000, 110_000)
#: Messages that are published before their confirms are awaited.
BATCH = 500
#: Seconds after the longest delay within which the last one must be back.
PATIENCE = 120.0

QUEUE_TYPES: tuple[QueueType, ...] = ("quorum", "classic")


@dataclass(frozen=True, slots=True)
class Parked:
    """Figures of one kind of queue: seconds, and the broker's resident memory in bytes.

    `memory` is taken before the first message, when all are waiting, and when all are gone. `late` is by how much they
    came later than their delay after they were handed to the publisher: median and greatest. `others` is the share of
    the machine, 0 to 1, that other programs took meanwhile.
    """

    queue_type: QueueType
    count: int
    parking: float
    memory: tuple[int, int, int]
    late: tuple[float, float]
    twice: int
    others: float

    @property
    def bytes_each(self) -> float:
        """Bytes of resident memory for each message that waits."""
        return (self.memory[1] - self.memory[0]) / self.count


def run(here: System, queue_type: QueueType, *, count: int = COUNT, delays_ms: Sequence[int] = DELAYS_MS) -> Parked:
    """Park so many messages through the policy, wait for all of them in their work queue, and count."""
    policy = DelayQueues(f"parked-{queue_type}", queue_type=queue_type)
    work = policy.namespace + ".work"
    publisher = Publisher(here.settings.broker, timeout=60)
    queues = [*map(policy.delay_queue, delays_ms), policy.dead, _work_queue(policy, work)]
    with Connection(here.settings.broker) as connection:
        for queue in queues:
            queue(connection.default_channel).declare()
        before, began, start = _memory(here), time.monotonic(), _usage(here)
        due = _park(publisher, policy, work, count=count, delays_ms=delays_ms)
        parking, parked = time.monotonic() - began, _memory(here)
        if time.time() > min(due):
            raise BenchmarkError(f"parking took {parking:.0f} s: the first messages were back before the last waited")
        came, end = _back(connection, work, due), _usage(here)
        publisher.close()
        for queue in queues:
            connection.default_channel.queue_delete(queue.name)
    late = [first - then for first, then in zip((min(times) for times in came), due, strict=True)]
    return Parked(
        queue_type=queue_type,
        count=count,
        parking=parking,
        memory=(before, parked, _memory(here)),
        late=(statistics.median(late), max(late)),
        twice=sum(len(times) for times in came) - count,
        others=end.others(start, ours=sum(end.since(start).values())),
    )


def _work_queue(policy: DelayQueues, name: str) -> Queue:
    return Queue(name, routing_key=name, durable=True, queue_arguments=dict(policy.work_arguments(name)))


def _park(publisher: Publisher, policy: DelayQueues, work: str, *, count: int, delays_ms: Sequence[int]) -> list[float]:
    """Publish what a worker would after as many failures; return when each is due, in seconds since the epoch."""
    messages = (_parked(policy, work, number, delays_ms[number % len(delays_ms)]) for number in range(count))
    due: list[float] = []
    for batch in _batches(messages):
        now = time.time()
        due += [now + delays_ms[number % len(delays_ms)] / 1_000 for number in range(len(due), len(due) + len(batch))]
        publisher.publish(batch)
    return due


def _parked(policy: DelayQueues, work: str, number: int, delay_ms: int) -> Outgoing:
    """Return what becomes of a message whose first run failed, when its first delay is this one."""
    body = b'{"type":"index","url":"https://site.gov/folder/page-%d.html","domain":"site.gov"}' % number
    headers = {**policy.budget_headers(timeout_ms=delay_ms, retry_max=3), "number": number}
    came = Delivery(
        body=body,
        headers=headers,
        properties={},
        content_type="application/json",
        content_encoding="utf-8",
        queue=work,
    )
    decision = policy.decide(came, failure_of(FetchError("503 Service Unavailable"), task="site.index"))
    if not isinstance(decision, Retry):
        raise BenchmarkError(f"not to be retried: {decision}")
    exchange = decision.queue.exchange.name
    return replacement(came, exchange=exchange, routing_key=decision.routing_key, headers=decision.headers)


def _batches(messages: Iterator[Outgoing]) -> Iterator[list[Outgoing]]:
    while batch := list(islice(messages, BATCH)):
        yield batch


def _back(connection: Connection, queue: str, due: Sequence[float]) -> list[list[float]]:
    """Consume until each has come; return when, by number. Raises BenchmarkError, saying how many are missing."""
    came: list[list[float]] = [[] for _ in due]
    missing = len(due)

    def note(message: Any) -> None:
        nonlocal missing
        times = came[message.headers["number"]]
        missing -= not times
        times.append(time.time())

    channel = connection.channel()
    channel.basic_consume(queue, no_ack=True, callback=note)
    deadline = max(due) + PATIENCE
    while missing and time.time() < deadline:
        try:
            connection.drain_events(timeout=1.0)
        except TimeoutError:
            continue
    channel.close()
    if missing:
        raise BenchmarkError(f"{queue}: {missing} of {len(due)} messages did not come back")
    return came


def _usage(here: System) -> Usage:
    return usage({"RabbitMQ": here.pids["RabbitMQ"], "own": os.getpid()})


def _memory(here: System) -> int:
    """Return the resident bytes of RabbitMQ's processes."""
    root = psutil.Process(here.pids["RabbitMQ"])
    return sum(each.memory_info().rss for each in (root, *root.children(recursive=True)))
