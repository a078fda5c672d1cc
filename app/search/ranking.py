"""Rank the pages of a pack that match a query: by bm25, by the stems in their names, and by the links to them."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from app.search import pack_tables
from app.search.contract import MAX_HITS
from app.search.query import Phrase, Query
from app.search.retrieval import Matches, RankingScope, best_first, number_of_matches, ranked_matches
from app.search.stems import Stems

#: Fields of a page, and their weights, in the order of the columns of `pages_fts`: see app/pack/schema.sql. Forms of
#: names are `names`, and those of other words have the smaller weight of `body`.
_WEIGHTS = (
    ("title", 10.0), ("headings", 5.0), ("anchors", 5.0), ("description", 3.0), ("names", 4.0), ("body", 0.4),
    ("body", 1.0),
)  # fmt: skip
#: The same of the names of pages, in `name_stems`.
_NAME_WEIGHTS = (("title", 2.0), ("headings", 1.0), ("anchors", 2.0))
#: Pages with all words below which pages with some of them are ranked, too.
_ENOUGH = 10
#: The factor of pages with all words beside pages with some of them.
COMPLETE_FACTOR = 2.0
#: What links add to a score at most, as a share of it. A page is navigation if more than this share of all pages lead
#: to it.
MAX_LINK_SHARE = 0.6
_NAVIGATION = 0.6

_NAME_STEM_SCORES = "SELECT rowid, rank FROM name_stems WHERE name_stems MATCH ? AND rank MATCH ?"
_NAME_STEM_SCORES_OF = f"{_NAME_STEM_SCORES} AND +rowid IN (SELECT value FROM json_each(?))"  # noqa: S608 (ours)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Scores by page id, best first. `phrases` are what matched: all of the query, or its words if `relaxed`.

    `complete` are the pages with all of the query; if they are few, pages with some of its words follow. Facets count
    `counted`, of which each stands for `factor` pages. `total` is the number of matches, an estimate if it is
    `estimated`.
    """

    scores: dict[int, float]
    phrases: tuple[Phrase, ...]
    complete: Collection[int] = ()
    counted: Collection[int] = ()
    factor: float = 1.0
    total: int = 0
    estimated: bool = False
    relaxed: bool = False


def rank(
    connection: sqlite3.Connection,
    query: Query,
    scope: RankingScope,
    *,
    stems: Stems,
    factors: Mapping[str, float],
) -> Ranking:
    """Rank the pages that match the query; if no page does, those with at least one of its words.

    Unless the scope has a choice, few pages are followed by those that match a part of the query. So are pages that
    match a whole question: its answer may have other words. `factors` of the fields change their weights. `stems` are
    those of the query.
    """
    weights = bm25(factors)
    found = ranked_matches(connection, query.match, scope, weights, named=stems.all_in_names(query.phrases))
    scores, complete, counted, alone = found.scores, found.read, found, query.phrases_alone
    if not complete and len(query.relaxed_terms) > 1:
        found = _ranked_any(connection, query, query.relaxed_terms, scope, weights)
        scores, counted = found.scores, found
    elif len(alone) > 1 and scope.choice is None and (len(complete) < _ENOUGH or query.is_sentence):
        found = _ranked_any(connection, query, alone, scope, weights)
        boosted = {page: COMPLETE_FACTOR * found.scores.get(page, score) for page, score in scores.items()}
        scores = best_first(found.scores | boosted)
    relaxed = bool(counted.read) and not complete
    name_weights = bm25(factors, _NAME_WEIGHTS)
    scores = _add_name_scores(connection, stems, scores, name_weights, scope)
    phrases = query.relaxed_terms if relaxed else query.phrases
    return Ranking(scores, phrases, complete, counted.read, counted.factor, found.total, found.estimated, relaxed)


def _ranked_any(
    connection: sqlite3.Connection, query: Query, phrases: Sequence[Phrase], scope: RankingScope, weights: str
) -> Matches:
    """Rank the pages with at least one of the phrases; if they are too many, those with one of the rarest ones.

    Without a rare phrase, no page has a high score.
    """
    every = query.any_of(phrases)
    if scope.is_small or pack_tables.count_matches(connection, every, most=MAX_HITS + 1) <= MAX_HITS:
        return ranked_matches(connection, every, scope, weights)
    docs = {each: pack_tables.count_matches(connection, each.match, most=MAX_HITS + 1) for each in phrases}
    by_rarity = sorted((each for each in docs if docs[each]), key=docs.__getitem__)
    sums = accumulate(map(docs.__getitem__, by_rarity))
    rarest = [each for each, sum_of_docs in zip(by_rarity, sums, strict=True) if sum_of_docs <= MAX_HITS]
    rarest = rarest or by_rarity[:1]
    either = " OR ".join(each.match for each in rarest)
    others = " OR ".join(each.match for each in by_rarity if each not in rarest)
    # FTS5 reads the frequent ones only where a rare one is.
    match = f"{either} OR (({either}) AND ({others}))" if others else either
    found = ranked_matches(connection, query.excluding(match), scope, weights)
    if scope.choice is not None or not found.scores:
        # The choice may return none of the pages with a rare phrase, or all of them are hidden.
        chosen = ranked_matches(connection, every, scope, weights)
        return replace(chosen, scores=best_first(chosen.scores | found.scores))
    total = number_of_matches(connection, every, scope)
    read = pack_tables.first_matches(connection, every, hidden=scope.hidden, limit=MAX_HITS)
    return replace(found, total=total, estimated=True, read=read, factor=max(1.0, total / max(1, len(read))))


def bm25(factors: Mapping[str, float], weights: Sequence[tuple[str, float]] = _WEIGHTS) -> str:
    """Return FTS5's ranking function with the weights of columns, each multiplied by the factor of its field."""
    return f"bm25({', '.join(f'{weight * factors.get(field, 1.0):.6g}' for field, weight in weights)})"


def _add_name_scores(
    connection: sqlite3.Connection, stems: Stems, scores: dict[int, float], weights: str, scope: RankingScope
) -> dict[int, float]:
    """Return the scores plus those of the stems in each page's names alone, best first.

    bm25 divides by the length of the whole page, so on a long page a match in the title would hardly count.
    """
    if not scores or not stems.in_names:
        return scores
    if scope.is_small:
        found = connection.execute(_NAME_STEM_SCORES, (stems.in_names, weights))
    else:
        found = connection.execute(_NAME_STEM_SCORES_OF, (stems.in_names, weights, json.dumps([*scores])))
    boosted = {page: scores[page] - score for page, score in found.fetchall() if page in scores}
    if not boosted:
        return scores
    return best_first(scores | boosted)


def boosted_by_links(scores: dict[int, float], inlinks: Sequence[int], *, pages: int) -> dict[int, float]:
    """Return the scores, each with a factor by the number of pages that lead to its page, best first.

    `inlinks` has that number by row id, for a pack with `pages` pages.
    """
    most = _NAVIGATION * pages
    scale = MAX_LINK_SHARE / math.log1p(most) if most else 0.0

    def factor(number: int) -> float:
        return 1 + scale * math.log1p(number) if 0 < number <= most else 1.0

    # Pages share few numbers, and a logarithm takes longer than a look-up.
    factors = {number: factor(number) for number in set(map(inlinks.__getitem__, scores))}
    return best_first({page: score * factors[inlinks[page]] for page, score in scores.items()})
