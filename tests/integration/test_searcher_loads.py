"""A searcher's packs on a real disk, from a real store: loads, replacements, failures and recovery."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Queue

import pytest

from app.cluster.protocol import Load, PackVersion, Unload
from app.cluster.searcher.data_directory import MAX_CRASHES, DataDirectory
from app.cluster.searcher.loader import Loader
from app.cluster.searcher.pack_jobs import IntegrityCheck, JobOutcome, PackJobs
from app.cluster.searcher.packs import OpenPacks
from app.cluster.searcher.query_pool import QueryPool
from app.cluster.searcher.service import QueryHandler
from app.errors import PackCorrupt, PackNotLoaded
from app.pack import database
from app.search.query import parse
from app.storage.folder import FolderStore
from tests.packs import page, publish, write_pack
from tests.support.forked import context
from tests.support.limits import full_disk
from tests.support.stores import folder_store
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

BUDGET_MB = 100


class Disk:
    """A searcher's data directory, packs and loader, and the store that it loads from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "searchers"
        self.store = folder_store(folder / "store")
        self.outcomes: Queue[JobOutcome] = Queue()
        self.generation = 0

    def offer(self, title: str, *, domain: str = "a.example", body: str = "word", version: int | None = None) -> Load:
        """Put a pack of one page into the store and return the order to load it."""
        self.generation += 1
        path = write_pack(
            self.folder / f"{self.generation}.sqlite",
            [page("/", title, body)],
            domain=domain,
            generation=self.generation,
        )
        if version is not None:
            with closing(sqlite3.connect(path)) as connection:
                connection.execute(f"PRAGMA user_version = {version}")
        manifest = publish(self.store, path, domain=domain, generation=self.generation)
        return Load(domain=domain, sha256=manifest.sha256, generation=self.generation, size_mb=1)

    @contextmanager
    def open(self, *, budget_mb: int = BUDGET_MB) -> Iterator[Shelf]:
        """Run a loader on the first free data directory; the block begins at the first report of its recovery."""
        directory = DataDirectory.acquire(self.root)
        packs = OpenPacks(remove=directory.remove, time_limit=20.0)
        jobs = PackJobs(directory=directory, packs=packs, budget_mb=budget_mb, store=self.store)
        loader = Loader(jobs)
        reports = Queue[tuple[int, int]]()
        loader.start(
            recovered=lambda: reports.put((len(packs.versions()[1]), len(loader.loading()))),
            report_outcome=self.outcomes.put,
        )
        shelf = Shelf(directory, packs, jobs.disk_space, loader, self.outcomes, reports.get(timeout=20), reports)
        try:
            yield shelf
        finally:
            loader.close(20)
            packs.close()
            directory.close()


@dataclass
class Shelf:
    """A running loader and its packs. Each of `reports` is the number of packs served and of packs still to load."""

    directory: DataDirectory
    packs: OpenPacks
    space: Callable[[], tuple[int, int]]
    loader: Loader
    outcomes: Queue[JobOutcome]
    first_report: tuple[int, int]
    reports: Queue[tuple[int, int]]

    def have(self, job: Load | Unload | IntegrityCheck) -> JobOutcome:
        """Execute a job and return its outcome."""
        self.loader.submit(job)
        return self.outcomes.get(timeout=20)

    def title(self, domain: str = "a.example") -> str:
        with self.packs.lend(domain) as searcher:
            return searcher.search(parse("word")).hits[0].title

    def files(self) -> list[str]:
        return sorted(path.suffix for path in self.directory.folder.rglob("*") if path.is_file() and path.suffix)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def test_a_pack_is_loaded_and_served(disk: Disk) -> None:
    with disk.open() as shelf:
        with pytest.raises(PackNotLoaded, match=r"a\.example is not on this searcher"):
            shelf.title()
        load = disk.offer("one")
        held = PackVersion(domain="a.example", sha256=load.sha256, generation=load.generation, size_mb=1)
        assert shelf.have(load) == JobOutcome(kind="loaded", domain="a.example", sha256=load.sha256, held=held)
        assert shelf.title() == "one"
        assert shelf.packs.versions() == (1, (held,))
        assert shelf.have(load).held == held
        assert shelf.have(replace(load, sha256="0" * 64, generation=99)).held == held
        assert shelf.packs.changes() == 1
        assert shelf.have(Unload(domain="a.example", sha256=load.sha256)).held is None
        assert shelf.packs.versions() == (2, ())
        assert shelf.packs.used_mb() == 0
        shelf.have(load)
        assert shelf.loader.loading() == ()
        assert shelf.space() == (BUDGET_MB - 1, BUDGET_MB)
        # A second order for the same changes nothing, and is answered all the same.
        path = shelf.packs.path("a.example")
        assert shelf.have(load).kind == "loaded"
        assert shelf.packs.path("a.example") == path


