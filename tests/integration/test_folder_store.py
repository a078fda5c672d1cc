"""A store in a folder: ETags of its files, kills between system calls, syncing, and folders that are no store."""

from __future__ import annotations

import fcntl
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from app.errors import InvalidKey, PreconditionFailed, StoreError
from app.storage import disk
from app.storage.disk import FolderSync
from app.storage.etags import ATTRIBUTE, hash_of
from app.storage.folder import ABANDONED, FolderStore
from app.storage.open import open_store
from app.storage.store import ObjectStore
from tests.support.stores import folder_store, not_supported, without_attributes

pytestmark = pytest.mark.integration


def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return [stat.key for stat in store.list(prefix)]


def count_up(root: Path, times: int) -> None:
    """Add one to the number in an object, `times` times, by conditional writes."""
    store = FolderStore(root)
    while times:
        stored = store.get("counter")
        with suppress(PreconditionFailed):
            store.put("counter", b"%d" % (int(stored.data) + 1), if_match=stored.etag)
            times -= 1


def test_no_update_is_lost_between_processes(tmp_path: Path) -> None:
    folder_store(tmp_path).put("counter", b"0")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=count_up, args=(tmp_path, 50)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 2
    assert FolderStore(tmp_path).get("counter").data == b"100"


@pytest.fixture(params=[True, False], ids=["attributes", "no attributes"])
def has_attributes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        without_attributes(monkeypatch)
    return bool(request.param)


@pytest.mark.parametrize("damage", [None, b"", b"0" * 32, b"0" * 48])
def test_a_missing_or_invalid_etag_of_a_file_is_computed_once(tmp_path: Path, damage: bytes | None) -> None:
    store, path = folder_store(tmp_path), tmp_path / "a" / "k"
    etag = store.put("a/k", b"text")
    whole = os.getxattr(path, ATTRIBUTE)
    os.removexattr(path, ATTRIBUTE)
    if damage is not None:
        os.setxattr(path, ATTRIBUTE, damage)
    assert store.stat("a/k").etag == etag
    assert os.getxattr(path, ATTRIBUTE) == whole
    assert store.put("a/k", b"new", if_match=etag) == store.get("a/k").etag


def test_without_attributes_an_etag_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_attributes(monkeypatch)
    store = folder_store(tmp_path)
    etag = store.put("a/k", b"text")
    assert store.stat("a/k").etag == etag
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", not_supported)
        assert [stat.etag for stat in FolderStore(tmp_path).list("")] == [etag]
    assert store.put("a/k", b"new!", if_match=etag) == store.stat("a/k").etag == hash_of(b"new!")


def test_a_file_changed_by_another_program_gets_a_new_etag(tmp_path: Path, has_attributes: bool) -> None:
    store = folder_store(tmp_path)
    assert store.put("k", b"old!") == store.stat("k").etag
    (tmp_path / "k").write_bytes(b"new!")
    assert store.stat("k").etag == store.get("k").etag == folder_store(tmp_path / "other").put("k", b"new!")


def test_objects_of_one_size_that_are_written_in_one_tick_of_the_clock_have_other_versions(tmp_path: Path) -> None:
    store = folder_store(tmp_path)

    def version_after(data: bytes) -> str:
        store.put("a", data)
        os.utime(tmp_path / "a", (1, 1))
        return store.stat("a").version

    assert version_after(b"first") != version_after(b"other")


def test_an_object_whose_bytes_a_faulty_disk_changed_is_written_again_once_a_reader_met_it(
    tmp_path: Path, has_attributes: bool
) -> None:
    store, path = folder_store(tmp_path), tmp_path / "k"
    etag = store.put("k", b"good")
    assert store.stat("k").etag == etag
    written = path.stat()
    path.write_bytes(b"g00d")
    os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))
    damaged = store.get("k")
    assert damaged.data == b"g00d"
    assert store.stat("k").etag == damaged.etag != etag
    assert store.put("k", b"good") == etag
    assert store.get("k").data == b"good"


def test_a_listing_uses_the_disk_only_until_its_next_entry(tmp_path: Path) -> None:
    store = folder_store(tmp_path)
    for key in ("a", "b"):
        store.put(key, b"1")
    entries = iter(store.list(""))
    assert next(entries).key == "a"
    assert store.busy_since == 0


