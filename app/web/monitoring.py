"""Monitoring: liveness, readiness, and metrics of this process and of what all processes share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry, Counter, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from app.broker.errors import ApplicationError
from app.cluster.client.contract import SearchClient
from app.cluster.protocol import Routes
from app.counters import LabelValues, WorkerCounter, read_counts
from app.coverart.event_state import ArtEventQueueState, event_queue_state
from app.operations.doctor.breaker_states import BreakerState, seconds_paused
from app.operations.overview import PATIENCE, Overview, Part, Processes, RedisReport
from app.operations.queues import QueueReport
from app.search.contract import SearchRequest, SearchResult
from config.settings import Settings

#: Domains whose index age /metrics reports: those with the oldest indexes.
MAX_INDEX_AGES = 100
#: Bounds of the histograms in seconds.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

router = APIRouter(include_in_schema=False)


class Metrics:
    """The counters of one application, in a registry of its own."""

    def __init__(self) -> None:
        """Start at zero."""
        #: Indexed sites, as of the last routes.
        self.sites = 0
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._requests = self._counter("requests", "Answers, by route and status.", "route", "status")
        self._request_seconds = self._histogram("request_seconds", "From request to the end of the answer.", "route")
        self._queries = self._counter(
            "queries", "Calls of the search client, by outcome: ok, or the error's reason.", "kind", "outcome"
        )
        self._search_seconds = self._histogram("search_seconds", "Searches that were answered.")
        self._without_hits = self._counter("searches_without_hits", "Searches without a hit.")
        self._refused = self._counter("refused_requests", "Requests that no route saw, by problem type.", "problem")

    def count_answer(self, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self._requests.labels(route, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def count_refusal(self, problem: str) -> None:
        """Count a request that the middleware refused."""
        self._refused.labels(problem).inc()

    def count_result(self, result: SearchResult) -> None:
        """Count a search that was answered."""
        self._search_seconds.observe(result.seconds)
        if not result.total:
            self._without_hits.inc()

    @contextmanager
    def count_call(self, kind: str) -> Iterator[None]:
        """Count a call of the search client with its outcome."""
        outcome = "exception"
        try:
            yield
            outcome = "ok"
        except ApplicationError as error:
            outcome = error.reason
            raise
        finally:
            self._queries.labels(kind, outcome).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"perennial_web_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"perennial_web_{name}", text, labels, buckets=BUCKETS, registry=self.registry)


class CountingSearchClient(SearchClient):
    """Passes calls on to another search client, and counts them with their outcome."""

    def __init__(self, client: SearchClient, metrics: Metrics) -> None:
        """Count calls of `client` in `metrics`."""
        self._client = client
        self._metrics = metrics

    def routes(self) -> Routes:
        """Return the routes, uncounted."""
        routes = self._client.routes()
        self._metrics.sites = len(routes.routes)
        return routes

    def search(self, request: SearchRequest) -> SearchResult:
        """Search and count."""
        with self._metrics.count_call("search"):
            result = self._client.search(request)
        self._metrics.count_result(result)
        return result

    async def asearch(self, request: SearchRequest) -> SearchResult:
        """Search and count."""
        with self._metrics.count_call("search"):
            result = await self._client.asearch(request)
        self._metrics.count_result(result)
        return result

    def suggest(self, domains: Sequence[str], q: str, *, limit: int = 8) -> tuple[str, ...]:
        """Suggest and count."""
        with self._metrics.count_call("suggest"):
            return self._client.suggest(domains, q, limit=limit)

    def close(self) -> None:
        """Close the other client."""
        self._client.close()


class RoutesCollector(Collector):
    """Collects the state of packs and searchers, and a search client's own counters, at each request for metrics."""

    def __init__(self, client: SearchClient, counts: Callable[[], Mapping[str, int]]) -> None:
        """Collect the client's counters: `counts` returns them by name, and they only rise."""
        self._client = client
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; without routes, only the client's counters and that there are no routes."""
        counts = CounterMetricFamily("perennial_searcher_requests", "Requests to searchers.", labels=("outcome",))
        for name, count in self._counts().items():
            counts.add_metric((name,), count)
        yield counts
        try:
            routes: Routes | None = self._client.current_routes()
        except ApplicationError:
            routes = None
        yield GaugeMetricFamily(
            "perennial_routes_known", "1 while the orchestrator sends routes.", value=float(bool(routes))
        )
        if routes is not None:
            yield from route_metrics(routes, now=time.time())


