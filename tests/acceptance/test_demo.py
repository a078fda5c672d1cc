"""`make demo` as a user runs it, and what is left when it was interrupted or killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from app.pack.manifest import read_manifest
from app.storage.open import open_store
from config.settings import ROOT, Settings
from tests.servers.site import Site, failure, page
from tests.support.waiting import eventually
from tests.support.worker import worker

pytestmark = pytest.mark.acceptance

GARDEN = {
    "/": page("Garden", links=[f"/{number}" for number in range(9)] + ["/broken"]),
    **{f"/{number}": page(f"Roses {number} | Garden") for number in range(9)},
    "/broken": failure(500),
}


@contextmanager
def demo(out: Path, environment: Mapping[str, str], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the demo without a terminal, its output in a file."""
    with out.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "demo", *arguments],
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def left(folder: Path) -> list[str]:
    """Return the command lines of the processes that were started for a data folder."""
    found = []
    for each in psutil.process_iter():
        try:
            told = " ".join([*each.cmdline(), *each.environ().values()])
            if str(folder) in told:
                found.append(" ".join(each.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def test_the_demo_crawls_every_page_repairs_what_died_and_leaves_nothing_running(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    with demo(out, {**os.environ, "PERENNIAL_DATA_DIR": str(data)}) as process:
        assert process.wait(timeout=200) == 0, out.read_text()
    assert left(data) == []
    lines = out.read_text().splitlines()
    found = json.loads(lines[-1])
    pages = re.search(r"It has (\d+) pages on http://([\d.:]+)/", "\n".join(lines))
    assert pages is not None
    assert (found["pages"], found["domain"]) == (int(pages[1]), pages[2])
    assert found["pages"] > 200
    assert found["retried"] >= 2
    assert found["dead"] == found["replayed"] == 2
    assert found["hits"] > 0
    store = Settings(data_dir=data / "demo" / "home").store
    assert read_manifest(open_store(store), found["domain"]).sha256 == found["pack"]["sha256"]
    assert all(line.isprintable() for line in lines)


def test_interrupted_it_packs_what_is_there_of_a_site_of_the_users(environment: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = environment | {"RETRY_TIMEOUT_MS": "600000", "ALLOW_PRIVATE_HOSTS": ""}
    with Site(GARDEN) as site, demo(out, given, "--site", site.url) as process:
        # The broken page keeps the crawl open for ten minutes: nothing but the signal ends it.
        eventually(lambda: "10/11 pages" in out.read_text(), "all but the broken page are indexed", seconds=60)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0, out.read_text()
    assert "BROKER_URL, REDIS_URL given: used as given." in out.read_text()
    found = json.loads(out.read_text().splitlines()[-1])
    assert (found["domain"], found["pages"]) == (site.domain, 10)
    assert (found["hits"], found["retried"], found["dead"]) == (10, 2, 0)


def test_on_a_given_broker_it_does_not_compete_with_workers_that_are_there(
    environment: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with (
        worker(environment, tmp_path / "worker.log"),
        Site(GARDEN) as site,
        demo(out, environment, "--site", site.url) as ours,
    ):
        assert ours.wait(timeout=60) == 1
    assert "workers run on the broker of BROKER_URL" in out.read_text()


def test_killed_it_takes_everything_that_it_started_with_it(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    environment = {**os.environ, "PERENNIAL_DATA_DIR": str(data), "RETRY_TIMEOUT_MS": "600000"}
    with Site(GARDEN) as site, demo(out, environment, "--site", site.url) as process:
        eventually(lambda: "10/11 pages" in out.read_text(), "all but the broken page are indexed", seconds=60)
        assert len(left(data)) > 5
        process.kill()
        eventually(lambda: not left(data), "nothing runs any more", seconds=60)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://site.example/", "its scheme is neither http nor https"),
        ("http://127.0.0.1:1/", "cannot be reached"),
        ("http://nowhere.invalid/", "has no address"),
    ],
)
def test_a_site_that_cannot_be_crawled_is_refused_before_anything_starts(tmp_path: Path, url: str, why: str) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    with demo(out, {**os.environ, "PERENNIAL_DATA_DIR": str(data)}, "--site", url) as process:
        assert process.wait(timeout=60) == 1
    told = out.read_text()
    assert told.startswith("The demo failed: ")
    assert why in told
    assert "Traceback" not in told
    assert not (data / "demo" / "home" / "services").exists()
