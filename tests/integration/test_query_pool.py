"""Query processes: they answer side by side, close packs, and are replaced when they are killed or stuck."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from app.cluster.protocol import PackVersion
from app.cluster.searcher.packs import OpenPacks
from app.cluster.searcher.query_pool import QueryPool
from app.cluster.searcher.service import QueryHandler
from app.crawl.path_rules import PathRules
from app.errors import InvalidQuery, PackCorrupt, SearchTimeout
from app.search.search_settings import SearchSettings
from config.settings import ROOT
from tests.packs import page, write_pack
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

DOMAIN = "a.example"
QUERY = {"type": "search", "domain": DOMAIN, "q": "word"}


class Served:
    """A pool, and a pack that it searches."""

    def __init__(self, folder: Path, *, processes: int, patience: float) -> None:
        self.folder = folder
        self.pool = QueryPool(processes, time_limit=20.0, patience=patience)
        self.packs = OpenPacks(remove=self._remove, time_limit=20.0)
        self.handler = QueryHandler(self.packs, self.pool, request_check=lambda _: None)
        self.put(1)

    def _remove(self, path: Path) -> None:
        self.pool.close_pack(path)
        path.unlink()

    def put(self, generation: int) -> Path:
        path = self.folder / f"{generation}.sqlite"
        write_pack(path, [page(f"/{generation}", "Title", "word"), page("/hidden", "Hidden", "word")], domain=DOMAIN)
        self.packs.put(PackVersion(domain=DOMAIN, sha256=str(generation), generation=generation, size_mb=1), path)
        return path

    def paths(self) -> set[str]:
        return {hit["path"] for hit in json.loads(self.handler.answer(QUERY))["results"]["hits"]}

    def opened(self, pid: int) -> set[str]:
        """Return the names of the packs that a process has open, also of removed ones."""
        files = (each.readlink() for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_symlink())
        return {file.name for file in files if ".sqlite" in file.name}

    def close(self) -> None:
        self.packs.close()
        self.pool.close()


@pytest.fixture
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    with closing(Served(tmp_path, **{"processes": 2, "patience": 60.0} | getattr(request, "param", {}))) as found:
        yield found


def test_queries_run_side_by_side_and_no_process_keeps_a_replaced_pack(served: Served) -> None:
    pids = served.pool.pids()
    with ThreadPoolExecutor(2) as threads:

        def all_have_it_open() -> bool:
            list(threads.map(lambda _: served.paths(), range(20)))
            return all(served.opened(pid) == {"1.sqlite"} for pid in pids)

        eventually(all_have_it_open, "both processes have answered")
        with served.packs.lend(DOMAIN):
            served.put(2)
            # The former version is in use, and stays open.
            assert served.paths() == {"/2", "/hidden"}
            assert all("1.sqlite" in served.opened(pid) for pid in pids)
        assert not any("1.sqlite" in name for pid in pids for name in served.opened(pid))
    assert not (served.folder / "1.sqlite").exists()
    assert served.pool.pids() == pids


def test_settings_that_change_hold_in_all_processes_and_errors_are_those_of_the_search(served: Served) -> None:
    def of_both() -> list[set[str]]:
        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(lambda _: served.paths(), range(20)))

    assert {"/1", "/hidden"} in of_both()
    served.packs.apply(DOMAIN, SearchSettings(hides=PathRules((), ("/hidden",)).excludes))
    with pytest.raises(InvalidQuery):
        served.handler.answer(QUERY | {"q": "-word"})
    assert of_both() == [{"/1"}] * 20
    served.packs.apply(DOMAIN, SearchSettings())
    assert of_both() == [{"/1", "/hidden"}] * 20
    assert json.loads(served.handler.answer(QUERY | {"type": "suggest", "q": "wo"})) == ["word"]


@pytest.mark.parametrize("served", [{"processes": 1}], indirect=True)
def test_a_killed_process_is_replaced_and_a_query_that_ends_each_one_is_reported(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.packs.apply(DOMAIN, SearchSettings(hides=PathRules((), ("/hidden",)).excludes))
    assert served.paths() == {"/1"}
    killed = served.pool.pids()[0]
    os.kill(killed, signal.SIGKILL)
    assert served.paths() == {"/1"}, "the new process has no settings"
    assert served.pool.pids() != [killed]

    os.kill(served.pool.pids()[0], signal.SIGKILL)
    served.put(2)
    assert not (served.folder / "1.sqlite").exists()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(PackCorrupt, match="the process that searched it ended 2 times"):
            served.paths()
    assert served.paths() == {"/2"}


@pytest.mark.parametrize("served", [{"processes": 1, "patience": 0.5}], indirect=True)
def test_a_stuck_process_is_killed_and_replaced(served: Served) -> None:
    eventually(lambda: answers(served), "it has the pack open")
    (stuck,) = served.pool.pids()
    os.kill(stuck, signal.SIGSTOP)
    with pytest.raises(SearchTimeout):
        served.paths()
    assert not Path(f"/proc/{stuck}").exists()
    eventually(lambda: answers(served), "another process answers")


def answers(served: Served) -> bool:
    """Return whether a query is answered in time: a busy machine may take longer."""
    try:
        return served.paths() == {"/1", "/hidden"}
    except SearchTimeout:
        return False


def test_the_processes_end_when_their_searcher_is_killed() -> None:
    code = (
        "from app.cluster.searcher.query_pool import QueryPool; import time\n"
        "print(*QueryPool(2, time_limit=1.0, patience=5.0).pids(), flush=True); time.sleep(300)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as searcher:
        assert searcher.stdout is not None
        pids = searcher.stdout.readline().split()
        searcher.kill()
    assert len(pids) == 2
    eventually(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids), "both have ended")
