"""A searcher's service: answer queries from its packs and execute the orchestrator's orders."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from app.broker.delivery import Delivery
from app.broker.errors import ApplicationError, InvalidMessage, Undecodable, UnknownType
from app.broker.rpc.responder import Responder
from app.cluster.protocol import Load, Unload, read
from app.cluster.searcher.loader import Loader
from app.cluster.searcher.pack_jobs import IntegrityCheck
from app.cluster.searcher.packs import OpenPacks
from app.cluster.searcher.query_pool import QueryPool
from app.cluster.searcher.reporter import Reporter
from app.counters import SEARCHER_QUERIES, SEARCHER_SECONDS
from app.errors import PackCorrupt
from app.messages.envelopes import decode_envelope
from app.search.contract import SearchRequest, SuggestRequest
from app.topology.queues import queries_exchange
from app.tracing import span
from config.routes import REGISTER_AGAIN, SEARCHER_TYPES

log = logging.getLogger(__name__)

#: Queries that may wait per process; more would not be answered before their deadlines.
BACKLOG: Final = 8
#: Seconds that a query may take: less than a search client waits.
TIME_LIMIT: Final = 1.0
#: Seconds after which the process of a query is killed. By then SQLite should have aborted it.
STUCK_SECONDS: Final = 5.0


class QueryHandler:
    """Answers `search` and `suggest` from packs, in any thread."""

    def __init__(self, packs: OpenPacks, pool: QueryPool, *, request_check: Callable[[IntegrityCheck], None]) -> None:
        """Call `request_check` for a pack that a query could not read."""
        self._packs = packs
        self._pool = pool
        self._request_check = request_check

    def answer(self, payload: dict[str, Any]) -> bytes:
        """Return the results, or a list of suggestions, as JSON.

        Raises InvalidMessage, InvalidQuery, PackNotLoaded, SearchTimeout, PackCorrupt.
        """
        kind = payload["type"]
        request: SearchRequest | SuggestRequest
        request = read(SearchRequest, payload) if kind == "search" else read(SuggestRequest, payload)
        held = self._packs.version(request.domain)
        began, outcome = time.monotonic(), "exception"
        try:
            # While the pack is lent it is not closed, in no process.
            with self._packs.lend(request.domain) as searcher:
                reply = self._pool.answer(searcher, request)
        except ApplicationError as error:
            outcome = error.reason
            if isinstance(error, PackCorrupt):
                log.warning("%s: a query failed, the pack will be checked: %s", request.domain, error)
                if held is not None:
                    self._request_check(IntegrityCheck(domain=request.domain, sha256=held.sha256))
            raise
        else:
            outcome = "ok"
            return reply
        finally:
            SEARCHER_QUERIES.add(kind, outcome)
            SEARCHER_SECONDS.add(kind, amount=time.monotonic() - began)


class SearcherService:
    """Processes the messages of one searcher's queue."""

    def __init__(
        self,
        *,
        query_handler: QueryHandler,
        responder: Responder,
        loader: Loader,
        reporter: Reporter,
        packs: OpenPacks,
        pool: QueryPool,
    ) -> None:
        self._query_handler = query_handler
        self._responder = responder
        self._loader = loader
        self._reporter = reporter
        self._packs = packs
        self._pool = pool
        self._started = False

    def take(self, delivery: Delivery) -> None:
        """Pass a query to the responder's threads and an order to the loader; raises InvalidMessage."""
        try:
            payload = decode_envelope(delivery.body, delivery.content_encoding)
        except Undecodable as error:
            self._responder.answer(delivery, partial(_refuse, error))
            return

        def query() -> bytes:
            with span(lambda: "query", delivery.headers):
                return self._query_handler.answer(payload)

        match payload.get("type"):
            case "search" | "suggest":
                self._responder.answer(delivery, query)
            case "load" | "unload" if delivery.exchange == queries_exchange.name:
                raise InvalidMessage(f"an order came from {delivery.exchange}, to which clients publish: {payload}")
            case "load":
                self._loader.submit(read(Load, payload))
            case "unload":
                self._loader.submit(read(Unload, payload))
            case kind if kind == REGISTER_AGAIN:
                self._reporter.register()
            case kind:
                unknown = UnknownType(f"type {kind!r:.100}: expected one of {', '.join(SEARCHER_TYPES)}")
                self._responder.answer(delivery, partial(_refuse, unknown))

    def connected(self) -> None:
        """Register, now that messages arrive. The first time, start the loader, which registers after the recovery."""
        if self._started:
            self._reporter.register()
        else:
            self._started = True
            self._loader.start(recovered=self._reporter.register, report_outcome=self._reporter.report_outcome)

    def close(self) -> None:
        """Finish the running queries and close the packs. The end of the process unlocks the data directory."""
        self._responder.close()
        self._loader.close(1.0)
        self._reporter.close()
        self._packs.close()
        self._pool.close()


def _refuse(error: ApplicationError) -> bytes:
    raise error
