"""The search client of the cluster: it sends requests to searchers over the broker, along the orchestrator's routes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from app.broker.errors import ApplicationError
from app.broker.rpc.requestor import Requestor
from app.cluster.client.contract import SearchClient
from app.cluster.client.hedging import Deadline, HedgedRequest, SearcherPool, arun, run
from app.cluster.client.route_cache import MAX_AGE, RouteCache
from app.cluster.client.scatter_gather import (
    gather_replies,
    interleave,
    merge,
    split_by_domain,
    split_suggestions,
    validate_request,
)
from app.cluster.protocol import Routes
from app.envelopes import request_message as broker_request
from app.errors import NotPlaced, PackNotFound, SearchUnavailable
from app.search.contract import SearchReply, SearchRequest, SearchResult, SuggestRequest
from app.topology.queues import requests_exchange
from config.settings import Settings

T = TypeVar("T")
_Requests = Sequence[SearchRequest] | Sequence[SuggestRequest]

#: Errors after which a second attempt along newer routes, or over a new connection, may succeed.
_RETRIED = (PackNotFound, NotPlaced, SearchUnavailable)
#: The part of the deadline after which a silent searcher gets help from the next one.
_HEDGE = 0.1
#: Searches of an event loop that may wait for newer routes at the same time.
_THREADS = 32
#: Seconds after which a person has typed on, and suggestions are useless.
_SUGGEST_DEADLINE = 1.0


class ClusterSearchClient(SearchClient):
    """Queries searchers over the broker, from any thread. While the orchestrator is away, its last routes are used."""

    def __init__(self, url: str, *, deadline: float = 3.0) -> None:
        """Use the broker at `url`; a search takes at most `deadline` seconds. Connects at the first request."""
        self._deadline = deadline
        self._requestor = Requestor(url, timeout=deadline, exchanges=[requests_exchange])
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="search-client")
        self._searchers = SearcherPool(self._requestor)
        self._routes = RouteCache(
            lambda seconds: self._requestor.send(broker_request("get_routes", {}), deadline=seconds),
            deadline=deadline,
            count=self._searchers.count,
        )

    @classmethod
    def of(cls, settings: Settings) -> ClusterSearchClient:
        """Return the client that the settings describe."""
        return cls(settings.broker, deadline=settings.search_deadline)

    def counts(self) -> dict[str, int]:
        """Return the counters of requests since the start, by the names of `Count`."""
        return self._searchers.counts()

    def routes(self) -> Routes:
        """Return the cached routes; raises SearchUnavailable if the orchestrator never answered."""
        return self._routes.get(until=time.monotonic() + self._deadline)

    def search(self, request: SearchRequest) -> SearchResult:
        """Search all domains at the same time."""
        began = time.perf_counter()
        request = validate_request(request)
        self._searchers.count("searches")
        outcomes = self._ask(SearchReply, split_by_domain(request), seconds=self._deadline)
        return merge(request, outcomes, time.perf_counter() - began)

    async def asearch(self, request: SearchRequest) -> SearchResult:
        """Search without a thread, unless routes must be awaited."""
        began = time.perf_counter()
        request = validate_request(request)
        self._searchers.count("searches")
        parts = split_by_domain(request)
        in_thread = partial(asyncio.get_running_loop().run_in_executor, self._threads)
        deadline = Deadline.after(self._deadline, hedge_after=_HEDGE * self._deadline)
        routes = self._routes.get_cached()
        if routes is None:
            outcomes = await in_thread(partial(self._ask, SearchReply, parts, seconds=self._deadline))
        else:
            hedged = self._hedged_requests(SearchReply, parts, routes, deadline)
            await arun(hedged, deadline)
            finish = partial(self._retry_failed, SearchReply, parts, hedged, deadline)
            retried = any(isinstance(each.outcome, _RETRIED) for each in hedged)
            outcomes = await in_thread(finish) if retried else finish()
        return merge(request, outcomes, time.perf_counter() - began)

    def suggest(self, domains: Sequence[str], q: str, *, limit: int = 8) -> tuple[str, ...]:
        """Return queries that start with `q`."""
        parts = split_suggestions(domains, q, limit)
        self._searchers.count("suggestions")
        seconds = min(_SUGGEST_DEADLINE, self._deadline)
        replies, _ = gather_replies(self._ask(tuple[str, ...], parts, seconds=seconds))
        return interleave(replies, limit=limit)

    def close(self) -> None:
        """Close the connection."""
        self._requestor.close()
        self._threads.shutdown(wait=False)

    def _ask(self, kind: type[T], requests: _Requests, *, seconds: float) -> dict[str, T | ApplicationError]:
        """Return the outcome of each request by its domain."""
        deadline = Deadline.after(seconds, hedge_after=_HEDGE * self._deadline)
        hedged = self._hedged_requests(kind, requests, self._routes.get(until=deadline.until), deadline)
        run(hedged, deadline)
        return self._retry_failed(kind, requests, hedged, deadline)

    def _retry_failed(
        self, kind: type[T], requests: _Requests, hedged: Sequence[HedgedRequest[T]], deadline: Deadline
    ) -> dict[str, T | ApplicationError]:
        """Return the outcomes; domains that no searcher had are tried once more along newer routes."""
        if misrouted := any(each.misrouted for each in hedged):
            self._routes.refresh()
        outcomes = {each.domain: each.outcome for each in hedged}
        failed = [request for request in requests if isinstance(outcomes[request.domain], _RETRIED)]
        if not failed:
            return outcomes
        newer_than = time.monotonic() if misrouted else deadline.began - MAX_AGE
        routes = self._routes.get_newer(newer_than, until=deadline.until)
        if routes is None:
            # The cached routes may be out of date, so a domain that they lack is not reported as never indexed.
            return {
                domain: SearchUnavailable(f"the orchestrator does not say at the moment whether {domain} was indexed")
                if isinstance(outcome, PackNotFound)
                else outcome
                for domain, outcome in outcomes.items()
            }
        gone = {replica for each in hedged for replica in each.gone}
        again = self._hedged_requests(kind, failed, routes, deadline, excluded=gone)
        run(again, deadline)
        return outcomes | {each.domain: each.outcome for each in again}

    def _hedged_requests(
        self,
        kind: type[T],
        requests: Sequence[SearchRequest | SuggestRequest],
        routes: Routes,
        deadline: Deadline,
        *,
        excluded: Container[str] = (),
    ) -> list[HedgedRequest[T]]:
        by_domain = {route.domain: route for route in routes.routes}
        hedged = []
        for request in requests:
            replicas: list[str] = []
            no_replica: ApplicationError = PackNotFound(f"{request.domain} was never indexed")
            if route := by_domain.get(request.domain):
                replicas = self._searchers.in_order(route)
                reason = f": {route.why}" if route.why else ""
                no_replica = NotPlaced(f"{request.domain} is on no searcher at the moment{reason}")
            hedged.append(
                HedgedRequest(
                    kind,
                    request,
                    [replica for replica in replicas if replica not in excluded],
                    no_replica=no_replica,
                    deadline=deadline,
                    searchers=self._searchers,
                )
            )
        return hedged
