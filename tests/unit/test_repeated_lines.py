"""Lines that many pages of a site repeat: left out of bodies, also when pages come, change and go."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.pack import database, repeated
from app.pack.fetch import fetch_pack
from app.pack.packer import pack_full, pack_incremental
from app.storage.layout import Page, content_key, page_id
from app.storage.page_parts import Block, body_of
from app.storage.store import ObjectStore, StoredObject
from tests.packs import gone, page, put
from tests.support.stores import folder_store

pytestmark = pytest.mark.unit

DOMAIN = "site.example"
MENU = ("Home page", "Search the site")
NAMES = tuple("abcdefghijklmnopqrst")


def with_lines(path: str, *lines: str, menu: tuple[str, ...] = MENU) -> Page:
    blocks = (Block(menu), Block(lines), Block(("marked",), boilerplate=True)) if menu else (Block(lines),)
    return page(path, f"Page {path}", body_of(blocks), blocks=blocks)


def packed(store: ObjectStore, folder: Path) -> dict[str, tuple[str, str]]:
    """Return body and forms by path, of a pack whose index matches its rows."""
    path = fetch_pack(store, DOMAIN, folder)
    database.check_index(path)
    with closing(sqlite3.connect(path)) as pack:
        return {row: (body, forms) for row, body, forms in pack.execute("SELECT path, body, body_forms FROM pages")}


def pack_all(store: ObjectStore, folder: Path) -> dict[str, tuple[str, str]]:
    pack_full(store, DOMAIN, work=folder, force=True)
    return packed(store, folder)


def test_the_body_of_a_page_has_no_line_that_many_pages_repeat(tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    put(store, *(with_lines(f"/{name}", f"Words of {name}") for name in NAMES))
    put(store, with_lines("/menu"), with_lines("/short", "Words", menu=("Home page",)))
    bodies = {path: body for path, (body, _) in pack_all(store, tmp_path).items()}
    assert bodies == {f"/{name}": f"Words of {name}" for name in NAMES} | {
        "/menu": " ".join(MENU),  # Nothing else would be left.
        "/short": "Words",
    }


def test_copies_of_one_page_repeat_no_line(tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    put(store, *(with_lines(f"/{name}", "Text", "of one page") for name in NAMES))
    assert {body for body, _ in pack_all(store, tmp_path).values()} == {"Home page Search the site Text of one page"}


def test_only_pages_whose_repeated_lines_change_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = folder_store(tmp_path / "store")
    menus = {name: MENU if name < "k" else ("Other menu",) for name in NAMES}
    put(store, *(with_lines(f"/{name}", f"Words of {name}", menu=menus[name]) for name in NAMES))
    assert pack_all(store, tmp_path)["/a"][0] == "Words of a"
    put(store, *(gone(f"/{name}") for name in "abc"))
    read: list[str] = []
    get = store.get

    def noted(key: str) -> StoredObject:
        read.append(key)
        return get(key)

    monkeypatch.setattr(store, "get", noted)
    result = pack_incremental(store, DOMAIN, work=tmp_path)
    assert (result.changed, result.removed) == (0, 3)
    assert packed(store, tmp_path)["/d"][0] == "Home page Search the site Words of d"
    keys = {name: content_key(DOMAIN, page_id(f"https://{DOMAIN}/{name}")) for name in NAMES}
    assert {name for name, key in keys.items() if key in read} == set("abcdefghij")


contents = st.dictionaries(
    st.sampled_from(NAMES[:12]),
    st.none() | st.lists(st.sampled_from(["one", "two", "three", "menus"]), max_size=3, unique=True),
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(st.lists(contents, min_size=2, max_size=3))
def test_an_incremental_pack_has_the_bodies_of_a_full_one(
    tmp_path_factory: pytest.TempPathFactory, steps: list[dict[str, list[str] | None]]
) -> None:
    folder = tmp_path_factory.mktemp("site")
    store = folder_store(folder / "store")
    put(store, with_lines("/start", "Start"))
    pack_all(store, folder)
    for step in steps:
        for name, lines in step.items():
            put(store, gone(f"/{name}") if lines is None else with_lines(f"/{name}", f"Words of {name}", *lines))
        pack_incremental(store, DOMAIN, work=folder)
    assert packed(store, folder) == pack_all(store, folder)


@given(st.binary(max_size=20))
def test_hashes_that_a_foreign_writer_damaged_are_no_error(damaged: bytes) -> None:
    with closing(sqlite3.connect(":memory:")) as pack:
        pack.executescript(database.SCHEMA)
        rows = [(str(at), damaged + bytes([at]), damaged) for at in range(9)]
        pack.executemany("INSERT INTO lines VALUES (?, ?, ?)", rows)
        repeated.differing(pack, repeated.find(pack))


@given(
    st.lists(st.lists(st.sampled_from(["a", "b", "cc"]), max_size=3).map(tuple), max_size=4),
    st.sampled_from(["", "I > II"]),
)
def test_the_lines_of_a_page_are_its_body(lines: list[tuple[str, ...]], breadcrumb: str) -> None:
    blocks = tuple(Block(block, boilerplate=at == 1) for at, block in enumerate(lines))
    body = f"{body_of(blocks)} {breadcrumb}".strip()
    assert " ".join(repeated.lines_of(page("/a", "", body, blocks=blocks))) == body
