"""Packs and manifests as a searcher reads them from the store, and which of them are refused."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from app.broker.errors import InvalidMessage
from app.errors import PackCorrupt, PackNotFound
from app.pack import fetch
from app.pack.fetch import fetch_pack, sha256
from app.pack.frames import compress
from app.pack.manifest import Manifest, list_manifests, read_manifest
from app.pack.packer import pack_full
from app.storage.folder import FolderStore
from app.storage.layout import Page, manifest_key, pack_key
from tests.packs import put
from tests.support.stores import folder_store

pytestmark = pytest.mark.unit

DOMAIN = "site.gov"


def write(store: FolderStore, domain: str = DOMAIN, path: str = "/") -> None:
    url = f"https://{domain}{path}"
    page = Page(canonical_key=url, url=url, domain=domain, path=path, title="A page", body="some text")
    put(store, page)
    pack_full(store, domain)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    folder = folder_store(tmp_path / "store")
    write(folder)
    return folder


def replace_pack(store: FolderStore, data: bytes, **manifest_fields: object) -> None:
    """Store the bytes as the pack with a matching manifest, except for the given manifest fields."""
    manifest = replace(read_manifest(store, DOMAIN), sha256=sha256(data), size=len(data), **manifest_fields)  # type: ignore[arg-type]
    store.put(pack_key(DOMAIN), data)
    store.put(manifest_key(DOMAIN), manifest.to_json())


def test_a_fetched_pack_is_one_file_named_by_its_generation(store: FolderStore, tmp_path: Path) -> None:
    path = fetch_pack(store, DOMAIN, tmp_path / "new" / "packs")
    assert path == tmp_path / "new" / "packs" / "site.gov.1.sqlite"
    assert [entry.name for entry in path.parent.iterdir()] == ["site.gov.1.sqlite"]
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert connection.execute("SELECT title FROM pages_fts('text')").fetchall() == [("A page",)]


def test_an_open_pack_is_still_readable_after_a_new_generation_is_fetched(store: FolderStore, tmp_path: Path) -> None:
    first = fetch_pack(store, DOMAIN, tmp_path)
    with closing(sqlite3.connect(first)) as connection:
        assert fetch_pack(store, DOMAIN, tmp_path) == first
        write(store, path="/other")
        assert fetch_pack(store, DOMAIN, tmp_path).name == "site.gov.2.sqlite"
        assert connection.execute("SELECT count(*) FROM pages").fetchone() == (1,)


def test_a_domain_without_a_pack_raises_pack_not_found(store: FolderStore, tmp_path: Path) -> None:
    for read in (lambda: fetch_pack(store, "other.gov", tmp_path), lambda: read_manifest(store, "other.gov")):
        with pytest.raises(PackNotFound, match=r"other\.gov"):
            read()
    store.delete(pack_key(DOMAIN))
    with pytest.raises(PackNotFound, match="a manifest but no pack"):
        fetch_pack(store, DOMAIN, tmp_path)


@pytest.mark.parametrize("domain", ["", "..", "../x", "a/b", ".store", "nul\0", "a" * 256])
def test_a_domain_that_is_a_path_is_refused(store: FolderStore, tmp_path: Path, domain: str) -> None:
    with pytest.raises(InvalidMessage, match="not a host name"):
        fetch_pack(store, domain, tmp_path)


def test_a_reader_between_pack_and_manifest_waits_for_the_manifest(store: FolderStore, tmp_path: Path) -> None:
    old = store.get(manifest_key(DOMAIN)).data
    write(store, path="/other")
    new = store.get(manifest_key(DOMAIN)).data
    store.put(manifest_key(DOMAIN), old)
    timer = threading.Timer(1.5 * fetch.PAUSE, store.put, (manifest_key(DOMAIN), new))
    timer.start()
    assert fetch_pack(store, DOMAIN, tmp_path).name == "site.gov.2.sqlite"
    timer.join()


def test_a_pack_that_does_not_match_its_manifest_is_refused(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "PAUSE", 0.01)
    store.put(pack_key(DOMAIN), store.get(pack_key(DOMAIN)).data + b"\0")
    with pytest.raises(PackCorrupt, match="does not match its manifest"):
        fetch_pack(store, DOMAIN, tmp_path / "packs")


def not_zstd(path: Path) -> bytes:
    return b"not zstd at all"


def truncated(path: Path) -> bytes:
    return compress(path)[:-10]


def bomb(path: Path) -> bytes:
    return zstandard.ZstdCompressor().compress(bytes(2**26))


def bomb_of_undeclared_size(path: Path) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(bytes(2**26))


def altered(path: Path, sql: str) -> bytes:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(sql)
    return compress(path)


def of_another_program(path: Path) -> bytes:
    return altered(path, "PRAGMA application_id = 1")


def with_a_torn_page(path: Path) -> bytes:
    data = bytearray(path.read_bytes())
    data[4096:8192] = bytes(range(256)) * 16
    path.write_bytes(data)
    return compress(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (not_zstd, "not a complete zstd file"),
        (truncated, "is truncated|not a complete"),
        (bomb, "declares 67108864 uncompressed bytes, more than"),
        (bomb_of_undeclared_size, "declares -1 uncompressed bytes"),
        (of_another_program, "application_id 1"),
        (with_a_torn_page, "quick_check|malformed"),
    ],
)
def test_a_damaged_pack_is_refused_and_leaves_no_file(
    store: FolderStore, tmp_path: Path, damage: Callable[[Path], bytes], message: str
) -> None:
    replace_pack(store, damage(fetch_pack(store, DOMAIN, tmp_path / "scratch")))
    with pytest.raises(PackCorrupt, match=message):
        fetch_pack(store, DOMAIN, tmp_path / "packs")
    assert list((tmp_path / "packs").iterdir()) == []


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"domain": 1}', b"\xff"], ids=["empty", "list", "object", "wrong type", "binary"]
)
def test_an_invalid_manifest_is_refused(store: FolderStore, data: bytes) -> None:
    store.put(manifest_key(DOMAIN), data)
    with pytest.raises(PackCorrupt, match="manifest"):
        read_manifest(store, DOMAIN)


def test_a_manifest_with_fields_of_a_later_release_is_read(store: FolderStore) -> None:
    manifest = read_manifest(store, DOMAIN)
    data = manifest.to_json().replace(b"{", b'{"later": 1,', 1)
    assert Manifest.from_json(data) == manifest
    with pytest.raises(PackCorrupt, match="pages is '3'"):
        Manifest.from_json(data.replace(b'"pages": 1', b'"pages": "3"'))


def test_all_manifests_are_listed_except_invalid_ones(store: FolderStore, caplog: pytest.LogCaptureFixture) -> None:
    write(store, "127.0.0.1:8080")
    store.put(manifest_key("bad.gov"), b"{")
    with caplog.at_level(logging.WARNING):
        assert [manifest.domain for manifest in list_manifests(store)] == ["127.0.0.1:8080", DOMAIN]
    assert manifest_key("bad.gov") in caplog.text
