"""Which pages of a pack match a query, in which order, and what a perfect match would score."""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from urllib.parse import unquote

from app.search import vocabulary
from app.search.query import Query, Unit
from app.search.tokens import words

#: Weights of title, headings, description and body.
WEIGHTS = "bm25(10.0, 5.0, 3.0, 1.0)"
#: FTS5's bm25 has k1 = 1.2: however often a word stands on a page, its weight counts less than k1 + 1 times
#: (https://sqlite.org/fts5.html#the_bm25_function).
_SATURATION = 2.2
#: What FTS5 takes for the weight of a word that stands on more than half of all pages.
_LEAST_WEIGHT = 1e-6
#: Candidates looked at for a page whose name is the query, and how many of such come first. Pages with the whole query
#: side by side do where there are no more than so many: what stands on many pages tells none of them apart.
_NAME_CANDIDATES = 100
_LEADERS = 3
#: The part of the way from the best of the other pages to the ideal on which the scores of those lie, at either end.
_LEAD = 0.1

_RANKED = "SELECT rowid, rank FROM pages_fts WHERE pages_fts MATCH ? AND rank MATCH ? ORDER BY +rank LIMIT ?"
_MATCHING = "SELECT rowid FROM pages_fts WHERE pages_fts MATCH ?"
_CALLED_SO = "SELECT rowid, rank FROM names WHERE names MATCH ?"
_CALLED = "SELECT rowid FROM names WHERE names MATCH ? ORDER BY rank LIMIT ?"
_COUNTED = "SELECT count(*) FROM pages_fts WHERE pages_fts MATCH ?"
_COUNTED_NAMES = "SELECT count(*) FROM names WHERE names MATCH ?"
#: Numbers of sections and chapters are no part of what people type.
NUMBERING = re.compile(r"^(?:(?:Chapter|Part|Appendix)\s+)?(?:\d+|[A-Z])(?:\.\d+)*\.\s+")
_TITLE_SEPARATOR = re.compile(r"\s+[|–—·:-]\s+|:\s+")


@dataclass(frozen=True, slots=True)
class Ranking:
    """Scores of pages by id, best first; `units` are what was looked for, all of it or, `relaxed`, some."""

    scores: dict[int, float]
    units: tuple[Unit, ...]
    capped: bool = False
    relaxed: bool = False


def rank(connection: sqlite3.Connection, query: Query, *, hidden: Collection[int], limit: int | None) -> Ranking:
    """Rank the pages with all that was asked for; where there are none, those with some of the words.

    Pages whose id is `hidden` are left out; `limit` None: of the others, none.
    """
    scores, capped = _scores(connection, query.match, hidden, limit)
    if scores or query.loose_match is None:
        return Ranking(_named_higher(connection, query, scores), query.units, capped)
    scores, capped = _scores(connection, query.loose_match, hidden, limit)
    return Ranking(_named_higher(connection, query, scores), query.loose_units, capped, relaxed=bool(scores))


def _named_higher(connection: sqlite3.Connection, query: Query, scores: dict[int, float]) -> dict[int, float]:
    """Return the scores, each with what its page's title and headings score by themselves; best first.

    Within a page, FTS5 measures every word by the length of the whole: of a long page, the title would hardly count.
    """
    if not scores:
        return scores
    named = connection.execute(_CALLED_SO, (query.any_match,)).fetchall()
    raised = {page: scores[page] - score for page, score in named if page in scores}
    if not raised:
        return scores
    return dict(sorted((scores | raised).items(), key=itemgetter(1), reverse=True))


def count(connection: sqlite3.Connection, match: str, *, hidden: Collection[int], limit: int) -> int:
    """Return how many pages match an FTS5 expression, counted up to a limit."""
    return len(_first_matches(connection, match, hidden=hidden, limit=limit))


def _first_matches(connection: sqlite3.Connection, match: str, *, hidden: Collection[int], limit: int) -> list[int]:
    """Return pages that match, so many at most and in no telling order, without a look at the others."""
    rows = connection.execute(_MATCHING, (match,))
    found = list(islice((page for (page,) in rows if page not in hidden), limit))
    rows.close()
    return found


def _scores(
    connection: sqlite3.Connection, match: str, hidden: Collection[int], limit: int | None
) -> tuple[dict[int, float], bool]:
    # Every match is ranked whatever the LIMIT: the rest costs little, and gives the total as well. The plus has SQLite
    # sort, in the same order: ORDER BY rank is FTS5's own sort, with which the query takes half as long again.
    most = -1 if limit is None else limit + 1 + len(hidden)
    rows = connection.execute(_RANKED, (match, WEIGHTS, most)).fetchall()
    seen = {page: -score for page, score in rows if page not in hidden}
    if limit is None or len(seen) <= limit:
        return seen, False
    return dict(islice(seen.items(), limit)), True


# Pages that come first


