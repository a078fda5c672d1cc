"""Messages that wait in delay queues: what waits and why, and acts that end a wait early."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from app.broker.dead_letters.letters import DeadLetter
from app.broker.delayed_messages import MAX_MOVED, MAX_PEEKED, DelayQueue, Moved, Waiting, move, peek
from app.broker.delivery import Delivery
from app.broker.errors import InvalidMessage
from app.broker.failure import Failure
from app.broker.headers import FIRST_FAILED, LAST_ERROR
from app.broker.publishing import Publisher
from app.coverart.jobs import event_of
from app.errors import ResourceNotFound
from app.messages.dead_messages import complete_dead_message
from app.messages.dead_sets import domain_of, payload_of, subject_of, task_of
from app.operations.context import OperatorContext
from app.topology.declare import coalescing_queues
from app.topology.retry_policies import retry_policies
from config.settings import Settings

WaitingAct = Literal["send", "dead"]

#: The names of the acts in the audit.
ACTS: Final[dict[WaitingAct, str]] = {"send": "waiting send now", "dead": "waiting to dead set"}
#: Reason code of a message that an operator dead-letters.
REASON: Final = "by-operator"
#: Seconds for which what was read is kept, so that opening a page again does not read the queue again.
_KEPT: Final = 30.0
#: Reads of a message of a quorum queue, after which its queue is not read: RabbitMQ 4 ends a wait after 20.
_MAX_READS: Final = 10
_MAX_TEXT: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingMessage:
    """A message that waits, for people: `error` is why, `attempt` the failed runs so far, of `attempts` in all.

    `first_failed` is in seconds since the epoch. The broker does not say when a message came: it waits at most the
    `delay_seconds` of its queue.
    """

    id: str
    queue: str
    work_queue: str
    task: str
    domain: str
    subject: str
    error: str
    attempt: int
    attempts: int
    first_failed: float | None
    delay_seconds: float
    times_read: int


@dataclass(frozen=True, slots=True)
class PeekedQueue:
    """The first messages of a delay queue as they were read `at` a time, in seconds since the epoch.

    `refused` is why the queue was not read now.
    """

    messages: Sequence[WaitingMessage]
    at: float
    refused: str = ""


@dataclass
class PeekCache:
    """What this process read last, by queue. A quorum queue counts its reads, so none is repeated too soon."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    kept: dict[str, tuple[float, PeekedQueue]] = field(default_factory=dict)

    def get(self, queue: str) -> PeekedQueue | None:
        """Return what was read of a queue, while it is still good."""
        with self.lock:
            until, peeked = self.kept.get(queue, (0.0, None))
            return peeked if time.monotonic() < until else None

    def keep(self, queue: str, peeked: PeekedQueue, seconds: float) -> None:
        """Keep what was read for a time, and forget what is older."""
        now = time.monotonic()
        with self.lock:
            self.kept = {name: each for name, each in self.kept.items() if each[0] > now}
            self.kept[queue] = (now + seconds, peeked)

    def forget(self, queue: str) -> None:
        """Forget what was read after an act changed the queue, unless the queue must not be read."""
        with self.lock:
            if queue in self.kept and not self.kept[queue][1].refused:
                del self.kept[queue]


peek_cache = PeekCache()


def delay_queue_named(settings: Settings, name: str) -> DelayQueue:
    """Return a delay queue of this application; raises ResourceNotFound for any other name."""
    policies = retry_policies(settings)
    found = DelayQueue.of(name, policies) if len(name) < 256 else None
    if found is None:
        raise ResourceNotFound(f"{name[:80]!r} is no delay queue")
    return found


def read_waiting(ops: OperatorContext, name: str) -> PeekedQueue:
    """Return the messages that leave a delay queue first, at most MAX_PEEKED, not older than half a minute.

    Raises ResourceNotFound, BrokerUnreachable and QueueUnavailable.
    """
    queue = delay_queue_named(ops.settings, name)
    broker = ops.settings.broker
    key = f"{broker} {name}"
    if kept := peek_cache.get(key):
        return kept
    found = [_described(queue, each) for each in peek(broker, name, most=MAX_PEEKED)]
    peeked, seconds = PeekedQueue(found, time.time()), _KEPT
    if max((each.times_read for each in found), default=0) >= _MAX_READS:
        refused = "these messages were read often: the broker counts it, and would send them on early"
        peeked, seconds = PeekedQueue(found, peeked.at, refused), max(_KEPT, queue.delay_ms / 1_000)
    peek_cache.keep(key, peeked, seconds)
    return peeked


def end_wait(
    ops: OperatorContext, name: str, act: WaitingAct, *, ids: Sequence[str] | None, most: int = MAX_MOVED, why: str = ""
) -> Moved:
    """Send waiting messages to their work queues now, or to the dead set; None as `ids` means all, at most `most`.

    Each replacement is confirmed before the original is acknowledged. Raises ResourceNotFound, InvalidMessage without
    any id, RoleRequired, BrokerUnreachable, QueueUnavailable and PublishFailed.
    """
    queue = delay_queue_named(ops.settings, name)
    if ids is not None and not ids:
        raise InvalidMessage("choose at least one message")
    with ops.act(ACTS[act], name, why=why, ids=list(ids)[:MAX_PEEKED] if ids is not None else "all") as kept:
        text = f"{ops.operator.name} ended its wait" + (f": {why}" if why else "")
        failure = Failure(reason=REASON, exception="", message=text, at=time.time())

        def convert(delivery: Delivery) -> Any:
            if act == "send":
                return queue.sent_now(delivery)
            letter = DeadLetter.of(delivery, id="", set=queue.name)
            with suppress(InvalidMessage):  # Nothing waits for a message that its task would refuse.
                event = event_of(delivery.headers)
                complete_dead_message(task_of(letter), payload_of(letter), ops.settings, event=event)
            return queue.dead_lettered(delivery, failure)

        publisher: Publisher = ops.client_publisher()
        dead = queue.policy.dead
        if act == "dead" and dead is not None:
            publisher.declare([dead])
        moved = move(ops.settings.broker, name, publisher, convert, ids=ids, most=most)
        peek_cache.forget(f"{ops.settings.broker} {name}")
        kept.result = f"{moved.moved} moved, {moved.left} left" + (f"; {moved.failure}" if moved.failure else "")
    return moved


def is_coalescing(settings: Settings, name: str) -> bool:
    """Return whether messages wait in a queue because equal ones become one, and not after a failure."""
    return name in {queue.name for queue in coalescing_queues(settings)}


def _described(queue: DelayQueue, waiting: Waiting) -> WaitingMessage:
    delivery = waiting.delivery
    letter = DeadLetter.of(delivery, id=waiting.id, set=queue.name)
    first = delivery.headers.get(FIRST_FAILED)
    return WaitingMessage(
        id=waiting.id,
        queue=queue.name,
        work_queue=queue.work_queue(delivery),
        task=task_of(letter),
        domain=domain_of(letter),
        subject=subject_of(letter.arguments()),
        error=str(delivery.headers.get(LAST_ERROR, ""))[:_MAX_TEXT],
        attempt=queue.policy.attempts(delivery),
        attempts=queue.policy.retries(delivery) + 1,
        first_failed=float(first) if isinstance(first, int | float) and 0 < first < 1e11 else None,
        delay_seconds=queue.delay_ms / 1_000,
        times_read=waiting.times_read,
    )
