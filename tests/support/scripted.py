"""A finder that answers as it is told, where no real one can be brought to do so in time."""

from __future__ import annotations

from collections.abc import Callable

from app.broker.errors import ApplicationError
from app.cluster.client.local import LocalSearchClient
from app.cluster.protocol import Routes
from app.errors import SearchUnavailable
from app.search.contract import SearchRequest, SearchResult


class ScriptedSearchClient(LocalSearchClient):
    """Finds in packs of this machine, unless it is told to fail.

    `fault` is what every search raises; `unknown` is whether nobody knows what there is; `change` is done to what is
    found.
    """

    fault: ApplicationError | None = None
    unknown = False
    change: Callable[[SearchResult], SearchResult] | None = None

    def behave(self) -> None:
        """Answer as any other finder again."""
        self.fault, self.unknown, self.change = None, False, None

    def routes(self) -> Routes:
        """Return what there is, or raise SearchUnavailable."""
        if self.unknown:
            raise SearchUnavailable("nobody answers")
        return super().routes()

    def search(self, question: SearchRequest) -> SearchResult:
        """Search, or raise what there is to raise."""
        if self.fault is not None:
            raise self.fault
        found = super().search(question)
        return self.change(found) if self.change else found
