"""The contract of an object store, kept by a folder and by S3 over HTTP, and what is particular to each."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.errors import InvalidKey, ObjectNotFound, PreconditionFailed, StoreError
from app.storage.folder import ABANDONED, FolderStore
from app.storage.open import open_store
from app.storage.s3 import S3Store
from app.storage.store import ObjectStore
from tests.servers.s3 import S3Server, s3_server
from tests.support.stores import folder_store

pytestmark = pytest.mark.integration

WRITERS = 16


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        yield running


def open_folder(request: pytest.FixtureRequest) -> ObjectStore:
    path: Path = request.getfixturevalue("tmp_path")
    store = open_store((path / "a store").as_uri())
    assert store.create()
    return store


def open_bucket(request: pytest.FixtureRequest) -> ObjectStore:
    running: S3Server = request.getfixturevalue("server")
    return open_store(f"s3://{running.bucket}/{uuid.uuid4()}", endpoint_url=running.endpoint_url)


@pytest.fixture(params=[open_folder, open_bucket], ids=["folder", "s3"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    opener: Callable[[pytest.FixtureRequest], ObjectStore] = request.param
    return opener(request)


def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return [stat.key for stat in store.list(prefix)]


def winners(attempt: Callable[[int], str]) -> list[str]:
    def outcome(number: int) -> str | None:
        with suppress(PreconditionFailed):
            return attempt(number)
        return None

    with ThreadPoolExecutor(WRITERS) as pool:
        return [etag for etag in pool.map(outcome, range(WRITERS)) if etag]


class TestEveryStore:
    def test_get_stat_and_list_agree_on_a_written_object(self, store: ObjectStore) -> None:
        before = datetime.now(UTC) - timedelta(seconds=1)  # S3 reports whole seconds.
        etag = store.put("content/site.gov/a.json", b"text")
        stored, stat = store.get("content/site.gov/a.json"), store.stat("content/site.gov/a.json")
        assert (stored.data, stored.etag) == (b"text", etag)
        assert (stat.key, stat.etag, stat.size) == ("content/site.gov/a.json", etag, 4)
        assert before <= stat.modified <= datetime.now(UTC)
        assert list(store.list("content/")) == [stat]

    def test_a_shorter_object_replaces_a_longer_one(self, store: ObjectStore) -> None:
        first = store.put("k", b"a long first value")
        second = store.put("k", b"short")
        assert first != second
        assert store.get("k").data == b"short"
        assert store.stat("k").etag == second

    @pytest.mark.parametrize("key", ["none", "content/none", "content"])
    def test_a_missing_object_is_reported_by_its_key(self, store: ObjectStore, key: str) -> None:
        store.put("content/a", b"")
        for read in (store.get, store.stat):
            with pytest.raises(ObjectNotFound, match=key):
                read(key)

    def test_delete_can_be_repeated(self, store: ObjectStore) -> None:
        store.put("a/b", b"1")
        for _ in range(2):
            store.delete("a/b")
        assert keys(store) == []
        assert store.put("a/b", b"1", if_absent=True) == store.get("a/b").etag

    @pytest.mark.parametrize(
        "key",
        [
            "content/127.0.0.1:8080/x.json",
            "content/[::1]/x.json",
            "content/bücher.example/日本語 🎵.json",
            "a b/c+d%20e&f=g?h#i'\"\\.json",
            "x/...",
            "s" * 255 + "/" + "t" * 255,
        ],
    )
    def test_unusual_keys_are_listed_unchanged(self, store: ObjectStore, key: str) -> None:
        etag = store.put(key, key.encode())
        assert store.get(key).data == key.encode()
        assert [(stat.key, stat.etag) for stat in store.list(key[:4])] == [(key, etag)]
        store.delete(key)
        assert keys(store) == []

    @pytest.mark.parametrize(
        "key",
        ["", "/a", "a/", "a//b", "../a", "a/../b", "a/.", "nul\0", "line\n", "\ud800", "s" * 256, "ab/" * 350 + "c"],
    )
    def test_an_invalid_key_is_refused(self, store: ObjectStore, key: str) -> None:
        for operation in (store.get, store.stat, store.delete, lambda key: store.put(key, b"")):
            with pytest.raises(InvalidKey, match="key"):
                operation(key)
        assert keys(store) == []

    def test_a_listing_is_in_key_order_for_any_prefix(self, store: ObjectStore) -> None:
        names = ["a-b", "a.b", "a/b", "a/b-c", "a/bc/d", "a0", "a/é", "b/a", "Z", "a/b.json"]
        for name in names:
            store.put(name, b"")
        assert keys(store) == sorted(names)
        for prefix in ("a", "a/", "a/b", "a/bc/", "a/bc/d", "b", "none", "none/x"):
            assert keys(store, prefix) == sorted(name for name in names if name.startswith(prefix))

    def test_folders_below_a_prefix_are_listed_without_their_objects(self, store: ObjectStore) -> None:
        for key in ("a", "crawls/b/1/crawl.json", "crawls/a-b/1/x", "crawls/a/2/x", "crawls/a/10/x", "crawls/a/10/y"):
            store.put(key, b"")
        assert list(store.list_folders("")) == ["crawls"]
        assert list(store.list_folders("crawls/")) == ["a-b", "a", "b"]
        assert list(store.list_folders("crawls/a/")) == ["10", "2"]
        assert list(store.list_folders("none/")) == list(store.list_folders("crawls/a/2/")) == []

    def test_more_than_a_thousand_objects_are_listed(self, store: ObjectStore) -> None:
        names = [f"content/site.gov/{number:04}.json" for number in range(1_003)]
        with ThreadPoolExecutor(8) as pool:
            etags = list(pool.map(lambda name: store.put(name, name.encode()), names))
        assert [(stat.key, stat.etag) for stat in store.list("content/site.gov/")] == list(
            zip(names, etags, strict=True)
        )

    def test_if_absent_does_not_replace_an_object(self, store: ObjectStore) -> None:
        store.put("k", b"first", if_absent=True)
        for data in (b"second", b"first"):
            with pytest.raises(PreconditionFailed, match="k"):
                store.put("k", data, if_absent=True)
        assert store.get("k").data == b"first"

    def test_if_match_replaces_only_the_object_with_that_etag(self, store: ObjectStore) -> None:
        first = store.put("k", b"first")
        second = store.put("k", b"second", if_match=first)
        with pytest.raises(PreconditionFailed, match="k"):
            store.put("k", b"third", if_match=first)
        assert (store.get("k").data, store.get("k").etag) == (b"second", second)
        with pytest.raises(PreconditionFailed, match="none"):
            store.put("none", b"", if_match=second)

    def test_one_of_many_writers_with_if_absent_wins(self, store: ObjectStore) -> None:
        won = winners(lambda number: store.put("k", b"%d" % number, if_absent=True))
        assert won == [store.get("k").etag]

    def test_one_of_many_writers_with_if_match_wins(self, store: ObjectStore) -> None:
        etag = store.put("k", b"before")
        won = winners(lambda number: store.put("k", b"%d" % number, if_match=etag))
        assert won == [store.get("k").etag]

    def test_writing_the_same_bytes_keeps_the_etag(self, store: ObjectStore) -> None:
        assert store.put("k", b"same") == store.put("k", b"same") == store.stat("k").etag


def count_up(root: Path, times: int) -> None:
    """Add one to the number in an object, `times` times, by conditional writes."""
    store = FolderStore(root)
    while times:
        stored = store.get("counter")
        with suppress(PreconditionFailed):
            store.put("counter", b"%d" % (int(stored.data) + 1), if_match=stored.etag)
            times -= 1


class TestFolder:
    def test_no_update_is_lost_between_processes(self, tmp_path: Path) -> None:
        folder_store(tmp_path).put("counter", b"0")
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=count_up, args=(tmp_path, 50)) for _ in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * 4
        assert FolderStore(tmp_path).get("counter").data == b"200"

    def test_writing_the_same_bytes_does_not_touch_the_object(self, tmp_path: Path) -> None:
        store = folder_store(tmp_path)
        store.put("k", b"same")
        before = store.stat("k"), (tmp_path / "k").stat().st_ino
        store.put("k", b"same")
        assert (store.stat("k"), (tmp_path / "k").stat().st_ino) == before

    @pytest.mark.parametrize("damage", [None, b"", b"0" * 32, b"\xff\xfe", b"0" * 32 + b" 1 1 1\n"])
    def test_a_missing_or_invalid_etag_file_is_written_again(self, tmp_path: Path, damage: bytes | None) -> None:
        store = folder_store(tmp_path)
        etag = store.put("a/k", b"text")
        beside = tmp_path / ".store" / "etags" / "a" / "k"
        whole = beside.read_bytes()
        beside.unlink()
        if damage is not None:
            beside.write_bytes(damage)
        assert store.stat("a/k").etag == etag
        assert beside.read_bytes() == whole
        assert store.put("a/k", b"new", if_match=etag) == store.get("a/k").etag

    def test_a_file_changed_by_another_program_gets_a_new_etag(self, tmp_path: Path) -> None:
        store = folder_store(tmp_path)
        store.put("k", b"old!")
        (tmp_path / "k").write_bytes(b"new!")
        assert store.stat("k").etag == store.get("k").etag == folder_store(tmp_path / "other").put("k", b"new!")

    def test_temporary_and_private_files_are_not_objects(self, tmp_path: Path) -> None:
        store = folder_store(tmp_path)
        store.put("k", b"1")
        (tmp_path / ".store" / "writing" / "left-behind").write_bytes(b"half")
        assert keys(store) == keys(store, "k") == ["k"]
        assert keys(store, ".store") == []
        with pytest.raises(InvalidKey, match=r"\.store"):
            store.get(".store/etags/k")

    def test_temporary_files_of_killed_processes_are_deleted_after_a_while(self, tmp_path: Path) -> None:
        store = folder_store(tmp_path)
        old, new = (tmp_path / ".store" / "writing" / name for name in ("old", "new"))
        for path in (old, new):
            path.write_bytes(b"half")
        long_ago = time.time() - ABANDONED - 1
        os.utime(old, (long_ago, long_ago))
        assert keys(FolderStore(store.root)) == []
        assert (old.exists(), new.exists()) == (False, True)

    def test_a_folder_that_is_no_store_is_an_error_and_stays_as_it_is(self, tmp_path: Path) -> None:
        root = tmp_path / "mount point"
        store = open_store(root.as_uri())
        calls = (
            lambda: store.get("k"),
            lambda: store.stat("k"),
            lambda: store.put("k", b"1"),
            lambda: store.delete("k"),
            lambda: list(store.list("")),
        )
        for exists in (False, True):
            if exists:
                root.mkdir()
            for call in calls:
                with pytest.raises(StoreError, match="no store in this folder") as raised:
                    call()
                assert type(raised.value) is StoreError
        assert list(root.iterdir()) == []

    def test_a_store_whose_disk_is_unmounted_fails_until_it_is_mounted_again(self, tmp_path: Path) -> None:
        store = folder_store(tmp_path / "store")
        store.put("a/k", b"1")
        (tmp_path / "store").rename(tmp_path / "disk")
        (tmp_path / "store").mkdir()
        for key in ("a/k", "other"):
            with pytest.raises(StoreError, match="not mounted"):
                store.put(key, b"2")
        assert list((tmp_path / "store").iterdir()) == []
        (tmp_path / "store").rmdir()
        (tmp_path / "disk").rename(tmp_path / "store")
        assert store.get("a/k").data == b"1"

    def test_an_object_is_flushed_before_it_appears_and_its_folder_afterwards(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = FolderStore(tmp_path / "store", unflushed="content/")
        store.create()
        calls: list[str] = []
        flush, rename = os.fsync, os.rename

        def noted_flush(descriptor: int) -> None:
            calls.append(f"flush {Path(f'/proc/self/fd/{descriptor}').readlink().relative_to(store.root)}")
            flush(descriptor)

        def noted_rename(source: str, target: str) -> None:
            rename(source, target)
            calls.append(f"rename to {Path(target).relative_to(store.root)}")

        monkeypatch.setattr(os, "fsync", noted_flush)
        monkeypatch.setattr(os, "rename", noted_rename)
        store.put("packs/k", b"1")
        written, *rest = calls
        assert written.startswith("flush .store/writing/")
        assert rest[:3] == ["flush .", "rename to packs/k", "flush packs"]
        calls.clear()
        store.put("packs/k", b"2")
        assert [call for call in calls[1:] if ".store" not in call] == ["rename to packs/k", "flush packs"]
        store.put("content/k", b"1")
        calls.clear()
        store.put("content/k", b"2")
        assert calls == ["rename to content/k", "rename to .store/etags/content/k"]

    def test_a_key_below_an_object_is_a_clear_error(self, tmp_path: Path) -> None:
        store = folder_store(tmp_path)
        store.put("a", b"1")
        store.put("b/c", b"1")
        for key in ("a/b", "b"):
            with pytest.raises(StoreError, match=f"^{key}: in a folder store, a key"):
                store.put(key, b"2")
        assert keys(store) == ["a", "b/c"]
        assert list((tmp_path / ".store" / "writing").iterdir()) == []

    def test_a_killed_writer_leaves_complete_objects_with_correct_etags(self, tmp_path: Path) -> None:
        for round_number in range(5):
            kill_a_writer(tmp_path, after=20 + 13 * round_number)
            store = FolderStore(tmp_path)
            listed = list(store.list(""))
            assert listed
            for stat in listed:
                stored = store.get(stat.key)
                assert stored.etag == stat.etag
                assert len(stored.data) == 50_000
                assert len(set(stored.data)) == 1


WRITER = """
import itertools, pathlib, sys
from app.storage.folder import FolderStore
store = FolderStore(pathlib.Path(sys.argv[1]))
store.create()
for number in itertools.count():
    store.put(f"k/{number % 7}", bytes([number % 251]) * 50_000)
    print(number, flush=True)
