"""Packs and manifests as a searcher reads them from the store, and which of them are refused."""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from app.broker.errors import InvalidMessage
from app.errors import PackCorrupt
from app.pack.download import read_table
from app.pack.frames import sha256
from app.pack.manifest import Manifest, list_manifests, read_manifest
from app.pack.packer import pack_full
from app.storage.folder import FolderStore
from app.storage.layout import Page, frames_key, manifest_key
from tests.packs import fetch_pack, put
from tests.support.stores import folder_store

pytestmark = pytest.mark.unit

DOMAIN = "site.gov"
BOMB = zstandard.compress(bytes(2**26))


def write(store: FolderStore, domain: str = DOMAIN) -> None:
    url = f"https://{domain}/"
    page = Page(canonical_key=url, url=url, domain=domain, path="/", title="A page", body="some text")
    put(store, page)
    pack_full(store, domain)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a store with a pack, which tests copy."""
    store = folder_store(tmp_path_factory.mktemp("packed") / "store")
    write(store)
    return store.root


@pytest.fixture
def store(packed: Path, tmp_path: Path) -> FolderStore:
    """Return a store with a pack, the test's own."""
    return FolderStore(Path(shutil.copytree(packed, tmp_path / "store")))


@pytest.mark.parametrize("domain", ["", "..", "../x", "a/b", ".store", "nul\0", "a" * 256])
def test_a_domain_that_is_a_path_is_refused(store: FolderStore, tmp_path: Path, domain: str) -> None:
    with pytest.raises(InvalidMessage, match="not a host name"):
        fetch_pack(store, domain, tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda _: b"not zstd at all", "declares|not a complete zstd frame"),
        (lambda frame: frame[:-10], "not a complete zstd frame"),
        (lambda _: BOMB, "declares 67108864 uncompressed bytes, not 1 to 131072"),
        (lambda _: zstandard.ZstdCompressor(write_content_size=False).compress(bytes(2**26)), "declares"),
        (lambda _: zstandard.compress(b"other"), "does not match the table of frames"),
    ],
)
def test_a_pack_with_a_damaged_frame_is_refused(
    store: FolderStore, tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    manifest = read_manifest(store, DOMAIN)
    table, key = read_table(store, manifest), frames_key(DOMAIN, manifest.own_object)
    first, data = table.frames[0], store.get(key).data
    frame = damage(data[first.start : first.end])
    changed = first._replace(start=0, size=len(frame))
    table_data = replace(table, frames=(changed, *table.frames[1:])).to_bytes()
    store.put(key, frame + table_data)
    stored = replace(manifest, sha256=sha256(table_data), table_start=len(frame), table_size=len(table_data))
    store.put(manifest_key(DOMAIN), stored.to_json())
    with pytest.raises(PackCorrupt, match=message):
        fetch_pack(store, DOMAIN, tmp_path / "packs")


def with_table(store: FolderStore, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the stored table of frames, with a manifest that matches it."""
    manifest = read_manifest(store, DOMAIN)
    key = frames_key(DOMAIN, manifest.own_object)
    frames = store.get_part(key, 0, manifest.table_start)
    fields = json.loads(zstandard.decompress(read_table(store, manifest).to_bytes()))
    change(fields)
    data = zstandard.compress(json.dumps(fields).encode())
    store.put(key, frames + data)
    store.put(manifest_key(DOMAIN), replace(manifest, sha256=sha256(data), table_size=len(data)).to_json())


def make_long(fields: dict[str, Any], size: int) -> None:
    """Give the first frame and its object this size."""
    fields["objects"][0][1] = fields["frames"][0][3] = size


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fields: fields.clear(), "not a table of frames"),
        (lambda fields: fields["frames"].pop(), "the table lists 1 frames"),
        (lambda fields: fields["frames"][0].pop(), "not a table of frames"),
        (lambda fields: fields["frames"][0].__setitem__(3, math.inf), "not a table of frames"),
        (lambda fields: fields["frames"][0].__setitem__(1, "0"), "not a table of frames"),
        (lambda fields: fields["frames"][0].__setitem__(0, 0), "not a table of frames"),
        (lambda fields: fields["frames"][0].__setitem__(1, 1), "outside of its objects"),
        (lambda fields: fields["frames"][0].__setitem__(2, -1), "outside of its objects"),
        (lambda fields: fields["frames"][0].__setitem__(2, 2**70), "a size that no packer writes"),
        (lambda fields: fields["frames"][0].__setitem__(3, 2**50), "a size that no packer writes"),
        (lambda fields: make_long(fields, 2**50), "a size that no packer writes"),
        (lambda fields: fields["objects"][0].__setitem__(0, "../x"), "an object that no packer writes"),
        (lambda fields: fields.update(more="x" * 2**16), "declares"),
    ],
)
def test_a_table_of_frames_that_no_packer_writes_is_refused(
    store: FolderStore, tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    with_table(store, change)
    with pytest.raises(PackCorrupt, match=message):
        fetch_pack(store, DOMAIN, tmp_path / "packs")


def test_a_table_of_frames_that_does_not_match_its_manifest_is_refused(store: FolderStore, tmp_path: Path) -> None:
    manifest = read_manifest(store, DOMAIN)
    key = frames_key(DOMAIN, manifest.own_object)
    store.put(key, store.get(key).data[:-1])
    with pytest.raises(PackCorrupt, match="does not match its manifest"):
        fetch_pack(store, DOMAIN, tmp_path / "packs")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"domain": 1}', b"\xff", b"[" * 100_000], ids=len)
def test_an_invalid_manifest_is_refused(store: FolderStore, data: bytes) -> None:
    store.put(manifest_key(DOMAIN), data)
    with pytest.raises(PackCorrupt, match="manifest"):
        read_manifest(store, DOMAIN)


def test_a_manifest_with_fields_of_a_later_release_is_read(store: FolderStore) -> None:
    manifest = read_manifest(store, DOMAIN)
    data = manifest.to_json().replace(b"{", b'{"later": 1,', 1)
    assert Manifest.from_json(data, domain=DOMAIN) == manifest


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"pages": "3"}, "pages is '3'"),
        ({"table_start": -1}, "table_start is -1, a negative number"),
        ({"table_start": 2**64}, "table_start is 18446744073709551616, which is too large"),
        ({"table_start": 2**52}, "declares a table of [0-9]+ bytes from 4503599627370496 on"),
        ({"table_size": 2**52}, "declares a table of 4503599627370496 bytes"),
        ({"built_at": "yesterday"}, "Invalid isoformat string: 'yesterday'"),
        ({"built_at": "2026-11-21T10:04:00"}, "built_at is '2026-11-21T10:04:00', without a time zone"),
    ],
)
def test_a_manifest_with_values_that_no_packer_writes_is_refused(
    store: FolderStore, fields: dict[str, Any], reason: str
) -> None:
    named = json.loads(read_manifest(store, DOMAIN).to_json())
    store.put(manifest_key(DOMAIN), json.dumps(named | fields).encode())
    with pytest.raises(PackCorrupt, match=reason):
        fetch_pack(store, DOMAIN, store.root)


def test_all_manifests_are_listed_except_invalid_ones(store: FolderStore, caplog: pytest.LogCaptureFixture) -> None:
    write(store, "127.0.0.1:8080")
    store.put(manifest_key("bad.gov"), b"{")
    with caplog.at_level(logging.WARNING):
        assert [manifest.domain for manifest in list_manifests(store)] == ["127.0.0.1:8080", DOMAIN]
    assert manifest_key("bad.gov") in caplog.text
