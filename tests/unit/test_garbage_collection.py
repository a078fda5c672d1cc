"""`perennial store collect` deletes what nothing uses and is old, and nothing else."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.crawl.record.removed_sites import note_removed
from app.pack.packer import pack_full, pack_incremental
from app.pack.plan import FullPackPlan
from app.storage.folder import FolderStore
from app.storage.layout import Tombstone, content_key, page_id, to_json
from app.storage.open import create_store
from tests.packs import gone, page, put
from tests.support.command import as_process_with, invoked

pytestmark = pytest.mark.unit

DOMAIN = "site.example"
DAY = 86_400
TOMBSTONE = content_key(DOMAIN, page_id("https://site.example/gone"))

#: Objects that nothing uses, by the kind that is printed.
UNUSED = {
    "frames of no kept generation": [f"frames/{DOMAIN}/9-of-a-killed-packer", "frames/away.example/1-a"],
    "tombstones": [TOMBSTONE],
    "crawls without a record": [f"crawls/{DOMAIN}/b/excluded.jsonl.zst", f"crawls/{DOMAIN}/b/urls/0.jsonl.zst"],
    "times of removals": ["removed/away.example.json"],
    "probes": ["probe/1"],
}
#: Objects that look like them, and are used.
USED = (
    *(f"crawls/{DOMAIN}/a/crawl.json", f"crawls/{DOMAIN}/a/urls/0.jsonl.zst", f"crawls/{DOMAIN}/c/urls/0.jsonl.zst"),
    *("acts/1.json", "act-letters/1.json", "audit/2026-01-01/1", "notes/1.json", f"starts/{DOMAIN}.json"),
)
#: Those of them that were written lately, as was what belongs to them.
YOUNG = (f"crawls/{DOMAIN}/c/urls/1.jsonl.zst", "removed/just.example.json")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FolderStore]:
    """Yield the store of the settings, in which all but YOUNG is a hundred days old."""
    url = (tmp_path / "store").as_uri()
    store, _ = create_store(url)
    assert isinstance(store, FolderStore)
    for crawl in ("first", "second"):
        put(store, *(page(f"/{name}", f"{name} {crawl}") for name in "abc"))
        pack_full(store, DOMAIN, FullPackPlan(crawl_id=crawl))
    put(store, gone("/gone"))
    for keys in (USED, *UNUSED.values()):
        for key in keys:
            if key != TOMBSTONE:
                store.put(key, b"{}")
    note_removed(store, "away.example", 1)
    for stat in store.list(""):
        os.utime(store.root / stat.key, (time.time() - 100 * DAY,) * 2)
    for key in YOUNG:
        store.put(key, b"{}")
    with as_process_with({"STORE_URL": url}):
        yield store


def keys(store: FolderStore) -> set[str]:
    return {stat.key for stat in store.list("")}


def printed(*arguments: str) -> dict[str, int]:
    """Return the number of objects by kind."""
    return {each["kind"]: each["objects"] for each in json.loads(invoked("store", "collect", "--json", *arguments))}


def test_what_nothing_uses_is_deleted_and_all_else_stays(store: FolderStore) -> None:
    before = keys(store)
    unused = {key for listed in UNUSED.values() for key in listed}
    assert unused | {*USED, *YOUNG} < before
    counts = {kind: len(listed) for kind, listed in UNUSED.items()}
    sizes = {kind: sum(store.stat(key).size for key in listed) for kind, listed in UNUSED.items()}
    assert printed("--dry-run") == counts
    lines = [f"would delete {kind}: {counts[kind]} objects, {sizes[kind]} bytes" for kind in UNUSED]
    assert invoked("store", "collect", "--dry-run").splitlines() == lines
    assert keys(store) == before
    lines = [line.replace("would delete", "deleted") for line in lines]
    assert invoked("store", "collect", "--why", "space").splitlines() == lines
    [entry] = keys(store) - (before - unused)
    assert json.loads(store.get(entry).data)["act"] == "collect"
    assert before - keys(store) == unused
    assert invoked("store", "collect") == "nothing that is older than 90 days is unused\n"
    # Nothing has changed for a packer.
    assert not pack_incremental(store, DOMAIN).written


def test_the_age_is_the_operators(store: FolderStore) -> None:
    assert printed("--dry-run", "--days", "101") == {}
    invoked("store", "collect", "--days", "99999999", exit_code=2)
    before = keys(store)
    store.put(TOMBSTONE, to_json(page("/gone", "It is back")))
    assert printed("--days", "99") == {kind: len(listed) for kind, listed in UNUSED.items() if kind != "tombstones"}
    assert TOMBSTONE in keys(store) & before


def test_a_tombstone_of_a_page_that_comes_back_meanwhile_stays(
    store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = FolderStore.get

    def comes_back(self: FolderStore, key: str) -> object:
        stored = read(self, key)
        if key == TOMBSTONE:
            store.put(key, to_json(Tombstone(canonical_key="x", url="x", domain=DOMAIN, why="410")))
        return stored

    monkeypatch.setattr(FolderStore, "get", comes_back)
    assert "tombstones" not in printed()
    assert TOMBSTONE in keys(store)


def test_frames_stay_where_a_kept_generation_cannot_be_read(store: FolderStore) -> None:
    store.put(f"packs/{DOMAIN}.json", b"damaged")
    assert printed()["frames of no kept generation"] == 1
    assert UNUSED["frames of no kept generation"][0] in keys(store)
