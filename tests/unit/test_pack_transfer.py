"""Generations of a pack share frames: what a packer writes, what a searcher fetches, and what is deleted."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import PackNotFound
from app.pack import database_cache
from app.pack import publish as publishing
from app.pack.download import download_pack_to, read_table, write_database
from app.pack.frames import FRAME_SIZE, FrameTable
from app.pack.manifest import Manifest, read_manifest
from app.pack.packer import pack_full, pack_incremental
from app.storage.folder import FolderStore
from app.storage.layout import Page, frames_key, frames_prefix
from app.storage.store import ObjectStore, StoredObject
from tests.packs import check_index, fetch_pack, page, publish, put
from tests.support.stores import InterruptedStore, Killed, folder_store

pytestmark = pytest.mark.unit

DOMAIN = "site.example"


class CountingStore(FolderStore):
    """A folder store that counts the bytes of packs that are written and read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.written = self.read = 0

    def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        if not key.startswith("content/"):
            self.written += len(data)
        return super().put(key, data, if_match=if_match, if_absent=if_absent)

    def get(self, key: str) -> StoredObject:
        stored = super().get(key)
        self.read += 0 if key.startswith("content/") else len(stored.data)
        return stored

    def get_part(self, key: str, start: int, size: int) -> bytes:
        data = super().get_part(key, start, size)
        self.read += len(data)
        return data

    @contextmanager
    def counted(self) -> Iterator[list[int]]:
        """Yield a list that has the bytes written and read in the block, when it has ended."""
        written, read, counts = self.written, self.read, list[int]()
        yield counts
        counts += [self.written - written, self.read - read]


def long(number: int, text: str = "", words: int = 2_000) -> Page:
    """Return a page whose text is not like that of others."""
    chosen = random.Random(f"{number} {text}").choices([f"word{each}" for each in range(5_000)], k=words)
    return page(f"/{number}", f"Page {number}", " ".join(chosen))


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    folder_store(tmp_path / "store")
    return CountingStore(tmp_path / "store")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a store with the pack of a site, which tests copy: to build it takes a second."""
    store = folder_store(tmp_path_factory.mktemp("packed") / "store")
    put(store, *map(long, range(100)))
    pack_full(store, DOMAIN)
    return store.root


@pytest.fixture
def site(packed: Path, tmp_path: Path) -> CountingStore:
    """Return a store with the pack of a site, the test's own."""
    return CountingStore(Path(shutil.copytree(packed, tmp_path / "store")))


def fetched(store: ObjectStore, target: Path, *, former: Path | None = None) -> bytes:
    """Return the present pack as a searcher with this former version fetches it."""
    download_pack_to(store, DOMAIN, target, former=former)
    return target.read_bytes()


def whole(store: ObjectStore, folder: Path) -> bytes:
    return fetch_pack(store, DOMAIN, folder / "whole").read_bytes()


def objects(store: ObjectStore) -> set[str]:
    return {stat.key for stat in store.list(frames_prefix(DOMAIN))}


def present_table(store: ObjectStore) -> FrameTable:
    return read_table(store, read_manifest(store, DOMAIN))


def used_objects(store: ObjectStore) -> set[str]:
    return {frames_key(DOMAIN, name) for name, _ in present_table(store).objects}


