"""Queries of the search benchmark: of several kinds, from a pack's own words, equal in every run."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from app.text.words import words

SEED = 5
#: Queries of each kind per domain.
KINDS = {"word": 30, "title": 20, "rare": 10, "common": 10, "phrase": 10, "beginning": 10, "exclusion": 10}

_VOCABULARY = """
CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab (main, pages_fts, col);
"""
_PHRASE_WORDS = 3


@dataclass(frozen=True, slots=True)
class BenchQuery:
    """One query; `kind` is one of KINDS."""

    domain: str
    kind: str
    q: str


@dataclass(frozen=True, slots=True)
class _Text:
    """Words, titles and bodies of a pack. `rare`, `frequent` and `common` words differ in the number of pages."""

    rare: list[str]
    frequent: list[str]
    common: list[str]
    titles: list[str]
    bodies: list[str]


def make_queries(packs: Mapping[str, Path], *, seed: int = SEED) -> list[BenchQuery]:
    """Return the queries for these packs, in random order."""
    chance = random.Random(seed)
    queries = [
        BenchQuery(domain, kind, _MAKERS[kind](text, chance))
        for domain, text in ((domain, _read(path)) for domain, path in sorted(packs.items()))
        for kind, count in KINDS.items()
        for _ in range(count)
    ]
    chance.shuffle(queries)
    return queries


def _read(pack: Path) -> _Text:
    with closing(sqlite3.connect(pack)) as database:
        database.executescript(_VOCABULARY)
        pages = [(str(title), str(body)) for title, body in database.execute("SELECT title, body FROM pages")]
        # The columns of forms have stems, which are no words.
        terms = database.execute(
            "SELECT term, doc FROM vocabulary WHERE col = 'body' AND length(term) > 2 ORDER BY term"
        )
        # People type words of letters.
        counts = {str(term): int(count) for term, count in terms if str(term).isalpha()}
    return _Text(
        rare=[word for word, count in counts.items() if 2 <= count <= 5],
        frequent=[word for word, count in counts.items() if 0.01 <= count / len(pages) <= 0.1],
        common=[word for word, count in counts.items() if count / len(pages) >= 0.25],
        titles=sorted({title for title, _ in pages if len(words(title)) > 1}),
        bodies=[body for _, body in pages if len(body) > 1_000],
    )


def _title(text: _Text, chance: random.Random) -> str:
    title = words(chance.choice(text.titles))
    at = chance.randrange(len(title) - 1)
    return " ".join(title[at : at + 2])


def _phrase(text: _Text, chance: random.Random) -> str:
    body = chance.choice(text.bodies)
    # From the middle, because pages begin with the same menus; without the first word, which may be cut.
    middle = words(body[len(body) // 2 :][:500])[1:]
    phrases = [middle[at : at + _PHRASE_WORDS] for at in range(len(middle) - _PHRASE_WORDS)]
    alphabetic = [phrase for phrase in phrases if all(word.isalpha() for word in phrase)]
    return f'"{" ".join(chance.choice(alphabetic))}"' if alphabetic else _phrase(text, chance)


def _beginning(text: _Text, chance: random.Random) -> str:
    return chance.choice([word for word in text.frequent if len(word) > 6])[:4]


_MAKERS: dict[str, Callable[[_Text, random.Random], str]] = {
    "word": lambda text, chance: chance.choice(text.frequent),
    "title": _title,
    "rare": lambda text, chance: chance.choice(text.rare),
    "common": lambda text, chance: chance.choice(text.common),
    "phrase": _phrase,
    "beginning": _beginning,
    "exclusion": lambda text, chance: f"{chance.choice(text.frequent)} -{chance.choice(text.common)}",
}