def test_a_new_version_replaces_the_old_one_and_a_running_search_ends_on_the_old_one(disk: Disk) -> None:
    with disk.open() as shelf:
        shelf.have(disk.offer("one"))
        with shelf.packs.lend("a.example") as old:
            with shelf.packs.lend("a.example"):
                shelf.have(disk.offer("two"))
            assert shelf.title() == "two"
            assert old.search(parse("word")).hits[0].title == "one"
            assert old.path.exists()
            assert shelf.packs.used_mb() == 2
        assert not old.path.exists()
        assert shelf.packs.used_mb() == 1
        assert shelf.files() == [".json", ".sqlite"]


def test_swaps_under_many_searching_threads_lose_no_search(disk: Disk) -> None:
    stop = threading.Event()
    with disk.open() as shelf, ThreadPoolExecutor(4) as pool, ExitStack() as ends:
        ends.callback(stop.set)
        shelf.have(disk.offer("0"))

        def search_on() -> list[int]:
            seen = []
            while not stop.is_set():
                seen.append(int(shelf.title()))
            return seen

        runs = [pool.submit(search_on) for _ in range(4)]
        for version in range(1, 8):
            assert shelf.have(disk.offer(str(version))).kind == "loaded"
            assert shelf.title() == str(version)
        stop.set()
        for run in runs:
            assert run.result() == sorted(run.result())
            assert run.result()
        eventually(lambda: shelf.files() == [".json", ".sqlite"], "the old versions are removed")


def test_an_invalid_new_version_is_refused_and_the_old_one_is_still_served(disk: Disk) -> None:
    with disk.open() as shelf:
        shelf.have(disk.offer("one"))
        wrongs = {
            "wrong schema version": "schema version 99",
            "no manifest": "has no pack",
            "newer than the store's": "older than 1000",
            "too big for what is free": "100 MB needed, 99 MB free",
            "a domain that leaves the folder": "not a host name",
        }
        for name, reason in wrongs.items():
            load = disk.offer("two", version=99 if name == "wrong schema version" else None)
            match name:
                case "no manifest":
                    disk.store.delete("packs/a.example.json")
                case "newer than the store's":
                    load = Load(domain="a.example", sha256="f" * 64, generation=1000, size_mb=1)
                case "too big for what is free":
                    load = Load(domain="a.example", sha256="f" * 64, generation=1, size_mb=100)
                case "a domain that leaves the folder":
                    load = Load(domain="../a.example", sha256="f" * 64, generation=1, size_mb=1)
            change = shelf.have(load)
            assert change.kind == "failed"
            assert reason in change.reason, name
            assert change.sha256 == load.sha256
            assert shelf.title() == "one"
            assert shelf.files() == [".json", ".sqlite"]
        assert shelf.have(disk.offer("three")).kind == "loaded"
        assert shelf.title() == "three"


def test_a_load_never_writes_more_than_the_free_room(disk: Disk) -> None:
    with disk.open(budget_mb=2) as shelf:
        shelf.have(disk.offer("one"))
        load = disk.offer("two", body="word " * 400_000)
        assert "needed, 1048576 free" in shelf.have(load).reason
        assert shelf.title() == "one"
        # Room for old and new is what a swap needs; without the old one there is enough.
        other = disk.offer("three", domain="b.example")
        assert shelf.have(other).kind == "loaded"
        assert "1 MB needed, 0 MB free" in shelf.have(disk.offer("four")).reason
        assert shelf.have(Unload(domain="b.example", sha256=other.sha256)).kind == "unloaded"
        assert shelf.have(disk.offer("five")).kind == "loaded"
        assert shelf.title() == "five"


