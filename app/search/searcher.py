"""One pack, opened for searching: ids by rank first, then the text of one page of hits."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from app.errors import PackCorrupt, PackNotFound, SearchTimeout
from app.search.query import Query, Unit
from app.search.results import MAX_HITS, Hit, PackInfo, Results
from app.search.snippet import best_snippet
from app.search.tokens import words

#: As app/pack/schema.sql has them.
APPLICATION_ID = 0x5045524E
SCHEMA_VERSION = 1
#: Weights of title, headings, description and body.
WEIGHTS = "bm25(10.0, 5.0, 3.0, 1.0)"
#: Candidates looked at for a page whose name is the query, and how many of such, and of pages with the whole
#: query side by side, come first: a few, for what stands on many pages tells none of them apart.
_NAME_CANDIDATES = 100
_LEADERS = 3
#: Virtual machine steps of SQLite between two looks at the clock.
_STEPS = 1_000

_RANKED = "SELECT rowid, rank FROM pages_fts WHERE pages_fts MATCH ? AND rank MATCH ? ORDER BY rank LIMIT ?"
#: The first condition makes it a look at the index of canonical keys.
_HIDDEN = "SELECT id FROM pages WHERE canonical <> '' AND hidden = 1"
_TITLE_SEPARATOR = re.compile(r"\s+[|–—·:-]\s+|:\s+")


@dataclass(frozen=True, slots=True)
class _Ranking:
    scores: dict[int, float]
    capped: bool


class Searcher:
    """Searches one SQLite pack, read-only, from any thread, each search within `time_limit` seconds."""

    def __init__(self, path: Path, *, time_limit: float = 1.0) -> None:
        """Open the pack; raises PackNotFound for no file, PackCorrupt for one that is no pack of this version."""
        if not path.is_file():
            raise PackNotFound(f"{path}: no such file")
        self.path = path
        self._time_limit = time_limit
        self._uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False
        with self._connection(limited=False) as connection:
            self.info = _info(connection, path)
            self._hidden = frozenset(
                row[0] for row in connection.execute("SELECT id FROM pages WHERE canonical <> '' AND hidden = 1")
            )

    def search(self, query: Query, *, offset: int = 0, limit: int = 10) -> Results:
        """Return the hits from `offset` on, best first; raises SearchTimeout, PackCorrupt."""
        began = time.perf_counter()
        with self._connection() as connection:
            ranking, relaxed, units = self._matching(connection, query)
            order = list(ranking.scores)
            if not relaxed:
                leaders = self._leaders(connection, query)
                order = [*leaders, *(page for page in order if page not in leaders)]
            hits = _hits(connection, order[offset : offset + limit], ranking.scores, units)
        return Results(
            total=len(order),
            capped=ranking.capped,
            relaxed=relaxed,
            hits=hits,
            seconds=time.perf_counter() - began,
        )

    def close(self) -> None:
        """Close; searches in flight end undisturbed."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _matching(self, connection: sqlite3.Connection, query: Query) -> tuple[_Ranking, bool, tuple[Unit, ...]]:
        """Rank the pages with all that was asked for; where there are none, those with some of the words."""
        strict = self._rank(connection, query.match)
        if strict.scores or query.loose_match is None:
            return strict, False, query.units
        loose = self._rank(connection, query.loose_match)
        return loose, bool(loose.scores), query.loose_units

    def _rank(self, connection: sqlite3.Connection, match: str, *, limit: int = MAX_HITS) -> _Ranking:
        # ORDER BY rank is FTS5's own sort, which has ranked every match whatever the LIMIT: the rest costs little,
        # and gives the total as well. ORDER BY bm25(...) would be many times slower.
        rows = connection.execute(_RANKED, (match, WEIGHTS, limit + 1 + len(self._hidden))).fetchall()
        seen = {page: -rank for page, rank in rows if page not in self._hidden}
        return _Ranking(dict(list(seen.items())[:limit]), capped=len(seen) > limit)

    def _leaders(self, connection: sqlite3.Connection, query: Query) -> list[int]:
        """Return the pages that come first whatever their rank: named as the query, or with all of it side by side."""
        candidates = list(self._rank(connection, query.name_match, limit=_NAME_CANDIDATES).scores)
        named = _named(connection, candidates, words(" ".join(query.words)))[:_LEADERS]
        if query.phrase_match is None:
            return named
        side_by_side = self._rank(connection, query.phrase_match, limit=_LEADERS).scores
        return [*named, *(page for page in side_by_side if page not in named)]

    @contextmanager
    def _connection(self, *, limited: bool = True) -> Iterator[sqlite3.Connection]:
        """Lend a connection of this thread's own, and translate SQLite's errors."""
        connection = None
        try:
            connection = self._borrow()
            _set_deadline(connection, self._time_limit if limited else None)
            yield connection
        except sqlite3.Error as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                raise SearchTimeout(f"the search took longer than {self._time_limit:g} s") from error
            raise PackCorrupt(f"{self.path.name}: {error}") from error
        finally:
            if connection is not None:
                self._give_back(connection)

    def _borrow(self) -> sqlite3.Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        connection = sqlite3.connect(self._uri, uri=True, check_same_thread=False, isolation_level=None)
        with suppress(sqlite3.DatabaseError):  # Not a database: the first real statement says so.
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA query_only = ON")
        return connection

    def _give_back(self, connection: sqlite3.Connection) -> None:
        connection.set_progress_handler(None, 0)
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()


