"""Park failed messages in delay queues at once: what they cost the broker, and whether all come back."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import psutil
from kombu import Connection, Queue

from app.broker.delivery import Delivery
from app.broker.outgoing import Outgoing
from app.broker.policies.base import Retry
from app.broker.policies.delay_queues import DelayQueues
from app.broker.policies.delays import QueueType
from app.broker.publishing import Publisher
from app.broker.worker.failures import failure_of
from app.errors import FetchError
from benchmarks.errors import BenchmarkError
from benchmarks.figures import Aim, FigureTable, at_most
from benchmarks.memory import peak_memory
from benchmarks.system import BenchSystem
from benchmarks.usage import usage

#: Delays in ms, taken in turn, each times the number of messages. The policy rounds none of them. All messages must be
#: waiting before the first delay ends.
DELAYS_MS = (1.0, 1.3, 1.6)
#: Messages that are published before their confirms are awaited.
BATCH = 500
#: Seconds after the longest delay within which the last message must be back.
RETURN_TIMEOUT = 600.0

#: Aim: MB of memory of a broker in which a million messages or fewer wait.
MEMORY_AIM = 2_000.0

METHOD = """\
- Parked messages pass the policy `delay_queues` as after their first failure. The workers' publisher sends them, in
  batches of 500, to three delay queues (1, 1.3 and 1.6 ms for each message of all). All wait at once before the first
  is due.
- Their memory is the resident memory of RabbitMQ's processes: before, with all messages waiting, and after the last
  one is consumed. Their CPU time is that of these processes until then. A message's delay counts from the moment before
  its batch was published. It is late by the time from the end of that delay until a consumer of the work queue receives
  it.
"""


@dataclass(frozen=True, slots=True)
class ParkedFigures:
    """Figures of one queue type: seconds, and the broker's resident memory in bytes.

    `cpu` are the broker's seconds. `memory` is measured before the first message, with all waiting, and after the last
    is consumed; `peak` is the most. `late` is the time beyond the delay since a message was given to the publisher:
    median and maximum. `twice` counts messages that came back again. `others` is the share of the machine, 0 to 1,
    that other programs took.
    """

    queue_type: QueueType
    count: int
    parking: float
    cpu: float
    memory: tuple[int, int, int]
    peak: int
    late: tuple[float, float]
    twice: int
    others: float

    @property
    def bytes_each(self) -> float:
        """Bytes of resident memory per waiting message."""
        return (self.memory[1] - self.memory[0]) / self.count


def run(system: BenchSystem, queue_type: QueueType, count: int) -> ParkedFigures:
    """Park `count` messages through the policy, and wait for all of them in their work queue."""
    delays_ms = [round(each * count) for each in DELAYS_MS]
    policy = DelayQueues(f"parked-{queue_type}", queue_type=queue_type)
    work = policy.namespace + ".work"
    publisher = Publisher(system.settings.broker, timeout=60)
    work_queue = Queue(work, routing_key=work, durable=True, queue_arguments=dict(policy.work_arguments()))
    queues = [*map(policy.delay_queue, delays_ms), policy.dead, work_queue]
    with Connection(system.settings.broker) as connection:
        for queue in queues:
            queue(connection.default_channel).declare()
        watched = {"RabbitMQ": system.pids["RabbitMQ"]}
        before, began, start = _memory(system), time.monotonic(), usage(watched)
        due = _park(publisher, policy, work, count=count, delays_ms=delays_ms)
        parking, parked = time.monotonic() - began, _memory(system)
        if time.time() > min(due):
            raise BenchmarkError(f"parking took {parking:.0f} s: the first messages came back before the last was sent")
        came, spent = _back(connection, work, due), usage(watched).since(start)
        publisher.close()
        for queue in queues:
            connection.default_channel.queue_delete(queue.name)
    late = [first - then for first, then in zip((min(times) for times in came), due, strict=True)]
    return ParkedFigures(
        queue_type=queue_type,
        count=count,
        parking=parking,
        cpu=spent.cpu["RabbitMQ"] + spent.cpu["RabbitMQ children"],
        memory=(before, parked, _memory(system)),
        peak=peak_memory(system.pids["RabbitMQ"]),
        late=(statistics.median(late), max(late)),
        twice=sum(len(times) for times in came) - count,
        others=spent.others,
    )


def _park(publisher: Publisher, policy: DelayQueues, work: str, *, count: int, delays_ms: Sequence[int]) -> list[float]:
    """Publish retries as a worker does. Return when each is due, in seconds since the epoch."""
    messages = (_parked(policy, work, number, delays_ms[number % len(delays_ms)]) for number in range(count))
    due: list[float] = []
    while batch := list(islice(messages, BATCH)):
        now = time.time()
        due += [now + delays_ms[number % len(delays_ms)] / 1_000 for number in range(len(due), len(due) + len(batch))]
        publisher.publish(batch)
    return due


def _parked(policy: DelayQueues, work: str, number: int, delay_ms: int) -> Outgoing:
    """Return the retry of a message whose first run failed, with this first delay."""
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
        raise BenchmarkError(f"expected a retry, got {decision}")
    exchange = decision.queue.exchange.name
    return Outgoing.replacing(came, exchange=exchange, routing_key=decision.routing_key, headers=decision.headers)


def _back(connection: Connection, queue: str, due: Sequence[float]) -> list[list[float]]:
    """Consume until every message came. Return the times by number; raises BenchmarkError for missing messages."""
    came: list[list[float]] = [[] for _ in due]
    missing = len(due)

    def note(message: Any) -> None:
        nonlocal missing
        times = came[message.headers["number"]]
        missing -= not times
        times.append(time.time())

    channel = connection.channel()
    channel.basic_consume(queue, no_ack=True, callback=note)
    deadline = max(due) + RETURN_TIMEOUT
    while missing and time.time() < deadline:
        try:
            connection.drain_events(timeout=1.0)
        except TimeoutError:
            continue
    channel.close()
    if missing:
        raise BenchmarkError(f"{queue}: {missing} of {len(due)} messages did not come back")
    return came


def _memory(system: BenchSystem) -> int:
    """Return the resident bytes of RabbitMQ's processes."""
    root = psutil.Process(system.pids["RabbitMQ"])
    return sum(each.memory_info().rss for each in (root, *root.children(recursive=True)))


