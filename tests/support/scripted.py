"""A search client that fails or changes its results on request."""

from __future__ import annotations

from collections.abc import Callable

from app.cluster.client.local import LocalSearchClient
from app.cluster.protocol import Routes
from app.errors import SearchUnavailable
from app.search.contract import SearchRequest, SearchResult


class ScriptedSearchClient(LocalSearchClient):
    """Searches packs on this machine.

    Every search raises `fault`, and its result passes through `change`. If `unknown`, there are no routes.
    """

    fault: Exception | None = None
    unknown = False
    change: Callable[[SearchResult], SearchResult] | None = None

    def behave(self) -> None:
        """Search without faults again."""
        self.fault, self.unknown, self.change = None, False, None

    def routes(self) -> Routes:
        """Return the packs, or raise SearchUnavailable."""
        if self.unknown:
            raise SearchUnavailable("no orchestrator answers")
        return super().routes()

    def search(self, question: SearchRequest) -> SearchResult:
        """Search, or raise `fault`."""
        if self.fault is not None:
            raise self.fault
        found = super().search(question)
        return self.change(found) if self.change else found
