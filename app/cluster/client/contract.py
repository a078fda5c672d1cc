"""The contract of whoever finds: what is asked, what is found, and which errors tell that nothing could be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from app.cluster.protocol import Routes
from app.search.contract import SearchRequest, SearchResult

#: Domains of one question.
MAX_DOMAINS = 16
#: Hits of several domains are merged as far as this: each domain has to be asked for all that come before.
MAX_MERGED = 200


class SearchClient(Protocol):
    """Finds, from any thread."""

    def routes(self) -> Routes:
        """Return what has a pack and who answers for it, at most a second or so old; raises SearchUnavailable."""

    def search(self, question: SearchRequest) -> SearchResult:
        """Search.

        Raises InvalidQuery and InvalidMessage for what cannot be asked, PackNotFound where a domain was never indexed,
        and where nobody answers NotPlaced, SearcherBusy, SearchTimeout, RequestTimedOut, SearchUnavailable or
        PackCorrupt. Of several domains, those that do not answer are `silent` while one does.
        """

    def suggest(self, domains: Sequence[str], q: str, *, limit: int = 8) -> tuple[str, ...]:
        """Return queries that `q` may be the beginning of, best first; errors as of `search`."""

    def close(self) -> None:
        """Let go of connections and files."""


@runtime_checkable
class AsyncSearchClient(SearchClient, Protocol):
    """A finder that an event loop can ask: a reply wakes it, and no thread stands in between."""

    async def asearch(self, question: SearchRequest) -> SearchResult:
        """As `search`."""
