"""A rollback serves the pack before the last crawl again: what is kept for it, kills, and packers at the same time."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app.errors import ActRefused, PreconditionFailed
from app.pack import database, download, frames, publish
from app.pack.download import download_pack_to, read_table, write_database
from app.pack.manifest import Manifest, read_manifest
from app.pack.packer import pack_full, pack_incremental
from app.pack.plan import FullPackPlan
from app.pack.publish import unused_frames
from app.pack.rollback import plan_rollback
from app.storage.folder import FolderStore
from app.storage.layout import Page, frames_key, frames_prefix, manifest_key
from app.storage.store import ObjectStore
from tests.packs import fetch_pack, page, put
from tests.support.stores import InterruptedStore, Killed, ManifestStore, folder_store
from tests.unit.test_pack_transfer import DOMAIN, objects, whole

pytestmark = pytest.mark.unit


def text(number: int, version: str) -> Page:
    """Return a page of many words."""
    words = random.Random(f"{number} {version}").choices([f"word{each}" for each in range(5_000)], k=300)
    return page(f"/{number}", f"Page {number} {version}", " ".join(words))


def crawl(store: ObjectStore, version: str, pages: int = 10) -> None:
    """Store pages as a crawl does that has the version as its id, and pack them."""
    put(store, *(text(number, version) for number in range(pages)))
    pack_full(store, DOMAIN, FullPackPlan(crawl_id=version))


def update(store: ObjectStore, version: str) -> None:
    """Store one page again, and pack it."""
    put(store, text(1, version))
    pack_incremental(store, DOMAIN)


def roll_back(store: ObjectStore) -> Manifest:
    return plan_rollback(store, DOMAIN).apply(store)


def collect(store: ObjectStore) -> None:
    """Delete the frames that no kept generation uses and that are older than an hour."""
    oldest = datetime.now(UTC) - timedelta(hours=1)
    for stat in unused_frames(store, DOMAIN, list(store.list(frames_prefix(DOMAIN))), oldest):
        store.delete(stat.key)


def used(store: ObjectStore) -> set[str]:
    """Return the objects of the present and of the former generation."""
    present = read_manifest(store, DOMAIN)
    tables = [read_table(store, each) for each in (present, present.former) if each]
    return {frames_key(DOMAIN, name) for table in tables for name, _ in table.objects}


def age(store: FolderStore) -> None:
    """Let all frames be two hours old."""
    for key in objects(store):
        os.utime(store.root / key, (time.time() - 7_200,) * 2)


def check_kept(store: ObjectStore, folder: Path) -> None:
    """Fail unless all frames of the present and of the former generation are there."""
    present = read_manifest(store, DOMAIN)
    for manifest in filter(None, (present, present.former)):
        target = folder / "kept.sqlite"
        write_database(store, manifest, read_table(store, manifest), target)
        database.check(target)


def packed_titles(store: ObjectStore, folder: Path) -> list[str]:
    with closing(sqlite3.connect(fetch_pack(store, DOMAIN, folder / "whole"))) as pack:
        return sorted(title for (title,) in pack.execute("SELECT title FROM pages"))


@pytest.fixture(autouse=True, scope="module")
def small_frames() -> Iterator[None]:
    """Let a small pack have many frames, so that generations share them."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (frames, download):
            patch.setattr(module, "FRAME_SIZE", 2_048)
        yield


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, small_frames: None) -> Path:
    """Return the folder of the store of a site, which tests copy.

    Its second crawl was bad, and an update came after each crawl.
    """
    store = folder_store(tmp_path_factory.mktemp("packed") / "store")
    for version in ("good", "bad"):
        crawl(store, version)
        update(store, f"{version} update")
    return store.root


@pytest.fixture
def store(packed: Path, tmp_path: Path) -> FolderStore:
    """Return the store of the site, the test's own."""
    return FolderStore(Path(shutil.copytree(packed, tmp_path / "store")))


