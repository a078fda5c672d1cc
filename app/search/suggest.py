"""What a query that was begun may go on as: words of the pack, and names of its pages."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from app.errors import InvalidQuery
from app.search import vocabulary
from app.search.query import MAX_CHARACTERS, Query, Unit, parse
from app.search.ranking import NUMBERING, count
from app.search.tokens import GAP, fold, words

#: Words looked at as the end of a query, and names, for each suggestion that is wanted.
_CANDIDATES = 3
#: Names that are ranked: what stands in more of them is not told apart by its rank.
_NAMES = 100
#: Pages counted that have two words side by side.
_FOLLOWED = 10
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
    ordered = [word for word, _ in sorted(found, key=lambda pair: 2 * pair[1] > pages)]
    for word in _following_first(connection, query, ordered):
        text = query.text + word[len(beginning) :]
        if len(text) < MAX_CHARACTERS and count(connection, parse(text + " ").match, hidden=hidden, limit=1):
            yield text


def _following_first(connection: sqlite3.Connection, query: Query, ends: list[str]) -> list[str]:
    """Return the words with those first that follow most often upon the last word but one."""
    if len(query.words) == 1:
        return ends
    before = query.words[-2]
    followed = {end: count(connection, Unit((before, end)).match, hidden=(), limit=_FOLLOWED) for end in ends}
    return sorted(ends, key=lambda end: -followed[end])


# Names


def _named(connection: sqlite3.Connection, query: Query, *, limit: int) -> list[str]:
    """Return titles, or headings where those do not, that have all of the words; those that begin so first."""
    begun = words(" ".join(query.words))
    rows = connection.execute(_NAMED, (_name_match(query), _NAMES))
    names = [name for title, headings in rows for name in _telling(begun, query.unfinished, title, headings)]
    ordered = sorted(dict.fromkeys(names), key=lambda name: (not _begins(words(name), begun), len(name)))
    return ordered[: _CANDIDATES * limit]


def _name_match(query: Query) -> str:
    *firsts, last = query.words
    units = [*(Unit((word,)) for word in firsts), Unit((last,), prefix=query.unfinished and len(last) > 1)]
    return " AND ".join(unit.match for unit in units)


def _telling(begun: tuple[str, ...], unfinished: bool, title: str, headings: str) -> list[str]:
    """Return the title if it has all words of the query, else the headings that have, as one would type them."""
    *firsts, last = begun
    needles = [f"{GAP}{last}" if unfinished else f"{GAP}{last}{GAP}", *(f"{GAP}{word}{GAP}" for word in firsts)]
    for names in (title, headings):
        telling = [NUMBERING.sub("", name) for name in _lines_with_all(names, needles) if len(name) <= _LONGEST_NAME]
        if telling:
            return telling
    return []


def _lines_with_all(text: str, needles: list[str]) -> Iterator[str]:
    """Yield the lines of a text that have each of the needles, folded words with their gaps."""
    folded = GAP + fold(text) + GAP
    first, *others = needles
    at = folded.find(first)
    while at >= 0:
        # What begins with the gap before it in `folded` begins with itself, one character earlier, in `text`.
        start = text.rfind("\n", 0, at) + 1
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        if all(folded.find(other, start, end + 2) >= 0 for other in others):
            yield text[start:end]
        at = folded.find(first, end)


def _begins(name: tuple[str, ...], begun: tuple[str, ...]) -> bool:
    *firsts, last = begun
    return name[: len(firsts)] == tuple(firsts) and len(name) > len(firsts) and name[len(firsts)].startswith(last)
