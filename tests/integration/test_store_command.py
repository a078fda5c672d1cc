"""`perennial store` with an S3 server over HTTP, and the check of stores that break the contract."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.errors import PreconditionFailed, StoreError
from app.storage.copying import CopyResult, copy_store
from app.storage.folder import FolderStore
from app.storage.open import WRITERS, check_conditional_writes, create_store, open_store
from app.storage.store import ObjectStore, Stat, StoredObject
from tests.servers.s3 import S3Server
from tests.support.command import perennial

pytestmark = pytest.mark.integration


class IgnoresIfMatch(FolderStore):
    """Ignores If-Match, like a server without conditional writes."""

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        del if_match
        return super().put(key, data, if_absent=if_absent)


class IgnoresIfNoneMatch(FolderStore):
    """Ignores If-None-Match, and so overwrites an object."""

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        del if_absent
        return super().put(key, data, if_match=if_match)


class ChecksFirstWritesLater(FolderStore):
    """Compares the ETag, but writes only after every other writer has compared it, too."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._compared = threading.Barrier(WRITERS)

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        if if_match is None:
            return super().put(key, data, if_absent=if_absent)
        if self.stat(key).etag != if_match:
            raise PreconditionFailed(key)
        self._compared.wait(10)
        return super().put(key, data)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (IgnoresIfMatch, "If-Match is ignored"),
        (IgnoresIfNoneMatch, "If-None-Match: [*] is ignored"),
        (ChecksFirstWritesLater, f"of {WRITERS} concurrent writers with the same If-Match, {WRITERS} succeeded"),
    ],
)
def test_a_store_without_correct_conditional_writes_is_reported(
    tmp_path: Path, broken: type[FolderStore], message: str
) -> None:
    store = broken(tmp_path)
    store.create()
    with pytest.raises(StoreError, match=message):
        check_conditional_writes(store)
    assert list(store.list("")) == []


def test_store_create_makes_the_bucket_once_and_checks_its_conditional_writes(s3: S3Server) -> None:
    settings = {"STORE_URL": f"s3://made-{uuid.uuid4()}/deep?endpoint={s3.endpoint_url}"}
    environment = {**os.environ, **s3.environment, **settings}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return perennial(environment, "store", *arguments)

    missing = run("check")
    assert missing.returncode == 1
    assert "bucket does not exist" in missing.stderr
    for created in (True, False):
        done = run("create", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {
            "store": settings["STORE_URL"],
            "created": created,
            "conditional_writes": True,
        }
    assert run("check").stdout == f"{settings['STORE_URL']}: conditional writes hold\n"


def pages_and_packs(store: ObjectStore) -> dict[str, bytes]:
    return {stat.key: store.get(stat.key).data for stat in store.list("")}


def test_a_copy_of_a_store_has_its_marker_and_objects_and_a_repeated_one_adds_what_is_new(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    store, _ = create_store((tmp_path / "store").as_uri())
    for key in (
        "content/a.example/1.json", "crawls/a.example/c/crawl.json", "packs/a.example.json",
        "frames/a.example/1-a",
    ):  # fmt: skip
        store.put(key, key.encode())
    # The backup is a folder, a bucket, and a folder again; a copy between the two kinds writes all objects.
    bucket = f"s3://copied-{uuid.uuid4()}/deep?endpoint={s3.endpoint_url}"
    targets = [open_store(url) for url in ((tmp_path / "copy").as_uri(), bucket, (tmp_path / "back").as_uri())]
    for source, target, repeated in zip((store, *targets), targets, (1, 3, 3), strict=False):
        with pytest.raises(StoreError, match=r"no store in this folder|bucket does not exist"):
            copy_store(source, target)
        assert copy_store(source, target, create=True) == CopyResult(copied=4, unchanged=0)
        assert pages_and_packs(target) == pages_and_packs(source)
        source.put("content/a.example/1.json", b"changed")
        source.delete("packs/a.example.json")
        expected = pages_and_packs(target) | {"content/a.example/1.json": b"changed"}
        assert copy_store(source, target) == CopyResult(copied=repeated, unchanged=3 - repeated)
        assert pages_and_packs(target) == expected


class Crawled(FolderStore):
    """A store in which a crawl stores a page, and then its record, while the store is copied."""

    def list(self, prefix: str) -> Iterator[Stat]:
        """Store them before each listing."""
        number = uuid.uuid4()
        yield from super().list(prefix)
        self.put(f"content/a.example/{number}.json", b"{}")
        self.put(f"crawls/a.example/c/urls/{number}.jsonl.zst", b"")


def test_a_copy_has_each_page_that_a_copied_crawl_record_names_and_no_probe(tmp_path: Path) -> None:
    create_store((tmp_path / "store").as_uri())
    store, copy = Crawled(tmp_path / "store"), FolderStore(tmp_path / "copy")
    for key in ("content/a.example/1.json", "crawls/a.example/c/urls/1.jsonl.zst", "probe/1", "timers/a.example.json"):
        store.put(key, b"")
    copy_store(store, copy, create=True)
    copied = [stat.key for stat in copy.list("")]
    pages = {key.rpartition("/")[2].partition(".")[0] for key in copied if key.startswith("content/")}
    named = {key.rpartition("/")[2].partition(".")[0] for key in copied if key.startswith("crawls/")}
    assert "1" in named <= pages
    assert not any(key.startswith("probe/") for key in copied)
    assert "timers/a.example.json" in copied


class Packed(FolderStore):
    """A store in which a pack is written while its manifest is about to be copied."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.listings = 0
        self.listed = threading.Event()

    def list(self, prefix: str) -> Iterator[Stat]:
        yield from super().list(prefix)
        self.listings += prefix == "frames/"
        if self.listings == 2:
            self.listed.set()

    def get(self, key: str) -> StoredObject:
        if key == "packs/a.example.json":
            # Until the frames are listed again, unless that waits for the manifests.
            self.listed.wait(1)
            self.put("frames/a.example/2-b", b"")
            self.put(key, b"2-b")
        return super().get(key)


def test_a_copy_has_the_frames_of_a_manifest_that_is_replaced_while_it_is_copied(tmp_path: Path) -> None:
    create_store((tmp_path / "store").as_uri())
    store, copy = Packed(tmp_path / "store"), FolderStore(tmp_path / "copy")
    store.put("frames/a.example/1-a", b"")
    store.put("packs/a.example.json", b"1-a")
    copy_store(store, copy, create=True)
    named = copy.get("packs/a.example.json").data.decode()
    assert named == "2-b"
    assert {stat.key for stat in copy.list("frames/")} == {"frames/a.example/1-a", f"frames/a.example/{named}"}


def test_no_store_is_copied_into_another_one_or_from_a_place_without_a_marker(tmp_path: Path) -> None:
    store, _ = create_store((tmp_path / "store").as_uri())
    store.put("content/a.example/1.json", b"{}")
    another, _ = create_store((tmp_path / "another").as_uri())
    foreign = FolderStore(tmp_path / "foreign")
    foreign.create()
    foreign.put("packs/b.example.json", b"{}")
    empty = FolderStore(tmp_path / "empty")
    empty.create()
    for source, target, reason in (
        (store, another, "belongs to another store"),
        (store, foreign, "belongs to another store .without marker"),
        (foreign, empty, "no marker"),
        (FolderStore(tmp_path / "unmounted"), empty, "no store in this folder"),
    ):
        before = pages_and_packs(target)
        with pytest.raises(StoreError, match=reason):
            copy_store(source, target, create=True)
        assert pages_and_packs(target) == before