"""


def kill_a_writer(root: Path, *, after: int) -> None:
    """Run a process that writes objects without end, and kill it when it has written `after` of them."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(after):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


class TestS3:
    def test_a_missing_bucket_is_not_reported_as_a_missing_object(self, server: S3Server) -> None:
        store = S3Store("no-such-bucket", endpoint_url=server.endpoint_url)
        with pytest.raises(StoreError, match=r"s3://no-such-bucket/k.*bucket does not exist") as raised:
            store.get("k")
        assert not isinstance(raised.value, ObjectNotFound)
        with pytest.raises(StoreError, match="bucket"):
            list(store.list(""))

    def test_an_unreachable_server_is_a_store_error(self, server: S3Server) -> None:
        with pytest.raises(StoreError, match=r"s3://b/k.*Could not connect"):
            S3Store("b", endpoint_url="http://127.0.0.1:1").put("k", b"")

    def test_a_prefix_keeps_stores_in_one_bucket_apart(self, server: S3Server) -> None:
        one, other = (S3Store(server.bucket, f"apart/{name}", server.endpoint_url) for name in ("a", "ab"))
        one.put("k", b"1")
        assert keys(one) == ["k"]
        assert keys(other) == []


@pytest.mark.parametrize("url", ["", "file://relative", "file:/x", "/x", "s3://", "s3:///prefix", "http://host/"])
def test_an_invalid_store_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidKey, match="expected file:///folder or s3://bucket"):
        open_store(url)
