"""Boost pages with a passage that has many of the query's words, in any of their forms."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from itertools import islice
from typing import Final

from app.search.contract import MAX_HITS
from app.search.retrieval import RankingScope, best_first
from app.search.stems import PassageStem, Stems

#: What the best passage adds to a score, as a share of it.
MAX_SHARE: Final = 2.0
#: Passages that are looked at, the best ones; and pages, if passages of too many have a word.
_COMPARED: Final = 500
_BEST_PAGES: Final = 200
#: A rowid is the page's id and the passage's number, which has this number of bits (app/pack/indexes.py).
_NUMBER_BITS: Final = 12

_BEST: Final = "SELECT rowid, rank FROM passages WHERE passages MATCH ? ORDER BY +rank LIMIT ?"
_OF_PAGES: Final = f"""
SELECT passages.rowid FROM json_each(?) AS page CROSS JOIN passages
WHERE passages MATCH ?
AND passages.rowid BETWEEN page.value << {_NUMBER_BITS} AND (page.value + 1 << {_NUMBER_BITS}) - 1
"""  # noqa: S608 (ours)


def boosted(
    connection: sqlite3.Connection, stems: Stems, scores: dict[int, float], scope: RankingScope
) -> dict[int, float]:
    """Return the scores, best first: those of pages boosted by their best passage, compared with the best of all.

    Passages with a word and its synonyms must not make those with the typed words look poor. In a large
    pack, if very many pages have the words, only passages of the best pages are compared, by the words that they have.
    """
    if not scores or not stems.in_passages:
        return scores
    if not scope.is_small and sum(stem.docs for stem in stems.passage_stems) > MAX_HITS:
        best, most = _best_of(connection, stems.passage_stems, tuple(islice(scores, _BEST_PAGES)), pages=scope.pages)
    else:
        best = _best(connection, stems.in_passages, scores)
        typed = _best(connection, stems.typed_in_passages, scores) if stems.typed_in_passages else {}
        most = max((typed or best).values(), default=0.0)
    if most <= 0:
        return scores
    changed = {page: scores[page] * (1 + MAX_SHARE * min(1.0, score / most)) for page, score in best.items()}
    return best_first(scores | changed)


def _best(connection: sqlite3.Connection, match: str, scores: Container[int]) -> dict[int, float]:
    """Return the score of each page's best passage."""
    best: dict[int, float] = {}
    for passage, rank in connection.execute(_BEST, (match, _COMPARED)):
        if (page := passage >> _NUMBER_BITS) in scores:
            best.setdefault(page, -rank)
    return best


def _best_of(
    connection: sqlite3.Connection, stems: Iterable[PassageStem], best_pages: Sequence[int], *, pages: int
) -> tuple[dict[int, float], float]:
    """Return the score of the best passage of each of these pages, and the best score by typed words alone.

    A word counts once, with its rarity: FTS5 cannot rank some passages without counting all that have a word.
    """
    wanted = json.dumps(best_pages)
    scores: dict[int, float] = defaultdict(float)
    by_typed: dict[int, float] = defaultdict(float)
    for stem in stems:
        weight = max(0.0, math.log((pages + 1) / (stem.docs + 1)))
        for (passage,) in connection.execute(_OF_PAGES, (wanted, stem.match)):
            scores[passage] += weight
            by_typed[passage] += weight if stem.typed else 0.0
    best: dict[int, float] = {}
    for passage, score in scores.items():
        page = passage >> _NUMBER_BITS
        best[page] = max(score, best.get(page, 0.0))
    return best, max(by_typed.values(), default=0.0)
