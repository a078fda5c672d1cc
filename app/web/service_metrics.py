"""Metrics of what work waits for: circuit breakers, and MusicBrainz's event queue."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.coverart.event_state import EventQueueState, event_queue_state
from app.doctor.circuit_breakers import breaker_states
from app.operations.overview import PATIENCE
from app.operations.parts import Part
from config.settings import Settings

#: Seconds for which figures are kept, however often they are requested: the database counts rows for them.
_KEPT: Final = 10.0
#: Reasons of failed events of one type, the most frequent ones.
_MAX_REASONS: Final = 20


class ServicesCollector(Collector):
    """Collects the figures at a request for metrics, which waits for them as long as a page does."""

    def __init__(self, settings: Settings) -> None:
        """Read nothing yet."""
        self._breakers = Part("breaker metrics", partial(breaker_states, settings), every=_KEPT)
        self._events = Part("event metrics", partial(event_queue_state, settings), every=_KEPT)
        self._has_events = bool(settings.event_queue_url.get_secret_value())

    def describe(self) -> Iterator[Metric]:
        """Return nothing: otherwise the registry would collect once at registration."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; those of a service that does not answer are left out."""
        until = time.monotonic() + PATIENCE
        self._breakers.start()
        if self._has_events:
            state = self._events.read(until).value
            yield GaugeMetricFamily("perennial_events_known", "1 if the event queue answers.", value=float(bool(state)))
            yield from event_metrics(state) if state else ()
        open_seconds = GaugeMetricFamily(
            "perennial_breaker_open_seconds", "Until a circuit breaker lets work through.", labels=("service",)
        )
        for breaker in self._breakers.read(until).value or ():
            open_seconds.add_metric((breaker.service,), breaker.seconds_open)
        yield open_seconds


def event_metrics(state: EventQueueState) -> Iterator[Metric]:
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