def test_a_rollback_serves_the_pack_before_the_last_crawl_and_can_be_taken_back(tmp_path: Path) -> None:
    store = folder_store(tmp_path / "store")
    crawl(store, "good")
    update(store, "good update")
    good = whole(store, tmp_path)
    crawl(store, "bad", pages=9)
    update(store, "bad update")
    bad, searcher = whole(store, tmp_path), fetch_pack(store, DOMAIN, tmp_path / "searcher")
    assert bad != good

    plan = plan_rollback(store, DOMAIN)
    assert str(plan).startswith("generation 2 of ")
    assert "(10 pages) in place of generation 4 (10); a searcher reads " in str(plan)
    before = datetime.now(UTC).replace(microsecond=0)
    manifest = plan.apply(store)
    download_pack_to(store, DOMAIN, tmp_path / "next", former=searcher)
    assert (tmp_path / "next").read_bytes() == whole(store, tmp_path) == good
    # It counts as the pack of the bad crawl, made now: a sweep does not find that crawl unpacked.
    assert (manifest.generation, manifest.crawl_id, manifest.pages) == (5, "bad", 10)
    assert datetime.fromisoformat(manifest.built_at) >= before
    assert roll_back(store).generation == 6
    assert whole(store, tmp_path) == bad


def test_the_next_pack_has_the_stored_pages_and_keeps_what_the_rollback_served(
    store: FolderStore, tmp_path: Path
) -> None:
    roll_back(store)
    good = whole(store, tmp_path)
    result = pack_incremental(store, DOMAIN)
    assert (result.written, result.generation, result.changed) == (True, 6, 10)
    assert whole(store, tmp_path) != good
    update(store, "bad again")
    roll_back(store)
    assert whole(store, tmp_path) == good
    # A crawl without the fault: the rollback is what it replaced.
    crawl(store, "repaired")
    roll_back(store)
    assert whole(store, tmp_path) == good


def test_only_the_present_and_the_former_generation_are_kept(store: FolderStore) -> None:
    left = frames_key(DOMAIN, "7-of-a-killed-packer")
    store.put(left, b"frames")
    update(store, "young")
    assert left in objects(store)
    for act in (lambda: crawl(store, "third"), lambda: update(store, "x"), lambda: roll_back(store)):
        age(store)
        act()
        age(store)
        update(store, str(act))
        assert objects(store) == used(store)


@pytest.mark.parametrize("is_damaged", [True, False])
def test_frames_are_collected_although_the_table_of_the_former_generation_is_lost(
    store: FolderStore, tmp_path: Path, is_damaged: bool
) -> None:
    former = read_manifest(store, DOMAIN).former
    assert former is not None
    own = frames_key(DOMAIN, former.own_object)
    store.put(own, b"damaged") if is_damaged else store.delete(own)
    age(store)
    update(store, "later")
    present = read_manifest(store, DOMAIN)
    assert objects(store) == {frames_key(DOMAIN, name) for name, _ in read_table(store, present).objects}
    database.check(fetch_pack(store, DOMAIN, tmp_path))


def test_no_frame_is_collected_while_the_table_of_the_present_generation_is_lost(store: FolderStore) -> None:
    store.delete(frames_key(DOMAIN, read_manifest(store, DOMAIN).own_object))
    age(store)
    before = objects(store)
    collect(store)
    assert objects(store) == before


def without_former(store: FolderStore) -> None:
    """Leave the manifest of a release that kept no former generation."""
    manifest = replace(read_manifest(store, DOMAIN), former=None)
    store.put(manifest_key(DOMAIN), manifest.to_json().replace(b"former", b"x"))


def of_another_schema(store: FolderStore) -> None:
    manifest = read_manifest(store, DOMAIN)
    assert manifest.former is not None
    store.put(manifest_key(DOMAIN), replace(manifest, former=replace(manifest.former, schema_version=0)).to_json())


def without_an_object(store: FolderStore) -> None:
    roll_back(store)
    former = roll_back(store).former
    assert former is not None
    store.delete(frames_key(DOMAIN, read_table(store, former).objects[1][0]))


