"""The score that no page of a pack exceeds for a query. As shares of it, scores of several packs can be compared."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

from app.search import pack_tables, passages, title_match
from app.search.query import Phrase
from app.search.ranking import COMPLETE_FACTOR, MAX_LINK_SHARE, Ranking
from app.search.stems import Stems
from app.text.words import words

#: Upper bound of bm25's term frequency factor, k1 + 1. FTS5 has k1 = 1.2
#: (https://sqlite.org/fts5.html#the_bm25_function).
_SATURATION = 2.2
#: FTS5's inverse document frequency for a word on more than half of the pages.
_MIN_IDF = 1e-6


def score_bound(connection: sqlite3.Connection, ranking: Ranking, *, pages: int, stems: Stems) -> float:
    """Return a score that no page exceeds, in a pack with `pages` rows: every word with its maximum frequency.

    Synonyms do not raise it, so that a site with many is not ranked below others; `bounded` cuts the scores to it.
    """
    factors = COMPLETE_FACTOR * (1 + MAX_LINK_SHARE) * (1 + title_match.MAX_SHARE)
    if stems.in_passages:
        factors *= 1 + passages.MAX_SHARE
    return factors * _SATURATION * sum(_phrase_bound(connection, phrase, pages, stems) for phrase in ranking.phrases)


def bounded(scores: dict[int, float], phrases: Iterable[Phrase], *, bound: float) -> dict[int, float]:
    """Return the scores, in the same order, none above the bound: pages may have a word and its synonyms."""
    if not any(phrase.synonyms for phrase in phrases):
        return scores
    return {page: min(score, bound) for page, score in scores.items()}


def _phrase_bound(connection: sqlite3.Connection, phrase: Phrase, pages: int, stems: Stems) -> float:
    """Return the bound of one phrase, or that of its strongest synonym if only synonyms are in the pack."""
    if phrase.synonyms:
        own = replace(phrase, synonyms=())
        alternatives = [each for each in (own, *phrase.synonyms) if pack_tables.count_matches(connection, each.match)]
        if own in alternatives or not alternatives:
            return _phrase_bound(connection, own, pages, stems)
        return max(_phrase_bound(connection, each, pages, stems) for each in alternatives)
    if len(phrase.words) == 1:
        (word,) = words(phrase.words[0])
        exact = pack_tables.doc_frequency(connection, word)
        with_prefix = pack_tables.max_doc_frequency(connection, word) if phrase.prefix else 0
    else:
        exact = with_prefix = pack_tables.count_matches(connection, Phrase(phrase.words).match)
    idf = _idf(exact, pages)
    bound = idf + _idf(max(exact, with_prefix), pages) if phrase.prefix else idf
    for word in (*chain.from_iterable(phrase.forms), phrase.symbol):
        # The vocabulary has no stems: a word on no page would have the highest weight.
        bound += _idf(pack_tables.count_matches(connection, Phrase((word,)).match), pages) if word else 0.0
    in_names = (pack_tables.count_matches(connection, match, table="name_stems") for match in stems.of(phrase))
    return bound + sum(_idf(docs, pages) for docs in in_names)


def _idf(docs: int, pages: int) -> float:
    """Return FTS5's inverse document frequency of a word or phrase on `docs` of `pages` pages."""
    return max(math.log((pages - docs + 0.5) / (docs + 0.5)) if docs < pages else 0.0, _MIN_IDF)
