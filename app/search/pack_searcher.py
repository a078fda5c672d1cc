"""Search one pack: the entry of this package. A search ranks page ids, then reads the pages of one page of hits."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from app.errors import PackCorrupt, PackNotFound, SearchTimeout
from app.search import pack_tables, ranking, spelling, suggest
from app.search.contract import MAX_HITS, Filters, Hit, PackHits, PackInfo, Sort
from app.search.pack_tables import Properties
from app.search.query import Phrase, Query
from app.search.snippet import best_snippet, matching_lines

#: As in app/pack/schema.sql.
APPLICATION_ID = 0x5045524E
SCHEMA_VERSION = 2

#: Instructions of SQLite's virtual machine between two checks of the time limit.
_INSTRUCTIONS = 1_000

_NO_FILTERS = Filters()


class PackSearcher:
    """Searches one SQLite pack, read-only, from any thread. Each search may take `time_limit` seconds."""

    def __init__(self, path: Path, *, time_limit: float = 1.0) -> None:
        """Open the pack; raises PackNotFound for a missing file, PackCorrupt for any other schema version or file."""
        if not path.is_file():
            raise PackNotFound(f"{path}: no such file")
        self.path = path
        self._time_limit = time_limit
        self._connections = ConnectionPool(path)
        with self._connections.connection(None) as connection:
            self.info = _read_info(connection, path)
            (self._rows,) = connection.execute("SELECT count(*) FROM pages").fetchone()
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
        """Return the hits from `offset` on, best or newest first; raises SearchTimeout, PackCorrupt."""
        began = time.perf_counter()
        hidden, properties = self._properties.hidden, self._properties
        # Filters and dates apply to every match, not to the best ones only.
        rank_limit = None if sort == "date" or filters != _NO_FILTERS else MAX_HITS
        with self._connections.connection(self._time_limit) as connection:
            ranked = ranking.rank(connection, query, hidden=hidden, limit=rank_limit)
            bound = ranking.score_bound(connection, ranked, pages=self._rows)
            scores = ranked.scores
            if scores and not ranked.relaxed:
                promoted = ranking.promoted_pages(connection, query, ranked, hidden=hidden)
                scores = ranking.promote(promoted, scores, bound=bound)
            filtered = properties.filtered(list(scores), filters)
            order = properties.newest_first(filtered) if sort == "date" else filtered
            return PackHits(
                total=min(len(order), MAX_HITS),
                capped=ranked.capped or len(order) > MAX_HITS,
                relaxed=ranked.relaxed,
                hits=self._hits(connection, order[:MAX_HITS][offset : offset + limit], scores, ranked.phrases),
                facets=properties.facets(list(scores), filters),
                did_you_mean=spelling.did_you_mean(connection, query, ranked, pages=self._rows, hidden=hidden),
                ideal=bound,
                seconds=time.perf_counter() - began,
            )

    def suggest(self, text: str, *, limit: int = 8) -> tuple[str, ...]:
        """Return completions of a text that a person is typing; raises SearchTimeout, PackCorrupt."""
        with self._connections.connection(self._time_limit) as connection:
            return suggest.suggestions(connection, text, pages=self._rows, hidden=self._properties.hidden, limit=limit)

    def close(self) -> None:
        """Close the pack. Running searches are not interrupted."""
        self._connections.close()

    def _hits(
        self,
        connection: sqlite3.Connection,
        pages: Sequence[int],
        scores: dict[int, float],
        phrases: tuple[Phrase, ...],
    ) -> tuple[Hit, ...]:
        columns = "id, url, path, title, headings, description, body, lang, modified"
        rows = pack_tables.read_rows(connection, columns, pages)
        hits = []
        for page in pages:
            url, path, title, headings, description, body, lang, modified = rows[page]
            hit = Hit(
                url=url,
                path=path,
                title=title,
                snippet=best_snippet((description, body), phrases),
                headings=matching_lines(headings, phrases),
                lang=lang,
                score=scores[page],
                domain=self.info.domain,
                section=self._properties.of("section", page),
                type=self._properties.of("type", page),
                modified=modified,
            )
            hits.append(hit)
        return tuple(hits)


class ConnectionPool:
    """Read-only connections to one pack, one for each search that is under way, from any thread."""

    def __init__(self, path: Path) -> None:
        """Connect to the SQLite database at `path`. The file must not change while the pool is open."""
        self._path = path
        self._uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def connection(self, time_limit: float | None) -> Iterator[sqlite3.Connection]:
        """Borrow a connection for the block, whose statements may take `time_limit` seconds together (None: any).

        Raises SearchTimeout after the time limit, PackCorrupt for any other error of SQLite.
        """
        connection = None
        try:
            connection = self._borrow()
            if time_limit is not None:
                deadline = time.monotonic() + time_limit
                connection.set_progress_handler(lambda: time.monotonic() >= deadline, _INSTRUCTIONS)
            yield connection
        except sqlite3.Error as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                raise SearchTimeout(f"the search took longer than {time_limit or 0:g} s") from error
            raise PackCorrupt(f"{self._path.name}: {error}") from error
        finally:
            if connection is not None:
                connection.set_progress_handler(None, 0)
                with self._lock:
                    keep = not self._closed
                    if keep:
                        self._idle.append(connection)
                if not keep:
                    connection.close()

    def close(self) -> None:
        """Close the idle connections now, and borrowed ones when they are given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _borrow(self) -> sqlite3.Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        connection = sqlite3.connect(self._uri, uri=True, check_same_thread=False, isolation_level=None)
        with suppress(sqlite3.DatabaseError):  # The first real statement reports a file that is not a database.
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA query_only = ON")
        return connection


def _read_info(connection: sqlite3.Connection, path: Path) -> PackInfo:
    """Check the schema version and return the pack's description of itself."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise PackCorrupt(f"{path.name}: a SQLite database, but not a pack")
    if version != SCHEMA_VERSION:
        remedy = "; `perennial pack DOMAIN` rebuilds it from the stored pages" if version < SCHEMA_VERSION else ""
        raise PackCorrupt(f"{path.name}: schema version {version}, this release reads {SCHEMA_VERSION}{remedy}")
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    return PackInfo(
        domain=meta.get("domain", ""),
        generation=meta.get("generation", ""),
        built_at=meta.get("built_at", ""),
        pages=int(meta.get("pages", 0)),
    )
