"""A pack of another schema version is refused with a reason, and the next pack is built from all stored pages."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from app.errors import PackCorrupt
from app.pack.packer import pack_full, pack_incremental
from app.pack.plan import FullPackPlan
from app.search.pack_searcher import PackSearcher
from app.search.query import parse
from app.storage.layout import page_id
from tests.packs import fetch_pack, page, publish, put, write_pack
from tests.support.stores import folder_store

pytestmark = pytest.mark.integration

DOMAIN = "site.example"

#: Made-up versions: an older one lacks a table and a column of this release's, a newer one has a table more.
OTHERS = {
    0: "DROP TABLE passages; ALTER TABLE pages DROP COLUMN modified;",
    99: "CREATE TABLE vectors (page INTEGER PRIMARY KEY, vector BLOB);",
}


def pack_of(version: int, path: Path) -> Path:
    """Write a pack of a made-up version."""
    write_pack(path, [page("/kernel", "The kernel")])
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"{OTHERS[version]} PRAGMA user_version = {version}")
    return path


@pytest.mark.parametrize("version", OTHERS)
@pytest.mark.parametrize("full", [False, True])
def test_a_pack_of_another_schema_is_refused_with_the_remedy_and_rebuilt(
    tmp_path: Path, version: int, full: bool
) -> None:
    store = folder_store(tmp_path / "store")
    stored = page("/kernel", "The kernel")
    put(store, stored)
    other = pack_of(version, tmp_path / "other.sqlite")
    publish(store, other)
    refused = f"schema version {version}, this release reads 1; `perennial pack DOMAIN` rebuilds it"
    with pytest.raises(PackCorrupt, match=refused):
        PackSearcher(other)
    with pytest.raises(PackCorrupt, match=refused):
        fetch_pack(store, DOMAIN, tmp_path / "packs")
    if full:
        result = pack_full(store, DOMAIN, FullPackPlan(crawl_id="c", page_ids={page_id(stored.canonical_key)}))
    else:
        result = pack_incremental(store, DOMAIN)
    assert (result.written, result.generation) == (True, 2)
    present = fetch_pack(store, DOMAIN, tmp_path / "packs")
    with closing(PackSearcher(present, time_limit=10)) as searcher:
        assert [hit.path for hit in searcher.search(parse("kernel ")).hits] == ["/kernel"]
