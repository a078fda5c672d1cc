"""Stored pages as rows of a pack: load them all into a new database, or apply the changes to an existing one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import unquote

from app.pack import repeated_lines
from app.pack.anchors import note_links
from app.pack.groups import hash_of
from app.pack.stored_pages import StoredContent
from app.storage.layout import MAX_HEADINGS, Page, Tombstone, id_in_key
from app.storage.page_parts import HEADINGS
from app.storage.store import Stat
from app.text.languages import detect_language
from app.text.lines import without_ends
from app.text.names import shown_term

#: Columns of `pages` that the stored page has.
COLUMNS: Final = (
    *("page_id", "canonical_key", "url", "path", "section", "modified", "content_type", "canonical", "alternates"),
    *("headings", "subsections", "lang", "title", "description", "text_hash", "body"),
)
INSERT: Final = f"INSERT INTO pages ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608 - The columns are constants.
#: Unlike an upsert, the update of a present row spends no row id.
UPDATE: Final = (
    f"UPDATE pages SET {', '.join(f'{name} = ?{at}' for at, name in enumerate(COLUMNS, 1))} WHERE page_id = ?1"  # noqa: S608 (ours)
)
#: Equal rows are not written again: searchers would fetch them.
_NOTE_VERSION: Final = "UPDATE stored SET version = ?1 WHERE page_id = ?2 AND etag = ?3 AND version IS NOT ?1"
_IS_TOMBSTONE: Final = "page_id NOT IN (SELECT page_id FROM pages)"

#: Full packs: row ids in order of quality, so that searchers need not rank all matches of a query.
_RANKS: Final = "CREATE TEMP TABLE ranks (rank INTEGER PRIMARY KEY, page INTEGER NOT NULL UNIQUE, shown_as INTEGER)"
#: As the pages of a group are ordered (app/pack/groups.py): shown pages, most linked to, without a query, the shortest
#: address.
_RANK: Final = """
INSERT INTO temp.ranks (page, shown_as) SELECT id, shown_as FROM pages
ORDER BY hidden, inlinks DESC, instr(path, '?') > 0, length(path) - length(replace(path, '/', '')), length(path),
    canonical_key
"""
_RANKED: Final = """
SELECT own.rank, coalesce(shown.rank, 0), own.page
FROM temp.ranks AS own LEFT JOIN temp.ranks AS shown ON shown.page = own.shown_as ORDER BY own.rank
"""

#: Characters of a section, and of the heading of a subsection.
MAX_SECTION: Final = 200
MAX_SUBSECTION: Final = 300

#: Reads the stored pages with these ids again.
ReadAgain: TypeAlias = Callable[[Iterable[str]], Iterator[StoredContent]]


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Numbers of rows that were added, changed and removed."""

    added: int
    changed: int
    removed: int

    @property
    def total(self) -> int:
        """Number of rows that differ."""
        return self.added + self.changed + self.removed

    def __bool__(self) -> bool:
        """Return whether any row differs."""
        return bool(self.total)


def count(database: sqlite3.Connection) -> int:
    """Return the number of rows of `pages`."""
    (pages,) = database.execute("SELECT count(*) FROM pages").fetchone()
    return int(pages)


def reserve_ids(database: sqlite3.Connection, most: int) -> None:
    """Leave the ids up to `most`, the number of rows that will be inserted, to `ranked`."""
    database.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('pages', ?)", (most,))


def ranked(database: sqlite3.Connection) -> Iterator[tuple[int, int, int]]:
    """Yield the new id of each row, the best first; that of the page shown for it, or 0; and its present id.

    The first matches of a query are then the best ones by what no query changes. Pages that a later pack adds get
    higher ids.
    """
    database.execute(_RANKS)
    pages = database.execute(_RANK).rowcount
    yield from database.execute(_RANKED)
    database.execute("DROP TABLE temp.ranks")
    database.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'pages'", (pages,))


def load(database: sqlite3.Connection, contents: Iterable[StoredContent], read_again: ReadAgain) -> frozenset[int]:
    """Insert every page, in the order given, and note the tombstones. The full-text index stays empty.

    Return the hashes of the lines that many pages repeat: bodies lack them. Those of the pages so far tell mostly which
    ones they will be. So few pages are written a second time.
    """
    lines: frozenset[int] = frozenset()
    sample = repeated_lines.LEAST_PAGES
    for number, stored in enumerate(contents, 1):
        if isinstance(stored.content, Tombstone):
            _note_stored(database, stored)
        else:
            _write(database, INSERT, stored, stored.content, lines)
        if number == sample:
            lines, sample = repeated_lines.find(database), 2 * sample
    return leave_out_repeated(database, read_again)


def leave_out_repeated(
    database: sqlite3.Connection, read_again: ReadAgain, former: frozenset[int] = frozenset()
) -> frozenset[int]:
    """Find the lines that many pages repeat, and write the rows of pages again whose bodies lack others.

    `former` are those that the former pack left out.
    """
    lines = repeated_lines.find(database, former)
    for stored in read_again(repeated_lines.differing(database, lines)):
        if isinstance(stored.content, Page):
            _write(database, UPDATE, stored, stored.content, lines)
    return lines