blocks = st.lists(st.integers(0, 5), min_size=1, max_size=6)
ends = st.sampled_from([b"", b"end", b"x"])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(blocks, ends, st.booleans()), min_size=1, max_size=6))
def test_any_chain_of_changes_gives_the_same_file_as_a_whole_fetch(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[list[int], bytes, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("chain")
    store, kept, source = folder_store(folder / "store"), folder / "kept", folder / "source"
    former: tuple[Manifest, FrameTable] | None = None
    for number, (parts, end, is_fetched) in enumerate(steps, 1):
        source.write_bytes(b"".join(bytes([part]) * FRAME_SIZE for part in parts) + end)
        manifest = publish(store, source, generation=number, former=former and former[1])
        former = manifest, read_table(store, manifest)
        for target in [kept] if is_fetched else []:
            write_database(store, *former, target)
            assert target.read_bytes() == source.read_bytes()
    assert former is not None
    for target in (kept, folder / "new"):
        write_database(store, *former, target)
        assert target.read_bytes() == source.read_bytes()


def test_an_incremental_pack_writes_and_a_searcher_fetches_frames_that_changed_only(
    site: CountingStore, tmp_path: Path
) -> None:
    former = fetch_pack(site, DOMAIN, tmp_path / "former")
    size, before = read_manifest(site, DOMAIN).size, former.read_bytes()
    put(site, long(7, "changed"))
    with site.counted() as packer:
        pack_incremental(site, DOMAIN)
    with site.counted() as searcher:
        new = fetched(site, tmp_path / "new", former=former)
    assert new == whole(site, tmp_path)
    # It is served until the new one is complete.
    assert former.read_bytes() == before
    assert packer[0] < size / 2
    assert searcher[1] <= packer[0] + read_manifest(site, DOMAIN).table_size
    # Nothing is fetched for a version that is there.
    with site.counted() as again:
        fetched(site, tmp_path / "again", former=tmp_path / "new")
    assert again[1] < 10_000


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[FRAME_SIZE + 100 : FRAME_SIZE + 200] = (255 - byte for byte in data[FRAME_SIZE + 100 : FRAME_SIZE + 200])
    path.write_bytes(data)


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(FRAME_SIZE))


@pytest.mark.parametrize("damage", [damaged, longer, Path.unlink])
def test_a_searcher_with_a_damaged_former_version_gets_the_same_pack(
    site: CountingStore, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    former = fetch_pack(site, DOMAIN, tmp_path / "former")
    put(site, long(7, "changed"))
    pack_incremental(site, DOMAIN)
    damage(former)
    assert fetched(site, tmp_path / "new", former=former) == whole(site, tmp_path)


# In the first case, the fifth has all frames, for the fourth used four small objects. The sixth has all, for it uses
# less than half. In the second case, two frames are an object. None is small, and the sixth uses two of them wholly.
@pytest.mark.parametrize(
    ("object_size", "expected"),
    [(publishing.OBJECT_SIZE, [1, 2, 3, 4, 1, 1]), (2 * FRAME_SIZE + 100, [5, 6, 6, 7, 7, 5])],
)
def test_all_frames_are_written_again_when_too_few_bytes_or_too_many_small_objects_are_used(
    store: CountingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, object_size: int, expected: list[int]
) -> None:
    monkeypatch.setattr(publishing, "OBJECT_SIZE", object_size)
    monkeypatch.setattr(publishing, "MAX_OBJECTS", 4)
    source = tmp_path / "source"
    parts = [random.Random(number).randbytes(FRAME_SIZE) for number in range(10)]
    table, numbers = None, []
    for generation, changed in enumerate(([], [0], [1], [2], [3], range(6)), 1):
        for number in changed:
            parts[number] = random.Random(f"{number} {generation}").randbytes(FRAME_SIZE)
        source.write_bytes(b"".join(parts))
        table = read_table(store, publish(store, source, generation=generation, former=table))
        numbers.append(len(table.objects))
    assert numbers == expected


def test_a_searcher_whose_frames_are_deleted_while_it_reads_them_fetches_the_next_generation(
    site: CountingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "RETENTION", timedelta(hours=-1))
    packers = [pack_full, pack_full]

    class Overtaken(FolderStore):
        def get_part(self, key: str, start: int, size: int) -> bytes:
            if packers:
                put(site, long(1, f"changed {len(packers)}"))
                packers.pop()(site, DOMAIN, force=True)
            return super().get_part(key, start, size)

    former = fetch_pack(site, DOMAIN, tmp_path / "former")
    assert fetched(Overtaken(site.root), tmp_path / "new", former=former) == whole(site, tmp_path)
    assert read_manifest(site, DOMAIN).generation == 3
    for key in used_objects(site):
        site.delete(key)
    with pytest.raises(PackNotFound, match="not all frames"):
        fetch_pack(site, DOMAIN, tmp_path)


@pytest.mark.parametrize(("object_size", "objects_in_use"), [(publishing.OBJECT_SIZE, 1), (25_000, 2)])
def test_a_packer_that_is_killed_before_any_request_leaves_the_former_or_the_new_pack(
    store: CountingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, object_size: int, objects_in_use: int
) -> None:
    monkeypatch.setattr(publishing, "OBJECT_SIZE", object_size)
    monkeypatch.setattr(publishing, "RETENTION", timedelta(hours=-1))
    monkeypatch.setattr(publishing, "MAX_OBJECTS", 2)
    monkeypatch.setattr(database_cache, "LEAST_SIZE", 0)
    work = tmp_path / "work"
    put(store, *(long(number, words=500) for number in range(3)))
    pack_full(store, DOMAIN, work=work)
    step, most, killed = 0, 0, True
    while killed:
        step, killed = step + 1, False
        former = whole(store, tmp_path)
        generation = read_manifest(store, DOMAIN).generation
        put(store, long(1, f"changed {step}", 500))
        try:
            pack_incremental(InterruptedStore(store.root, step), DOMAIN, work=work)
        except Killed:
            killed = True
        is_new = read_manifest(store, DOMAIN).generation > generation
        assert (whole(store, tmp_path) == former) is not is_new
        assert used_objects(store) <= objects(store)
        # The message comes back.
        assert pack_incremental(store, DOMAIN, work=work).written is not is_new
        check_index(fetch_pack(store, DOMAIN, tmp_path / "whole"))
        put(store, long(2, f"changed {step}", 500))
        pack_incremental(store, DOMAIN, work=work)
        assert objects(store) == used_objects(store)
        most = max(most, len(used_objects(store)))
    assert step > 6
    assert most == objects_in_use


def test_frames_that_are_put_again_after_a_lost_reply_are_no_conflict(
    store: CountingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "OBJECT_SIZE", 25_000)
    put(store, *(long(number, words=500) for number in range(3)))

    class LostReplies(FolderStore):
        def put(self, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
            if key.startswith(frames_prefix(DOMAIN)):
                super().put(key, data, if_match=if_match, if_absent=if_absent)
            return super().put(key, data, if_match=if_match, if_absent=if_absent)

    pack_full(LostReplies(store.root), DOMAIN)
    assert len(present_table(store).objects) > 1
    check_index(fetch_pack(store, DOMAIN, tmp_path))
