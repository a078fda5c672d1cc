"""The searches that are compared: each ranks the pages of one pack for a query."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from app.cluster.client.corrected import search_corrected
from app.cluster.client.local import LocalSearchClient
from app.search.contract import SearchRequest
from benchmarks.peers.tantivy_stemmed import TantivyStemmed
from benchmarks.relevance.measures import DEPTH

#: Ranks the pages for a query: paths without a leading slash, the best first.
Rank = Callable[[str], list[str]]

OURS, TANTIVY, TANTIVY_FIELDS, PORTER = "ours", "tantivy", "tantivy, our fields", "FTS5 porter"

#: What a person with tantivy would choose, and the fields that a pack has.
_USUAL_BOOSTS: Final = {"title": 5.0, "headings": 2.0, "body": 1.0}
_OUR_BOOSTS: Final = {"title": 10.0, "headings": 5.0, "anchors": 5.0, "description": 3.0, "body": 1.0}
_PORTER_BOOSTS: Final = _USUAL_BOOSTS

_LANGUAGES: Final = {"gimp-help-de": "german", "gimp-help-fr": "french"}
#: Text in quotes, or a run without spaces.
_PHRASE_OR_WORD: Final = re.compile(r'"[^"]*"|[^\s"]+')


def ours(pack: Path, site: str) -> Rank:
    """Search as the search page does, with its corrections."""
    del site
    client = LocalSearchClient([pack])
    domains = tuple(route.domain for route in client.routes().routes)

    def rank(q: str) -> list[str]:
        found = asyncio.run(search_corrected(client, SearchRequest(domains=domains, q=q, limit=DEPTH)))
        # Sections of a page may be hits of their own.
        return list(dict.fromkeys(path_of(hit.path) for hit in found.hits))

    return rank


def ours_on_all(packs: Mapping[str, Path]) -> Callable[[str, str], list[str]]:
    """Search all sites at once. Of other sites than that of the query, paths have the domain in front."""
    client = LocalSearchClient(packs.values())
    domains = tuple(route.domain for route in client.routes().routes)
    domain_of = {site: next(each for each in domains if each.startswith(f"{site}.")) for site in packs}

    def rank(q: str, site: str) -> list[str]:
        found = asyncio.run(search_corrected(client, SearchRequest(domains=domains, q=q, limit=DEPTH)))
        paths = (path_of(hit.path) if hit.domain == domain_of[site] else hit.url for hit in found.hits)
        return list(dict.fromkeys(paths))

    return rank


def tantivy(pack: Path, site: str) -> Rank:
    """Search title, headings and body with tantivy, stemmed and boosted."""
    return TantivyStemmed(_rows(pack, _USUAL_BOOSTS), _USUAL_BOOSTS, _LANGUAGES.get(site, "english")).rank


def tantivy_with_our_fields(pack: Path, site: str) -> Rank:
    """Search every field of text of a pack with tantivy, stemmed and boosted."""
    return TantivyStemmed(_rows(pack, _OUR_BOOSTS), _OUR_BOOSTS, _LANGUAGES.get(site, "english")).rank


def fts5_porter(pack: Path, site: str) -> Rank:
    """Search title, headings and body with FTS5's porter tokenizer and bm25."""
    del site
    database = sqlite3.connect(":memory:")
    columns = ", ".join(_PORTER_BOOSTS)
    database.execute(f"CREATE VIRTUAL TABLE pages USING fts5 (path UNINDEXED, {columns}, tokenize = 'porter')")
    marks = ", ".join("?" * (1 + len(_PORTER_BOOSTS)))
    rows = ((row["path"], *(row[name] for name in _PORTER_BOOSTS)) for row in _rows(pack, _PORTER_BOOSTS))
    database.executemany(f"INSERT INTO pages VALUES ({marks})", rows)
    weights = ", ".join(map(str, (0.0, *_PORTER_BOOSTS.values())))
    ranked = f"SELECT path FROM pages WHERE pages MATCH ? ORDER BY bm25(pages, {weights}) LIMIT {DEPTH}"

    def rank(q: str) -> list[str]:
        # FTS5 makes a phrase of a quoted run such as `"os.path"`.
        parts = (part.strip('"') for part in _PHRASE_OR_WORD.findall(q))
        match = " OR ".join(f'"{part}"' for part in parts if re.search(r"\w", part))
        return [path for (path,) in database.execute(ranked, (match,))]

    return rank


CONTESTANTS: Final[dict[str, Callable[[Path, str], Rank]]] = {
    OURS: ours,
    TANTIVY: tantivy,
    TANTIVY_FIELDS: tantivy_with_our_fields,
    PORTER: fts5_porter,
}


def path_of(path: str) -> str:
    """Return a path as the judged set names it."""
    return unquote(path).removeprefix("/")


def _rows(pack: Path, fields: Mapping[str, float]) -> Iterator[dict[str, str]]:
    names = ("path", *fields)
    with closing(sqlite3.connect(pack)) as database:
        for row in database.execute(f"SELECT {', '.join(names)} FROM pages WHERE NOT hidden"):
            named = dict(zip(names, row, strict=True))
            yield named | {"path": path_of(named["path"])}
