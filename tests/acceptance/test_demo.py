"""`make demo` as a user runs it, and what remains after an interrupt or a kill."""

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
    """Run the demo without a terminal, with its output in a file."""
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


def remaining(folder: Path) -> list[str]:
    """Return the command lines of running processes that were started for a data folder."""
    commands = []
    for each in psutil.process_iter():
        try:
            text = " ".join([*each.cmdline(), *each.environ().values()])
            if str(folder) in text:
                commands.append(" ".join(each.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return commands


@pytest.mark.slow
def test_the_demo_crawls_every_page_replays_dead_letters_and_leaves_nothing_running(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    with demo(out, {**os.environ, "PERENNIAL_DATA_DIR": str(data)}) as process:
        assert process.wait(timeout=200) == 0, out.read_text()
    assert remaining(data) == []
    lines = out.read_text().splitlines()
    summary = json.loads(lines[-1])
    pages = re.search(r"It has (\d+) pages on http://([\d.:]+)/", "\n".join(lines))
    assert pages is not None
    assert (summary["pages"], summary["domain"]) == (int(pages[1]), pages[2])
    assert summary["pages"] > 200
    assert summary["retried"] >= 2
    assert summary["dead"] == summary["replayed"] == 1
    assert summary["hits"] > 0
    store = Settings(data_dir=data / "demo" / "home").store
    assert read_manifest(open_store(store), summary["domain"]).sha256 == summary["pack"]["sha256"]
    assert all(line.isprintable() for line in lines)


@pytest.mark.long
@pytest.mark.slow
def test_an_interrupted_crawl_of_a_users_site_packs_the_stored_pages(
    environment: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    given = environment | {"RETRY_TIMEOUT_MS": "600000", "ALLOW_PRIVATE_HOSTS": ""}
    with Site(GARDEN) as site, demo(out, given, "--site", site.url) as process:
        # The broken page keeps the crawl open for ten minutes, so that only the signal ends it.
        eventually(lambda: "10/11 pages" in out.read_text(), "all but the broken page are indexed", seconds=60)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0, out.read_text()
    assert "Using the given BROKER_URL, REDIS_URL." in out.read_text()
    summary = json.loads(out.read_text().splitlines()[-1])
    assert (summary["domain"], summary["pages"]) == (site.domain, 10)
    assert (summary["hits"], summary["retried"], summary["dead"]) == (10, 1, 0)


def test_the_demo_refuses_a_given_broker_with_other_workers(environment: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    with (
        worker(environment, tmp_path / "worker.log"),
        Site(GARDEN) as site,
        demo(out, environment, "--site", site.url) as process,
    ):
        assert process.wait(timeout=60) == 1
    assert "workers of the broker at BROKER_URL" in out.read_text()


@pytest.mark.long
def test_a_killed_demo_leaves_nothing_running(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    environment = {**os.environ, "PERENNIAL_DATA_DIR": str(data), "RETRY_TIMEOUT_MS": "600000"}
    with Site(GARDEN) as site, demo(out, environment, "--site", site.url) as process:
        eventually(lambda: "/broken" in site.paths(), "the crawl is under way", seconds=150)
        assert len(remaining(data)) > 5
        process.kill()
        eventually(lambda: not remaining(data), "no process remains", seconds=60)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://site.example/", "its scheme is neither http nor https"),
        ("http://127.0.0.1:1/", "cannot be reached"),
        ("http://nowhere.invalid/", "has no address"),
    ],
)
def test_an_unreachable_or_invalid_site_is_refused_before_any_process_starts(
    tmp_path: Path, url: str, reason: str
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    with demo(out, {**os.environ, "PERENNIAL_DATA_DIR": str(data)}, "--site", url) as process:
        assert process.wait(timeout=60) == 1
    output = out.read_text()
    assert output.startswith("The demo failed: ")
    assert reason in output
    assert "Traceback" not in output
    assert not (data / "demo" / "home" / "services").exists()
