"""The contract of an object store, held by the folder and by S3 over HTTP alike; what else each must do."""

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
    return open_store((path / "a store").as_uri())


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
    def test_what_was_put_is_got_and_told_alike_by_get_stat_and_list(self, store: ObjectStore) -> None:
        before = datetime.now(UTC) - timedelta(seconds=1)  # S3 tells whole seconds.
        etag = store.put("content/site.gov/a.json", b"text")
        stored, stat = store.get("content/site.gov/a.json"), store.stat("content/site.gov/a.json")
        assert (stored.data, stored.etag) == (b"text", etag)
        assert (stat.key, stat.etag, stat.size) == ("content/site.gov/a.json", etag, 4)
        assert before <= stat.modified <= datetime.now(UTC)
        assert list(store.list("content/")) == [stat]

    def test_an_object_is_replaced_whole(self, store: ObjectStore) -> None:
        first = store.put("k", b"a long first value")
        second = store.put("k", b"short")
        assert first != second
        assert store.get("k").data == b"short"
        assert store.stat("k").etag == second

    @pytest.mark.parametrize("key", ["none", "content/none", "content"])
    def test_an_object_that_is_not_there_is_said_to_be_so_by_name(self, store: ObjectStore, key: str) -> None:
        store.put("content/a", b"")
        for ask in (store.get, store.stat):
            with pytest.raises(ObjectNotFound, match=key):
                ask(key)

    def test_delete_removes_and_may_be_repeated(self, store: ObjectStore) -> None:
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
    def test_odd_keys_come_back_as_they_were(self, store: ObjectStore, key: str) -> None:
        etag = store.put(key, key.encode())
        assert store.get(key).data == key.encode()
        assert [(stat.key, stat.etag) for stat in store.list(key[:4])] == [(key, etag)]
        store.delete(key)
        assert keys(store) == []

    @pytest.mark.parametrize(
        "key",
        ["", "/a", "a/", "a//b", "../a", "a/../b", "a/.", "nul\0", "line\n", "\ud800", "s" * 256, "ab/" * 350 + "c"],
    )
    def test_a_key_that_some_store_could_not_hold_is_refused(self, store: ObjectStore, key: str) -> None:
        for ask in (store.get, store.stat, store.delete, lambda key: store.put(key, b"")):
            with pytest.raises(InvalidKey, match="key"):
                ask(key)
        assert keys(store) == []

    def test_a_listing_is_in_key_order_and_takes_any_prefix(self, store: ObjectStore) -> None:
        names = ["a-b", "a.b", "a/b", "a/b-c", "a/bc/d", "a0", "a/é", "b/a", "Z", "a/b.json"]
        for name in names:
            store.put(name, b"")
        assert keys(store) == sorted(names)
        for prefix in ("a", "a/", "a/b", "a/bc/", "a/bc/d", "b", "none", "none/x"):
            assert keys(store, prefix) == sorted(name for name in names if name.startswith(prefix))

    def test_more_than_a_thousand_objects_are_listed(self, store: ObjectStore) -> None:
        names = [f"content/site.gov/{number:04}.json" for number in range(1_003)]
        with ThreadPoolExecutor(8) as pool:
            etags = list(pool.map(lambda name: store.put(name, name.encode()), names))
        assert [(stat.key, stat.etag) for stat in store.list("content/site.gov/")] == list(
            zip(names, etags, strict=True)
        )

    def test_if_absent_writes_only_where_there_is_nothing(self, store: ObjectStore) -> None:
        store.put("k", b"first", if_absent=True)
        for data in (b"second", b"first"):
            with pytest.raises(PreconditionFailed, match="k"):
                store.put("k", data, if_absent=True)
        assert store.get("k").data == b"first"

    def test_if_match_writes_only_over_the_object_that_was_read(self, store: ObjectStore) -> None:
        first = store.put("k", b"first")
        second = store.put("k", b"second", if_match=first)
        with pytest.raises(PreconditionFailed, match="k"):
            store.put("k", b"third", if_match=first)
        assert (store.get("k").data, store.get("k").etag) == (b"second", second)
        with pytest.raises(PreconditionFailed, match="none"):
            store.put("none", b"", if_match=second)

    def test_of_many_writers_with_if_absent_one_wins(self, store: ObjectStore) -> None:
        won = winners(lambda number: store.put("k", b"%d" % number, if_absent=True))
        assert won == [store.get("k").etag]

    def test_of_many_writers_with_if_match_one_wins(self, store: ObjectStore) -> None:
        etag = store.put("k", b"before")
        won = winners(lambda number: store.put("k", b"%d" % number, if_match=etag))
        assert won == [store.get("k").etag]

    def test_writing_the_same_bytes_keeps_the_etag(self, store: ObjectStore) -> None:
        assert store.put("k", b"same") == store.put("k", b"same") == store.stat("k").etag


def count_up(root: Path, times: int) -> None:
    """Add one to the number in an object, so often, by optimistic writes."""
    store = FolderStore(root)
    while times:
        stored = store.get("counter")
        with suppress(PreconditionFailed):
            store.put("counter", b"%d" % (int(stored.data) + 1), if_match=stored.etag)
            times -= 1


