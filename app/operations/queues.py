"""The queues of the broker in figures: what is ready, what is under way, which consumers there are, and what grows."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

from amqp.exceptions import ChannelError

from app.broker.connection import connected
from app.broker.declaring import node_down
from app.broker.errors import ManagementFailed
from app.topology.check import management_api
from app.topology.declare import all_queues
from app.topology.management_api import ConsumerStatistics, QueueStatistics
from app.topology.queues import task_queues
from app.topology.retry_policies import retry_policies
from config.settings import Settings

QueueKind = Literal["work", "delay", "dead", "other"]

#: Seconds to wait for the broker: a person waits for the page.
_PATIENCE: Final = 1.5
#: Seconds between two samples of the depths, and for which they are kept.
_SAMPLE_EVERY, _SAMPLES_KEPT = 15.0, 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFigures(QueueStatistics):
    """One queue. A figure may be unknown (None): AMQP knows `ready` and `consumers`, the rest is of the API.

    `growth` is messages a minute, since the first sample of the last ten minutes. `is_missing`: it is declared by the
    code, and the broker does not have it.
    """

    kind: QueueKind
    growth: float | None = None
    is_missing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReport:
    """All queues by kind, the largest first, and the consumers. `trouble` is why figures of the API are missing."""

    queues: Sequence[QueueFigures]
    consumers: Sequence[ConsumerStatistics] = ()
    trouble: str = ""

    def of_kind(self, kind: QueueKind) -> list[QueueFigures]:
        """Return the queues of a kind."""
        return [queue for queue in self.queues if queue.kind == kind]

    def total(self, kind: QueueKind) -> int:
        """Return the ready messages of a kind."""
        return sum(queue.ready for queue in self.of_kind(kind))


def read_queues(settings: Settings) -> QueueReport:
    """Return the figures of all queues; raises BrokerUnreachable. Without the management API, fewer are known."""
    with connected(settings.broker, timeout=_PATIENCE) as connection:
        measured: Mapping[str, QueueStatistics] | None = None
        consumers: Sequence[ConsumerStatistics] = ()
        trouble = ""
        try:
            api = management_api(settings, connection, quick=True)
            measured = {each.name: each for each in api.statistics()}
            consumers = api.consumers()
        except ManagementFailed as error:
            trouble = str(error)
        queues = list(_figures(settings, connection, measured))
    order: list[QueueKind] = ["work", "delay", "dead", "other"]
    return QueueReport(
        queues=sorted(queues, key=lambda queue: (order.index(queue.kind), -queue.ready, queue.name)),
        consumers=sorted(consumers, key=lambda each: (each.peer, each.queue)),
        trouble=trouble,
    )


def _figures(
    settings: Settings, connection: Any, measured: Mapping[str, QueueStatistics] | None
) -> Iterator[QueueFigures]:
    dead, work = retry_policies(settings).dead_sets(), {queue.name for queue in task_queues(settings)}
    channel = connection.channel()
    names = [queue.name for queue in all_queues(settings)]
    for name in dict.fromkeys([*names, *(measured or ())]):
        of_api = (measured or {}).get(name)
        # The letters of a long dead set are in its shards.
        kind: QueueKind = "dead" if name.partition(".shard.")[0] in dead else "work" if name in work else "other"
        # Events wait in the queue of their receiver until it takes them: no time sends them on.
        if kind == "other" and name not in settings.receivers and (name in names or ".delay." in name):
            kind = "delay"
        now, is_down = None, False
        # Where the API names the queues, others need no question: the broker closes the channel of a missing one.
        if measured is None or of_api is not None:
            try:
                now = channel.queue_declare(name, passive=True)
            except ChannelError as error:
                channel, is_down = connection.channel(), bool(node_down(error))
        if now is None and of_api is None:
            yield QueueFigures(name=name, kind=kind, is_missing=not is_down)
            continue
        found = QueueFigures(**asdict(of_api), kind=kind) if of_api else QueueFigures(name=name, kind=kind)
        yield found if now is None else replace(found, ready=now.message_count, consumers=now.consumer_count)


class Growth:
    """Remembers how many messages each queue had, in the memory of this process, and reports which queues grow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: deque[tuple[float, Mapping[str, int]]] = deque()

    def compared(self, report: QueueReport) -> QueueReport:
        """Return the report with the growth of each queue since the oldest sample."""
        now = time.monotonic()
        depths = {queue.name: queue.ready for queue in report.queues}
        with self._lock:
            while self._samples and self._samples[0][0] < now - _SAMPLES_KEPT:
                self._samples.popleft()
            if not self._samples or self._samples[-1][0] <= now - _SAMPLE_EVERY:
                self._samples.append((now, depths))
            began, former = self._samples[0]
        minutes = (now - began) / 60
        if minutes * 60 < _SAMPLE_EVERY:
            return report
        queues = [
            replace(queue, growth=(queue.ready - former[queue.name]) / minutes) if queue.name in former else queue
            for queue in report.queues
        ]
        return replace(report, queues=queues)