def table(runs: Sequence[ParkedFigures]) -> FigureTable:
    """Return the cost of waiting messages."""
    rows = {
        "seconds to park them": [f"{each.parking:.1f}" for each in runs],
        "messages parked a second": [f"{each.count / each.parking:,.0f}" for each in runs],
        "MB of memory before": [f"{each.memory[0] / 1e6:.0f}" for each in runs],
        "MB with all parked": [f"{each.memory[1] / 1e6:.0f}" for each in runs],
        "MB at most": [f"{each.peak / 1e6:.0f}" for each in runs],
        "MB after": [f"{each.memory[2] / 1e6:.0f}" for each in runs],
        "bytes of memory a message": [f"{each.bytes_each:,.0f}" for each in runs],
        "come back": [f"{each.count:,}" for each in runs],
        "come back twice": [str(each.twice) for each in runs],
        "seconds late, median": [f"{each.late[0]:.1f}" for each in runs],
        "seconds late, the last one": [f"{each.late[1]:.1f}" for each in runs],
    }
    return FigureTable.of_figures(
        "Messages in delay queues at once", (f"{each.count:,}, {each.queue_type}" for each in runs), rows
    )


def aims(parked: ParkedFigures) -> tuple[Aim, Aim]:
    """Return the aims that all come back, and that they fit into the broker's memory."""
    kind = f"parked in {parked.queue_type} queues"
    back = f"{parked.count:,}" + (f", {parked.twice} of them twice" if parked.twice else "")
    memory = at_most(f"MB of the broker's memory with {parked.count:,} {kind}", MEMORY_AIM, parked.peak / 1e6, digits=0)
    return (f"{kind} and come back", f"{parked.count:,}", back, "reached"), memory
