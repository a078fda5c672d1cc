"""Packers cache the database of a pack until the next one: what they fetch then, whatever became of the file."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections import namedtuple
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest

from app.broker.errors import ApplicationError
from app.errors import lacks_space
from app.pack import database_cache, frames, listing, publish
from app.pack.database_cache import MAX_AGE, DatabaseCache, has_version
from app.pack.frames import FRAME_SIZE, sha256
from app.pack.manifest import read_manifest
from app.pack.packer import pack_full, pack_incremental
from tests.packs import check_index, fetch_pack, put
from tests.support.stores import folder_store
from tests.unit.test_pack_transfer import DOMAIN, CountingStore, damaged, long, longer

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that tests copy: the store of a site, and the work folder of its packer with the database."""
    folder = tmp_path_factory.mktemp("packed")
    store = folder_store(folder / "store")
    put(store, *map(long, range(60)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database_cache, "LEAST_SIZE", 0)
        pack_full(store, DOMAIN, work=folder / "work")
    return folder


@pytest.fixture
def work(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed / "work", tmp_path / "work"))


@pytest.fixture
def site(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountingStore:
    """Return a store with a site, whose database a packer has cached."""
    monkeypatch.setattr(database_cache, "LEAST_SIZE", 0)
    return CountingStore(Path(shutil.copytree(packed / "store", tmp_path / "store")))


def fetched_bytes(store: CountingStore, number: int, work: Path) -> int:
    """Change a page, pack it and check the pack. Return the bytes of packs that the packer fetched."""
    put(store, long(number, f"changed {time.monotonic_ns()}"))
    with store.counted() as counts:
        assert pack_incremental(store, DOMAIN, work=work).changed == 1
    check_index(fetch_pack(store, DOMAIN, work / "checked"))
    return counts[1]


def without_frames(store: CountingStore) -> int:
    """Return the bytes of manifest and table, which every packer fetches, rounded up."""
    return read_manifest(store, DOMAIN).table_size + 5_000


def test_an_update_hashes_the_frames_that_it_wrote_and_no_others(
    site: CountingStore, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Mock(wraps=sha256)
    monkeypatch.setattr(frames, "sha256", counted)
    for number in range(6):
        put(site, long(number, f"changed {number}"), long(60 + number, "new"))
        counted.reset_mock()
        assert pack_incremental(site, DOMAIN, work=work).written
        cached = work / "cache" / f"{DOMAIN}.sqlite"
        assert 0 < counted.call_count < cached.stat().st_size / FRAME_SIZE
        assert fetch_pack(site, DOMAIN, tmp_path).read_bytes() == cached.read_bytes()


def test_a_cached_database_is_hashed_once_a_day_and_after_a_start_of_the_system(
    site: CountingStore, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached, version = work / "cache" / f"{DOMAIN}.sqlite", read_manifest(site, DOMAIN).sha256
    assert has_version(cached, version)
    assert not has_version(cached, "0" * 64)
    with monkeypatch.context() as patch:
        (tmp_path / "boot_id").write_text("another")
        patch.setattr(database_cache, "_BOOT_ID", tmp_path / "boot_id")
        assert not has_version(cached, version)
        patch.setattr(database_cache, "_BOOT_ID", tmp_path / "missing")
        assert not has_version(cached, version)
    monkeypatch.setattr(database_cache, "datetime", Mock(now=lambda zone: datetime.now(zone) + timedelta(days=1)))
    assert not has_version(cached, version)
    assert fetched_bytes(site, 1, work) < without_frames(site)


@pytest.mark.parametrize("damage", [damaged, longer])
def test_a_database_that_was_damaged_meanwhile_costs_frames_only(
    site: CountingStore, work: Path, damage: Callable[[Path], None]
) -> None:
    assert fetched_bytes(site, 1, work) < without_frames(site)
    damage(work / "cache" / f"{DOMAIN}.sqlite")
    second = fetched_bytes(site, 2, work)
    assert second <= without_frames(site) if damage is longer else second > without_frames(site)
    assert not pack_incremental(site, DOMAIN, work=work).written
    assert fetched_bytes(site, 3, work) < without_frames(site)


def test_a_packer_fetches_the_frames_that_another_one_has_changed(site: CountingStore, work: Path) -> None:
    whole = read_manifest(site, DOMAIN).size
    other = work.with_name("other")
    assert fetched_bytes(site, 1, other) > whole
    for number, packer in enumerate((work, other, work), 2):
        assert without_frames(site) < fetched_bytes(site, number, packer) < whole / 2


def test_a_packer_uses_a_database_alone(tmp_path: Path, site: CountingStore, work: Path) -> None:
    cache = DatabaseCache(work / "cache", limit=10**9)
    for name in ("first", "second"):
        cache.take(DOMAIN, tmp_path / name)
    assert (tmp_path / "first").stat().st_size > FRAME_SIZE
    assert not (tmp_path / "second").exists()
    # The second one has none to take and fetches all. The first one replaces what it cached by an older version.
    assert fetched_bytes(site, 1, work) > read_manifest(site, DOMAIN).size / 2
    cache.put(DOMAIN, tmp_path / "first")
    assert without_frames(site) < fetched_bytes(site, 2, work) < read_manifest(site, DOMAIN).size / 2


def test_what_was_used_longest_ago_is_deleted_beyond_the_limit_or_a_week(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, file = DatabaseCache(tmp_path / "cache", limit=1_000), tmp_path / "file"
    monkeypatch.setattr(database_cache, "LEAST_SIZE", 300)

    def cached(domain: str, size: int, *, age: float) -> set[str]:
        file.write_bytes(bytes(size))
        cache.put(domain, file)
        os.utime(cache.folder / f"{domain}.sqlite", (time.time() - age,) * 2)
        return {path.stem for path in cache.folder.iterdir()}

    cached("unused", 300, age=MAX_AGE + 1)
    assert cached("first", 400, age=20) == {"first"}
    assert cached("second", 400, age=10) == {"first", "second"}
    assert cached("third", 400, age=0) == {"second", "third"}
    for size in (1_001, 299):
        file.write_bytes(bytes(size))
        cache.put("first", file)
        assert {path.stem for path in cache.folder.iterdir()} == {"second", "third"}
    DatabaseCache(cache.folder, limit=0).put("first", file)
    assert not [*cache.folder.iterdir()]


@pytest.mark.parametrize("step", ["the former pack", "the listing", "the build", "the store"])
def test_cached_databases_give_way_when_the_disk_is_full(
    site: CountingStore, work: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    usage = namedtuple("usage", ["total", "used", "free"])
    no_space = Mock(side_effect=OSError(errno.ENOSPC, "no space"))
    listing_of_two_pages = f"PRAGMA max_page_count = 2; {listing._SCHEMA}"
    target, name, fault, reason = {
        "the former pack": (publish, "has_version", no_space, "no space"),
        "the listing": (listing, "_SCHEMA", listing_of_two_pages, "listing.sqlite: database or disk is full"),
        "the build": (shutil, "disk_usage", lambda _: usage(2**40, 2**40, 0), "needed, 0 free"),
        "the store": (os, "fsync", no_space, "no space"),
    }[step]
    cached = work / "cache" / f"{DOMAIN}.sqlite"
    other = cached.with_name("other.example.sqlite")
    other.write_bytes(b"database")
    put(site, long(1, "changed"))
    with monkeypatch.context() as patch:
        patch.setattr(target, name, fault)
        with pytest.raises((ApplicationError, OSError), match=reason) as caught:
            # The listing of an incremental pack is no file.
            (pack_full if step == "the listing" else pack_incremental)(site, DOMAIN, work=work)
    assert lacks_space(caught.value)
    assert not other.exists()
    assert pack_incremental(site, DOMAIN, work=work).written
    assert [*cached.parent.iterdir()] == [cached]
