"""The search client of the cluster: requests to searchers over the broker, along the orchestrator's cached routes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TypeVar

from app.broker.errors import ApplicationError, RequestTimedOut, Unroutable
from app.broker.rpc.requestor import Reply, Requestor
from app.cluster.client.contract import SearchClient
from app.cluster.client.hedging import Deadline, HedgedRequest, RequestCount, SearcherBalancer, arun, run
from app.cluster.client.scatter_gather import (
    gather_replies,
    interleave,
    merge,
    split_by_domain,
    split_suggestions,
    validate_request,
)
from app.cluster.protocol import Routes, RoutesRequest, read_reply, to_payload
from app.errors import NotPlaced, PackNotFound, SearchUnavailable
from app.messages.envelopes import request_message as broker_request
from app.search.contract import SearchReply, SearchRequest, SearchResult, SuggestRequest
from app.topology.queues import queries_exchange, requests_exchange
from config.settings import Settings

T = TypeVar("T")
_Requests = Sequence[SearchRequest] | Sequence[SuggestRequest]

#: Errors after which a second attempt along newer routes, or over a new connection, may succeed.
_RETRIED = (PackNotFound, NotPlaced, SearchUnavailable)
#: Seconds that a search waits for the replies of searchers: longer than one may take for a query.
DEADLINE = 3.0
#: The part of the deadline after which a silent searcher gets help from the next one.
_HEDGE = 0.1
#: Searches of an event loop that may wait for newer routes at the same time.
_THREADS = 32
#: Seconds after which a person has typed on, and suggestions are useless.
_SUGGEST_DEADLINE = 1.0


class ClusterSearchClient(SearchClient):
    """Queries searchers over the broker, from any thread. While the orchestrator is away, its last routes are used."""

    def __init__(self, url: str, *, deadline: float = DEADLINE, declare: bool = True, reconnects: bool = True) -> None:
        """Use the broker at `url`; a search takes at most `deadline` seconds. Connects at the first request.

        With `declare` it declares the exchanges that it publishes to. `reconnects` is as of Requestor.
        """
        self._deadline = deadline
        exchanges = [requests_exchange, queries_exchange] if declare else []
        self._requestor = Requestor(url, timeout=deadline, exchanges=exchanges, reconnects=reconnects)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="search-client")
        self._searchers = SearcherBalancer(self._requestor)
        self._routes = RouteCache(
            lambda request, seconds: self._requestor.send(
                broker_request("get_routes", to_payload(request)), deadline=seconds
            ),
            deadline=deadline,
            count=self._searchers.count,
        )

    @classmethod
    def of(cls, settings: Settings, *, reconnects: bool = True) -> ClusterSearchClient:
        """Return the client that the settings describe. A command, whose user waits, does without reconnections."""
        return cls(settings.broker, declare=settings.declare_topology, reconnects=reconnects)

    def counts(self) -> dict[str, int]:
        """Return the counters of requests since the start, by the names of `Count`."""
        return self._searchers.counts()

    def routes(self) -> Routes:
        """Return the cached routes; raises SearchUnavailable if the orchestrator never answered."""
        return self._routes.get(until=time.monotonic() + self._deadline)

    def current_routes(self) -> Routes:
        """Return routes of the last TOO_OLD seconds; raises SearchUnavailable while the orchestrator sends none."""
        return self._routes.get_current(until=time.monotonic() + self._deadline)

    def search(self, request: SearchRequest) -> SearchResult:
        """Search all domains at the same time."""
        began = time.perf_counter()
        request = validate_request(request)
        self._searchers.count("searches")
        outcomes = self._ask(SearchReply, split_by_domain(request), seconds=self._deadline)
        return merge(request, outcomes, time.perf_counter() - began)

    async def asearch(self, request: SearchRequest) -> SearchResult:
        """Search as `search` does, in the caller's event loop. A thread is used only to wait for routes."""
        began = time.perf_counter()
        request = validate_request(request)
        self._searchers.count("searches")
        parts = split_by_domain(request)
        deadline = Deadline.after(self._deadline, hedge_after=_HEDGE * self._deadline)
        # With the caller's context, which has its trace.
        in_thread, run_here = partial(asyncio.get_running_loop().run_in_executor, self._threads), copy_context().run
        routes = self._routes.get_cached()
        if routes is None:
            routes = await in_thread(partial(run_here, self._routes.get, until=deadline.until))
        hedged = self._hedged_requests(SearchReply, parts, routes, deadline)
        await arun(hedged, deadline)
        finish = partial(self._retry_failed, SearchReply, parts, hedged, deadline)
        retried = any(isinstance(each.outcome, _RETRIED) for each in hedged)
        outcomes = await in_thread(partial(run_here, finish)) if retried else finish()
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
        hedged = []
        for request in requests:
            replicas: list[str] = []
            no_replica: ApplicationError = PackNotFound(
                f"{request.domain} has no pack: it was never indexed, or is not packed yet"
            )
            if route := routes.by_domain.get(request.domain):
                replicas = self._searchers.in_order(route)
                reason = f": {route.unplaced_reason}" if route.unplaced_reason else ""
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


#: Seconds after which routes are renewed in the background.
MAX_AGE = 1.0
#: Seconds after which routes are not used before an attempt to renew them.
TOO_OLD = 10.0
#: Seconds that newer routes are awaited if older ones, or an error, could be returned instead.
PATIENCE = 0.5
#: Seconds between two lookups at an orchestrator that failed, or that still collects reports.
_PAUSE = 0.1
#: Seconds that the first routes are awaited beyond the deadline: the error of a lookup that timed out says more.
_GRACE = 0.1


