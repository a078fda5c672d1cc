"""Search for the last word of a query as it is, or for the most frequent words that it begins, in a large pack."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from typing import Final

from app.search import pack_tables
from app.search.contract import MAX_HITS
from app.search.query import Query
from app.search.retrieval import RankingScope
from app.text.words import words

#: Words that an unfinished one stands for, where all that it begins are on too many pages.
_COMPLETIONS: Final = 8


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
