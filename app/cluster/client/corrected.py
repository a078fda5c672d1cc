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
    better = _correction(request, result)
    if better and (may_repeat is None or await may_repeat()):
        with suppress(ApplicationError):
            return _better(result, await client.asearch(better), better)
    return result


def _correction(request: SearchRequest, result: SearchResult) -> SearchRequest | None:
    """Return the request for the proposed spelling, or None without one or if a page has all words."""
    if not result.did_you_mean or (result.total and not result.relaxed):
        return None
    return replace(request, q=result.did_you_mean)


def _better(result: SearchResult, found: SearchResult, request: SearchRequest) -> SearchResult:
    if not found.total or found.relaxed:
        return result
    best_bets = result.best_bets or found.best_bets
    seconds = result.seconds + found.seconds
    return replace(found, corrected=request.q, did_you_mean="", seconds=seconds, best_bets=best_bets)
