"""`make demo` and `make demo-caa` as a user runs them, and what remains after an interrupt or a kill."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from app.errors import DemoFailed, InvalidUrl
from app.pack.manifest import read_manifest
from app.storage.open import open_store
from config.settings import ROOT, Settings
from demo.plan import plan_user_site
from tests.servers.site import Site, failure, page
from tests.support.waiting import eventually
from tests.support.worker import worker

pytestmark = pytest.mark.acceptance

#: The module of `make demo-caa`.
COVER_ART = "tests.demo_caa"

GARDEN = {
    "/": page("Garden", links=[f"/{number}" for number in range(9)] + ["/broken"]),
    **{f"/{number}": page(f"Roses {number} | Garden") for number in range(9)},
    "/broken": failure(500),
}


@contextmanager
def demo(out: Path, environment: Mapping[str, str], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a demo, by default that of sites, without a terminal, with its output in a file."""
    module = arguments if arguments[:1] == (COVER_ART,) else ("demo", *arguments)
    with out.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *module],
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


def descendants(process: subprocess.Popen[bytes], started: set[psutil.Process]) -> bool:
    """Add to `started` whatever runs below the demo; return whether the demo itself has ended."""
    with suppress(psutil.NoSuchProcess):
        started |= set(psutil.Process(process.pid).children(recursive=True))
    return process.poll() is not None


def remaining(folder: Path, started: Collection[psutil.Process] = ()) -> list[str]:
    """Return the processes that run of those that were started, and of all that were started for a data folder."""
    found = [each for each in started if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    for each in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if str(folder) in " ".join([*each.cmdline(), *each.environ().values()]):
                found.append(each)
    return [str(each) for each in found]


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
def test_the_demo_of_a_users_site_ends_without_its_broken_page_and_searches_a_word_of_its_title(
    environment: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    given = environment | {"RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "1", "ALLOW_PRIVATE_HOSTS": ""}
    with Site(GARDEN) as site, demo(out, given, "--site", site.url) as process:
        assert process.wait(timeout=100) == 0, out.read_text()
    assert "Using the given BROKER_URL, REDIS_URL." in out.read_text()
    summary = json.loads(out.read_text().splitlines()[-1])
    assert (summary["domain"], summary["pages"]) == (site.domain, 10)
    assert (summary["hits"], summary["retried"], summary["dead"]) == (10, 1, 1)


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


def test_an_unreachable_or_invalid_site_is_refused_before_any_process_starts(tmp_path: Path) -> None:
    for url, error, reason in (
        ("ftp://site.example/", InvalidUrl, "its scheme is neither http nor https"),
        ("http://nowhere.invalid/", DemoFailed, "has no address"),
    ):
        with pytest.raises(error, match=reason):
            plan_user_site(Settings(), tmp_path, url)
    data, out = tmp_path / "data", tmp_path / "out"
    with demo(out, {**os.environ, "PERENNIAL_DATA_DIR": str(data)}, "--site", "http://127.0.0.1:1/") as process:
        assert process.wait(timeout=60) == 1
    assert re.fullmatch("The demo failed: .* cannot be reached: .*\n", out.read_text())
    assert not (data / "demo" / "home" / "services").exists()


def misleading(data: Path) -> dict[str, str]:
    """Return an environment with settings that are not for the demo of cover art."""
    wrong = {"BROKER_URL": "amqp://127.0.0.1:1//", "ART_RETRY_MS": "1", "MUSICBRAINZ_URL": "postgresql://nowhere/"}
    return {**os.environ, **wrong, "PERENNIAL_DATA_DIR": str(data)}


@pytest.mark.long
@pytest.mark.slow
def test_the_archive_ends_as_the_database_says_and_nothing_is_left_running(tmp_path: Path) -> None:
    data, out, started = tmp_path / "data", tmp_path / "out", set[psutil.Process]()
    with demo(out, misleading(data), COVER_ART) as process:
        eventually(lambda: descendants(process, started), "the demo has ended", seconds=200, every=1)
        assert process.returncode == 0, out.read_text()
    assert len(started) > 5
    assert remaining(data, started) == []
    lines = out.read_text().splitlines()
    found = json.loads(lines[-1])
    assert found["equal"] is True
    assert [item["found"].partition(" ")[0] for item in found["items"].values()] == ["index.json", "nothing", "nothing"]
    assert (found["retried"], found["dead"], found["replayed"]) == (1, 1, 1)
    assert found["events"] == 2
    assert [line for line in lines if line.startswith("  event    ") and line.endswith("completed")] == [
        "  event    1: delete_image, completed",
        "  event    2: index, completed",
    ]
    move = r"b'201\nb2000000-0000-4000-8000-000000000001\na1000000-0000-4000-8000-000000000001\njpg\n'"
    assert f"  message  move  {move}" in lines
    assert all(line.isprintable() for line in lines)


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_cover_art_demo_leaves_nothing_running(tmp_path: Path) -> None:
    data, out, started = tmp_path / "data", tmp_path / "out", set[psutil.Process]()
    with demo(out, misleading(data), COVER_ART) as process:
        eventually(
            lambda: descendants(process, started) or "1. Three releases" in out.read_text(),
            "it is at work",
            seconds=150,
        )
        assert process.poll() is None, out.read_text()
        assert len(remaining(data, started)) > 5
        process.kill()
        eventually(lambda: not remaining(data, started), "nothing runs any more", seconds=60)