def _set_deadline(connection: sqlite3.Connection, seconds: float | None) -> None:
    if seconds is None:
        return
    deadline = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() >= deadline, _STEPS)


def _info(connection: sqlite3.Connection, path: Path) -> PackInfo:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION_ID:
        raise PackCorrupt(f"{path.name}: a SQLite database, but not a pack")
    if version != SCHEMA_VERSION:
        raise PackCorrupt(f"{path.name}: schema version {version}, {SCHEMA_VERSION} was expected")
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    return PackInfo(
        domain=meta.get("domain", ""),
        generation=meta.get("generation", ""),
        built_at=meta.get("built_at", ""),
        pages=int(meta.get("pages", 0)),
    )


def _named(connection: sqlite3.Connection, candidates: Sequence[int], name: tuple[str, ...]) -> list[int]:
    """Return those of the candidates whose title, a part of it, first heading or file name is `name`."""
    rows = _rows(connection, "id, title, headings, path", candidates)
    return [page for page in candidates if name in _names(*rows[page])]


def _names(title: str, headings: str, path: str) -> set[tuple[str, ...]]:
    """Return what a page may be called, in words: `os` for "os - Miscellaneous" at /library/os.html, or at /os/."""
    trail = [part for part in unquote(path.partition("?")[0]).split("/") if part]
    if trail and trail[-1].partition(".")[0] in {"index", "default"}:
        trail.pop()
    file = trail[-1] if trail else ""
    stem = file.rpartition(".")[0]
    names = [title, *_TITLE_SEPARATOR.split(title), headings.partition("\n")[0], file, stem]
    return {words(name) for name in names}


def _hits(
    connection: sqlite3.Connection, pages: Sequence[int], scores: dict[int, float], units: tuple[Unit, ...]
) -> tuple[Hit, ...]:
    rows = _rows(connection, "id, url, path, title, headings, description, body, lang", pages)
    return tuple(_hit(*rows[page], score=scores.get(page, 0.0), units=units) for page in pages)


def _hit(*columns: str, score: float, units: tuple[Unit, ...]) -> Hit:
    url, path, title, headings, description, body, lang = columns
    return Hit(
        url=url,
        path=path,
        title=title,
        snippet=best_snippet((description, body), units),
        headings=tuple(line for line in headings.splitlines() if best_snippet((line,), units).marks),
        lang=lang,
        score=score,
    )


def _rows(connection: sqlite3.Connection, columns: str, pages: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """Return the columns after `id` of each page."""
    marks = ", ".join("?" * len(pages))
    found = connection.execute(f"SELECT {columns} FROM pages WHERE id IN ({marks})", tuple(pages))  # noqa: S608 (ours)
    return {row[0]: row[1:] for row in found}
