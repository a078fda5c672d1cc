"""The contract of search clients."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from app.cluster.protocol import Routes
from app.search.contract import SearchRequest, SearchResult

#: Domains of one search.
MAX_DOMAINS = 16
#: Hits of several domains are merged up to this rank: each domain returns all hits that may come before it.
MAX_MERGED = 200


class SearchClient(Protocol):
    """Searches packs, from any thread."""

    @abstractmethod
    def routes(self) -> Routes:
        """Return the known packs and the searchers that have them, about a second old; raises SearchUnavailable."""

    def current_routes(self) -> Routes:
        """Return the routes as operators read them; raises SearchUnavailable while nothing renews them."""
        return self.routes()

    @abstractmethod
    def search(self, request: SearchRequest) -> SearchResult:
        """Return one page of hits.

        Raises InvalidQuery or InvalidMessage for an invalid request, and PackNotFound for a domain that was never
        indexed. Without any answer it raises NotPlaced, Overloaded, SearchTimeout, RequestTimedOut, SearchUnavailable
        or PackCorrupt. If some of several domains answer, the others are `silent` in the result.
        """

    async def asearch(self, request: SearchRequest) -> SearchResult:
        """Search from an event loop, as `search` does; in a thread unless a client can do without."""
        return await asyncio.to_thread(self.search, request)

    @abstractmethod
    def suggest(self, domains: Sequence[str], q: str, *, limit: int = 8) -> tuple[str, ...]:
        """Return queries that start with `q`, best first; raises as `search` does."""

    @abstractmethod
    def close(self) -> None:
        """Close connections and files."""
