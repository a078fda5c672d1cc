"""Did you mean: respell rare words of a query, and offer the nearest query that finds more."""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from itertools import islice, product

from rapidfuzz.distance import OSA
from rapidfuzz.process import extract

from app.errors import InvalidQuery
from app.search import pack_tables
from app.search.query import MAX_CHARACTERS, Query, parse
from app.search.ranking import Ranking
from app.text.words import words

#: Hits from which a query is not respelled.
_ENOUGH_HITS = 3
#: A word is rare on at most this many pages, or on one page in this many.
_FEW_PAGES = 2
_ONE_IN = 1_000
#: A respelling must be on this many times the pages of the rare word.
_CLEARLY_MORE = 5
#: Words with at least this many characters may be two edits away; shorter ones than the second are not respelled.
_LONG = 6
_SHORTEST = 3
#: Rare words up to which a query is respelled. Each costs a scan of the vocabulary, and more are hardly typing errors.
_MAX_RARE = 3
#: One more edit needs e^4 = 55 times the pages to pay off.
_EDIT_COST = 4.0
#: Respellings tried of each word, and of the whole query.
_SPELLINGS = 3
_TRIALS = 9
#: Combinations of respelled words that are ordered before the trials.
_MAX_COMBINATIONS = 1_000
_DIGIT = re.compile(r"\d")
#: Hits of a respelled query that are counted at most.
_MAX_COUNTED = 200


@dataclass(frozen=True, slots=True)
class _Spelling:
    """A respelling: its similarity to the typed text, in logarithms of pages, and the pages that have it."""

    text: str
    similarity: float
    docs: int = 1

    @property
    def score(self) -> float:
        return self.similarity + math.log(self.docs)


def did_you_mean(
    connection: sqlite3.Connection, query: Query, ranking: Ranking, *, pages: int, hidden: Container[int]
) -> str:
    """Return a respelled query that finds more than this one did, if that was few pages; else an empty string.

    Quotes, exclusions and frequent words stay as typed. `pages` is the number of rows of the pack.
    """
    hits = len(ranking.complete)
    if hits >= _ENOUGH_HITS:
        return ""
    best = _Spelling("", -math.inf)
    try:
        for trial in islice(_respelled(connection, query, pages), _TRIALS):
            # Counting the whole query prefers words that occur together: "temporary directory", not "directly".
            match = parse(trial.text).match
            docs = len(pack_tables.first_matches(connection, match, hidden=hidden, limit=_MAX_COUNTED))
            if docs > hits:
                best = max(best, replace(trial, docs=docs), key=lambda spelling: spelling.score)
    except sqlite3.OperationalError as error:
        # The time limit: the hits are returned without a suggestion rather than not at all.
        if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_INTERRUPT:
            raise
    return best.text


def _respelled(connection: sqlite3.Connection, query: Query, pages: int) -> Iterator[_Spelling]:
    """Yield the query with respelled rare words, the best first."""
    rare: dict[int, int] = {}
    for at, typed in enumerate(query.words):
        word = "".join(words(typed))
        if len(word) >= _SHORTEST and not _DIGIT.search(word):
            is_prefix = query.prefix is not None and at == len(query.words) - 1
            frequency = pack_tables.max_doc_frequency if is_prefix else pack_tables.doc_frequency
            docs = frequency(connection, word)
            if docs <= max(_FEW_PAGES, pages // _ONE_IN):
                rare[at] = docs
    if len(rare) > _MAX_RARE:
        return
    by_word = {at: _spellings(connection, query.words[at], docs) for at, docs in rare.items()}
    spellings = {at: respellings for at, respellings in by_word.items() if respellings}
    combinations = islice(product(*spellings.values()), _MAX_COMBINATIONS)
    for combination in sorted(combinations, key=lambda chosen: -sum(spelling.score for spelling in chosen)):
        replacements = {at: spelling.text for at, spelling in zip(spellings, combination, strict=True)}
        text = query.with_words(replacements)
        if not replacements or len(text) > MAX_CHARACTERS:
            continue
        # A respelling may join the character beside it to a word, which would change the query's structure.
        added = sum(spelling.count(" ") for spelling in replacements.values())
        try:
            found = parse(text)
        except InvalidQuery:  # A word that is split may be one too many.
            continue
        if len(found.words) == len(query.words) + added:
            yield _Spelling(text, sum(spelling.similarity for spelling in combination))


def _spellings(connection: sqlite3.Connection, typed: str, docs: int) -> list[_Spelling]:
    """Return the best respellings of a rare word, as typed, that `docs` pages have."""
    word = "".join(words(typed))
    least = _CLEARLY_MORE * docs + 1
    # A word that some page has is rarely two edits away from the intended one.
    edits = 2 if len(word) >= _LONG and not docs else 1
    spellings = []
    candidates = pack_tables.words_of_length(connection, len(word) - edits, len(word) + edits, least=least)
    # A swap of two neighbouring characters is one edit.
    for other, distance, _ in extract(word, candidates, scorer=OSA.distance, score_cutoff=edits, limit=None):
        if other != word and not _DIGIT.search(other):
            same_start = 1.0 if other[0] == word[0] else 0.0
            # A foreign vocabulary may have words on no page.
            frequency = pack_tables.doc_frequency(connection, other) or 1
            spellings.append(_Spelling(other, same_start - _EDIT_COST * distance, frequency))
    # The word split in two, for a space that was left out.
    for middle in range(_SHORTEST, len(word) - _SHORTEST + 1):
        first = pack_tables.doc_frequency(connection, word[:middle])
        docs = min(first, pack_tables.doc_frequency(connection, word[middle:])) if first else 0
        if docs >= least:
            spellings.append(_Spelling(f"{word[:middle]} {word[middle:]}", -_EDIT_COST, docs))
    best = sorted(spellings, key=lambda spelling: -spelling.score)[:_SPELLINGS]
    return [replace(spelling, text=spelling.text.capitalize()) if typed.istitle() else spelling for spelling in best]
