"""What is counted, as Prometheus reads it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.concurrency import run_in_threadpool

from app.broker.errors import ApplicationError
from app.cluster.client.contract import AsyncSearchClient, SearchClient
from app.cluster.protocol import Route, Routes
from app.search.contract import SearchRequest, SearchResult

#: Domains that have a line of their own: of more, those whose index is oldest.
MAX_DOMAINS = 100
#: Bounds in seconds.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """The counters of one application, in a registry of its own."""

    def __init__(self) -> None:
        """Start at zero."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._requests = self._counter("requests", "Answers, by route and status.", "route", "status")
        self._request_seconds = self._histogram("request_seconds", "From request to the end of the answer.", "route")
        self._questions = self._counter(
            "questions", "What finders were asked, by what it ended in: ok, or the error's reason.", "kind", "outcome"
        )
        self._search_seconds = self._histogram("search_seconds", "Searches that were answered.")
        self._without_hits = self._counter("searches_without_hits", "Searches that found nothing.")
        self._turned_away = self._counter("turned_away", "Requests refused unread, by the name of the fault.", "fault")

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self._requests.labels(route, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def turned_away(self, fault: str) -> None:
        """Count a request that was refused before anybody looked at what it asks."""
        self._turned_away.labels(fault).inc()

    def found(self, found: SearchResult) -> None:
        """Count a search."""
        self._search_seconds.observe(found.seconds)
        if not found.total:
            self._without_hits.inc()

    @contextmanager
    def question(self, kind: str) -> Iterator[None]:
        """Count a question, and what became of it."""
        outcome = "unforeseen"
        try:
            yield
            outcome = "ok"
        except ApplicationError as error:
            outcome = error.reason
            raise
        finally:
            self._questions.labels(kind, outcome).inc()

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"perennial_web_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"perennial_web_{name}", text, labels, buckets=BUCKETS, registry=self.registry)


class CountingSearchClient:
    """A finder that counts what another one is asked, for pages and API alike."""

    def __init__(self, finder: SearchClient, metrics: Metrics) -> None:
        """Ask `finder`."""
        self._finder = finder
        self._metrics = metrics
        # What a protocol asks for takes long to find out: once is enough.
        self._asearch = finder.asearch if isinstance(finder, AsyncSearchClient) else self._in_thread

    def routes(self) -> Routes:
        """As the other one has them."""
        return self._finder.routes()

    def search(self, question: SearchRequest) -> SearchResult:
        """Search and count."""
        with self._metrics.question("search"):
            found = self._finder.search(question)
        self._metrics.found(found)
        return found

    async def asearch(self, question: SearchRequest) -> SearchResult:
        """Search and count: without a thread, where the other one can."""
        with self._metrics.question("search"):
            found = await self._asearch(question)
        self._metrics.found(found)
        return found

    async def _in_thread(self, question: SearchRequest) -> SearchResult:
        return await run_in_threadpool(self._finder.search, question)

    def suggest(self, domains: Sequence[str], q: str, *, limit: int = 8) -> tuple[str, ...]:
        """Suggest and count."""
        with self._metrics.question("suggest"):
            return self._finder.suggest(domains, q, limit=limit)

    def close(self) -> None:
        """Close the other one."""
        self._finder.close()


class RoutesCollector(Collector):
    """What is known of searchers and packs, and a finder's own counts, when somebody asks for it."""

    def __init__(self, finder: SearchClient, counts: Callable[[], Mapping[str, int]]) -> None:
        """`counts` are those of the finder by name; they only ever rise."""
        self._finder = finder
        self._counts = counts

    def describe(self) -> Iterator[Metric]:
        """Leave out what would be asked for when this is registered."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Tell how it stands; without routes, only that there are none."""
        counts = CounterMetricFamily("perennial_router", "What became of requests to searchers.", labels=("count",))
        for name, count in self._counts().items():
            counts.add_metric((name,), count)
        yield counts
        try:
            routes: Routes | None = self._finder.routes()
        except ApplicationError:
            routes = None
        yield GaugeMetricFamily("perennial_routes_known", "1 if it is known who has what.", value=float(bool(routes)))
        if routes is not None:
            yield from families(routes, now=time.time())


def families(routes: Routes, *, now: float) -> Iterator[Metric]:
    """Return what routes tell; `now` is seconds since 1970."""
    placed = sum(bool(route.searchers) for route in routes.routes)
    packs = GaugeMetricFamily("perennial_packs", "Packs, by whether a searcher answers from them.", labels=("state",))
    packs.add_metric(("placed",), placed)
    packs.add_metric(("missing",), len(routes.routes) - placed)
    yield packs
    missing = sum(route.missing for route in routes.routes)
    yield GaugeMetricFamily("perennial_copies_missing", "Copies of packs still to be placed.", value=missing)
    yield GaugeMetricFamily("perennial_searchers", "Searchers known.", value=len(routes.searchers))
    yield GaugeMetricFamily("perennial_routes_settled", "0 while the orchestrator gathers.", value=int(routes.settled))
    yield _ages(routes.routes, now=now)


def _ages(routes: Sequence[Route], *, now: float) -> Metric:
    family = GaugeMetricFamily("perennial_index_age_seconds", "Since a site's index was built.", labels=("domain",))
    ages = sorted(((_age(route.built_at, now), route.domain) for route in routes), reverse=True)
    for age, domain in ages[:MAX_DOMAINS]:
        family.add_metric((domain,), age)
    return family


def _age(built_at: str, now: float) -> float:
    """Return the seconds since a time in ISO 8601, or 0 for what is none."""
    try:
        built = datetime.fromisoformat(built_at)
    except ValueError:
        return 0.0
    return max(0.0, now - (built if built.tzinfo else built.replace(tzinfo=UTC)).timestamp())
