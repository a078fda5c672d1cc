"""Promote pages to the top of a ranking: those that the query names, and those with all its words adjacent."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from app.search import pack_tables
from app.search.contract import MAX_HITS
from app.search.pack_tables import cut
from app.search.query import Phrase, Query
from app.search.ranking import Ranking
from app.search.retrieval import RankingScope, best_first
from app.text.titles import NUMBERING, SEPARATOR
from app.text.variants import symbols_in
from app.text.words import words

#: Names compared with the query, and pages promoted at most. Phrase matches are promoted if there are no more than
#: that: a phrase that many pages contain does not tell them apart.
_NAME_CANDIDATES = 100
_MAX_PROMOTED = 3
#: Typed words, or names such as `--no-ff`, from which a phrase match is promoted. Fewer may be adjacent by chance:
#: then the score gets a factor instead.
_LONG_PHRASE = 4
_ADJACENT_FACTOR = 2.0
#: Share of the gap between the best ordinary score and the bound that the promoted scores use, at either end.
_PROMOTION_BAND = 0.1

#: Of the rows in order of quality, and of the others.
_BEST_NAMES = """
SELECT rowid FROM (
    SELECT * FROM (SELECT rowid, rank FROM names WHERE names MATCH ?1 AND rowid <= ?2 LIMIT ?3)
    UNION ALL
    SELECT * FROM (SELECT rowid, rank FROM names WHERE names MATCH ?1 AND rowid > ?2 LIMIT ?3)
) ORDER BY rank LIMIT ?4
"""
#: What has a page's names: none is longer than a query, which has 255 characters.
_NAME_COLUMNS = f"""id, {cut("title", 1_000)}, {cut("headings", 1_000)}, {cut("path", 4_000)},
    {cut("anchors", 10_000)}"""
_NUMBERING_OF_LINES = re.compile(NUMBERING.pattern, re.MULTILINE)
#: A word between two names, where many names are compared at once.
_BETWEEN = "qzq"


@dataclass(frozen=True, slots=True)
class Promoted:
    """Pages to show first, best first: those whose name is the query, then those with all its words adjacent.

    `boosted` are pages with all words of a short query adjacent, whose score is boosted.
    """

    by_name: Sequence[int]
    by_phrase: Sequence[int] = ()
    boosted: Sequence[int] = ()


def promoted_pages(
    connection: sqlite3.Connection,
    query: Query,
    ranking: Ranking,
    scope: RankingScope,
    *,
    defining: Collection[int] = (),
) -> Promoted:
    """Return the pages of a ranking to promote. Those `defining` the name that the query is come first."""
    bounds = (Phrase(query.typed).match, scope.ordered, MAX_HITS, _NAME_CANDIDATES)
    candidates = [page for (page,) in connection.execute(_BEST_NAMES, bounds)]
    ranked = [page for page in candidates if page in ranking.scores]
    rows = {page: names for page, *names in pack_tables.read_rows(connection, _NAME_COLUMNS, ranked)}
    typed = words(" ".join(query.typed))
    symbols = tuple(phrase.symbol for phrase in query.phrases if phrase.symbol)

    named = [page for page in candidates if page in rows and _has_name(*rows[page], typed=typed, symbols=symbols)]
    by_name = list(dict.fromkeys((*defining, *named)))[:_MAX_PROMOTED]
    if query.phrase_match is None:
        return Promoted(by_name)
    adjacent = pack_tables.first_matches(
        connection,
        query.phrase_match,
        hidden=scope.hidden,
        limit=_MAX_PROMOTED + 1,
        last=max(ranking.scores, default=0),
    )
    if len(adjacent) > _MAX_PROMOTED:
        return Promoted(by_name)
    others = [page for page in adjacent if page not in by_name and page in ranking.scores]
    stop_words = len(query.typed) - len(query.words)
    if len(query.phrases) + stop_words < _LONG_PHRASE:
        return Promoted(by_name, boosted=others)
    return Promoted(by_name, sorted(others, key=ranking.scores.__getitem__, reverse=True))


def promote(promoted: Promoted, scores: dict[int, float], *, bound: float) -> dict[int, float]:
    """Return the scores with promoted pages first: those by name just below the bound, by phrase just above the rest.

    The scores of `boosted` pages are boosted before. Across several packs, a page with the query as its name then ranks
    above pages that only mention it.
    """
    if promoted.boosted:
        # With synonyms, scores may be above the bound until `bounded` cuts them.
        boosted = {page: min(max(bound, scores[page]), _ADJACENT_FACTOR * scores[page]) for page in promoted.boosted}
        scores = best_first(scores | boosted)
    best = next((score for page, score in scores.items() if page not in promoted.by_name), 0.0)
    top = max(bound, best)
    step = _PROMOTION_BAND * (top - best) / (len(promoted.by_name) + len(promoted.by_phrase) + 1)
    ordered = dict.fromkeys([*promoted.by_name, *promoted.by_phrase], 0.0) | scores
    ordered.update((page, top - step * (at + 1)) for at, page in enumerate(promoted.by_name))
    ordered.update((page, best + step * (at + 1)) for at, page in enumerate(reversed(promoted.by_phrase)))
    return ordered


def _has_name(
    title: str, headings: str, path: str, anchors: str, *, typed: Sequence[str], symbols: Sequence[str]
) -> bool:
    """Return whether a name of a page has the typed words only, with the signs of names such as `C++`.

    `os` is a name for the title "os - Miscellaneous", and for /library/os.html and /os/; so is what links call a page.
    """
    segments = [segment for segment in unquote(path.partition("?")[0]).split("/") if segment]
    if segments and segments[-1].partition(".")[0] in {"index", "default"}:
        segments.pop()
    file = segments[-1] if segments else ""
    stem = file.rpartition(".")[0]
    names = {title, *SEPARATOR.split(title), headings.partition("\n")[0], file, stem, *anchors.splitlines()}
    # To search all names at once for these words is much faster than to compare each.
    lines = "\n".join(names)
    without_numbers = _NUMBERING_OF_LINES.sub("", lines)
    different = {lines, without_numbers}  # Mostly one text.
    both = "\n".join(("", *different, "")).replace("\n", f" {_BETWEEN} ")
    if f" {_BETWEEN} {' '.join(typed)} {_BETWEEN} " not in f" {' '.join(words(both))} ":
        return False
    alternatives = names | {NUMBERING.sub("", name) for name in names}
    return any(words(name) == typed and symbols_in(name) == symbols for name in alternatives)
