"""Searching the pack that the demo made."""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from app.pack.read import fetch_pack
from app.search.query import parse
from app.search.results import Results
from app.search.searcher import Searcher
from app.search.tokens import words
from app.storage.open import open_store
from config.settings import Settings

#: Letters of the shortest word that is suggested for a search.
_LEAST = 5


@dataclass(frozen=True, slots=True)
class Answer:
    """A query and what was found."""

    query: str
    results: Results


def search(settings: Settings, domain: str, queries: Iterable[str], *, limit: int = 3) -> list[Answer]:
    """Search a domain's pack for each query; an empty one stands for a frequent word of the titles."""
    store = open_store(settings.store, endpoint_url=settings.s3_endpoint_url)
    with tempfile.TemporaryDirectory() as folder:
        pack = fetch_pack(store, domain, Path(folder))
        with closing(Searcher(pack, time_limit=5.0)) as searcher:
            texts = [query or suggested(_titles(pack), domain) for query in queries]
            return [Answer(text, searcher.search(parse(text), limit=limit)) for text in texts]


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


def _titles(pack: Path) -> list[str]:
    with closing(sqlite3.connect(f"{pack.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        return [str(title) for (title,) in connection.execute("SELECT title FROM pages ORDER BY id")]
