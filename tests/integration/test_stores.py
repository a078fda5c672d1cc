"""The contract of an object store, kept by a folder and by S3 over HTTP, and what is particular to S3."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier

import pytest

from app.errors import InvalidKey, ObjectNotFound, PreconditionFailed, StoreError
from app.storage.folder import FolderStore
from app.storage.open import open_store
from app.storage.s3 import S3Store
from app.storage.store import ObjectStore, StoredObject
from app.storage.updating import update_object
from tests.servers.s3 import S3Server
from tests.support.proxy import Proxy
from tests.support.stores import without_attributes

pytestmark = pytest.mark.integration

WRITERS = 16


@pytest.fixture(scope="module")
def server(s3: S3Server) -> Iterator[S3Server]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.environment.items():
            patch.setenv(name, value)
        yield s3


@pytest.fixture(scope="module")
def bucket(server: S3Server) -> S3Store:
    store = S3Store(server.bucket, endpoint_url=server.endpoint_url)
    list(store.list(""))
    return store


def open_folder(request: pytest.FixtureRequest) -> ObjectStore:
    path: Path = request.getfixturevalue("tmp_path")
    store = open_store((path / "a store").as_uri())
    assert store.create()
    return store


def open_folder_without_attributes(request: pytest.FixtureRequest) -> ObjectStore:
    """Return a folder store on what seems to be a file system without extended attributes and hard links."""
    without_attributes(request.getfixturevalue("monkeypatch"))
    return open_folder(request)


def open_bucket(request: pytest.FixtureRequest) -> ObjectStore:
    """Return a store of its own in a bucket. Its client is shared: to make one takes a third of a second."""
    store: S3Store = copy.copy(request.getfixturevalue("bucket"))
    store.prefix = f"{uuid.uuid4()}/"
    return store


@pytest.fixture(params=[open_folder, open_folder_without_attributes, open_bucket], ids=["folder", "plain folder", "s3"])
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

    def test_an_object_gets_another_version_when_other_bytes_are_written(self, store: ObjectStore) -> None:
        def version() -> str:
            ((key, version),) = store.list_versions("content/")
            assert key == "content/a"
            assert store.stat("content/a").version == next(store.list("content/")).version == version
            return version

        store.put("content/a", b"first")
        first = version()
        store.put("content/a", b"first")
        assert version() == first
        store.put("content/a", b"other")
        assert version() != first

    def test_objects_that_are_written_together_replace_and_add_what_each_would_alone(self, store: ObjectStore) -> None:
        store.put("content/a", b"former")
        store.put("content/b", b"1")
        written = {f"content/{key}": key.encode() * 3 for key in "abcdefghijklmnop"}
        store.put_all(written)
        assert {stat.key: store.get(stat.key).data for stat in store.list("")} == written
        store.put_all({})
        with pytest.raises(InvalidKey):
            store.put_all({"content/q": b"", "content//q": b""})

    def test_a_part_of_an_object_is_read_and_ends_where_the_object_ends(self, store: ObjectStore) -> None:
        store.put("k", b"0123456789")
        parts = [store.get_part("k", start, size) for start, size in ((0, 3), (4, 2), (8, 5), (10, 1), (99, 1))]
        assert parts == [b"012", b"45", b"89", b"", b""]

    @pytest.mark.parametrize("key", ["none", "content/none", "content"])
    def test_a_missing_object_is_reported_by_its_key(self, store: ObjectStore, key: str) -> None:
        store.put("content/a", b"")
        for read in (store.get, store.stat, lambda key: store.get_part(key, 0, 1)):
            with pytest.raises(ObjectNotFound, match=key):
                read(key)

    def test_delete_can_be_repeated_and_a_conditional_one_keeps_an_object_that_was_replaced(
        self, store: ObjectStore
    ) -> None:
        former = store.put("a/b", b"1")
        present = store.put("a/b", b"2")
        with pytest.raises(PreconditionFailed):
            store.delete("a/b", if_match=former)
        assert store.get("a/b").data == b"2"
        for condition in ({"if_match": present}, {"if_match": present}, {}):
            store.delete("a/b", **condition)
            assert keys(store) == []
        assert store.put("a/b", b"1", if_absent=True) == store.get("a/b").etag
        store.delete("a/b")
        assert keys(store) == []

    def test_unusual_keys_are_listed_unchanged(self, store: ObjectStore) -> None:
        for key in (
            "content/127.0.0.1:8080/x.json",
            "content/[::1]/x.json",
            "content/bücher.example/日本語 🎵.json",
            "a b/c+d%20e&f=g?h#i'\"\\.json",
            "x/...",
            "s" * 255 + "/" + "t" * 255,
        ):
            etag = store.put(key, key.encode())
            assert store.get(key).data == key.encode()
            assert [(stat.key, stat.etag) for stat in store.list(key[:4])] == [(key, etag)]
            store.delete(key)
            assert keys(store) == []

    def test_an_invalid_key_is_refused(self, store: ObjectStore) -> None:
        short = ("", "/a", "a/", "a//b", "../a", "a/../b", "a/.", "nul\0", "line\n", "\ud800")
        for key in (*short, "s" * 256, "ab/" * 350 + "c"):
            for operation in (store.get, store.stat, store.delete, lambda key: store.put(key, b"")):
                with pytest.raises(InvalidKey, match="key"):
                    operation(key)
        assert keys(store) == []

    def test_what_has_no_key_of_a_store_is_not_listed(self, store: ObjectStore) -> None:
        """A web console makes `sites/`, and any program a name with a line break: readers of a listing ended there."""
        etag = store.put("sites/a.json", b"1")
        if isinstance(store, FolderStore):
            (store.root / "b\n").mkdir()
            for name in ("sites/b\n.json", "b\n/c.json"):
                (store.root / name).write_bytes(b"2")
        elif isinstance(store, S3Store):
            for name in ("sites/", "b" * 256 + "/c.json"):
                store._client().put_object(Bucket=store.bucket, Key=store.prefix + name, Body=b"2")
        assert [(stat.key, stat.etag) for stat in store.list("")] == [("sites/a.json", etag)]
        assert [key for key, _ in store.list_versions("sites/")] == ["sites/a.json"]
        assert list(store.list_folders("")) == ["sites"]

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

    def test_more_objects_are_listed_than_an_answer_has(self, store: ObjectStore) -> None:
        names = [f"content/site.gov/{number:04}.json" for number in range(11)]
        etags = [store.put(name, name.encode()) for name in names]
        if isinstance(store, S3Store):
            store = S3Store(store.bucket, store.prefix, store.endpoint_url)
            # An answer has 1,000 by default; writing that number of objects took nine seconds.
            few: Callable[..., None] = lambda params, **_: params.update(MaxKeys=3)  # noqa: E731 - It has a type.
            store._client().meta.events.register("before-parameter-build.s3.ListObjectsV2", few)
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

    def test_a_change_is_made_of_what_a_faster_writer_left(self, store: ObjectStore) -> None:
        seen: list[bytes] = []

        def change(stored: StoredObject | None) -> tuple[int, bytes]:
            seen.append(stored.data if stored else b"none")
            if len(seen) < 3:
                store.put("k", b"other %d" % len(seen))
            return len(seen), b"mine after " + seen[-1]

        assert update_object(store, "k", change) == 3
        assert seen == [b"none", b"other 1", b"other 2"]
        stored = store.get("k")
        assert stored.data == b"mine after other 2"
        assert update_object(store, "k", lambda present: (present, None)) == store.get("k") == stored

    def test_a_change_that_loses_every_race_is_an_error(self, store: ObjectStore) -> None:
        def overtaken(stored: StoredObject | None) -> tuple[None, bytes]:
            store.put("k", b"other" + (stored.data if stored else b""))
            return None, b"mine"

        with pytest.raises(PreconditionFailed, match="k: other writers changed it during 10 attempts"):
            update_object(store, "k", overtaken)
        assert store.get("k").data == b"other" * 10


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

    def test_an_answer_that_breaks_off_is_a_store_error(self, server: S3Server) -> None:
        with closing(LosesAnswers(server.endpoint_url)) as network:
            store = S3Store(server.bucket, str(uuid.uuid4()), network.url.replace("@", ""))
            store.put("k", bytes(2**20))
            network.to_lose, network.keeps_beginnings = 2, True
            for read in (store.get, lambda key: store.get_part(key, 0, 2**20)):
                with pytest.raises(StoreError, match=r"/k: .*Connection broken"):
                    read("k")

    def test_objects_that_are_written_together_wait_for_the_server_together(
        self, server: S3Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, meeting = S3Store("b", endpoint_url=server.endpoint_url), Barrier(S3Store.parallel_requests)
        monkeypatch.setattr(store, "put", lambda key, data: meeting.wait(10))
        store.put_all({f"k{number}": b"" for number in range(2 * S3Store.parallel_requests)})
        monkeypatch.undo()
        with pytest.raises(StoreError, match=r"s3://b/k.*bucket does not exist"):
            store.put_all({"k": b"", "l": b""})

    def test_a_prefix_keeps_stores_in_one_bucket_apart(self, server: S3Server) -> None:
        one, other = (S3Store(server.bucket, f"apart/{name}", server.endpoint_url) for name in ("a", "ab"))
        one.put("k", b"1")
        assert keys(one) == ["k"]
        assert keys(other) == []

    def test_a_conditional_write_whose_answer_was_lost_is_no_conflict_with_itself(self, server: S3Server) -> None:
        """boto3 repeats the request, and the server refuses it: what the first one wrote is there."""
        with closing(LosesAnswers(server.endpoint_url)) as network:
            store = S3Store(server.bucket, str(uuid.uuid4()), network.url.replace("@", ""))
            network.to_lose = 1
            etag = store.put("k", b"1", if_absent=True)
            assert (network.to_lose, store.get("k")) == (0, StoredObject(b"1", etag))
            network.to_lose = 1
            assert update_object(store, "k", lambda stored: ("added", stored.data + b"2" if stored else b"")) == "added"
            assert (network.to_lose, store.get("k").data) == (0, b"12")
            for refused in ({"if_absent": True}, {"if_match": etag}):
                network.to_lose = 1
                with pytest.raises(PreconditionFailed):
                    store.put("k", b"3", **refused)
                assert (network.to_lose, store.get("k").data) == (0, b"12")


class LosesAnswers(Proxy):
    """A network that breaks the connection in place of the next `to_lose` answers, or after their beginnings."""

    to_lose, keeps_beginnings = 0, False

    def _filter(self) -> Callable[[bytes], bytes]:
        def forwarded(data: bytes) -> bytes:
            if self.to_lose and not data.startswith(b"HTTP/1.1 " if self.keeps_beginnings else b"HTTP/1.1 100 "):
                self.to_lose -= 1
                raise OSError("the answer is lost")
            return data

        return forwarded


@pytest.mark.parametrize(
    "url", ["", "file://relative", "file:/x", "/x", "s3://", "s3:///prefix", "s3://b?x=1", "http://host/"]
)
def test_an_invalid_store_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidKey, match="expected file:///folder or s3://bucket"):
        open_store(url)
