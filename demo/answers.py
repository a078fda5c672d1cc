"""Searching what the demo packed, through the searchers that have it."""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from app.cluster.client.contract import SearchClient
from app.errors import SearchUnavailable
from app.pack.fetch import fetch_pack
from app.pack.manifest import Manifest
from app.search.contract import SearchRequest, SearchResult
from app.search.tokens import words
from app.storage.open import open_store
from config.settings import Settings

#: Letters of the shortest word that is suggested for a search.
_LEAST = 5


@dataclass(frozen=True, slots=True)
class Answer:
    """A query and what was found."""

    query: str
    found: SearchResult


def search(
    finder: SearchClient, settings: Settings, domain: str, queries: Iterable[str], *, limit: int = 3
) -> list[Answer]:
    """Ask searchers for each query; an empty one stands for a frequent word of the titles."""
    texts = [query or suggested(_titles(settings, domain), domain) for query in queries]
    return [Answer(text, finder.search(SearchRequest(q=text, domains=(domain,), limit=limit))) for text in texts]


def holders(finder: SearchClient, pack: Manifest) -> tuple[str, ...]:
    """Return the searchers that answer from this pack, once it is on all that it is to be on; none before."""
    try:
        route = next((each for each in finder.routes().routes if each.domain == pack.domain), None)
    except SearchUnavailable:
        return ()
    placed = route is not None and route.sha256 == pack.sha256 and not route.missing
    return route.searchers[: route.newest] if route is not None and placed else ()


def suggested(titles: Iterable[str], domain: str) -> str:
    """Return the word that most titles have; one that over half of them have, such as a name, is second choice."""
    each = [{word for word in words(title) if len(word) >= _LEAST and word.isalpha()} for title in titles]
    counts = Counter(word for found in each for word in found)
    telling = {word: count for word, count in counts.items() if 1 < count <= len(each) // 2}
    ranked = sorted((telling or counts).items(), key=lambda item: (-item[1], item[0]))
    return ranked[0][0] if ranked else domain.partition(".")[0]


def results_url(settings: Settings, domain: str, query: str) -> str:
    """Return the address of the search page that shows the answer."""
    return f"http://{settings.web_host}:{settings.web_port}/?{urlencode({'domain': domain, 'q': query})}"


def _titles(settings: Settings, domain: str) -> list[str]:
    store = open_store(settings.store, endpoint_url=settings.s3_endpoint_url)
    with tempfile.TemporaryDirectory() as folder:
        pack = fetch_pack(store, domain, Path(folder))
        with closing(sqlite3.connect(f"{pack.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            return [str(title) for (title,) in connection.execute("SELECT title FROM pages ORDER BY id")]
