"""Metrics of what all processes share: queues, crawls, timers, what workers count, and MusicBrainz's event queue."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.counters import LabelValues, WorkerCounter, read_counts
from app.coverart.event_state import ArtEventQueueState, event_queue_state
from app.operations.cached_readings import Part
from app.operations.doctor.breaker_states import BreakerState, breaker_states
from app.operations.overview import PATIENCE, Overview, Processes, RedisReport
from app.operations.queues import QueueReport
from config.settings import Settings

#: Seconds for which figures are kept, however often they are requested: the database counts rows for them.
_KEPT: Final = 10.0
#: Seconds for which the counts of workers are kept, as other figures of Redis.
_QUICK: Final = 2.0
#: Reasons of failed events of one type, the most frequent ones.
_MAX_REASONS: Final = 20


class ServicesCollector(Collector):
    """Collects the figures at a request for metrics, which waits for them as long as a page does."""

    def __init__(self, settings: Settings, overview: Overview) -> None:
        """Read nothing yet; what the operations page shows, too, is read of its overview."""
        self._overview = overview
        self._breakers = Part("breaker metrics", partial(breaker_states, settings), every=_KEPT)
        self._counts = Part("worker counts", partial(read_counts, settings.redis), every=_QUICK)
        self._events = Part("event metrics", partial(event_queue_state, settings), every=_KEPT)
        self._has_events = bool(settings.art_event_queue_url.get_secret_value())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; those of a service that does not answer are left out."""
        until = time.monotonic() + PATIENCE
        parts: Sequence[Part[Any]] = (self._overview.queues, self._overview.redis, self._overview.processes)
        self._counts.start()
        for part in (self._breakers, *parts):
            part.start()
        queues, redis, processes = (part.read(until).value for part in parts)
        readable = GaugeMetricFamily("perennial_readable", "1 if a part of the system answers.", labels=("part",))
        for name, value in (("queues", queues), ("redis", redis)):
            readable.add_metric((name,), float(value is not None))
        yield readable
        yield from queue_metrics(queues) if queues else ()
        yield from redis_metrics(redis) if redis else ()
        yield from process_metrics(processes) if processes else ()
        yield from count_metrics(self._counts.read(until).value or {})
        if self._has_events:
            state = self._events.read(until).value
            yield GaugeMetricFamily("perennial_events_known", "1 if the event queue answers.", value=float(bool(state)))
            yield from event_metrics(state) if state else ()
        yield from breaker_metrics(self._breakers.read(until).value or ())


def queue_metrics(report: QueueReport) -> Iterator[Metric]:
    """Yield the metrics of the broker's queues. Without the management API there are fewer."""
    labels = ("queue", "kind")
    ready = GaugeMetricFamily("perennial_queue_messages", "Ready messages.", labels=labels)
    unacknowledged = GaugeMetricFamily("perennial_queue_unacknowledged", "Messages under way.", labels=labels)
    consumers = GaugeMetricFamily("perennial_queue_consumers", "Consumers.", labels=labels)
    oldest = GaugeMetricFamily("perennial_queue_oldest_seconds", "Age of the first message.", labels=labels)
    for queue in report.queues:
        if queue.is_missing:
            continue
        label = (queue.name, queue.kind)
        ready.add_metric(label, queue.ready)
        consumers.add_metric(label, queue.consumers)
        if queue.unacknowledged is not None:
            unacknowledged.add_metric(label, queue.unacknowledged)
        if queue.oldest is not None:
            oldest.add_metric(label, max(0.0, time.time() - queue.oldest))
    yield from (ready, unacknowledged, consumers, oldest)
    missing = sum(queue.is_missing for queue in report.queues)
    yield GaugeMetricFamily("perennial_queues_missing", "Queues of the code that the broker lacks.", value=missing)


def breaker_metrics(states: Sequence[BreakerState]) -> Iterator[Metric]:
    """Yield the metrics of circuit breakers, and of the queues that workers do not consume while one is open."""
    about = "Until a circuit breaker lets work through."
    open_seconds = GaugeMetricFamily("perennial_breaker_left_seconds", about, labels=("service",))
    paused = GaugeMetricFamily("perennial_queue_pause_left_seconds", "Until workers consume again.", labels=("queue",))
    longest: dict[str, float] = {}
    for state in states:
        open_seconds.add_metric((state.service,), state.seconds_open)
        for queue in state.queues:
            longest[queue] = max(longest.get(queue, 0.0), state.seconds_open)
    for queue, seconds in longest.items():
        paused.add_metric((queue,), seconds)
    yield from (open_seconds, paused)


def redis_metrics(report: RedisReport) -> Iterator[Metric]:
    """Yield the metrics of crawls and timers."""
    crawls = len(report.crawls) + report.more_crawls
    yield GaugeMetricFamily("perennial_crawls", "Domains with a crawl under way.", value=crawls)
    yield GaugeMetricFamily("perennial_timers", "Domains that wait to be packed.", value=report.timer_count)
    yield GaugeMetricFamily("perennial_tick_overdue", "1 if no tick ran.", value=float(bool(report.packing_trouble)))


def process_metrics(processes: Processes) -> Iterator[Metric]:
    """Yield the metrics of the processes of this machine."""
    up = GaugeMetricFamily("perennial_process_running", "1 if a process of `perennial up` runs.", labels=("process",))
    for process in processes.states:
        up.add_metric((process.name,), float(process.state == "running"))
    silent = GaugeMetricFamily("perennial_worker_silent_seconds", "Since a worker's heartbeat.", labels=("worker",))
    for worker in processes.workers:
        silent.add_metric((worker.name,), worker.age)
    yield from (up, silent)


def count_metrics(counts: Mapping[WorkerCounter, Mapping[LabelValues, float]]) -> Iterator[Metric]:
    """Yield the metrics of what workers count."""
    for counter, found in counts.items():
        family = CounterMetricFamily(counter.name, counter.text, labels=counter.labels)
        for values, amount in found.items():
            family.add_metric(values, amount)
        yield family


def event_metrics(state: ArtEventQueueState) -> Iterator[Metric]:
    """Yield the metrics of the event queue."""
    events = GaugeMetricFamily("perennial_events", "Events, by state.", labels=("type", "state"))
    oldest = GaugeMetricFamily("perennial_oldest_event_seconds", "Age of the oldest without a run.", labels=("type",))
    failed = GaugeMetricFamily("perennial_events_failed", "Failed events, by reason.", labels=("type", "reason"))
    for each in state.entities:
        for name, count in (("queued", each.queued), ("running", each.running), ("failed", sum(each.failed.values()))):
            events.add_metric((each.entity, name), count)
        oldest.add_metric((each.entity,), each.oldest)
        for reason, count in islice(each.failed.items(), _MAX_REASONS):
            failed.add_metric((each.entity, reason), count)
    yield from (events, oldest, failed)
    if state.seconds_silent is not None:
        yield GaugeMetricFamily(
            "perennial_event_reader_silent_seconds", "Since a reader last read the table.", value=state.seconds_silent
        )
