"""Which page or section defines a name. It is decided when a pack is built, so that a search needs one look-up.

A page defines the names in its title and first heading, its sections those in their headings, and its terms those in
them. A link may call a fragment by a name that no heading has.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from app.pack.anchors import linked_names
from app.search.query import words
from app.text.names import is_named_after, is_plain_word, last_part, names_in_term
from app.text.titles import parts_of_title, without_numbering, without_site_name

#: What defines a name, the best first: a page of its own; a section or term; the same with an id that says something
#: else; a fragment to which links with the name lead; a section or term that may be an ordinary word.
OWN_PAGE: Final = 0
NAMED_SECTION: Final = 1
SECTION: Final = 2
LINKED: Final = 3
WORD: Final = 4
#: Words of a name, and definitions of one name.
MAX_WORDS: Final = 8
MAX_DEFINITIONS: Final = 1_000

#: The words of a name's last part, as they are searched for, with spaces between.
Key: TypeAlias = str

_PAGES: Final = "SELECT id, path, title, headings, subsections FROM pages WHERE NOT hidden"
_INSERT: Final = "INSERT INTO definitions (name, rank, kind, page, fragment, full_name) VALUES (?, ?, ?, ?, ?, ?)"


class _Definition(NamedTuple):
    kind: int
    full_name: str
    page: int
    fragment: str = ""


@dataclass(frozen=True, slots=True)
class _NamedPage:
    id: int
    path: str
    title: str
    headings: str
    subsections: str


def write_definitions(database: sqlite3.Connection, site: str) -> None:
    """Fill `definitions` from all pages that are not hidden. `site` is the part that titles share."""
    found: dict[Key, dict[tuple[int, str], _Definition]] = defaultdict(dict)
    paths: dict[int, str] = {}
    links = linked_names(database)
    for row in (_NamedPage(*columns) for columns in database.execute(_PAGES)):
        paths[row.id] = row.path
        for definition in (*_of_page(row, site), *_of_sections(row), *_of_links(row, links)):
            if key := key_of(definition.full_name):
                # The first one is the best: a function may have several versions, each with an id.
                found[key].setdefault((definition.page, definition.full_name), definition)
    calls = _calls(links)
    database.execute("DELETE FROM definitions")
    for key in sorted(found):
        ranked = sorted(found[key].values(), key=lambda each: _preference(each, paths[each.page], calls))
        rows = (
            (key, rank, each.kind, each.page, each.fragment, each.full_name if each.full_name != each.fragment else "")
            for rank, each in enumerate(ranked[:MAX_DEFINITIONS])
        )
        database.executemany(_INSERT, rows)


def key_of(name: str) -> Key:
    """Return the words of a name's last part as the table has them; empty for a text that is too long for a name."""
    found = words(name if " " in name else last_part(name))
    return " ".join(found) if len(found) <= MAX_WORDS else ""


def _preference(
    each: _Definition, path: str, calls: Mapping[tuple[int, tuple[str, ...]], int]
) -> tuple[bool, int, int, int, int, str, str]:
    """Order the definitions of a name: pages of their own, then what most pages call so, then the shortest path."""
    names = {words(each.full_name), words(last_part(each.full_name))}
    called = sum(calls.get((each.page, name), 0) for name in names)
    return (each.kind != OWN_PAGE, -called, each.kind, path.count("/"), len(path), path, each.fragment)


def _of_page(row: _NamedPage, site: str) -> Iterator[_Definition]:
    """Yield what the title and the first heading name: all of it, its beginning, or the name in it."""
    title = without_site_name(row.title, site)
    for text in dict.fromkeys((title, row.headings.partition("\n")[0])):
        plain = without_numbering(text)
        for name in dict.fromkeys((plain, parts_of_title(plain)[0], *names_in_term(plain))):
            # `path` is typed for a page with this name, rather than for one that is named `os.path`.
            is_qualified = " " not in name and last_part(name) != name
            yield _Definition(SECTION if is_qualified else OWN_PAGE, name, row.id)


def _of_sections(row: _NamedPage) -> Iterator[_Definition]:
    for line in row.subsections.split("\n") if row.subsections else ():
        fragment, _, heading = line.partition("\t")
        for name in names_in_term(without_numbering(heading), fragment):
            kind = NAMED_SECTION if is_named_after(fragment, name) else SECTION
            kind = WORD if is_plain_word(name, heading, fragment) else kind
            yield _Definition(kind, name, row.id, fragment)


def _of_links(row: _NamedPage, links: Mapping[int, Counter[tuple[str, str]]]) -> Iterator[_Definition]:
    for text, fragment in links.get(row.id, ()):
        for name in names_in_term(text, fragment) if fragment else ():
            yield _Definition(WORD if is_plain_word(name, text, fragment) else LINKED, name, row.id, fragment)


def _calls(links: Mapping[int, Counter[tuple[str, str]]]) -> Counter[tuple[int, tuple[str, ...]]]:
    """Return the number of pages that call a page, or a section of it, by a name."""
    calls: Counter[tuple[int, tuple[str, ...]]] = Counter()
    for page, texts in links.items():
        for (text, _), number in texts.items():
            calls[page, words(text)] += number
    return calls
