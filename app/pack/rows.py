"""Stored pages as rows: all of them into a new database, or what changed into the one that is there."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from app.pack.source import Content
from app.storage.layout import Page, Tombstone
from app.storage.store import Stat

COLUMNS: Final = (
    *("object", "etag", "key", "url", "path", "section", "lang", "modified", "content_type", "canonical"),
    *("title", "description", "headings", "body"),
)
INSERT: Final = f"INSERT INTO pages ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608 (ours)
UPSERT: Final = (
    f"{INSERT} ON CONFLICT (object) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in COLUMNS)}"
)
NOTE_GONE: Final = (
    "INSERT INTO gone (object, etag) VALUES (?, ?) ON CONFLICT (object) DO UPDATE SET etag = excluded.etag"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """What a listing says that the database does not: objects to read, and identities of rows without an object."""

    changed: tuple[Stat, ...]
    vanished: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows that were added, changed and removed."""

    added: int
    changed: int
    removed: int

    @property
    def any(self) -> bool:
        """Whether the pages are not what they were."""
        return bool(self.added or self.changed or self.removed)


def load(database: sqlite3.Connection, contents: Iterable[Content]) -> None:
    """Insert every page, in the order given, and note the tombstones; the index is not filled."""
    gone: list[tuple[str, str]] = []
    database.executemany(INSERT, _pages(contents, gone))
    note_gone(database, gone)


def note_gone(database: sqlite3.Connection, gone: Iterable[tuple[str, str]]) -> None:
    """Remember tombstones by identity and ETag."""
    database.executemany(NOTE_GONE, gone)


def difference(database: sqlite3.Connection, listed: Mapping[str, Stat]) -> Difference:
    """Compare a listing with the rows and the tombstones seen, by ETag."""
    rows: dict[str, str] = dict(database.execute("SELECT object, etag FROM pages"))
    gone: dict[str, str] = dict(database.execute("SELECT object, etag FROM gone"))
    changed = (stat for name, stat in listed.items() if stat.etag not in {rows.get(name), gone.get(name)})
    return Difference(tuple(changed), tuple(name for name in rows if name not in listed))


def apply(
    database: sqlite3.Connection, contents: Iterable[Content], vanished: Collection[str], *, deletions: bool
) -> Counts:
    """Bring the rows up to date; without `deletions` tombstones and vanished objects leave their rows as they are."""
    added = changed = removed = 0
    for content in contents:
        known = _has(database, content.object)
        if isinstance(content.content, Page):
            database.execute(UPSERT, _row(content, content.content))
            database.execute("DELETE FROM gone WHERE object = ?", (content.object,))
            added, changed = added + (not known), changed + known
        elif deletions or not known:
            removed += _delete(database, content.object)
            note_gone(database, [(content.object, content.etag)])
    if deletions:
        removed += sum(_delete(database, name) for name in vanished)
    return Counts(added, changed, removed)


def section(path: str) -> str:
    """Return the first folder of a path, decoded: `library` of /library/os.html, nothing of /os.html."""
    first, slash, _ = path.partition("?")[0].removeprefix("/").partition("/")
    return unquote(first) if slash else ""


def has_page(database: sqlite3.Connection, page: str) -> bool:
    """Return whether there is a row of this canonical key or page id."""
    return database.execute("SELECT 1 FROM pages WHERE object = ?1 OR key = ?1", (page,)).fetchone() is not None


def _has(database: sqlite3.Connection, identity: str) -> bool:
    return database.execute("SELECT 1 FROM pages WHERE object = ?", (identity,)).fetchone() is not None


def _delete(database: sqlite3.Connection, identity: str) -> int:
    return database.execute("DELETE FROM pages WHERE object = ?", (identity,)).rowcount


def _pages(contents: Iterable[Content], gone: list[tuple[str, str]]) -> Iterator[tuple[str, ...]]:
    for content in contents:
        if isinstance(content.content, Tombstone):
            gone.append((content.object, content.etag))
        else:
            yield _row(content, content.content)


def _row(content: Content, page: Page) -> tuple[str, ...]:
    names = (page.canonical_key, page.url, page.path, section(page.path), page.lang, page.modified)
    kinds = (page.content_type, page.canonical)
    texts = (page.title, page.description, "\n".join(page.headings), page.body)
    return (content.object, content.etag, *map(_text, (*names, *kinds)), *map(_text, texts))


def _text(text: str) -> str:
    """Return the text without what SQLite cannot hold or would end a text at: NUL and lone surrogates."""
    if "\0" in text:
        text = text.replace("\0", " ")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text
