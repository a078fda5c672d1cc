"""Monitoring of the web process: liveness, readiness, and metrics for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry, Counter, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from app.broker.errors import ApplicationError
from app.cluster.client.contract import SearchClient
from app.cluster.protocol import Routes
from app.search.contract import SearchRequest, SearchResult

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
            routes: Routes | None = self._client.routes()
        except ApplicationError:
            routes = None
        yield GaugeMetricFamily("perennial_routes_known", "1 if the routes are known.", value=float(bool(routes)))
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
