"""Anchor texts in packs: joined from the links of all pages, kept right when pages come, change and go."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from app.pack import anchors, database
from app.pack.packer import pack_full
from app.search.pack_searcher import PackSearcher
from app.search.query import parse
from app.storage.layout import Page
from app.storage.page_parts import PageLink
from app.storage.store import ObjectStore
from tests.packs import check_index, fetch_pack, page, put
from tests.support.stores import folder_store

pytestmark = pytest.mark.unit

DOMAIN = "site.example"


def linking(path: str, *links: tuple[str, str]) -> Page:
    return page(path, f"Page {path}", links=tuple(PageLink(f"https://{DOMAIN}{to}", text) for to, text in links))


def packed_anchors(store: ObjectStore, folder: Path) -> dict[str, tuple[str, int]]:
    path = fetch_pack(store, DOMAIN, folder)
    check_index(path)
    with closing(sqlite3.connect(path)) as pack:
        rows = pack.execute("SELECT path, anchors, inlinks FROM pages WHERE inlinks")
        return {path: (texts, inlinks) for path, texts, inlinks in rows}


def test_a_page_has_the_texts_of_the_links_of_other_pages(tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    put(store, linking("/a", ("/a", "myself\tpart")), linking("/b", ("/a", "Alpha\nthe first")))
    put(store, linking("/c", ("/a", "Alpha"), ("/b", "Beta")))
    pack_full(store, DOMAIN, work=tmp_path)
    assert packed_anchors(store, tmp_path) == {"/a": ("Alpha\nthe first", 2), "/b": ("Beta", 1)}


def test_links_that_a_foreign_writer_damaged_are_no_error(tmp_path: Path) -> None:
    with database.create(tmp_path / "pack.sqlite") as pack:
        insert = "INSERT INTO pages (page_id, canonical_key, url, path) VALUES (?, ?, ?, '/')"
        pack.executemany(insert, [(name, name, name) for name in "ab"])
        intact = anchors.packed_links(linking("/c", ("/x", "Text")))
        damaged = [("a", b"no zlib"), ("b", "text"), ("c", intact[:-5]), ("d", intact)]
        pack.executemany("INSERT INTO links VALUES (?, ?)", damaged)
        anchors.count_all(pack)
        anchors.join_all(pack)


def test_a_text_that_leads_to_many_pages_names_none_of_them(tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    many = range(anchors.MAX_TARGETS + 1)
    texts = "\n".join(f"text {number}" for number in range(anchors.MAX_TEXTS + 9))
    put(store, linking("/from", *((f"/{number}", "Next") for number in many), ("/long", texts)))
    put(store, linking("/long"), *(linking(f"/{number}") for number in many))
    pack_full(store, DOMAIN, work=tmp_path)
    found = packed_anchors(store, tmp_path)
    assert {found[f"/{number}"] for number in many} == {("", 1)}
    assert len(found["/long"][0].splitlines()) == anchors.MAX_TEXTS


def test_a_page_is_found_by_what_links_call_it_and_by_other_forms_of_these_words(tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    mentions = (page(f"/{number}", f"About {number} kernels", "All of compiled kernels.") for number in range(20))
    put(store, page("/os", "Systems", "A text. " * 99, lang="en"), linking("/index", ("/os", "Compiled kernels")))
    put(store, *mentions)
    pack_full(store, DOMAIN, work=tmp_path)
    with closing(PackSearcher(fetch_pack(store, DOMAIN, tmp_path / "packs"), time_limit=10)) as searcher:
        for text in ("compiled kernels", "compiling kernel "):
            assert searcher.search(parse(text)).hits[0].path == "/os"