def test_temporary_and_private_files_are_not_objects_and_those_of_killed_processes_are_deleted_after_a_while(
    tmp_path: Path,
) -> None:
    store = folder_store(tmp_path)
    store.put("k", b"1")
    old, new = (tmp_path / ".store" / "writing" / name for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    assert keys(store) == keys(store, "k") == ["k"]
    assert keys(store, ".store") == []
    with pytest.raises(InvalidKey, match=r"\.store"):
        store.get(".store/locks/00")
    long_ago = time.time() - ABANDONED - 1
    os.utime(old, (long_ago, long_ago))
    assert keys(FolderStore(store.root)) == ["k"]
    assert (old.exists(), new.exists()) == (False, True)


def test_a_folder_that_is_no_store_is_an_error_and_stays_as_it_is(tmp_path: Path) -> None:
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


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the syncs and the new names of a store in `tmp_path` as they come."""
    noted: list[str] = []

    def note(name: str, describe: Callable[..., Path]) -> None:
        function = getattr(os, name)

        def noting(*arguments: Any) -> None:
            path = describe(*arguments)
            function(*arguments)
            noted.append(f"{name} {path.relative_to(tmp_path)}")

        monkeypatch.setattr(os, name, noting)

    note("fsync", lambda descriptor: Path(f"/proc/self/fd/{descriptor}").readlink())
    note("link", lambda source, target: Path(target))
    note("rename", lambda source, target: Path(target))
    return noted


def test_an_object_is_synced_before_it_has_its_name_and_its_folder_afterwards(tmp_path: Path, calls: list[str]) -> None:
    store = folder_store(tmp_path)
    calls.clear()
    store.put("content/k", b"1")
    assert calls[0].startswith("fsync .store/writing/")
    assert calls[1:] == ["fsync .", "link content/k", "fsync content"]
    calls.clear()
    store.put("content/k", b"2")
    assert calls[0].startswith("fsync .store/writing/")
    assert calls[1:] == ["rename content/k", "fsync content"]


def test_objects_that_are_written_together_are_synced_before_the_first_has_its_name_and_their_folder_once(
    tmp_path: Path, calls: list[str]
) -> None:
    store = folder_store(tmp_path)
    store.put_all({"content/k": b"1", "content/same": b"1"})
    calls.clear()
    store.put_all({"content/a": b"1", "content/b": b"2", "content/k": b"2", "content/same": b"1"})
    assert [call.partition("/")[0] for call in calls[:2]] == ["fsync .store"] * 2
    assert calls[2:5] == ["link content/a", "link content/b", "fsync content"]
    assert "rename content/k" in calls[5:]
    assert {key: store.get(f"content/{key}").data for key in "abk"} == {"a": b"1", "b": b"2", "k": b"2"}


def test_the_same_bytes_are_synced_if_their_writer_may_have_been_killed_before_it_did(
    tmp_path: Path, calls: list[str]
) -> None:
    store = folder_store(tmp_path)
    store.put("packs/k", b"1")
    calls.clear()
    store.put("packs/k", b"1")
    assert calls == ["fsync packs/k", "fsync packs"]
    os.utime(tmp_path / "packs" / "k", (1, 1))
    calls.clear()
    store.put("packs/k", b"1")
    assert calls == []


def test_callers_that_come_while_a_folder_is_synced_share_the_next_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, rounds = threading.Semaphore(0), threading.Semaphore(0), []

    def slow_sync(path: str) -> None:
        rounds.append(path)
        begun.release()
        assert may_end.acquire(timeout=10)

    monkeypatch.setattr(disk, "sync_file", slow_sync)
    sync = FolderSync()
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(sync.sync, "f")
        assert begun.acquire(timeout=10)
        others = [pool.submit(sync.sync, "f") for _ in range(7)]
        while not all(future.running() for future in others):
            pass
        may_end.release()
        first.result(10)
        assert begun.acquire(timeout=10)
        assert not any(future.done() for future in others)
        may_end.release(7)
        for future in others:
            future.result(10)
    assert len(rounds) <= 3  # The third, if a thread was slow to arrive.


def test_each_caller_of_a_sync_that_fails_gets_the_error(tmp_path: Path) -> None:
    sync = FolderSync()
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="missing"):
            sync.sync(str(tmp_path / "missing"))


def test_an_unconditional_write_is_not_undone_by_a_conditional_one_that_had_not_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_attributes: bool
) -> None:
    store = folder_store(tmp_path)
    read = store.put("k", b"read")
    checked, may_go_on, waits_for_lock = threading.Event(), threading.Event(), threading.Event()
    rename, flock = os.rename, fcntl.flock

    def slow_rename(source: str, target: str) -> None:
        if target.endswith("/k") and not checked.is_set():
            checked.set()
            assert may_go_on.wait(10)
        rename(source, target)

    def noted_flock(descriptor: int, operation: int) -> None:
        if checked.is_set():
            waits_for_lock.set()
        flock(descriptor, operation)

    monkeypatch.setattr(os, "rename", slow_rename)
    monkeypatch.setattr(fcntl, "flock", noted_flock)
    with ThreadPoolExecutor(3) as pool:
        conditional = pool.submit(store.put, "k", b"conditional", if_match=read)
        assert checked.wait(10)
        unconditional = pool.submit(store.put, "k", b"unconditional")
        futures: list[Future[Any]] = [unconditional, pool.submit(waits_for_lock.wait, 10)]
        wait(futures, return_when=FIRST_COMPLETED)
        may_go_on.set()
        conditional.result(10)
        unconditional.result(10)
    assert store.get("k").data == b"unconditional"


def test_an_object_that_another_writer_makes_meanwhile_is_not_replaced_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_attributes: bool
) -> None:
    store, other = folder_store(tmp_path), FolderStore(tmp_path)
    name = "link" if has_attributes else "flock"
    module = os if has_attributes else fcntl
    function = getattr(module, name)

    def after_another_writer(*arguments: Any) -> None:
        monkeypatch.setattr(module, name, function)
        other.put("a/k", b"other")
        function(*arguments)

    monkeypatch.setattr(module, name, after_another_writer)
    with pytest.raises(PreconditionFailed, match="a/k"):
        store.put("a/k", b"mine", if_absent=True)
    assert store.get("a/k").data == b"other"


def test_an_object_is_written_although_its_folder_is_deleted_as_empty_again_and_again(tmp_path: Path) -> None:
    store, other = folder_store(tmp_path), FolderStore(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(write_and_delete, writer, f"a/b/{id(writer)}", 50) for writer in (store, other)]
        for future in futures:
            future.result(60)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".store"]


def write_and_delete(store: FolderStore, key: str, times: int) -> None:
    for _ in range(times):
        store.put(key, b"1")
        assert store.get(key).data == b"1"
        store.delete(key)


def test_a_key_below_an_object_is_a_clear_error(tmp_path: Path) -> None:
    store = folder_store(tmp_path)
    store.put("a", b"1")
    store.put("b/c", b"1")
    for key in ("a/b", "b"):
        with pytest.raises(StoreError, match=f"^{key}: in a folder store, a key"):
            store.put(key, b"2")
    assert keys(store) == ["a", "b/c"]
    assert list((tmp_path / ".store" / "writing").iterdir()) == []


#: It puts an object in a store of its own for each system call of `put`, killed just before that call, until none is
#: left; each line has the call's name, the last one is empty.
KILLED_PUTS = """
import errno, fcntl, itertools, json, os, pathlib, signal, sys
from app.storage.folder import FolderStore

root, condition, has_attributes = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3] == "True"