def test_on_a_full_disk_the_former_version_is_served_and_the_new_one_is_loaded_when_there_is_room(disk: Disk) -> None:
    with disk.open() as shelf:
        shelf.have(disk.offer("one"))
        load = disk.offer("two")
        with full_disk():
            outcomes = [shelf.have(load) for _ in range(MAX_CRASHES + 1)]
        assert {outcome.kind for outcome in outcomes} == {"failed"}
        assert all("File too large" in outcome.reason for outcome in outcomes)
        assert shelf.title() == "one"
        assert shelf.files() == [".json", ".sqlite"]
        assert shelf.have(load).kind == "loaded"
        assert shelf.title() == "two"
    with full_disk(), disk.open() as shelf:
        assert shelf.title() == "two"


def test_a_pack_whose_note_cannot_be_written_leaves_no_file(disk: Disk) -> None:
    directory = DataDirectory.acquire(disk.root)
    version = PackVersion(domain="a.example", sha256="f" * 64, generation=1, size_mb=1)
    with directory.temporary_file() as written:
        written.write_bytes(b"a pack")
        with full_disk(), pytest.raises(OSError, match="File too large"):
            directory.keep(version, written)
    assert [path for path in directory.folder.rglob("*") if path.suffix] == []
    directory.close()


def test_a_newer_version_in_the_store_is_loaded_and_named(disk: Disk) -> None:
    with disk.open() as shelf:
        old, new = disk.offer("old"), disk.offer("new")
        first = shelf.have(old)
        assert (first.kind, first.sha256) == ("loaded", new.sha256)
        assert first.held is not None
        assert first.held.sha256 == new.sha256
        assert shelf.title() == "new"
        assert shelf.have(new) == first


def test_only_the_named_version_is_unloaded_and_running_searches_end(disk: Disk) -> None:
    with disk.open() as shelf:
        load = disk.offer("one")
        shelf.have(load)
        assert shelf.have(Unload(domain="a.example", sha256="0" * 64)).kind == "unloaded"
        assert shelf.title() == "one"
        with shelf.packs.lend("a.example") as searcher:
            assert shelf.have(Unload(domain="a.example", sha256=load.sha256)).kind == "unloaded"
            with pytest.raises(PackNotLoaded):
                shelf.title()
            assert searcher.search(parse("word")).hits[0].title == "one"
            # Loaded again while it is still read, it is another file.
            assert shelf.have(load).kind == "loaded"
        assert shelf.title() == "one"
        assert shelf.files() == [".json", ".sqlite"]


def test_orders_are_executed_in_order(disk: Disk) -> None:
    with disk.open() as shelf:
        load = disk.offer("one")
        unload = Unload(domain="a.example", sha256=load.sha256)
        for job in (load, unload, load):
            shelf.loader.submit(job)
        assert [shelf.outcomes.get(timeout=20).kind for _ in range(3)] == ["loaded", "unloaded", "loaded"]
        assert shelf.title() == "one"


def test_a_query_that_cannot_read_its_pack_has_it_checked_and_dropped(disk: Disk) -> None:
    with disk.open() as shelf, ExitStack() as stack:
        load = disk.offer("one")
        shelf.have(load)
        pool = stack.enter_context(closing(QueryPool(1, time_limit=20.0, patience=60.0)))
        handler = QueryHandler(shelf.packs, pool, request_check=shelf.loader.submit)
        query = {"type": "search", "domain": "a.example", "q": "word"}
        path = shelf.packs.path("a.example")
        assert path is not None
        with path.open("r+b") as file:
            file.write(b"\0" * path.stat().st_size)
        with pytest.raises(PackCorrupt):
            handler.answer(query)
        outcome = shelf.outcomes.get(timeout=20)
        assert (outcome.kind, outcome.sha256, outcome.held) == ("failed", load.sha256, None)
        assert "not a database" in outcome.reason
        with pytest.raises(PackNotLoaded):
            handler.answer(query)
        assert shelf.have(load).kind == "loaded"
        assert shelf.title() == "one"