@dataclass(frozen=True, slots=True)
class Leaders:
    """The pages that come first whatever their rank: `named` as the query, then those with all of it side by side."""

    named: Sequence[int]
    side_by_side: Sequence[int] = ()


def leaders(connection: sqlite3.Connection, query: Query, found: Ranking, *, hidden: Collection[int]) -> Leaders:
    """Return the pages that come first."""
    candidates = [page for (page,) in connection.execute(_CALLED, (query.name_match, _NAME_CANDIDATES))]
    matching = [page for page in candidates if page in found.scores]
    named = _named(connection, matching, words(" ".join(query.words)))[:_LEADERS]
    if query.phrase_match is None:
        return Leaders(named)
    side_by_side = _first_matches(connection, query.phrase_match, hidden=hidden, limit=_LEADERS + 1)
    if len(side_by_side) > _LEADERS:
        return Leaders(named)
    telling = [page for page in side_by_side if page not in named and page in found.scores]
    return Leaders(named, sorted(telling, key=found.scores.__getitem__, reverse=True))


def put_first(first: Leaders, scores: dict[int, float], *, ideal: float) -> dict[int, float]:
    """Return scores with these pages first: of named ones just below the ideal, of the others just above the rest.

    Where several packs are searched, what one of them calls by the query so stands before what others only mention.
    """
    best = next((score for page, score in scores.items() if page not in first.named), 0.0)
    top = max(ideal, best)
    step = _LEAD * (top - best) / (len(first.named) + len(first.side_by_side) + 1)
    ordered = dict.fromkeys([*first.named, *first.side_by_side], 0.0) | scores
    ordered.update((page, top - step * (at + 1)) for at, page in enumerate(first.named))
    ordered.update((page, best + step * (at + 1)) for at, page in enumerate(reversed(first.side_by_side)))
    return ordered


def _named(connection: sqlite3.Connection, candidates: Sequence[int], name: tuple[str, ...]) -> list[int]:
    """Return those of the candidates whose title, a part of it, first heading or file name is `name`."""
    rows = read_rows(connection, "id, title, headings, path", candidates)
    return [page for page in candidates if any(words(spelled) == name for spelled in _names(*rows[page]))]


def _names(title: str, headings: str, path: str) -> set[str]:
    """Return what a page may be called: `os` for "os - Miscellaneous" at /library/os.html, or at /os/."""
    trail = [part for part in unquote(path.partition("?")[0]).split("/") if part]
    if trail and trail[-1].partition(".")[0] in {"index", "default"}:
        trail.pop()
    file = trail[-1] if trail else ""
    stem = file.rpartition(".")[0]
    names = {title, *_TITLE_SEPARATOR.split(title), headings.partition("\n")[0], file, stem}
    return names | {NUMBERING.sub("", name) for name in names}


def read_rows(connection: sqlite3.Connection, columns: str, pages: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """Return the columns after `id` of each page."""
    marks = ", ".join("?" * len(pages))
    found = connection.execute(f"SELECT {columns} FROM pages WHERE id IN ({marks})", tuple(pages))  # noqa: S608 (ours)
    return {row[0]: row[1:] for row in found}


# What a perfect match would score


def ideal(connection: sqlite3.Connection, ranking: Ranking, *, pages: int) -> float:
    """Return a score that no page of a pack of so many rows exceeds: each word as often as it can count."""
    in_text = (_weight(connection, unit, pages) for unit in ranking.units)
    words_alone = (Unit((word,), unit.prefix) for unit in ranking.units for word in unit.words)
    in_names = (_weight_in_names(connection, unit, pages) for unit in words_alone)
    return _SATURATION * (sum(in_text) + sum(in_names))


def _weight(connection: sqlite3.Connection, unit: Unit, pages: int) -> float:
    """Return the most that FTS5's idf gives to the phrases of a unit: of a rarer one it is higher."""
    exact = _docs(connection, unit)
    if not unit.prefix:
        return _idf(exact, pages)
    begun = vocabulary.most_docs(connection, *words(unit.words[0])) if len(unit.words) == 1 else exact
    return _idf(exact, pages) + _idf(max(exact, begun), pages)


def _weight_in_names(connection: sqlite3.Connection, unit: Unit, pages: int) -> float:
    (docs,) = connection.execute(_COUNTED_NAMES, (Unit(unit.words).match,)).fetchone()
    # Beginnings are not counted: the words that begin so stand in as many names at least.
    return _idf(docs, pages) * (2 if unit.prefix else 1)


def _docs(connection: sqlite3.Connection, unit: Unit) -> int:
    if len(unit.words) == 1:
        return vocabulary.docs(connection, *words(unit.words[0]))
    (docs,) = connection.execute(_COUNTED, (Unit(unit.words).match,)).fetchone()
    return int(docs)


def _idf(docs: int, pages: int) -> float:
    return max(math.log((pages - docs + 0.5) / (docs + 0.5)) if docs < pages else 0.0, _LEAST_WEIGHT)
