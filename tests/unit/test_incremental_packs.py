"""Incremental packs equal full packs row by row, and their files do not grow without end."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.pack.listing import differing_names
from app.pack.manifest import read_manifest
from app.pack.packer import pack_full, pack_incremental
from app.pack.plan import FullPackPlan
from app.storage import folder
from app.storage.etags import noted_etag
from app.storage.layout import CONTENT_PREFIX, Page, content_key, id_in_key, list_ids, page_id
from app.storage.page_parts import Block, PageLink, Term, body_of
from app.storage.store import ObjectStore
from tests.packs import check_index, fetch_pack, gone, page, put
from tests.support.stores import RecordingStore, folder_store

pytestmark = pytest.mark.unit

DOMAIN = "site.example"
#: As many pages as repeat no line: see `repeated.KEPT_PAGES`.
PATHS = ("/", "/b", "/c?x", "/de/b", "/de/c", "/de/", "/f")
WORDS = ("apple", "naïve", "NAIVE", "日本", "OrderedDict", "os.path", "C++", "sorting")

words = st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join)
addresses = st.sampled_from([f"https://{DOMAIN}{path}{end}" for path in PATHS for end in ("", "#")])
anchors = st.lists(
    st.sampled_from(["Next", "Alpha", "os.path\tos.path", "sort()\tsort", "sort()\tsorts"]), min_size=1, max_size=2
)
pages = st.builds(
    lambda path, end, title, site, headings, lines, **fields: page(
        path,
        title + site,
        body_of(blocks := (Block((title,), "h2", "sort"), Block(tuple(lines)))),
        url=f"https://{DOMAIN}{path}{end}",
        headings=headings,
        blocks=blocks,
        **fields,
    ),
    path=st.sampled_from(PATHS),
    end=st.sampled_from(["", "", "#"]),
    title=words,
    site=st.sampled_from(["", " | Site"]),
    headings=words,
    lines=st.lists(words, max_size=2),
    lang=st.sampled_from(["", "en", "de"]),
    canonical=st.just("") | addresses,
    alternates=st.just(()) | st.tuples(addresses),
    terms=st.just(()) | st.just((Term("os.path", "os.path"),)),
    links=st.lists(st.builds(PageLink, addresses, anchors.map("\n".join)), max_size=5, unique_by=lambda link: link.url),
)
contents = st.lists(pages | st.sampled_from(PATHS).map(gone) | st.sampled_from(PATHS), min_size=1, max_size=4)


def change(store: ObjectStore, changed: list[Any]) -> None:
    """Store pages and tombstones, and delete the pages with a path."""
    for content in changed:
        if isinstance(content, str):
            store.delete(content_key(DOMAIN, page_id(f"https://{DOMAIN}{content}")))
        else:
            put(store, content)


def packed(store: ObjectStore, folder: Path) -> dict[str, Any]:
    """Return all content of the present pack, with page ids in place of row ids."""
    path = fetch_pack(store, DOMAIN, folder)
    check_index(path)
    with closing(sqlite3.connect(path)) as pack:
        pack.row_factory = sqlite3.Row
        page_ids = {0: "", **dict(map(tuple, pack.execute("SELECT id, page_id FROM pages")))}
        alternates: dict[int, set[str]] = {}
        for row in pack.execute("SELECT page_id, alternate_group FROM pages WHERE alternate_group"):
            alternates.setdefault(row["alternate_group"], set()).add(row["page_id"])
        rows = {}
        for row in map(dict, pack.execute("SELECT * FROM pages")):
            group = alternates.get(row["alternate_group"])
            others = {"id": 0, "shown_as": page_ids[row["shown_as"]], "alternate_group": group}
            rows[row["page_id"]] = row | others
        definitions = pack.execute("SELECT * FROM definitions ORDER BY name, rank")
        plain = ("words", "links", "lines", "addresses", "link_texts")
        site = "SELECT * FROM meta WHERE key IN ('site_name', 'stemmers', 'language', 'pages')"
        return {
            "pages": rows,
            "definitions": [dict(row) | {"page": page_ids[row["page"]]} for row in definitions],
            **{table: set(map(tuple, pack.execute(f"SELECT * FROM {table}"))) for table in plain},
            **{table: indexed(pack, table, page_ids) for table in ("pages_fts", "names", "name_stems", "passages")},
            "meta": dict(map(tuple, pack.execute(site))),
        }


def indexed(pack: sqlite3.Connection, table: str, page_ids: dict[int, str]) -> set[tuple[Any, ...]]:
    """Return each word of an index with its page, passage, column and position, and what else scores depend on."""
    pack.execute(f"INSERT INTO {table} ({table}) VALUES ('integrity-check')")
    pack.execute(f"CREATE VIRTUAL TABLE temp.{table}_words USING fts5vocab (main, {table}, instance)")
    bits = 12 if table == "passages" else 0
    # The size of each row, and that of all rows (https://sqlite.org/fts5.html#fts5_data_structures).
    found = pack.execute(f"""
        SELECT term, doc >> {bits}, doc, col, offset FROM temp.{table}_words
        UNION ALL SELECT sz, id >> {bits}, id, 0, 0 FROM {table}_docsize
        UNION ALL SELECT block, 0, 0, 0, 0 FROM {table}_data WHERE id = 1
    """)
    return {(term, page_ids[row], doc % 4096 if bits else 0, col, at) for term, row, doc, col, at in found}


#: Rows are written in order of page ids, so the last one follows the removal of the row with the highest id.
*OTHERS, REMOVED, LAST = sorted(PATHS, key=lambda path: page_id(f"https://{DOMAIN}{path}"))
SORT, SORTS = (PageLink(f"https://{DOMAIN}/b", f"sort()\t{fragment}") for fragment in ("sort", "sorts"))
LINKING = [page(path, f"Page {path}", links=(PageLink(f"https://{DOMAIN}{LAST}", "Alpha"),)) for path in PATHS]


@settings(max_examples=60, deadline=None)
@example([each for each in LINKING if each.path != LAST], [([gone(REMOVED), page(LAST, "Last")], "all")])
# Two pages have one language and path.
@example(
    [page("/de/b", "Eins", lang="de"), page("/en/b", "One", lang="en")], [([page("/b", "Zwei", lang="de")], "all")]
)
# Nothing but the fragment of a link changes.
@example([page("/b", "B"), page("/f", "F", links=(SORT,))], [([page("/f", "F", links=(SORTS,))], "all")])
@given(contents, st.lists(st.tuples(contents, st.sampled_from(["all", "no deletions", "full"])), max_size=4))
def test_an_incremental_pack_equals_a_full_one_row_by_row(
    tmp_path_factory: pytest.TempPathFactory, first: list[Any], steps: list[tuple[list[Any], str]]
) -> None:
    folder = tmp_path_factory.mktemp("site")
    store = folder_store(folder / "store")
    put(store, page("/always", "Always"))
    change(store, first)
    pack_full(store, DOMAIN, work=folder)
    for changed, kind in steps:
        change(store, changed)
        if kind == "full":
            pack_full(store, DOMAIN, work=folder)
        else:
            pack_incremental(store, DOMAIN, deletions=kind == "all", work=folder)
    pack_incremental(store, DOMAIN, work=folder)
    updated = packed(store, folder)
    pack_full(store, DOMAIN, work=folder, force=True)
    assert updated == packed(store, folder)


def read_pages(store: RecordingStore) -> set[str]:
    """Return the ids of the pages that were read."""
    return {id_in_key(key) for key in store.read if key.startswith(CONTENT_PREFIX)}


def test_a_full_pack_reads_only_pages_that_changed_or_vanished_and_equals_one_of_all_pages(tmp_path: Path) -> None:
    store = RecordingStore(folder_store(tmp_path / "store").root)
    put(store, *(long(number, "words") for number in range(40)))
    pack_full(store, DOMAIN, FullPackPlan(crawl_id="first"), work=tmp_path)
    put(store, long(0, "other words"), long(40, "new words"))
    changed, vanished, new = (page_id(f"https://{DOMAIN}/{number}") for number in (0, 39, 40))
    crawled = [each for each in list_ids(store, DOMAIN) if each != vanished]
    plan = FullPackPlan(crawl_id="second", page_ids=crawled, began=datetime.now(UTC) + timedelta(hours=1))
    store.read.clear()
    assert pack_full(store, DOMAIN, plan, work=tmp_path).removed == 1
    assert read_pages(store) == {changed, vanished, new}
    found, manifest = packed(store, tmp_path), read_manifest(store, DOMAIN)
    assert (manifest.kind, manifest.crawl_id, manifest.pages) == ("full", "second", 40)
    assert not pack_full(store, DOMAIN, plan, work=tmp_path).written
    assert pack_full(store, DOMAIN, plan, work=tmp_path, force=True).written
    assert found == packed(store, tmp_path)


def test_a_full_pack_reads_all_pages_when_many_have_changed_since_it_last_did(tmp_path: Path) -> None:
    store = RecordingStore(folder_store(tmp_path / "store").root)
    put(store, *(long(number, "words") for number in range(40)))
    read = []
    for crawl in range(6):
        put(store, *(long(number, f"words of {crawl}") for number in range(3 * crawl, 3 * crawl + 3)))
        store.read.clear()
        pack_full(store, DOMAIN, FullPackPlan(crawl_id=str(crawl)), work=tmp_path)
        read.append(len(read_pages(store)))
    assert read == [40, 3, 3, 3, 40, 3]


def test_of_unchanged_pages_an_update_reads_neither_etags_nor_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, etags = RecordingStore(folder_store(tmp_path / "store").root), set[str]()

    def noted(path: str, status: os.stat_result) -> str | None:
        etags.update([id_in_key(path)] * (f"/{CONTENT_PREFIX}" in path))
        return noted_etag(path, status)

    put(store, *(long(number, "words") for number in range(40)))
    pack_full(store, DOMAIN, work=tmp_path)
    changed, removed, touched = (page_id(f"https://{DOMAIN}/{number}") for number in range(3))
    put(store, long(0, "other words"))
    store.delete(content_key(DOMAIN, removed))
    os.utime(store.root / content_key(DOMAIN, touched))
    monkeypatch.setattr(folder, "noted_etag", noted)
    for with_etag, read in (({changed, touched}, {changed}), (set[str](), set[str]())):
        etags.clear()
        store.read.clear()
        assert pack_incremental(store, DOMAIN, work=tmp_path).written == bool(read)
        assert etags == with_etag
        assert read_pages(store) == read
    assert len(packed(store, tmp_path)["pages"]) == 39


names = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("12")), unique_by=lambda each: each[0])


@given(names, names)
def test_a_listing_differs_from_the_noted_versions_in_what_they_do_not_have_in_common(
    rows: list[tuple[str, str]], listed: list[tuple[str, str]]
) -> None:
    differing = {name for name, _ in {*rows} ^ {*listed}}
    assert differing_names(iter(sorted(rows)), sorted(listed)) == differing
    assert differing_names(iter(rows), listed) >= differing


def long(number: int, text: str) -> Page:
    return page(f"/{number}", f"Page {number}", f"{text} of {number}. " * 200)


def test_a_pack_that_is_updated_often_is_written_as_one_piece_now_and_then(tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    put(store, *(long(number, "words") for number in range(40)))
    pack_full(store, DOMAIN, work=tmp_path)
    updated, free = [], []
    for number in range(30):
        put(store, long(number, "others"))
        pack_incremental(store, DOMAIN, work=tmp_path)
        with closing(sqlite3.connect(fetch_pack(store, DOMAIN, tmp_path))) as pack:
            updated += [int(value) for (value,) in pack.execute("SELECT value FROM meta WHERE key = 'updated'")]
            free += [pages for (pages,) in pack.execute("PRAGMA freelist_count")]
    assert 0 in updated
    assert free[updated.index(0)] == 0
    assert packed(store, tmp_path)["words"] >= {("others", 30), ("words", 10)}


def test_what_all_pages_determine_is_determined_again_when_a_share_of_them_has_changed(tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    put(store, *(page(f"/{number}", f"Page {number} | Old") for number in range(40)))
    pack_full(store, DOMAIN, work=tmp_path)
    names = []
    for number in range(0, 40, 8):
        put(store, page(f"/{number}", f"Page {number} | New"))
        pack_incremental(store, DOMAIN, work=tmp_path)
        names.append(packed(store, tmp_path)["meta"]["site_name"])
    assert names == ["Old"] * 5
    put(store, page("/1", "Page 1 | New"), *(page(f"/{number}", f"Page {number} | New") for number in range(20)))
    pack_incremental(store, DOMAIN, work=tmp_path)
    updated = packed(store, tmp_path)
    assert updated["meta"]["site_name"] == "New"
    pack_full(store, DOMAIN, work=tmp_path, force=True)
    assert updated == packed(store, tmp_path)
