"""Searching from a Python shell, or any program on this machine, in a line."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from app.cluster.client.cluster import ClusterSearchClient
from app.search.contract import Filters, SearchRequest, SearchResult, Sort
from config.settings import Settings, get_settings


def search(
    domains: str | Iterable[str],
    q: str,
    *,
    offset: int = 0,
    limit: int = 10,
    sort: Sort = "relevance",
    settings: Settings | None = None,
    **filters: str,
) -> SearchResult:
    """Search sites by their searchers; all words but the last are domains. Errors are those of a Finder.

    In `celery -A app shell` or any Python:

        from app.cluster.client.shell import search
        for hit in search("site.gov", "benefits for veterans").hits:
            print(hit.title, hit.url)
        search(["site.gov", "other.gov"], "benefits", sort="date", section="news", limit=50)

    It connects each time; who asks often keeps an app.cluster.client.cluster.RemoteFinder.
    """
    names = tuple(domains.split(",") if isinstance(domains, str) else domains)
    question = SearchRequest(q=q, domains=names, offset=offset, limit=limit, sort=sort, filters=Filters(**filters))
    with closing(ClusterSearchClient.of(settings or get_settings())) as finder:
        return finder.search(question)