def without_any_object(store: FolderStore) -> None:
    for key in objects(store):
        store.delete(key)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (without_former, "no former generation is kept"),
        (of_another_schema, "generation 2 cannot be served: .* another schema"),
        (without_an_object, "generation 5 cannot be served: without frames/site.example/2-"),
        (without_any_object, "generation 2 cannot be served: frames/site.example/2-.* no such object"),
    ],
)
def test_a_rollback_is_refused_if_the_former_generation_cannot_be_served(
    store: FolderStore, damage: Callable[[FolderStore], None], reason: str
) -> None:
    damage(store)
    before = store.get(manifest_key(DOMAIN)).data, objects(store)
    with pytest.raises(ActRefused, match=reason):
        plan_rollback(store, DOMAIN)
    assert (store.get(manifest_key(DOMAIN)).data, objects(store)) == before


def test_a_rollback_that_is_killed_before_any_request_leaves_one_of_both_versions(
    store: FolderStore, tmp_path: Path
) -> None:
    bad, step, killed = whole(store, tmp_path), 0, True
    good = (roll_back(store), whole(store, tmp_path))[1]
    roll_back(store)
    while killed:
        step, killed = step + 1, False
        try:
            roll_back(InterruptedStore(store.root, step))
        except Killed:
            killed = True
        is_good = read_manifest(store, DOMAIN).generation % 2 == 1
        assert whole(store, tmp_path) == (good if is_good else bad)
        if is_good:
            roll_back(store)
            assert whole(store, tmp_path) == bad
    assert step > 4
    age(store)
    update(store, "later")
    assert objects(store) == used(store)


def test_a_packer_that_was_stopped_before_it_collects_deletes_no_frame_of_a_later_packer(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the later packer has been at work: its frames count as old enough at once.
    monkeypatch.setattr(publish, "RETENTION", timedelta(0))
    stopped, goes_on = threading.Event(), threading.Event()

    def stop() -> None:
        stopped.set()
        assert goes_on.wait(60)

    def let_the_other_go_on() -> None:
        goes_on.set()
        other.join()

    put(store, text(1, "first"))
    other = threading.Thread(target=pack_incremental, args=(ManifestStore(store.root, after=stop), DOMAIN))
    other.start()
    assert stopped.wait(60)
    put(store, text(2, "second"))
    assert pack_incremental(ManifestStore(store.root, before=let_the_other_go_on), DOMAIN).changed == 1
    assert not other.is_alive()
    check_kept(store, tmp_path)


#: What may happen at once. A packer finds a page that has changed.
ACTS: dict[str, Callable[[ObjectStore], object]] = {
    "packer": lambda store: pack_incremental(store, DOMAIN),
    "crawl's packer": lambda store: pack_full(store, DOMAIN, FullPackPlan(crawl_id=str(random.random()))),
    "rollback": roll_back,
    "collector": collect,
}


@pytest.mark.parametrize("interrupted", ACTS)
def test_packers_rollbacks_and_collectors_at_once_lose_no_page_and_no_frame_in_use(
    store: FolderStore, tmp_path: Path, interrupted: str
) -> None:
    numbers = random.Random(interrupted)
    step, most, reached = 0, 0, True
    while reached:
        step, reached = step + 1, False
        age(store)
        put(store, text(1, f"step {step}"))

        def meanwhile() -> None:
            nonlocal reached
            reached = True
            for other in numbers.sample(sorted(ACTS), k=2):
                ACTS[other](store)

        before = read_manifest(store, DOMAIN).generation
        with suppress(PreconditionFailed):
            ACTS[interrupted](InterruptedStore(store.root, step, act=meanwhile))
        check_kept(store, tmp_path)
        assert read_manifest(store, DOMAIN).generation >= before
        # The message comes back.
        pack_incremental(store, DOMAIN)
        titles = [text(number, "bad").title for number in (0, *range(2, 10))] + [text(1, f"step {step}").title]
        assert sorted(titles) == packed_titles(store, tmp_path)
        check_kept(store, tmp_path)
        most = max(most, len(used(store)))
    assert step > 3
    assert most > 3, "generations share objects"
