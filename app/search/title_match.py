"""Boost pages whose title and query have the same rare words, or other forms of the same words."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final

from app.search import pack_tables
from app.search.query import Query
from app.search.retrieval import best_first
from app.text.titles import without_site_name
from app.text.variants import stems_of
from app.text.words import spans, words

#: What a title adds to a score at most, as a share of it.
MAX_SHARE: Final = 1.0
#: Pages whose titles are compared, the best ones.
_COMPARED: Final = 20
#: Titles whose words are remembered: at most 25 MB. Words whose stems are remembered.
_TITLES_IN_MEMORY: Final = 2_000
_WORDS_IN_MEMORY: Final = 20_000

_TITLES: Final = f"id, {pack_tables.cut('title', 300)}"


def boosted(
    connection: sqlite3.Connection,
    query: Query,
    scores: dict[int, float],
    *,
    pages: int,
    stemmers: Sequence[str],
    site: str,
) -> dict[int, float]:
    """Return the scores, best first: those of the best pages boosted by what their titles share with the query.

    A title that is the query gets `MAX_SHARE`; one without its words, or with many others, gets nothing or little.
    `stemmers` are the algorithms by which the query is stemmed, and `site` is the part that titles share.
    """
    best = tuple(islice(scores, _COMPARED))
    titles = pack_tables.read_rows(connection, _TITLES, best)
    in_titles = {page: _folded_words(without_site_name(title, site)) for page, title in titles}
    typed = _folded_words(" ".join(query.words))
    stems = {stem for phrase in query.phrases for stem in phrase.stems}
    algorithms = tuple(stemmers)
    same = {
        word: stem
        for text in ((typed, *in_titles.values()) if stems else ())
        for word, written in text.items()
        if (stem := next((each for each in _stems(written, algorithms) if each in stems), ""))
    }
    typed_forms = {same.get(word, word) for word in typed}
    in_titles = {
        page: title for page, title in in_titles.items() if any(same.get(word, word) in typed_forms for word in title)
    }
    if not in_titles:
        return scores
    different = set(typed).union(*in_titles.values())
    docs = pack_tables.doc_frequencies(connection, different)
    # A rarer word weighs more. A foreign pack may have one on more pages than it has.
    weights = {word: max(0.0, math.log((pages + 1) / (docs.get(word, 0) + 1))) for word in different}

    def share(text: Iterable[str], other: Iterable[str]) -> float:
        """Return the share of words that the other text has, too, in the weight of a text."""
        others = {same.get(word, word) for word in other}
        total = sum(weights[word] for word in text)
        return sum(weights[word] for word in text if same.get(word, word) in others) / total if total else 0.0

    factors = {
        page: 1 + MAX_SHARE * math.sqrt(share(typed, title) * share(title, typed)) for page, title in in_titles.items()
    }
    changed = {page: scores[page] * factor for page, factor in factors.items() if factor > 1}
    return best_first(scores | changed) if changed else scores


@lru_cache(maxsize=_TITLES_IN_MEMORY)
def _folded_words(title: str) -> Mapping[str, str]:
    """Return the words of a title as written, by the folded word."""
    written = (title[start:end] for start, end in spans(title))
    return {folded: word for word in written for folded in words(word)}


_stems = lru_cache(maxsize=_WORDS_IN_MEMORY)(stems_of)