def not_supported(*arguments):
    raise OSError(errno.EOPNOTSUPP, "Operation not supported")

if not has_attributes:
    os.setxattr = os.getxattr = os.link = not_supported
calls = [(os, name) for name in ("open", "write", "stat", "fstat", "setxattr", "getxattr", "utime", "fsync", "link",
         "rename", "unlink", "close", "mkdir", "rmdir")] + [(fcntl, "flock")]

def put(number, pipe):
    counter = itertools.count(1)
    def killing(name, function):
        def call(*arguments, **named):
            if next(counter) == number:
                write(pipe, name.encode())
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)
        return call
    write, store = os.write, FolderStore(root / str(number))
    for module, name in calls:
        setattr(module, name, killing(name, getattr(module, name)))
    if condition.pop("all", False):
        store.put_all({"packs/j": b"new", "packs/k": b"new"})
    else:
        store.put("packs/k", b"new", **condition)

for number in itertools.count(1):
    store = FolderStore(root / str(number))
    store.create()
    if not condition.keys() & {"if_absent", "all"}:
        store.put("packs/k", b"old")
    if not os.fork():
        put(number, 1)
        os._exit(0)
    status = os.wait()[1]
    print(flush=True)
    if status == 0:
        break
"""

ABSENT = {"if_absent": True}
TOGETHER = {"all": True}


@pytest.mark.parametrize("attributes", [True, False], ids=["attributes", "no attributes"])
@pytest.mark.parametrize("condition", [{}, ABSENT, {"if_match": hash_of(b"old")}, TOGETHER])
def test_a_put_that_is_killed_before_any_system_call_leaves_the_old_or_the_new_object(
    tmp_path: Path, condition: dict[str, Any], attributes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", KILLED_PUTS, str(tmp_path), json.dumps(condition), str(attributes)]
    *killed, last = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    is_new = condition in (ABSENT, TOGETHER)
    assert last == ""
    assert {"open", "write", "fsync", "close"} < set(killed)
    assert ({"setxattr", "link" if is_new else "rename"} if attributes else {"rename"}) < set(killed)
    if not attributes:
        without_attributes(monkeypatch)
    states = []
    for number, call in enumerate([*killed, last], start=1):
        store = FolderStore(tmp_path / str(number))
        listed = list(store.list(""))
        stored = {stat.key: store.get(stat.key).data for stat in listed}
        data = stored.get("packs/k", b"")
        states.append(data)
        assert [stat.etag for stat in listed] == [*map(hash_of, stored.values())], call
        # Nothing that the killed process left keeps the next one from writing.
        assert store.put("packs/k", b"next", if_match=hash_of(data) if data else None) == store.stat("packs/k").etag
    assert states == sorted(states, key=lambda data: data == b"new")
    assert {states[0], states[-1]} == {b"" if is_new else b"old", b"new"}
