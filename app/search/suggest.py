"""What a query that was begun may go on as: words of the pack, and names of its pages."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from app.errors import InvalidQuery
from app.search import vocabulary
from app.search.query import MAX_CHARACTERS, Query, Unit, parse
from app.search.ranking import count
from app.search.tokens import words

#: Words looked at as the end of a query, and names, for each suggestion that is wanted.
_CANDIDATES = 3
#: Names that are ranked: what stands in more of them is not told apart by its rank.
_NAMES = 200
#: Characters of a name that still reads as a query.
_LONGEST_NAME = 80

_NAMED = """
SELECT title, headings FROM names WHERE rowid IN (SELECT rowid FROM names WHERE names MATCH ? LIMIT ?)
"""


def suggestions(
    connection: sqlite3.Connection, text: str, *, pages: int, hidden: Collection[int], limit: int
) -> tuple[str, ...]:
    """Return queries that `text` may be the beginning of: first by their last word, then names of pages.

    None for what cannot be searched for. `pages` is the number of rows of the pack.
    """
    try:
        query = parse(text)
    except InvalidQuery:
        return ()
    ended = list(islice(_ended(connection, query, pages=pages, hidden=hidden, limit=limit), limit))
    named = _distinct(_named(connection, query, limit=limit), unlike=[text, *ended])
    # Names tell more than words do, where there are names: half of the room is theirs.
    most = max(limit - len(named), (limit + 1) // 2)
    return tuple(_distinct([*ended[:most], *named, *ended[most:]], unlike=[text])[:limit])


def _distinct(texts: Iterable[str], *, unlike: Iterable[str]) -> list[str]:
    """Return the texts whose words are not those of an earlier one, nor of one of `unlike`."""
    seen = {words(text) for text in unlike}
    found = []
    for text in texts:
        if (told := words(text)) not in seen:
            seen.add(told)
            found.append(text)
    return found


# The last word


def _ended(
    connection: sqlite3.Connection, query: Query, *, pages: int, hidden: Collection[int], limit: int
) -> Iterator[str]:
    """Yield the text with its last word carried on, as words that pages have beside all the others."""
    if not query.unfinished:
        return
    beginning = "".join(words(query.words[-1]))
    found = vocabulary.completions(connection, beginning, limit=_CANDIDATES * limit)
    # A word that most pages have tells them least apart.
    for word, _ in sorted(found, key=lambda pair: 2 * pair[1] > pages):
        text = query.text + word[len(beginning) :]
        if len(text) < MAX_CHARACTERS and count(connection, parse(text + " ").match, hidden=hidden, limit=1):
            yield text


# Names


def _named(connection: sqlite3.Connection, query: Query, *, limit: int) -> list[str]:
    """Return titles, or headings where those do not, that have all of the words; those that begin so first."""
    rows = connection.execute(_NAMED, (_name_match(query), _NAMES))
    names = [name for title, headings in rows for name in _telling(query, title, headings)]
    begun = words(" ".join(query.words))
    ordered = sorted(dict.fromkeys(names), key=lambda name: (not _begins(words(name), begun), len(name)))
    return ordered[: _CANDIDATES * limit]


def _name_match(query: Query) -> str:
    *firsts, last = query.words
    units = [*(Unit((word,)) for word in firsts), Unit((last,), prefix=query.unfinished and len(last) > 1)]
    return " AND ".join(unit.match for unit in units)


def _telling(query: Query, title: str, headings: str) -> list[str]:
    """Return the title if it has all words of the query, else the headings that have."""
    for names in ([title], headings.splitlines()):
        telling = [name for name in names if len(name) <= _LONGEST_NAME and _has_all(words(name), query)]
        if telling:
            return telling
    return []


def _has_all(name: tuple[str, ...], query: Query) -> bool:
    *firsts, last = words(" ".join(query.words))
    whole = set(name)
    return whole.issuperset(firsts) and (last in whole or (query.unfinished and _any_begins(name, last)))


def _any_begins(name: tuple[str, ...], beginning: str) -> bool:
    return any(word.startswith(beginning) for word in name)


def _begins(name: tuple[str, ...], begun: tuple[str, ...]) -> bool:
    *firsts, last = begun
    return name[: len(firsts)] == tuple(firsts) and len(name) > len(firsts) and name[len(firsts)].startswith(last)
