"""Search for a proposed spelling where no page has all words of the query."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from app.broker.errors import ApplicationError
from app.cluster.client.contract import SearchClient
from app.search.contract import SearchRequest, SearchResult


async def search_corrected(
    client: SearchClient, request: SearchRequest, *, may_repeat: Callable[[], Awaitable[bool]] | None = None
) -> SearchResult:
    """Search, and again for the proposed spelling if no page has all words; raises as the client's `asearch` does.

    The result names the spelling that it is for. Without better hits, or if the second search fails, it is that of the
    query as it was typed. So it is if `may_repeat` returns False, which is called before a second search.
    """
    result = await client.asearch(request)
    spelling = result.did_you_mean
    has_all_words = result.total and not result.relaxed
    if spelling and not has_all_words and (may_repeat is None or await may_repeat()):
        with suppress(ApplicationError):
            found = await client.asearch(replace(request, q=spelling))
            if found.total and not found.relaxed:
                best_bets = result.best_bets or found.best_bets
                seconds = result.seconds + found.seconds
                return replace(found, corrected=spelling, did_you_mean="", seconds=seconds, best_bets=best_bets)
    return result
