"""A search for a proposed spelling: its hits, and those of the typed query if it fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from app.cluster.client.corrected import search_corrected
from app.errors import SearchTimeout
from app.search.contract import SearchRequest, SearchResult

pytestmark = pytest.mark.unit

TYPED = SearchResult(
    total=1, capped=False, relaxed=True, hits=(), reachable=1, seconds=0.1, sources=(), did_you_mean="garden"
)


class Client:
    """Answers the typed query, and the proposed one with what it was given."""

    def __init__(self, better: SearchResult | Exception) -> None:
        self._better = better

    async def asearch(self, request: SearchRequest) -> SearchResult:
        """Return the result of the query, or raise."""
        if request.q != "garden":
            return TYPED
        if isinstance(self._better, Exception):
            raise self._better
        return self._better


def corrected(client: Any) -> SearchResult:
    return asyncio.run(search_corrected(client, SearchRequest(q="gardne", domains=("a.example",))))


def test_an_error_of_the_second_search_keeps_the_hits_of_the_first() -> None:
    assert corrected(Client(SearchTimeout("late"))) == TYPED


def test_the_hits_of_the_proposed_spelling_name_it() -> None:
    found = replace(TYPED, relaxed=False, did_you_mean="")
    assert corrected(Client(found)).corrected == "garden"