def test_packs_that_were_found_intact_are_not_checked_again_at_once_though_queries_of_both_fail(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[Path] = []

    def check(path: Path, *, is_intact: bool = False) -> None:
        assert not is_intact
        checked.append(path)

    monkeypatch.setattr(database, "check", check)
    with disk.open() as shelf:
        loads = [disk.offer(domain, domain=domain) for domain in ("a.example", "b.example")]
        for load in loads:
            shelf.have(load)
        for later in ("c.example", "d.example"):
            for load in 2 * loads:
                shelf.loader.submit(IntegrityCheck(domain=load.domain, sha256=load.sha256))
            # The loader works in order: the checks are done after this load.
            assert shelf.have(disk.offer(later, domain=later)).kind == "loaded"
        assert shelf.title() == "a.example"
    # Each was checked as it arrived.
    arrived = [".loading"] * 2
    assert [path.parent.name for path in checked] == [*arrived, "a.example", "b.example", *arrived]


def test_the_next_process_recovers_intact_packs_and_removes_all_other_files(disk: Disk) -> None:
    with disk.open() as shelf:
        for domain in ("a.example", "b.example:8080", "c.example"):
            shelf.have(disk.offer(domain, domain=domain))
        broken = shelf.packs.path("c.example")
        left = shelf.directory.folder
    assert broken is not None
    broken.write_bytes(broken.read_bytes()[:8192] + b"\0" * (broken.stat().st_size - 8192))
    (left / ".loading" / f"{0:016x}.sqlite").write_bytes(b"half")
    (left / "d.example").mkdir()
    (left / "d.example" / f"{1:016x}.sqlite").write_bytes(b"no note beside it")
    (left / "e.example").mkdir()
    shutil.copy(broken.with_suffix(".json"), left / "e.example" / f"{2:016x}.json")
    with disk.open() as shelf:
        assert shelf.directory.folder == left
        assert [version.domain for version in shelf.packs.versions()[1]] == ["a.example", "b.example:8080"]
        assert shelf.title("b.example:8080") == "b.example:8080"
        assert shelf.files() == [".json", ".json", ".sqlite", ".sqlite"]
        assert sorted(path.name for path in left.iterdir()) == [".loading", "a.example", "b.example:8080", "lock"]
    with disk.open(budget_mb=1) as shelf:
        assert [version.domain for version in shelf.packs.versions()[1]] == ["a.example"]


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def open_and_die(root: Path, load: Load) -> None:
    with DataDirectory.acquire(root).opening(load.domain, load.sha256):
        die()


def download_and_die(root: Path, load: Load) -> None:
    directory = DataDirectory.acquire(root)
    store = FolderStore(root.parent / "store")
    store.get_part = die  # type: ignore[assignment, method-assign]
    packs = OpenPacks(remove=directory.remove, time_limit=1.0)
    PackJobs(directory=directory, packs=packs, budget_mb=BUDGET_MB, store=store).execute(load)


def crash(disk: Disk, act: Callable[[Path, Load], None], load: Load) -> None:
    """Let a searcher's process be killed by an act."""
    process = context().Process(target=act, args=(disk.root, load))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def test_a_version_that_ended_two_processes_is_not_opened_again(disk: Disk) -> None:
    load, other = disk.offer("fatal"), disk.offer("harmless", domain="b.example")
    for _ in range(2):
        crash(disk, open_and_die, load)
        with disk.open() as shelf:
            assert shelf.directory.folder.name == "1"
            # One crash may have another cause, so the version is tried again. An opening that succeeds ends the count.
            if not shelf.packs.versions()[1]:
                assert shelf.have(other).kind == "loaded"
    with disk.open() as shelf:
        change = shelf.have(load)
        assert (change.kind, change.sha256) == ("failed", load.sha256)
        assert change.reason.startswith("opening this version ended 2 processes")
    with disk.open() as shelf:
        assert shelf.have(load).kind == "failed"
        assert shelf.have(disk.offer("repaired")).kind == "loaded"
        assert shelf.title() == "repaired"


def test_processes_that_are_killed_while_they_download_a_version_do_not_count_against_it(disk: Disk) -> None:
    load = disk.offer("long")
    for _ in range(MAX_CRASHES):
        crash(disk, download_and_die, load)
    with disk.open() as shelf:
        assert shelf.have(load).kind == "loaded"
        assert shelf.title() == "long"


def test_a_served_pack_that_ends_the_next_processes_is_not_recovered(disk: Disk) -> None:
    with disk.open() as shelf:
        load = disk.offer("fatal")
        assert shelf.have(load).kind == "loaded"
    crash(disk, open_and_die, load)
    with disk.open() as shelf:
        assert shelf.title() == "fatal"
    for _ in range(2):
        crash(disk, open_and_die, load)
    with disk.open() as shelf:
        assert shelf.reports.get(timeout=20) == (0, 0) if shelf.first_report[1] else shelf.first_report == (0, 0)
        assert shelf.files() == []
        assert shelf.have(load).kind == "failed"


def test_a_process_that_stops_while_it_opens_a_version_or_just_before_does_not_count(disk: Disk) -> None:
    directory = DataDirectory.acquire(disk.root)
    marks = directory.folder / ".opening"
    with directory.opening("a.example", "f" * 64):
        assert marks.exists()
        directory.stop_opening()
        assert not marks.exists()
    with directory.opening("b.example", "f" * 64):
        assert not marks.exists()
    directory.close()


def test_a_folder_of_another_program_is_left_alone(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    letters = disk.root / "1" / "letters"
    letters.mkdir(parents=True)
    for name in ("to_a_friend.sqlite", f"{0:016x}.sqlite"):
        (letters / name).write_text("Dear friend")
    with disk.open() as shelf:
        assert shelf.directory.folder.name == "2"
        assert shelf.have(disk.offer("one")).kind == "loaded"
        path = shelf.packs.path("a.example")
        assert path is not None
        (path.parent / "notes.txt").write_text("a stranger's")
        (shelf.directory.folder / "pictures").mkdir()
        (shelf.directory.folder / "pictures" / "cat.sqlite").write_text("meow")
    assert f"{disk.root / '1'} was not made by a searcher" in caplog.text
    with disk.open() as shelf:
        assert shelf.title() == "one"
        assert (shelf.directory.folder / "pictures" / "cat.sqlite").read_text() == "meow"
        assert (path.parent / "notes.txt").read_text() == "a stranger's"
    assert sorted(path.name for path in letters.iterdir()) == [f"{0:016x}.sqlite", "to_a_friend.sqlite"]


def test_a_long_recovery_reports_its_packs_as_loading_and_serves_each_once_checked(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    domains = ("a.example", "b.example", "c.example")
    with disk.open() as shelf:
        loads = [disk.offer(domain, domain=domain) for domain in domains]
        assert [shelf.have(load).kind for load in loads] == ["loaded"] * 3
    checked = Queue[str]()
    go_on = threading.Event()

    def check(path: Path, *, is_intact: bool = False) -> None:
        # It was checked as a whole when it arrived.
        assert is_intact
        checked.put(path.parent.name)
        if path.parent.name != "a.example":
            assert go_on.wait(20)
        if path.parent.name == "c.example":
            raise PackCorrupt(path.name)

    monkeypatch.setattr(database, "check", check)
    with disk.open() as shelf:
        assert [checked.get(timeout=20) for _ in "ab"] == ["a.example", "b.example"]
        assert shelf.first_report == (1, 2)
        report = shelf.loader.registration("x")
        assert [version.domain for version in report.pack_versions or ()] == ["a.example"]
        assert report.loading == tuple(load.sha256 for load in loads[1:])
        go_on.set()
        assert shelf.reports.get(timeout=20) == (2, 0)
        assert shelf.loader.loading() == ()


def test_of_two_pack_versions_of_a_killed_process_the_newer_one_is_recovered(disk: Disk) -> None:
    with disk.open() as shelf:
        shelf.have(disk.offer("old"))
        with shelf.packs.lend("a.example") as searcher:
            shelf.have(disk.offer("new"))
            kept = shutil.copytree(searcher.path.parent, disk.folder / "kept")
            place = searcher.path.parent
    shutil.rmtree(place)
    shutil.copytree(kept, place)
    with disk.open() as shelf:
        assert shelf.title() == "new"
        assert shelf.files() == [".json", ".sqlite"]


def test_two_processes_never_share_a_directory_and_a_killed_process_releases_its_own(disk: Disk) -> None:
    ours, theirs = context().Pipe()
    other = context().Process(target=take_directory, args=(disk.root, theirs), daemon=True)
    other.start()
    try:
        assert ours.recv() == "1"
        with disk.open() as shelf:
            assert shelf.directory.folder.name == "2"
        other.kill()
        other.join()
        with disk.open() as shelf:
            assert shelf.directory.folder.name == "1"
    finally:
        other.kill()


def take_directory(root: Path, pipe: Connection) -> None:
    pipe.send(DataDirectory.acquire(root).folder.name)
    pipe.recv()
