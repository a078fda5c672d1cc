"""What of a query is searched for in the indexes of stems, in which all forms of a word are one word."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.search import pack_tables
from app.search.query import Phrase, Query
from app.text.variants import index_stems_of
from app.text.words import words

#: Share of the pages from which a word is too frequent to be looked for in passages without a rarer one.
_FREQUENT: Final = 0.3


@dataclass(frozen=True, slots=True)
class PassageStem:
    """The FTS5 expression of a stem that is looked for in passages, and the number of pages that have its word.

    It is `typed` unless it is that of a synonym.
    """

    match: str
    docs: int
    typed: bool


@dataclass(frozen=True, slots=True)
class Stems:
    """FTS5 expressions: for each stem of a query, for an unfinished last word, and for passages with its rarer words.

    `in_passages` is empty if fewer than two words are looked for. The frequency of a single word is already in the
    page's score. `typed_in_passages` is the same without synonyms, for a query that has some. `passage_stems` are all
    stems of both.
    """

    each: tuple[str, ...]
    unfinished: str = ""
    in_passages: str = ""
    typed_in_passages: str = ""
    algorithms: tuple[str, ...] = ()
    passage_stems: tuple[PassageStem, ...] = ()

    @property
    def in_names(self) -> str:
        """Expression for names with at least one of the words."""
        return " OR ".join((*self.each, self.unfinished) if self.unfinished else self.each)

    def all_in_names(self, phrases: Iterable[Phrase]) -> str:
        """Return the expression for names with every one of the phrases, without synonyms; empty if one has no stem."""
        each = [self.of(phrase) for phrase in phrases]
        return " AND ".join(f"({' OR '.join(stems)})" for stems in each) if all(each) else ""

    def of(self, phrase: Phrase) -> tuple[str, ...]:
        """Return the expressions for one phrase, without its synonyms."""
        own = dict.fromkeys(f'"{stem}"' for stem, _ in _stems_of(phrase, self.algorithms))
        return (*own, self.unfinished) if self.unfinished and phrase.prefix else (*own,)


def stems_in(connection: sqlite3.Connection, query: Query, algorithms: Sequence[str], *, pages: int) -> Stems:
    """Return the stems of a query's words by these stemming algorithms, for a pack with `pages` rows.

    Only a last word that no page has counts as unfinished: any other one would weigh twice as much as the words before.
    """
    own = {stem: word for phrase in query.phrases for stem, word in _stems_of(phrase, algorithms)}
    synonyms = [synonym for phrase in query.phrases for synonym in phrase.synonyms]
    found = own | {stem: word for phrase in synonyms for stem, word in _stems_of(phrase, algorithms)}
    last = words(query.prefix or "")[-1:]
    docs = pack_tables.doc_frequencies(connection, {*found.values(), *last})
    unfinished = [f'"{word}" *' for word in last if word not in docs]
    quoted = {stem for phrase in query.phrases if phrase.quoted for stem, _ in _stems_of(phrase, algorithms)}

    def in_passages(stems: Mapping[str, str]) -> str:
        """Return the expression for passages with one of the stems; a frequent word counts beside a rarer one only."""
        unquoted = ((docs.get(word, 0), f'"{stem}"') for stem, word in stems.items() if stem not in quoted)
        by_rarity = sorted(unquoted)
        rare = [match for number, match in by_rarity if number <= _FREQUENT * pages]
        frequent = [match for number, match in by_rarity if number > _FREQUENT * pages]
        either = " OR ".join(rare)
        return f"{either} OR (({either}) AND ({' OR '.join(frequent)}))" if rare and frequent else either

    is_alone = len(own.keys() - quoted) < 2
    return Stems(
        tuple(f'"{stem}"' for stem in found),
        "".join(unfinished),
        "" if is_alone else in_passages(found),
        "" if is_alone or found == own else in_passages(own),
        tuple(algorithms),
        tuple(
            PassageStem(f'"{stem}"', docs.get(word, 0), stem in own)
            for stem, word in found.items()
            if stem not in quoted
        ),
    )


def _stems_of(phrase: Phrase, algorithms: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each stem, or pair of characters, with the folded word that it stands for."""
    if phrase.symbol:
        yield phrase.symbol, phrase.symbol
        return
    for typed in phrase.words:
        for word in words(typed):
            for stem in index_stems_of(typed, algorithms):
                yield stem, word
