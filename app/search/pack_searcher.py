"""One pack, opened for searching: ids by rank first, then the text of one page of hits."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from app.errors import PackCorrupt, PackNotFound
from app.search import correct, ranking, suggest
from app.search.connections import Connections
from app.search.contract import MAX_HITS, Filters, Hit, PackHits, PackInfo, Sort
from app.search.properties import Properties
from app.search.query import Query, Unit
from app.search.ranking import Ranking
from app.search.snippet import best_snippet, lines_with

#: As app/pack/schema.sql has them.
APPLICATION_ID = 0x5045524E
SCHEMA_VERSION = 2

_NO_FILTERS = Filters()


class PackSearcher:
    """Searches one SQLite pack, read-only, from any thread, each search within `time_limit` seconds."""

    def __init__(self, path: Path, *, time_limit: float = 1.0) -> None:
        """Open the pack; raises PackNotFound for no file, PackCorrupt for one that is no pack of this version."""
        if not path.is_file():
            raise PackNotFound(f"{path}: no such file")
        self.path = path
        self._time_limit = time_limit
        self._connections = Connections(path)
        with self._connections.lend(None) as connection:
            self.info = _info(connection, path)
            self._rows = _count_rows(connection)
            self._properties = Properties(connection)

    def search(
        self,
        query: Query,
        *,
        offset: int = 0,
        limit: int = 10,
        sort: Sort = "relevance",
        filters: Filters = _NO_FILTERS,
    ) -> PackHits:
        """Return the hits from `offset` on, best first, or newest first; raises SearchTimeout, PackCorrupt."""
        began = time.perf_counter()
        whole = sort == "date" or filters != _NO_FILTERS
        with self._connection() as connection:
            found = ranking.rank(connection, query, hidden=self._properties.hidden, limit=None if whole else MAX_HITS)
            ideal = ranking.ideal(connection, found, pages=self._rows)
            scores = self._scores(connection, query, found, ideal=ideal)
            admitted = self._properties.admitted(list(scores), filters)
            order = self._properties.newest_first(admitted) if sort == "date" else admitted
            return PackHits(
                total=min(len(order), MAX_HITS),
                capped=found.capped or len(order) > MAX_HITS,
                relaxed=found.relaxed,
                hits=self._hits(connection, order[:MAX_HITS][offset : offset + limit], scores, found.units),
                facets=self._properties.facets(list(scores), filters),
                did_you_mean=correct.did_you_mean(
                    connection, query, found, pages=self._rows, hidden=self._properties.hidden
                ),
                ideal=ideal,
                seconds=time.perf_counter() - began,
            )

    def suggest(self, text: str, *, limit: int = 8) -> tuple[str, ...]:
        """Return what a text that a person began to type may go on as; raises SearchTimeout, PackCorrupt."""
        with self._connection() as connection:
            return suggest.suggestions(connection, text, pages=self._rows, hidden=self._properties.hidden, limit=limit)

    def close(self) -> None:
        """Close; searches in flight end undisturbed."""
        self._connections.close()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with self._connections.lend(self._time_limit) as connection:
            yield connection

    def _scores(
        self, connection: sqlite3.Connection, query: Query, found: Ranking, *, ideal: float
    ) -> dict[int, float]:
        if found.relaxed or not found.scores:
            return found.scores
        first = ranking.leaders(connection, query, found, hidden=self._properties.hidden)
        return ranking.put_first(first, found.scores, ideal=ideal)

    def _hits(
        self, connection: sqlite3.Connection, pages: Sequence[int], scores: dict[int, float], units: tuple[Unit, ...]
    ) -> tuple[Hit, ...]:
        columns = "id, url, path, title, headings, description, body, lang, modified"
        rows = ranking.read_rows(connection, columns, pages)
        return tuple(self._hit(page, *rows[page], score=scores[page], units=units) for page in pages)

    def _hit(self, page: int, *columns: str, score: float, units: tuple[Unit, ...]) -> Hit:
        url, path, title, headings, description, body, lang, modified = columns
        return Hit(
            url=url,
            path=path,
            title=title,
            snippet=best_snippet((description, body), units),
            headings=lines_with(headings, units),
            lang=lang,
            score=score,
            domain=self.info.domain,
            section=self._properties.of("section", page),
            type=self._properties.of("type", page),
            modified=modified,
        )


def _info(connection: sqlite3.Connection, path: Path) -> PackInfo:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise PackCorrupt(f"{path.name}: a SQLite database, but not a pack")
    if version != SCHEMA_VERSION:
        remedy = "; `perennial pack DOMAIN` builds it anew from the stored pages" if version < SCHEMA_VERSION else ""
        raise PackCorrupt(f"{path.name}: schema version {version}, this release reads {SCHEMA_VERSION}{remedy}")
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    return PackInfo(
        domain=meta.get("domain", ""),
        generation=meta.get("generation", ""),
        built_at=meta.get("built_at", ""),
        pages=int(meta.get("pages", 0)),
    )


def _count_rows(connection: sqlite3.Connection) -> int:
    (rows,) = connection.execute("SELECT count(*) FROM pages").fetchone()
    return int(rows)
