"""A pack of a former schema version is checked and searched; the next pack of its site has the present version."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from app.pack import database
from app.pack.fetch import fetch_pack
from app.pack.packer import pack_incremental
from app.search.pack_searcher import PackSearcher
from app.search.query import parse
from app.storage.layout import content_key, page_id, to_json
from tests.packs import SQL, page, publish
from tests.support.stores import folder_store

pytestmark = pytest.mark.integration

DOMAIN = "site.example"


def former_pack(path: Path, version: int) -> Path:
    """Write a pack of a former version with two pages."""
    with closing(sqlite3.connect(path)) as connection, connection:
        scripts = [(SQL / f"{name}_{version}.sql").read_text() for name in ("schema", "triggers")]
        connection.executescript("".join(scripts))
        rows = [("/kernel", "The kernel", "compiled"), ("/kernels", "Many kernels", "all of them")]
        for at, (name, title, body) in enumerate(rows):
            key = f"https://{DOMAIN}{name}"
            connection.execute(
                "INSERT INTO pages (object, etag, key, url, path, title, body) VALUES (?, '', ?, ?, ?, ?, ?)",
                (page_id(key), key, key, name, title, body),
            )
            connection.execute("INSERT INTO names (rowid, title, headings) VALUES (?, ?, '')", (at + 1, title))
        meta = {"domain": DOMAIN, "generation": "1", "built_at": "2026-11-21T10:04:00+00:00", "kind": "full"}
        meta |= {"crawl_id": "c", "pages": "2"}
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
        connection.executescript("INSERT INTO words VALUES ('kernel', 1), ('kernels', 1);")
    return path


@pytest.mark.parametrize("version", sorted({*database.READ_VERSIONS} - {database.SCHEMA_VERSION}))
def test_a_former_pack_is_searched_until_the_next_one_replaces_it(tmp_path: Path, version: int) -> None:
    store = folder_store(tmp_path / "store")
    publish(store, former_pack(tmp_path / "former.sqlite", version), pages=2)
    former = fetch_pack(store, DOMAIN, tmp_path / "packs")
    with closing(PackSearcher(former, time_limit=10)) as searcher:
        assert [hit.path for hit in searcher.search(parse("kernel ")).hits] == ["/kernel"]
        assert searcher.suggest("kern") == ("kernel", "kernels", "The kernel", "Many kernels")
        assert searcher.search(parse("the kernels of compiled")).relaxed
    store.put(content_key(DOMAIN, page_id(f"https://{DOMAIN}/new")), to_json(page("/new", "New kernels", lang="en")))
    assert pack_incremental(store, DOMAIN, work=tmp_path).written
    present = fetch_pack(store, DOMAIN, tmp_path / "packs")
    database.check(present, versions=(database.SCHEMA_VERSION,))
    with closing(PackSearcher(present, time_limit=10)) as searcher:
        assert [hit.path for hit in searcher.search(parse("kernel ")).hits] == ["/new"]
