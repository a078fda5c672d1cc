"""Find what defines the name that a query is: look-ups in what was decided when the pack was built."""

from __future__ import annotations

import sqlite3
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from app.search.pack_tables import AFTER_ALL, cut, doc_frequency
from app.search.query import Query
from app.text.names import GENERIC, alphanumeric, is_plain_word, last_part
from app.text.words import words

#: Definitions of a query, and rows that are read for one name.
_MAX_DEFINITIONS: Final = 60
_MAX_ROWS: Final = 100
#: Names with one beginning that are compared, and characters of a beginning.
_MAX_COMPARED: Final = 2_000
_LEAST_BEGINNING: Final = 4
#: Kind of a definition whose name may be an ordinary word, which people do not type as a name.
_WORD: Final = 4
#: Words of a query that may be a name, as in app/pack/definitions.py.
_MAX_WORDS: Final = 8

_COLUMNS: Final = f"""page, {cut("fragment", 200)}, {cut("full_name", 400)}"""
_BY_NAME: Final = (
    f"SELECT {_COLUMNS} FROM definitions WHERE name = ? AND kind < {_WORD} ORDER BY rank LIMIT {_MAX_ROWS}"  # noqa: S608 (ours)
)
#: What defines best each of the shortest names with a beginning.
_BEGINNING: Final = f"""
SELECT {_COLUMNS} FROM (
    SELECT * FROM definitions WHERE name > ? AND name < ? AND rank = 0 AND kind < {_WORD} LIMIT {_MAX_COMPARED}
) ORDER BY length(name), name LIMIT ?
"""  # noqa: S608 (ours)
_QUALIFIED: Final = f"""
SELECT {_COLUMNS}, page IN (SELECT page FROM definitions WHERE name IN (?2, ?3) AND fragment = '') AS is_on_page
FROM definitions WHERE name = ?1 AND (is_on_page OR instr(lower(fragment), ?3) OR instr(lower(full_name), ?3))
ORDER BY rank LIMIT {_MAX_ROWS}
"""  # noqa: S608 (ours)


@dataclass(frozen=True, slots=True)
class Definition:
    """A page that defines a name, and the fragment of the section that does; empty for the page as a whole."""

    page: int
    fragment: str = ""


def definitions_of(connection: sqlite3.Connection, query: Query, *, hidden: Container[int]) -> tuple[Definition, ...]:
    """Return the definitions of the name that a query is, best first; nothing for any other query."""
    typed = words(" ".join(query.typed))
    if query.excluded or any(phrase.symbol for phrase in query.phrases) or len(typed) > _MAX_WORDS:
        return ()
    found: dict[Definition, str] = {}
    # `ordered dict` is `OrderedDict`, too. Quoted words are one name, as typed.
    is_quoted = any(phrase.quoted for phrase in query.phrases)
    in_one_word = " ".join(typed) if is_quoted else "".join(typed)
    # `class OrderedDict` and `Alias directive` say what kind of thing the name is of.
    without_kind = tuple(word for word in typed if word not in GENERIC) or typed
    names = (typed,) if is_quoted else (typed, (in_one_word,), without_kind)
    for name in dict.fromkeys(names):
        named = _definitions(connection.execute(_BY_NAME, (" ".join(name),)))
        qualified = _qualified(connection, name)
        if is_quoted:
            qualified = (each for each in qualified if words(each[1])[-len(name) :] == name)
        for definition, full_name in (*qualified, *named):
            if definition.page not in hidden:
                found.setdefault(definition, full_name)
    if not found and query.unfinished:
        # `named tup` is the beginning of `namedtuple`. A last word that pages have may be complete.
        beginnings = [in_one_word] if in_one_word not in typed else []
        if not doc_frequency(connection, typed[-1]):
            beginnings = [in_one_word, " ".join(typed)]
        beginning_so = _beginning_with(connection, beginnings, hidden=hidden, limit=_MAX_DEFINITIONS)
        return tuple(dict.fromkeys(definition for definition, _ in beginning_so))
    # An option has its signs; of `put` and `Put`, the one that is written like the query comes first.
    written = query.text.split()[-1]
    ordered = sorted(found, key=lambda each: (written not in found[each], found[each].startswith("-")))
    return tuple(ordered[:_MAX_DEFINITIONS])


def names_beginning_with(
    connection: sqlite3.Connection, query: Query, *, hidden: Container[int], limit: int
) -> list[str]:
    """Return the names that begin with the words of a query, in one word or more; the shortest first.

    An ordinary word is a name only for a query that has its parts.
    """
    typed = words(" ".join(query.typed))
    if not query.unfinished or any(phrase.quoted for phrase in query.phrases):
        return []
    found = _beginning_with(connection, ("".join(typed), " ".join(typed)), hidden=hidden, limit=_MAX_ROWS)
    names = ((last_part(full_name), full_name) for _, full_name in found if " " not in full_name)
    return [name for name, full in names if len(typed) > 1 or not is_plain_word(name, full)][:limit]


def _beginning_with(
    connection: sqlite3.Connection, beginnings: Sequence[str], *, hidden: Container[int], limit: int
) -> Iterator[tuple[Definition, str]]:
    for beginning in dict.fromkeys(beginnings):
        if len(beginning) >= _LEAST_BEGINNING:
            for each in _definitions(connection.execute(_BEGINNING, (beginning, beginning + AFTER_ALL, limit))):
                if each[0].page not in hidden:
                    yield each


def _definitions(rows: Iterable[tuple[int, str, str]]) -> Iterator[tuple[Definition, str]]:
    """Yield the definition of each row, with its full name."""
    for page, fragment, full_name in rows:
        yield Definition(page, fragment), full_name or fragment


def _qualified(connection: sqlite3.Connection, name: tuple[str, ...]) -> Iterator[tuple[Definition, str]]:
    """Yield what the end of a name names, on a page or within something that its beginning names."""
    found = []
    spelled = "".join(name)
    for at in range(1, len(name)):
        before, last = name[:at], " ".join(name[at:])
        rows = connection.execute(_QUALIFIED, (last, " ".join(before), before[-1]))
        for page, fragment, full_name, is_on_page in rows:
            its_words = words(full_name or fragment)
            qualifier = its_words[: at - len(name)]
            is_within = qualifier and qualifier[-at:] == before[-len(qualifier) :]
            if is_on_page or is_within or alphanumeric(fragment).endswith(spelled):
                found.append((its_words != name, not is_within, Definition(page, fragment), full_name or fragment))
    # What has all of the name comes first, then what its name qualifies.
    found.sort(key=itemgetter(0, 1))
    for _, _, definition, full_name in found:
        yield definition, full_name
