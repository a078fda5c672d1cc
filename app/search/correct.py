"""Did you mean: words of a query that a pack hardly knows, in the nearest spelling that finds more."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, product

from rapidfuzz.distance import OSA
from rapidfuzz.process import extract

from app.search import vocabulary
from app.search.query import MAX_CHARACTERS, Query, parse
from app.search.ranking import Ranking, count
from app.search.tokens import words

#: Hits below which a query may have been meant otherwise.
_FEW_HITS = 3
#: A word is doubted that stands on no more pages than this, or than one in so many.
_FEW_PAGES = 2
_ONE_IN = 1_000
#: Another word must stand on this many times the pages of the doubted one.
_CLEARLY_MORE = 5
#: Words with this many characters may be wrong in two places; those with fewer than three are not doubted.
_LONG = 6
_SHORTEST = 3
#: One more edit must be made up for by e^4 = 55 times the pages.
_COST = 4.0
#: Spellings tried for each word, and of the whole query.
_SPELLINGS = 3
_TRIALS = 9
#: Hits up to which those of a spelling are counted.
_ENOUGH = 200


@dataclass(frozen=True, slots=True)
class _Spelling:
    """Another spelling: how like it is to what was typed, as the logarithm of pages, and pages that have it."""

    text: str
    likeness: float
    docs: int = 1

    @property
    def merit(self) -> float:
        return self.likeness + math.log(self.docs)


def did_you_mean(
    connection: sqlite3.Connection, query: Query, found: Ranking, *, pages: int, hidden: Collection[int]
) -> str:
    """Return a query that finds more than this one did, where that was next to nothing; or an empty string.

    Quotes, exclusions and words that are not doubted stay as they were typed. `pages` is the number of the pack's rows.
    """
    hits = 0 if found.relaxed else len(found.scores)
    if hits >= _FEW_HITS:
        return ""
    best = _Spelling("", -math.inf)
    try:
        for trial in islice(_rewritten(connection, query, pages), _TRIALS):
            # What stands together counts: "temporary directory" is likelier than "temporary directly".
            docs = count(connection, parse(trial.text).match, hidden=hidden, limit=_ENOUGH)
            if docs > hits:
                best = max(best, replace(trial, docs=docs), key=lambda spelling: spelling.merit)
    except sqlite3.OperationalError as error:
        # Out of time: what was found counts for more than what might have been meant.
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
    return best.text


def _rewritten(connection: sqlite3.Connection, query: Query, pages: int) -> Iterator[_Spelling]:
    """Yield the query with other spellings of its doubted words, the likeliest first."""
    spellings = {at: found for at in range(len(query.words)) if (found := _spellings(connection, query, at, pages))}
    choices = product(*spellings.values())
    for chosen in sorted(islice(choices, 1_000), key=lambda chosen: -sum(spelling.merit for spelling in chosen)):
        replacements = {at: spelling.text for at, spelling in zip(spellings, chosen, strict=True)}
        text = query.rewritten(replacements)
        if replacements and len(text) <= MAX_CHARACTERS and _same_units(text, query, replacements):
            yield _Spelling(text, sum(spelling.likeness for spelling in chosen))


def _same_units(text: str, query: Query, replacements: Mapping[int, str]) -> bool:
    extra = sum(spelling.count(" ") for spelling in replacements.values())
    return len(parse(text).words) == len(query.words) + extra


def _spellings(connection: sqlite3.Connection, query: Query, at: int, pages: int) -> list[_Spelling]:
    typed = query.words[at]
    word = "".join(words(typed))
    if len(word) < _SHORTEST or not word.isalpha():
        return []
    known = _known(connection, word, begins=query.prefix is not None and at == len(query.words) - 1)
    if known > max(_FEW_PAGES, pages // _ONE_IN):
        return []
    least = _CLEARLY_MORE * known + 1
    # What is known, if hardly, is rarely wrong in two places.
    edits = 2 if len(word) >= _LONG and not known else 1
    found = [*_near(connection, word, edits=edits, least=least), *_apart(connection, word, least=least)]
    best = sorted(found, key=lambda spelling: -spelling.merit)[:_SPELLINGS]
    return [replace(spelling, text=spelling.text.capitalize()) if typed.istitle() else spelling for spelling in best]


def _known(connection: sqlite3.Connection, word: str, *, begins: bool) -> int:
    return vocabulary.most_docs(connection, word) if begins else vocabulary.docs(connection, word)


def _near(connection: sqlite3.Connection, word: str, *, edits: int, least: int) -> Iterator[_Spelling]:
    """Yield words at most so many edits away; neighbours that changed places are one edit."""
    known = vocabulary.of_length(connection, len(word) - edits, len(word) + edits, least=least)
    near = extract(word, known.keys(), scorer=OSA.distance, score_cutoff=edits, limit=None)
    for other, distance, _ in near:
        if other != word and other.isalpha():
            same_start = 1.0 if other[0] == word[0] else 0.0
            yield _Spelling(other, same_start - _COST * distance, known[other])


def _apart(connection: sqlite3.Connection, word: str, *, least: int) -> Iterator[_Spelling]:
    """Yield the word as two: one space was left out."""
    for at in range(_SHORTEST, len(word) - _SHORTEST + 1):
        first = vocabulary.docs(connection, word[:at])
        docs = min(first, vocabulary.docs(connection, word[at:])) if first else 0
        if docs >= least:
            yield _Spelling(f"{word[:at]} {word[at:]}", -_COST, docs)
