"""Real packs for tests: write a SQLite file from a few pages, and publish it in a store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.cluster.placement.model import Pack
from app.cluster.protocol import Load, PackVersion
from app.pack import groups, repeated_lines
from app.pack import publish as publishing
from app.pack.anchors import note_links
from app.pack.database import check, create, transaction
from app.pack.derivation import derive_all
from app.pack.download import download_pack_to
from app.pack.frames import FrameTable, hashes_of
from app.pack.manifest import Manifest, PackDescription, read_manifest
from app.pack.rows import INSERT, reserve_ids, section, subsections
from app.search.pack_searcher import PackSearcher
from app.storage.layout import Page, Tombstone, content_key, page_id, to_json
from app.storage.store import ObjectStore
from app.text.words import indexed

#: FTS5's tokenizer of the schema. It splits at spaces and at signs of ASCII.
TOKENIZER = "ascii"
BUILT_AT = "2026-11-21T10:04:00+00:00"


def page(path: str, title: str = "", body: str = "", *, url: str = "", headings: str = "", **fields: Any) -> Page:
    """Return a page of site.example; `headings` are lines."""
    canonical_key = f"https://site.example{path}"
    return Page(
        canonical_key=canonical_key,
        url=url or canonical_key,
        domain="site.example",
        path=path,
        title=title,
        body=body,
        headings=tuple(headings.splitlines()),
        **fields,
    )


def gone(path: str) -> Tombstone:
    """Return the tombstone of a page of site.example."""
    url = f"https://site.example{path}"
    return Tombstone(canonical_key=url, url=url, domain="site.example", why="404")


def put(store: ObjectStore, *contents: Page | Tombstone) -> None:
    """Store pages and tombstones as a crawl does."""
    for content in contents:
        store.put(content_key(content.domain, page_id(content.canonical_key)), to_json(content))


def fetch_pack(store: ObjectStore, domain: str, folder: Path) -> Path:
    """Download, decompress and check a domain's pack. Return its path, `folder/<domain>.<generation>.sqlite`.

    A file of the same generation is replaced; open connections keep the old one. Raises as `download_pack_to`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{domain}.{read_manifest(store, domain).generation}.sqlite"
    path.unlink(missing_ok=True)
    download_pack_to(store, domain, path)
    check(path)
    return path


def write_pack(path: Path, pages: Iterable[Page], *, domain: str = "site.example", generation: int = 1) -> Path:
    """Write a pack."""
    pages = list(pages)
    rows = [_row(page) for page in pages]
    meta = {"domain": domain, "generation": str(generation), "built_at": BUILT_AT, "pages": str(len(rows))}
    # As a packer does: a database with a journal waits for the disk at each statement of the schema.
    with create(path) as database, transaction(database):
        reserve_ids(database, len(pages))
        for page in pages:
            note_links(database, page_id(page.canonical_key), page)
        database.executemany(INSERT, rows)
        derive_all(database, frozenset())
        database.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
    return path


def searching(path: Path, pages: Iterable[Page]) -> closing[PackSearcher]:
    """Write a pack and return a searcher for a block, with time enough on a busy machine."""
    return closing(PackSearcher(write_pack(path, pages), time_limit=30.0))


def _row(page: Page) -> tuple[str | int, ...]:
    names = (page_id(page.canonical_key), page.canonical_key, page.url, page.path, section(page.path))
    kinds = (page.modified, page.content_type, page.canonical, "\n".join(page.alternates))
    headings = ("\n".join(page.headings), subsections(page))
    body, *_ = repeated_lines.without(repeated_lines.lines_of(page), frozenset())
    texts = (page.lang, page.title, page.description, groups.hash_of(page.title, page.body), body)
    return (*names, *kinds, *headings, *texts)


def check_index(path: Path) -> None:
    """Raise an error unless the full-text index of a pack is intact and has the words of its rows, and no others."""
    columns = "title, headings, anchors, description, name_forms, body_forms, body"
    with closing(sqlite3.connect(path, isolation_level=None)) as pack:
        pack.execute("INSERT INTO pages_fts (pages_fts) VALUES ('integrity-check')")
        pack.execute(f"CREATE VIRTUAL TABLE temp.rows_fts USING fts5 ({columns}, tokenize = '{TOKENIZER}')")
        rows = [(row, *map(indexed, texts)) for row, *texts in pack.execute(f"SELECT id, {columns} FROM pages")]
        pack.executemany(f"INSERT INTO temp.rows_fts (rowid, {columns}) VALUES (?{', ?' * 7})", rows)
        for schema, table in ("main", "pages_fts"), ("temp", "rows_fts"):
            pack.execute(f"CREATE VIRTUAL TABLE temp.of_{table} USING fts5vocab ({schema}, {table}, instance)")
        words = "SELECT term, doc, col, count(*), sum(offset) FROM temp.of_{} GROUP BY term, doc, col"
        assert {*pack.execute(words.format("pages_fts"))} == {*pack.execute(words.format("rows_fts"))}


def version_of(pack: Pack | Load) -> PackVersion:
    """Return the version that a searcher has after it loaded a pack."""
    return PackVersion(domain=pack.domain, sha256=pack.sha256, generation=pack.generation, size_mb=pack.size_mb)


def publish(
    store: ObjectStore,
    pack: Path,
    *,
    domain: str = "site.example",
    generation: int = 1,
    pages: int = 1,
    former: FrameTable | None = None,
    built_at: str = BUILT_AT,
) -> Manifest:
    """Put a pack and its manifest into the store; return the manifest."""
    description = PackDescription(
        domain=domain, kind="full", generation=generation, crawl_id="crawl", built_at=built_at, pages=pages
    )
    previous = replace(publishing.find_previous(store, domain), table=former)
    return publishing.publish(store, description, pack, list(hashes_of(pack)), previous)
