"""What the benchmark of search asks: queries of several kinds, made from a pack's own words, the same in every run."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from app.search.tokens import words

SEED = 5
#: Queries of each kind that a domain is asked.
KINDS = {"word": 30, "title": 20, "rare": 10, "common": 10, "phrase": 10, "beginning": 10, "exclusion": 10}

_VOCABULARY = """
CREATE VIRTUAL TABLE temp.vocabulary USING fts5vocab (main, pages_fts, row);
"""
_PHRASE_WORDS = 3


@dataclass(frozen=True, slots=True)
class Ask:
    """One query; `kind` is one of KINDS."""

    domain: str
    kind: str
    q: str


@dataclass(frozen=True, slots=True)
class _Text:
    """What queries are made of: `rare`, `known` and `common` words by the number of their pages; titles and bodies."""

    rare: list[str]
    known: list[str]
    common: list[str]
    titles: list[str]
    bodies: list[str]


def make(packs: Mapping[str, Path], *, seed: int = SEED) -> list[Ask]:
    """Return the queries for these packs, kinds and domains mixed."""
    chance = random.Random(seed)
    asked = [
        Ask(domain, kind, _MAKERS[kind](text, chance))
        for domain, text in ((domain, _read(path)) for domain, path in sorted(packs.items()))
        for kind, count in KINDS.items()
        for _ in range(count)
    ]
    chance.shuffle(asked)
    return asked


def _read(pack: Path) -> _Text:
    with closing(sqlite3.connect(pack)) as database:
        database.executescript(_VOCABULARY)
        pages = [(str(title), str(body)) for title, body in database.execute("SELECT title, body FROM pages")]
        found = database.execute("SELECT term, doc FROM vocabulary WHERE length(term) > 2 ORDER BY term")
        # Of letters only, as people type them.
        counts = {str(term): int(count) for term, count in found if str(term).isalpha()}
    return _Text(
        rare=[word for word, count in counts.items() if 2 <= count <= 5],
        known=[word for word, count in counts.items() if 0.01 <= count / len(pages) <= 0.1],
        common=[word for word, count in counts.items() if count / len(pages) >= 0.25],
        titles=sorted({title for title, _ in pages if len(words(title)) > 1}),
        bodies=[body for _, body in pages if len(body) > 1_000],
    )


def _title(text: _Text, chance: random.Random) -> str:
    found = words(chance.choice(text.titles))
    at = chance.randrange(len(found) - 1)
    return " ".join(found[at : at + 2])


def _phrase(text: _Text, chance: random.Random) -> str:
    body = chance.choice(text.bodies)
    # From the middle, for pages begin with the same menus; without the first word, which may be cut.
    found = words(body[len(body) // 2 :][:500])[1:]
    phrases = [found[at : at + _PHRASE_WORDS] for at in range(len(found) - _PHRASE_WORDS)]
    told = [phrase for phrase in phrases if all(word.isalpha() for word in phrase)]
    return f'"{" ".join(chance.choice(told))}"' if told else _phrase(text, chance)


def _beginning(text: _Text, chance: random.Random) -> str:
    return chance.choice([word for word in text.known if len(word) > 6])[:4]


_MAKERS: dict[str, Callable[[_Text, random.Random], str]] = {
    "word": lambda text, chance: chance.choice(text.known),
    "title": _title,
    "rare": lambda text, chance: chance.choice(text.rare),
    "common": lambda text, chance: chance.choice(text.common),
    "phrase": _phrase,
    "beginning": _beginning,
    "exclusion": lambda text, chance: f"{chance.choice(text.known)} -{chance.choice(text.common)}",
}
