"""Search in one line from a Python shell, or from any program on this machine."""

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
    """Search sites through their searchers; raises as `SearchClient.search` does.

    In `celery -A app shell` or any Python:

        from app.cluster.client.shell import search
        for hit in search("site.gov", "benefits for veterans").hits:
            print(hit.title, hit.url)
        search(["site.gov", "other.gov"], "benefits", sort="date", section="news", limit=50)

    Each call makes a connection. A program that searches often keeps an app.cluster.client.cluster.ClusterSearchClient.
    """
    names = tuple(domains.split(",") if isinstance(domains, str) else domains)
    request = SearchRequest(q=q, domains=names, offset=offset, limit=limit, sort=sort, filters=Filters(**filters))
    with closing(ClusterSearchClient.of(settings or get_settings())) as client:
        return client.search(request)