class TestFolder:
    def test_no_update_is_lost_between_processes(self, tmp_path: Path) -> None:
        FolderStore(tmp_path).put("counter", b"0")
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=count_up, args=(tmp_path, 50)) for _ in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * 4
        assert FolderStore(tmp_path).get("counter").data == b"200"

    def test_writing_the_same_bytes_does_not_touch_the_object(self, tmp_path: Path) -> None:
        store = FolderStore(tmp_path)
        store.put("k", b"same")
        before = store.stat("k"), (tmp_path / "k").stat().st_ino
        store.put("k", b"same")
        assert (store.stat("k"), (tmp_path / "k").stat().st_ino) == before

    @pytest.mark.parametrize("damage", [None, b"", b"0" * 32, b"\xff\xfe", b"0" * 32 + b" 1 1 1\n"])
    def test_an_etag_file_that_is_missing_or_void_is_made_again(self, tmp_path: Path, damage: bytes | None) -> None:
        store = FolderStore(tmp_path)
        etag = store.put("a/k", b"text")
        beside = tmp_path / ".store" / "etags" / "a" / "k"
        whole = beside.read_bytes()
        beside.unlink()
        if damage is not None:
            beside.write_bytes(damage)
        assert store.stat("a/k").etag == etag
        assert beside.read_bytes() == whole
        assert store.put("a/k", b"new", if_match=etag) == store.get("a/k").etag

    def test_an_object_changed_behind_the_stores_back_gets_its_true_etag(self, tmp_path: Path) -> None:
        store = FolderStore(tmp_path)
        store.put("k", b"old!")
        (tmp_path / "k").write_bytes(b"new!")
        assert store.stat("k").etag == store.get("k").etag == FolderStore(tmp_path / "other").put("k", b"new!")

    def test_temporary_and_private_files_are_neither_listed_nor_reached_by_a_key(self, tmp_path: Path) -> None:
        store = FolderStore(tmp_path)
        store.put("k", b"1")
        (tmp_path / ".store" / "writing" / "left-behind").write_bytes(b"half")
        assert keys(store) == keys(store, "k") == ["k"]
        assert keys(store, ".store") == []
        with pytest.raises(InvalidKey, match=r"\.store"):
            store.get(".store/etags/k")

    def test_files_that_a_dead_process_left_are_swept_in_time(self, tmp_path: Path) -> None:
        store = FolderStore(tmp_path)
        old, new = (tmp_path / ".store" / "writing" / name for name in ("old", "new"))
        for path in (old, new):
            path.write_bytes(b"half")
        long_ago = time.time() - ABANDONED - 1
        os.utime(old, (long_ago, long_ago))
        assert keys(FolderStore(store.root)) == []
        assert (old.exists(), new.exists()) == (False, True)

    def test_a_key_below_an_object_is_a_clear_error(self, tmp_path: Path) -> None:
        store = FolderStore(tmp_path)
        store.put("a", b"1")
        store.put("b/c", b"1")
        for key in ("a/b", "b"):
            with pytest.raises(StoreError, match=f"^{key}: in a folder, one key"):
                store.put(key, b"2")
        assert keys(store) == ["a", "b/c"]
        assert list((tmp_path / ".store" / "writing").iterdir()) == []

    def test_a_process_killed_in_the_middle_of_writing_leaves_whole_objects_with_true_etags(
        self, tmp_path: Path
    ) -> None:
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
for number in itertools.count():
    store.put(f"k/{number % 7}", bytes([number % 251]) * 50_000)
    print(number, flush=True)
"""


def kill_a_writer(root: Path, *, after: int) -> None:
    """Run a process that writes for ever, and kill it once it has said that so many objects were put."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(after):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


class TestS3:
    def test_a_bucket_that_is_not_there_is_no_missing_object(self, server: S3Server) -> None:
        store = S3Store("no-such-bucket", endpoint_url=server.endpoint_url)
        with pytest.raises(StoreError, match=r"s3://no-such-bucket/k.*bucket does not exist") as raised:
            store.get("k")
        assert not isinstance(raised.value, ObjectNotFound)
        with pytest.raises(StoreError, match="bucket"):
            list(store.list(""))

    def test_a_server_that_is_not_there_is_a_store_error(self, server: S3Server) -> None:
        with pytest.raises(StoreError, match=r"s3://b/k.*Could not connect"):
            S3Store("b", endpoint_url="http://127.0.0.1:1").put("k", b"")

    def test_a_prefix_keeps_stores_in_one_bucket_apart(self, server: S3Server) -> None:
        one, other = (S3Store(server.bucket, f"apart/{name}", server.endpoint_url) for name in ("a", "ab"))
        one.put("k", b"1")
        assert keys(one) == ["k"]
        assert keys(other) == []


@pytest.mark.parametrize("url", ["", "file://relative", "file:/x", "/x", "s3://", "s3:///prefix", "http://host/"])
def test_a_url_of_no_store_is_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidKey, match="expected file:///folder or s3://bucket"):
        open_store(url)