class RouteCache:
    """Caches the orchestrator's routes, for any thread; at most one lookup runs at a time.

    Routes of an orchestrator that has just started are incomplete: they do not replace those of the previous one.
    Once there are routes, a lookup requests their changes.
    """

    def __init__(
        self,
        look_up: Callable[[RoutesRequest, float], Future[Reply]],
        *,
        deadline: float,
        count: Callable[[RequestCount], None],
    ) -> None:
        """`look_up` sends a request and takes the seconds that the reply may take, `deadline` here."""
        self._look_up = look_up
        self._deadline = deadline
        self._count = count
        self._changed = threading.Condition()
        self._routes: Routes | None = None
        #: When the cached routes were requested, and when any lookup began last (monotonic seconds).
        self._as_of = self._looked_up_at = float("-inf")
        self._looking_up = False
        self._failure: ApplicationError | None = None

    def get(self, *, until: float) -> Routes:
        """Return the routes, at once unless they are too old; raises SearchUnavailable.

        The first routes are awaited until `until` (monotonic seconds).
        """
        now = time.monotonic()
        with self._changed:
            if (cached := self._cached(now)) is not None:
                return cached
            if self._routes is None:
                self._await_newer(float("-inf"), until=until + _GRACE)
            else:
                self._await_newer(now - TOO_OLD, until=min(until, self._looked_up_at + PATIENCE))
            if self._routes is None:
                raise self._unavailable() from self._failure
            return self._routes

    def get_current(self, *, until: float) -> Routes:
        """Return routes that are not too old, after waiting for a lookup at most `until`; raises SearchUnavailable."""
        self.get(until=until)
        with self._changed:

            def is_current() -> bool:
                return time.monotonic() - self._as_of <= TOO_OLD

            self._changed.wait_for(lambda: is_current() or not self._looking_up, until - time.monotonic())
            if self._routes is None or not is_current():
                raise self._unavailable() from self._failure
            return self._routes

    def get_cached(self) -> Routes | None:
        """Return the routes, or None if `get` would wait for them."""
        with self._changed:
            return self._cached(time.monotonic())

    def get_newer(self, than: float, *, until: float) -> Routes | None:
        """Return ready routes requested after `than`, or None if none come within PATIENCE (monotonic seconds)."""
        with self._changed:
            return self._await_newer(than, until=min(until, time.monotonic() + PATIENCE))

    def refresh(self) -> None:
        """Renew the routes in the background: a searcher did not have what they say."""
        with self._changed:
            self._look_up_if_due(time.monotonic(), pause=_PAUSE)

    def _unavailable(self) -> SearchUnavailable:
        """Return the error for routes that are missing or too old."""
        if isinstance(self._failure, RequestTimedOut) or self._failure is None:
            return SearchUnavailable(f"the orchestrator did not answer within {self._deadline:g} s")
        if isinstance(self._failure, Unroutable):
            return SearchUnavailable("there is no orchestrator at this broker")
        return SearchUnavailable(str(self._failure))

    def _cached(self, now: float) -> Routes | None:
        age = now - self._as_of
        # After a failed lookup old routes are used at once: a query must not wait for each lookup. But a failure
        # before a pause without queries says nothing about the orchestrator of now.
        has_failed = self._failure is not None and now - self._looked_up_at <= TOO_OLD
        if age > MAX_AGE:
            self._look_up_if_due(now, pause=_PAUSE if self._routes is None else MAX_AGE)
        return self._routes if age <= TOO_OLD or has_failed else None

    def _await_newer(self, than: float, *, until: float) -> Routes | None:
        """Look up until there are ready routes requested after `than`; at most PATIENCE if lookups fail."""
        began = time.monotonic()
        while self._as_of <= than or not (self._routes and self._routes.ready):
            now = time.monotonic()
            first = self._routes is None and self._failure is None
            end = until if first else min(until, began + PATIENCE)
            if now >= end:
                return None
            pause = self._look_up_if_due(now, pause=_PAUSE)
            self._changed.wait(min(end - now, pause))
        return self._routes

    def _look_up_if_due(self, now: float, *, pause: float) -> float:
        """Look up unless a lookup runs or began within `pause` seconds; return the seconds until this can change."""
        if not self._looking_up and now - self._looked_up_at >= pause:
            self._looking_up, self._looked_up_at = True, now
            self._count("lookups")
            request = self._routes.request() if self._routes else RoutesRequest()
            self._look_up(request, self._deadline).add_done_callback(self._take)
        return self._deadline if self._looking_up else self._looked_up_at + pause - now

    def _take(self, reply: Future[Reply]) -> None:
        try:
            later = read_reply(Routes, reply.result().body)
            # At most one lookup runs, so these are the routes that it requested the changes of.
            outcome: Routes | ApplicationError = self._routes.updated(later) if self._routes else later
        except ApplicationError as error:
            outcome = error
        with self._changed:
            self._looking_up = False
            if isinstance(outcome, ApplicationError):
                self._count("lookups_failed")
                self._failure = outcome
            elif outcome.ready or self._routes is None or not self._routes.ready:
                self._routes, self._failure = outcome, None
                self._as_of = self._looked_up_at
            else:
                # This lasts as long as the store is away, so queries must not wait for it.
                self._failure = SearchUnavailable("the orchestrator has started and still collects reports")
            self._changed.notify_all()
