"""Packs of a domain in an S3 bucket over HTTP: full, incremental, concurrent and fetched."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.operations.garbage_collection import collect_until
from app.pack.manifest import list_manifests
from app.pack.packer import pack_full, pack_incremental
from app.pack.plan import FullPackPlan
from app.pack.rollback import plan_rollback
from app.storage.layout import Page, Tombstone, content_key, from_json, page_id, to_json
from app.storage.open import open_store
from app.storage.store import ObjectStore
from app.text.lines import without_ends
from tests.packs import check_index, fetch_pack, put
from tests.servers.s3 import S3Server

pytestmark = pytest.mark.integration

DOMAIN = "site.gov:8443"
PAGES = 40


@pytest.fixture(scope="module")
def store(s3: S3Server) -> Iterator[ObjectStore]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        yield open_store(s3.store_url("some/prefix"))


def page(number: int, body: str = "text") -> Page:
    url = f"https://{DOMAIN}/{number}"
    return Page(canonical_key=url, url=url, domain=DOMAIN, path=f"/{number}", title=f"Page {number}", body=body)


def rows(store: ObjectStore, folder: Path) -> dict[str, str]:
    path = fetch_pack(store, DOMAIN, folder)
    check_index(path)
    with closing(sqlite3.connect(path)) as connection:
        return {path: without_ends(body) for path, body in connection.execute("SELECT path, body FROM pages")}


def test_packs_follow_the_stored_pages(store: ObjectStore, tmp_path: Path) -> None:
    pages = [page(number) for number in range(PAGES)]
    put(store, *pages)
    page_ids = [page_id(each.canonical_key) for each in pages]
    assert pack_incremental(store, DOMAIN).added == PAGES
    assert not pack_incremental(store, DOMAIN).written

    put(store, page(0, "changed"))
    assert pack_incremental(store, DOMAIN).changed == 1
    assert rows(store, tmp_path) == {f"/{number}": "text" if number else "changed" for number in range(PAGES)}

    later = datetime.now(UTC) + timedelta(seconds=2)  # S3 reports whole seconds.
    plan = FullPackPlan(crawl_id="c", page_ids=page_ids[:30], began=later)
    assert pack_full(store, DOMAIN, plan).removed == PAGES - 30
    assert not pack_incremental(store, DOMAIN).written
    assert from_json(store.get(content_key(DOMAIN, page_ids[-1])).data).why == "vanished"  # type: ignore[union-attr]
    assert len(rows(store, tmp_path)) == 30
    assert [(manifest.domain, manifest.generation, manifest.pages) for manifest in list_manifests(store)] == [
        (DOMAIN, 3, 30)
    ]


def test_a_rollback_and_a_collection_find_their_objects(store: ObjectStore, tmp_path: Path) -> None:
    for crawl in ("good", "bad"):
        put(store, *(page(number, crawl) for number in range(3)))
        pack_full(store, DOMAIN, FullPackPlan(crawl_id=crawl), force=True)
    for foreign in (f"frames/{DOMAIN}/9-of-a-killed-packer", "frames/.nfs0001"):
        store.put(foreign, b"frames")
    url = page(0).url
    store.put(
        content_key(DOMAIN, page_id(url)), to_json(Tombstone(canonical_key=url, url=url, domain=DOMAIN, why="410"))
    )
    assert rows(store, tmp_path)["/0"] == "bad"
    plan_rollback(store, DOMAIN).apply(store)
    assert rows(store, tmp_path)["/0"] == "good"
    collected = collect_until(store, datetime.now(UTC) + timedelta(days=1))
    assert [each.kind for each in collected] == ["frames of no kept generation", "tombstones"]
    # The rollback's table, and the frames of both crawls.
    assert len(list(store.list("frames/"))) == 3
    assert not list(store.list(content_key(DOMAIN, page_id(url))))
    assert rows(store, tmp_path)["/0"] == "good"
    plan_rollback(store, DOMAIN).apply(store)
    assert rows(store, tmp_path)["/0"] == "bad"
