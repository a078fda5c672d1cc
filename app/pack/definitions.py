"""Which page or section defines a name. It is decided when a pack is built, so that a search needs one look-up.

A page defines the names in its title and first heading, its sections those in their headings, and its terms those in
them. A link may call a fragment by a name that no heading has.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from app.pack.anchors import Names, names_of
from app.text.names import is_named_after, is_plain_word, last_part, names_in_term
from app.text.titles import parts_of_title, without_numbering, without_site_name
from app.text.words import words

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
DefinitionKey: TypeAlias = str

_COLUMNS: Final = "SELECT id, page_id, path, title, headings, subsections"
_PAGES: Final = f"{_COLUMNS} FROM pages WHERE NOT hidden"
_PAGE: Final = f"{_PAGES} AND page_id = ?"
#: Changed rows before and after an update, if they were or are shown.
_FORMER: Final = f"{_COLUMNS} FROM former_pages WHERE hidden = 0"
_PRESENT: Final = f"{_PAGES} AND id IN (SELECT id FROM former_pages)"  # noqa: S608 (ours)
_OF_NAME: Final = """
SELECT kind, coalesce(nullif(full_name, ''), fragment), page, fragment, called, path
FROM definitions JOIN pages ON pages.id = page
WHERE name = ? ORDER BY rank
"""
_FOUND: Final = """
CREATE TEMP TABLE IF NOT EXISTS found_definitions (name, kind, full_name, page, fragment, called, path)
"""
_NOTE: Final = "INSERT INTO temp.found_definitions VALUES (?, ?, ?, ?, ?, ?, ?)"
#: In order: pages of their own, then what most pages call so, then the shortest path.
_RANK: Final = """
INSERT INTO definitions (name, rank, kind, called, page, fragment, full_name)
SELECT name, rank, kind, called, page, fragment, coalesce(nullif(full_name, fragment), '')
FROM (
    SELECT *, row_number() OVER (
        PARTITION BY name
        ORDER BY kind <> 0, called DESC, kind, length(path) - length(replace(path, '/', '')), length(path), path,
            fragment, full_name, page
    ) - 1 AS rank FROM temp.found_definitions
) WHERE rank < ? ORDER BY name, rank
"""


class _Definition(NamedTuple):
    kind: int
    full_name: str
    page: int
    fragment: str = ""
    #: Other pages that call the page, or a section of it, by the name; and the path of the page.
    called: int = 0
    path: str = ""


@dataclass(frozen=True, slots=True)
class _NamedPage:
    id: int
    page_id: str
    path: str
    title: str
    headings: str
    subsections: str


def write_definitions(database: sqlite3.Connection, site: str) -> None:
    """Fill `definitions` from all pages that are not hidden. `site` is the part that titles share."""
    database.execute("DELETE FROM definitions")
    with _ranking(database):
        for page in (_NamedPage(*columns) for columns in database.execute(_PAGES)):
            found = _defined(page, names_of(database, page.page_id), site)
            database.executemany(_NOTE, ((key, *each) for key, each in found))


def update_definitions(database: sqlite3.Connection, site: str, former_names: Mapping[str, Names]) -> None:
    """Rank the names again that changed pages define or defined.

    `former_names` are what links called pages whose links have changed, by page id. Of a name that over
    `MAX_DEFINITIONS` pages define, those that had no rank come back with the next full pack.
    """
    # The pages that are concerned as they were and as they are, without hidden ones.
    former = {row.page_id: row for row in (_NamedPage(*columns) for columns in database.execute(_FORMER))}
    present = {row.page_id: row for row in (_NamedPage(*columns) for columns in database.execute(_PRESENT))}
    changed = {page_id for (page_id,) in database.execute("SELECT page_id FROM former_pages")}
    for page_id in former_names.keys() - changed:
        for columns in database.execute(_PAGE, (page_id,)):
            former[page_id] = present[page_id] = _NamedPage(*columns)
    before: dict[DefinitionKey, list[_Definition]] = defaultdict(list)
    after: dict[DefinitionKey, list[_Definition]] = defaultdict(list)
    for page_id, page in former.items():
        links = former_names[page_id] if page_id in former_names else names_of(database, page_id)
        for key, each in _defined(page, links, site):
            before[key].append(each)
    for page_id, page in present.items():
        for key, each in _defined(page, names_of(database, page_id), site):
            after[key].append(each)
    concerned = {page.id for page in (*former.values(), *present.values())}
    with _ranking(database):
        for key in before.keys() | after.keys():
            if before.get(key) != after.get(key):
                stored = [_Definition(*columns) for columns in database.execute(_OF_NAME, (key,))]
                others = [each for each in stored if each.page not in concerned]
                database.execute("DELETE FROM definitions WHERE name = ?", (key,))
                database.executemany(_NOTE, ((key, *each) for each in (*others, *after.get(key, ()))))


@contextmanager
def _ranking(database: sqlite3.Connection) -> Iterator[None]:
    """Write the definitions that the block notes, the best of each name first."""
    database.execute(_FOUND)
    yield
    database.execute(_RANK, (MAX_DEFINITIONS,))
    database.execute("DELETE FROM temp.found_definitions")


def _defined(page: _NamedPage, links: Names, site: str) -> Iterator[tuple[DefinitionKey, _Definition]]:
    """Yield what a page defines, each name of the page once: the first definition is the best."""
    # The number of other pages that call this one, or a section of it, by a name.
    calls: Counter[tuple[str, ...]] = Counter()
    for (text, _), pages in links.items():
        calls[words(text)] += pages
    added: set[str] = set()
    for each in _named_by(page, links, site):
        # A function may have several versions, each with an id.
        name = each.full_name
        if name in added:
            continue
        end, full = words(last_part(name)), words(name)
        key = full if " " in name else end
        if 0 < len(key) <= MAX_WORDS:
            added.add(name)
            called = calls[full] + (calls[end] if end != full else 0)
            yield " ".join(key), _Definition(each.kind, name, page.id, each.fragment, called, page.path)


def _named_by(row: _NamedPage, links: Names, site: str) -> Iterator[_Definition]:
    """Yield a definition of each name that a page has, the best first."""
    # What the title and the first heading name: all of it, its beginning, or the name in it.
    title = without_site_name(row.title, site)
    for text in dict.fromkeys((title, row.headings.partition("\n")[0])):
        plain = without_numbering(text)
        for name in dict.fromkeys((plain, parts_of_title(plain)[0], *names_in_term(plain))):
            # `path` is typed for a page with this name, rather than for one that is named `os.path`.
            is_qualified = " " not in name and last_part(name) != name
            yield _Definition(SECTION if is_qualified else OWN_PAGE, name, row.id)
    # What the headings of its sections and its terms name.
    for line in row.subsections.split("\n") if row.subsections else ():
        fragment, _, heading = line.partition("\t")
        for name in names_in_term(without_numbering(heading), fragment):
            kind = NAMED_SECTION if is_named_after(fragment, name) else SECTION
            kind = WORD if is_plain_word(name, heading, fragment) else kind
            yield _Definition(kind, name, row.id, fragment)
    # What links call its fragments.
    for text, fragment in sorted(links):
        for name in names_in_term(text, fragment) if fragment else ():
            yield _Definition(WORD if is_plain_word(name, text, fragment) else LINKED, name, row.id, fragment)