def route_metrics(routes: Routes, *, now: float) -> Iterator[Metric]:
    """Yield the metrics of packs and searchers; `now` is in seconds since 1970."""
    placed = sum(bool(route.searchers) for route in routes.routes)
    packs = GaugeMetricFamily("perennial_packs", "Packs, by whether a searcher answers from them.", labels=("state",))
    packs.add_metric(("placed",), placed)
    packs.add_metric(("missing",), len(routes.routes) - placed)
    yield packs
    missing = sum(route.missing for route in routes.routes)
    yield GaugeMetricFamily("perennial_copies_missing", "Copies of packs still to be placed.", value=missing)
    yield GaugeMetricFamily("perennial_searchers", "Searchers that report.", value=len(routes.searchers))
    yield GaugeMetricFamily("perennial_routes_ready", "0 while the orchestrator gathers.", value=int(routes.ready))
    ages = GaugeMetricFamily("perennial_index_age_seconds", "Since a site's index was built.", labels=("domain",))
    age_of = dict.fromkeys((route.domain for route in routes.routes), 0.0)
    for route in routes.routes:
        with suppress(ValueError):  # The age of an invalid time is 0.
            built = datetime.fromisoformat(route.built_at)
            built = built if built.tzinfo else built.replace(tzinfo=UTC)
            age_of[route.domain] = max(0.0, now - built.timestamp())
    for domain in sorted(age_of, key=lambda domain: (age_of[domain], domain), reverse=True)[:MAX_INDEX_AGES]:
        ages.add_metric((domain,), age_of[domain])
    yield ages


@router.get("/healthz")
async def healthz() -> PlainTextResponse:
    """Answer 200 as long as the process runs."""
    return PlainTextResponse("ok\n")


@router.get("/readyz")
def readyz(request: Request) -> PlainTextResponse:
    """Answer 200 while searches can be answered and sites are packed, otherwise 503 with one line that says why."""
    state = request.app.state
    try:
        ready, reason = readiness(state.search_client.routes(), state.packing())
    except ApplicationError as error:
        ready, reason = False, error.reason
    return PlainTextResponse(f"{reason}\n", status_code=200 if ready else 503)


def readiness(routes: Routes, packing: str = "") -> tuple[bool, str]:
    """Return whether searches can be answered and sites are packed, and the reason. `packing` says why none is packed.

    A single pack without a searcher leaves the process ready: a load balancer would otherwise take all sites away.
    """
    placed = sum(bool(route.searchers) for route in routes.routes)
    packs = len(routes.routes)
    if not routes.ready:
        return False, "the orchestrator has started and still collects reports of searchers"
    if packs and not placed:
        return False, f"none of {packs} packs is on a searcher"
    if packing:
        return False, packing
    return True, "ok" if placed == packs else f"ok, but {packs - placed} of {packs} packs are on no searcher"


@router.get("/metrics")
def metrics(request: Request) -> Response:
    """Return the metrics in the format that Prometheus asks for.

    They hold numbers and the names of indexed sites, and no queries. A proxy in front of a public server should
    restrict /metrics.
    """
    accept = request.headers.get("accept", "")
    try:
        encode, media_type = choose_encoder(accept)
    except TypeError:  # The library cannot compare a version that is no number.
        encode, media_type = choose_encoder("")
    registry = request.app.state.metrics.registry
    return Response(encode(registry), headers={"Content-Type": media_type})


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
        self._counts = Part("worker counts", partial(read_counts, settings.redis), every=_QUICK)
        self._events = Part("event metrics", partial(event_queue_state, settings), every=_KEPT)
        self._has_events = bool(settings.art_event_queue_url.get_secret_value())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; those of a service that does not answer are left out."""
        until, overview = time.monotonic() + PATIENCE, self._overview
        parts: Sequence[Part[Any]] = (overview.queues, overview.redis, overview.processes, overview.breakers)
        self._counts.start()
        for part in parts:
            part.start()
        queues, redis, processes, breakers = (part.read(until).value for part in parts)
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
        yield from breaker_metrics(breakers or ())


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
    for state in states:
        open_seconds.add_metric((state.service,), state.seconds_open)
    for queue, seconds in seconds_paused(states).items():
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
