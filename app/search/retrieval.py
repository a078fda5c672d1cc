"""Choose which matches of a query are ranked: all up to a bound, and else the best ones by what no query changes.

A full pack numbers its pages in order of quality, so the first matches are the best ones in this respect. FTS5 reads
matches in order of row id, and ranking one takes twenty times as long as reading its id.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final, TypeAlias

from app.search import pack_tables
from app.search.contract import MAX_HITS
from app.search.query import Query
from app.text.words import words

#: Matches up to which the number is exact. Filters, dates and names choose among as many.
MAX_COUNTED: Final = 20_000
#: Pages that are ranked for their names, although many pages of higher quality match, and names that are compared.
_NAMED: Final = 200
_COMPARED_NAMES: Final = 2_000
#: Digits of an estimated number that are not 0.
_DIGITS: Final = 2
_LAST_ROW: Final = 2**62
#: Words that an unfinished one stands for, where all that it begins are on too many pages.
_COMPLETIONS: Final = 8

_COUNT: Final = """
SELECT count(*), max(rowid) FROM (
    SELECT rowid FROM pages_fts WHERE pages_fts MATCH ? AND rowid BETWEEN ? AND ? LIMIT ?
)
"""
_IDS: Final = "SELECT rowid FROM pages_fts WHERE pages_fts MATCH ? AND rowid BETWEEN ? AND ? LIMIT ?"
_AFTER: Final = "SELECT rowid FROM pages_fts WHERE pages_fts MATCH ? AND rowid BETWEEN ? AND ? LIMIT 1 OFFSET ?"
_RANKED: Final = """
SELECT rowid, rank FROM pages_fts WHERE pages_fts MATCH ? AND rank MATCH ? AND rowid BETWEEN ? AND ?
"""
_RANKED_OF: Final = f"{_RANKED} AND (+rowid < ? OR +rowid IN (SELECT value FROM json_each(?)))"  # noqa: S608 (ours)
_BEST_NAMED: Final = """
SELECT rowid FROM (
    SELECT rowid, rank FROM name_stems WHERE name_stems MATCH ? AND rowid BETWEEN ? AND ? LIMIT ?
) ORDER BY rank LIMIT ?
"""

#: Chooses among row ids of matches: returns those that pass all filters, in the order in which they are wanted.
ChooseMatches: TypeAlias = Callable[[Sequence[int]], Sequence[int]]


@dataclass(frozen=True, slots=True)
class RankingScope:
    """What a search ranks in a pack of `pages` pages with row ids up to `last`: what `choice` returns, or all (None).

    Rows up to the id `ordered` are in order of quality. The later ones, of incremental packs, are ranked beside them.
    `hidden` are the pages that are no hits, and `visible` is the share of the others.
    """

    pages: int
    ordered: int
    last: int
    hidden: Container[int] = frozenset()
    visible: float = 1.0
    choice: ChooseMatches | None = None

    @property
    def is_small(self) -> bool:
        """Whether all matches are ranked, however many they are."""
        return self.pages <= MAX_HITS

    @property
    def parts(self) -> tuple[range, ...]:
        """Row ids in order of quality, and the others; or all of a small pack."""
        if self.is_small:
            return (range(-_LAST_ROW, _LAST_ROW),)
        parts = (range(1, self.ordered + 1), range(self.ordered + 1, self.last + 1))
        return tuple(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Matches:
    """Scores of the ranked matches by page, best first; and the number of all, an estimate if they are more.

    `read` are the matches by which facets are counted, in any order: a choice is ranked alone. Each stands for `factor`
    matches.
    """

    scores: dict[int, float]
    total: int
    estimated: bool
    read: Collection[int]
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class _Part:
    """What is ranked of some rows: all matches (`below` None), or those before the id `below` and those of `ids`.

    `matching` are all visible ones, and `total` those that the choice returns of them.
    """

    rows: range
    matching: int = 0
    total: int = 0
    below: int | None = None
    ids: Sequence[int] = ()
    read: Sequence[int] = ()
    estimated: bool = False


def without_frequent_prefix(connection: sqlite3.Connection, query: Query, scope: RankingScope) -> Query:
    """Return the query, without words of many pages that its last one begins: FTS5 reads them all.

    A last word that many pages have is complete. Another one stands for the most frequent words that it begins.
    """
    *others, last = query.phrases
    if scope.is_small or not last.prefix:
        return query
    (*_, word) = words(last.words[-1]) or ("",)
    if pack_tables.doc_frequency(connection, word) > MAX_HITS:
        return replace(query, phrases=(*others, replace(last, prefix=False)))
    if len(last.words) > 1 or pack_tables.max_doc_frequency(connection, word) <= MAX_HITS:
        return query
    completed = tuple((each,) for each, _ in pack_tables.completions(connection, word, limit=_COMPLETIONS))
    forms = tuple(dict.fromkeys((*last.forms, *completed)))
    return replace(query, phrases=(*others, replace(last, prefix=False, forms=forms, stems=(*last.stems, word))))


def ranked_matches(
    connection: sqlite3.Connection, match: str, scope: RankingScope, weights: str, *, named: str = ""
) -> Matches:
    """Rank the pages that match an FTS5 expression by bm25 with these weights.

    `named` is an expression of stems: of the matches that are left out for their quality, those whose names match it
    best are ranked, too.
    """
    parts = [_part(connection, match, scope, rows, named) for rows in scope.parts]
    scores: dict[int, float] = {}
    for part in parts:
        first, last = part.rows.start, part.rows[-1]
        if part.below is None:
            ranks = connection.execute(_RANKED, (match, weights, first, last))
        elif (last := max([part.below - 1, *part.ids])) >= first:
            ranks = connection.execute(_RANKED_OF, (match, weights, first, last, part.below, json.dumps(part.ids)))
        else:
            continue
        # FTS5's rank is negative, and less is better. Equal ranks stay in order of row id.
        scores |= {page: -rank for page, rank in ranks if page not in scope.hidden}
    scores = best_first(scores)
    read = frozenset(page for part in parts for page in part.read) or scores
    if not any(part.estimated for part in parts):
        return Matches(scores, len(scores), estimated=False, read=read)
    total, matching = (sum(getattr(part, name) for part in parts) for name in ("total", "matching"))
    return Matches(scores, rounded(total), estimated=True, read=read, factor=max(1.0, matching / max(1, len(read))))


def number_of_matches(connection: sqlite3.Connection, match: str, scope: RankingScope) -> int:
    """Return an estimate of the number of visible pages that match."""
    return rounded(sum(_counted(connection, match, scope, rows)[1] for rows in scope.parts))


def best_first(scores: dict[int, float]) -> dict[int, float]:
    """Return scores by page, best first. Equal ones keep their order."""
    return dict(sorted(scores.items(), key=itemgetter(1), reverse=True))


def rounded(number: float) -> int:
    """Return a number with two digits that are not 0."""
    whole = round(number)
    return round(whole, _DIGITS - len(str(whole)))


def _part(connection: sqlite3.Connection, match: str, scope: RankingScope, rows: range, named: str) -> _Part:
    """Return what is ranked of the rows: the first matches, and those with the best names among the ones after them.

    With a choice, it is what the choice returns among the first matches.
    """
    if scope.is_small:
        return _Part(rows)
    if scope.choice is not None:
        found = [page for (page,) in connection.execute(_IDS, (match, rows.start, rows[-1], MAX_COUNTED))]
        read = [page for page in found if page not in scope.hidden]
        chosen = scope.choice(read)
        are_all = len(found) < MAX_COUNTED
        # Else the rest of the rows has as many for each row. Of the ordered rows, hidden ones come last: few were read.
        visible = (scope.visible if rows.start == 1 else 1.0) * len(rows)
        share = 1.0 if are_all else max(1.0, visible / (found[-1] - rows.start + 1))
        ids = chosen[:MAX_HITS]
        estimated = not are_all or len(ids) < len(chosen)
        return _Part(rows, round(share * len(read)), round(share * len(chosen)), rows.start, ids, read, estimated)
    counted, total, furthest = _counted(connection, match, scope, rows)
    if counted <= MAX_HITS:
        return _Part(rows, total, total)
    (below,) = connection.execute(_AFTER, (match, rows.start, rows[-1], MAX_HITS)).fetchone()
    best = connection.execute(_BEST_NAMED, (named, below, furthest, _COMPARED_NAMES, _NAMED)) if named else ()
    return _Part(rows, total, total, below, [page for (page,) in best], estimated=True)


def _counted(connection: sqlite3.Connection, match: str, scope: RankingScope, rows: range) -> tuple[int, int, int]:
    """Return the number of matches up to a bound, an estimate of all visible ones, and the last id that was counted."""
    counted, furthest = connection.execute(_COUNT, (match, rows.start, rows[-1], MAX_COUNTED)).fetchone()
    share = len(rows) / (furthest - rows.start + 1) if counted == MAX_COUNTED else 1.0
    return counted, round(scope.visible * share * counted), furthest or 0