def pop_tombstones(database: sqlite3.Connection) -> dict[str, str]:
    """Forget the recorded tombstones, and return their ETags by page id."""
    noted = dict(database.execute(f"SELECT page_id, etag FROM stored WHERE {_IS_TOMBSTONE}"))  # noqa: S608 (ours)
    database.execute(f"DELETE FROM stored WHERE {_IS_TOMBSTONE}")  # noqa: S608 (ours)
    return noted


def note_versions(database: sqlite3.Connection, stats: Iterable[Stat]) -> None:
    """Note the versions of listed objects, unless what was read of them had another ETag."""
    database.executemany(_NOTE_VERSION, ((stat.version, id_in_key(stat.key), stat.etag) for stat in stats))


def apply(
    database: sqlite3.Connection,
    contents: Iterable[StoredContent],
    deleted: Collection[str],
    lines: frozenset[int],
    *,
    deletions: bool,
) -> RowCounts:
    """Bring the rows up to date. Without `deletions`, rows of tombstones and of deleted objects stay.

    The bodies of new and changed pages lack the repeated `lines`.
    """
    added = changed = removed = 0
    for stored in contents:
        has_row = bool(database.execute("SELECT 1 FROM pages WHERE page_id = ?", (stored.page_id,)).fetchone())
        if isinstance(stored.content, Page):
            _write(database, UPDATE if has_row else INSERT, stored, stored.content, lines)
            added, changed = added + (not has_row), changed + has_row
        elif deletions or not has_row:
            removed += _delete(database, stored.page_id)
            _note_stored(database, stored)
    if deletions:
        removed += sum(_delete(database, page_id) for page_id in deleted)
    return RowCounts(added, changed, removed)


def section(path: str) -> str:
    """Return the first folder of a path, decoded: `library` for /library/os.html, empty for /os.html.

    It is empty, too, for a name of more than `MAX_SECTION` characters: a searcher keeps every section in memory.
    """
    first, slash, _ = path.partition("?")[0].removeprefix("/").partition("/")
    name = unquote(first) if slash else ""
    return name if len(name) <= MAX_SECTION else ""


def _delete(database: sqlite3.Connection, page_id: str) -> int:
    for table in ("links", "lines", "stored"):
        database.execute(f"DELETE FROM {table} WHERE page_id = ?", (page_id,))  # noqa: S608 - The names are constants.
    return database.execute("DELETE FROM pages WHERE page_id = ?", (page_id,)).rowcount


def subsections(page: Page) -> str:
    """Return fragment, tab and text of each heading with an id and of each term, one a line.

    The heading of the whole page is left out, and of a term what is not its name.
    """
    headings = [
        (block.id, " ".join(block.lines)) for block in page.blocks if block.kind in HEADINGS and not block.boilerplate
    ]
    if page.headings and headings and headings[0][1] == page.headings[0]:
        headings = headings[1:]
    terms = ((term.id, shown_term(term.text, term.id)) for term in page.terms)
    named = {
        fragment: " ".join(text.split())[:MAX_SUBSECTION]
        for fragment, text in (*terms, *headings[:MAX_HEADINGS])
        if fragment.strip() and fragment.isprintable()
    }
    return "\n".join(f"{fragment}\t{text}" for fragment, text in named.items() if text)


def _write(
    database: sqlite3.Connection,
    statement: str,
    stored: StoredContent,
    page: Page,
    left_out: frozenset[int],
) -> None:
    """Write the row of a page. One that declares no language gets the one of its text."""
    lines = repeated_lines.lines_of(page)
    whole = "".join(lines)
    if _storable(whole) != whole:
        lines = [*map(_storable, lines)]
    body, hashes, removed = repeated_lines.without(lines, left_out)
    title, description = _storable(page.title), _storable(page.description)
    lang = _storable(page.lang) or detect_language(f"{title} {description} {body}")
    names = (page.canonical_key, page.url, page.path, section(page.path))
    kinds = (page.modified, page.content_type, page.canonical, "\n".join(page.alternates))
    headings = ("\n".join(page.headings), subsections(page))
    texts = (lang, title, description, hash_of(title, without_ends(body)), body)
    database.execute(statement, (stored.page_id, *map(_storable, (*names, *kinds, *headings)), *texts))
    _note_stored(database, stored)
    note_links(database, stored.page_id, page)
    repeated_lines.note_lines(database, stored.page_id, hashes, removed)


def _note_stored(database: sqlite3.Connection, stored: StoredContent) -> None:
    """Note the ETag of what was read, so that the next incremental pack does not read it again."""
    database.execute("INSERT OR REPLACE INTO stored (page_id, etag) VALUES (?, ?)", (stored.page_id, stored.etag))


def _storable(text: str) -> str:
    """Return the text without NUL, which would end it in SQLite, and lone surrogates, which UTF-8 cannot hold."""
    if "\0" in text:
        text = text.replace("\0", " ")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text
