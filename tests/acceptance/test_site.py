"""From a message to a search result: real broker, real Redis, real HTTP, real processes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.state.client import get_redis
from app.timers.timers import Timers
from config.settings import ROOT, Settings
from config.topology import DEAD
from tests.servers.site import Site, fail_times, failure, page, redirect, robots
from tests.support.broker import Broker
from tests.support.system import System, beat, running_system
from tests.support.waiting import eventually
from tests.support.worker import worker

pytestmark = pytest.mark.acceptance

WORDS = ["amber", "birch", "cedar", "dogwood", "elm", "fir", "gorse", "hazel", "iris", "juniper"]


@pytest.fixture
def system(environment: dict[str, str], settings: Settings, tmp_path: Path) -> Iterator[System]:
    fast = {"RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "2"}
    with running_system({**environment, **fast}, settings, tmp_path) as system:
        yield system


@pytest.fixture
def site() -> Iterator[Site]:
    """A home page, ten pages about trees in a ring, and one that only the last of them links."""
    routes = {
        f"/{word}": page(word.title(), f"All about {word} trees", links=[f"/{after}", "/"])
        for word, after in itertools.pairwise([*WORDS, "last"])
    }
    routes |= {"/": page("Trees", "welcome", links=["/amber", "/cedar"]), "/last": page("Last", "the very end")}
    with Site(routes) as site:
        yield site


def perennial(system: System, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as an operator would."""
    command = [sys.executable, "-m", "app.cli.main", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **system.environment}, capture_output=True, text=True, check=True
    )


ALL = {"/", "/last", *(f"/{word}" for word in WORDS)}


def test_a_site_is_crawled_packed_and_found_with_one_get_a_page(system: System, site: Site) -> None:
    system.post("index+crawl", url=site.at("/"))
    assert system.packed(site.domain).pages == 12
    assert system.paths(site.domain) == ALL
    assert next(hit.path for hit in system.search(site.domain, "dogwood")) == "/dogwood"
    assert sorted(site.paths()) == sorted({"/robots.txt", *ALL})
    assert system.progress(site.domain).open == 0
    assert system.broker.depth(DEAD) == 0


def test_a_second_crawl_reflects_what_changed_vanished_and_came_and_an_index_of_one_page_only_that(
    system: System, site: Site
) -> None:
    system.post("index+crawl", url=site.at("/"))
    system.packed(site.domain)
    site.set("/amber", page("Amber", "rewritten entirely", links=["/birch", "/new"]))
    site.set("/new", page("New", "fresh leaves"))
    site.set("/iris", page("Iris", "links no more", links=["/"]))
    site.remove("/juniper")
    system.post("index+crawl", url=site.at("/"))
    system.packed(site.domain, generation=2)
    assert system.paths(site.domain) == (ALL - {"/juniper", "/last"}) | {"/new"}
    assert [hit.path for hit in system.search(site.domain, "rewritten")] == ["/amber"]

    site.set("/cedar", page("Cedar", "evergreen now"))
    site.set("/birch", page("Birch", "changed but not asked for"))
    before = len(site.paths())
    system.post("index", url=site.at("/cedar"))
    third = system.packed(site.domain, generation=3)
    assert third.kind == "incremental"
    assert site.paths()[before:] == ["/cedar"]
    assert [hit.path for hit in system.search(site.domain, "evergreen")] == ["/cedar"]
    assert system.search(site.domain, "asked for") == []
    assert system.paths(site.domain) == (ALL - {"/juniper", "/last"}) | {"/new"}


def test_a_page_that_fails_twice_comes_back_and_one_that_always_fails_is_dead_and_replayed_when_mended(
    system: System, site: Site
) -> None:
    site.set("/birch", fail_times(2, 503, then=page("Birch", "third time lucky", links=["/cedar"])))
    site.set("/elm", failure(500))
    system.post("index+crawl", url=site.at("/"))
    system.packed(site.domain)
    assert "/birch" in system.paths(site.domain)
    assert "/elm" not in system.paths(site.domain)
    assert system.broker.depth(DEAD) == 2

    site.set("/elm", page("Elm", "repaired", links=["/fir"]))
    replayed = perennial(system, "dead", "replay", "--all")
    assert replayed.stdout == "2 replayed\n"
    eventually(lambda: "/elm" in system.paths(site.domain), "the mended page is packed")
    eventually(lambda: system.paths(site.domain) >= ALL, "and the pages that only it led to")


def test_a_burst_of_a_thousand_resets_fires_one_pack_after_the_last(system: System, site: Site) -> None:
    system.post("index", url=site.at("/elm"))
    system.packed(site.domain)
    site.set("/elm", page("Elm", "changed"))
    system.post("start_timer", domain=site.domain, timeout=2, callback_queue="PACK", callback_msg="full_end")
    for _ in range(10):
        for _ in range(100):
            system.post("reset_timer", domain=site.domain)
        clock = Timers(get_redis(system.settings.redis)).clock(site.domain)
        assert clock is not None, "the timer fired during the burst"
        assert clock.callback.message["type"] == "pack_full"
    assert system.packed(site.domain, generation=2).kind == "full"
    eventually(lambda: Timers(get_redis(system.settings.redis)).clock(site.domain) is None, "the timer is gone")
    assert system.packed(site.domain).generation == 2


def test_a_worker_killed_in_mid_crawl_loses_no_page(
    environment: dict[str, str], settings: Settings, tmp_path: Path, site: Site
) -> None:
    with beat(environment, tmp_path / "beat.log"):
        with worker(environment, tmp_path / "first.log") as first:
            system = System(settings, environment, Broker(settings.broker), first, tmp_path / "packs")
            system.post("index+crawl", url=site.at("/"))
            site.wait_for_hits("/dogwood", timeout=60)
            first.kill()
        with worker(environment, tmp_path / "second.log") as second:
            system = System(settings, environment, Broker(settings.broker), second, tmp_path / "packs")
            system.packed(site.domain)
            eventually(lambda: system.paths(site.domain) == ALL, "every page")


def test_what_robots_txt_forbids_is_not_fetched_and_a_redirect_is_a_page_of_its_own(system: System, site: Site) -> None:
    site.set("/robots.txt", robots("User-agent: *\nDisallow: /hazel"))
    site.set("/birch", redirect("/grove"))
    site.set("/grove", page("Grove", "moved here", links=["/cedar"]))
    system.post("index+crawl", url=site.at("/"))
    system.packed(site.domain)
    assert "/hazel" not in site.paths()
    assert system.paths(site.domain) == {"/", "/amber", "/grove", *(f"/{word}" for word in WORDS[2:7])}


def test_a_start_page_that_redirects_to_another_host_moves_the_crawl_there(system: System, site: Site) -> None:
    with Site({"/": redirect(site.at("/"), status=301)}) as old:
        system.post("index+crawl", url=old.at("/"))
        assert system.packed(site.domain).pages == 12
        assert f"the crawl of {old.domain} moves there" in system.worker.log
        assert system.manifest(old.domain) is None


def test_a_page_outside_the_named_domain_is_dead_at_once_and_nothing_is_fetched(system: System, site: Site) -> None:
    system.post("index", url=site.at("/"), domain="elsewhere.gov")
    eventually(lambda: system.broker.depth(DEAD) == 1, "it is dead")
    listed = perennial(system, "dead", "list", "--json")
    assert "out-of-scope" in listed.stdout
    assert site.paths() == []


def test_a_host_with_a_delay_gets_one_request_at_a_time(
    environment: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    routes = {"/": page("Home", links=["/a", "/b", "/c"]), **{f"/{name}": page(name) for name in "abc"}}
    with Site(routes) as site, running_system({**environment, "HOST_DELAY": "0.5"}, settings, tmp_path) as system:
        system.post("index+crawl", url=site.at("/"))
        assert system.packed(site.domain).pages == 4
        times = [request.at for request in site.requests if request.path != "/robots.txt"]
        assert len(times) == 4
        assert all(later - earlier > 0.45 for earlier, later in itertools.pairwise(times))
        assert system.broker.depth(DEAD) == 0


def test_the_python_shell_normalises_validates_at_once_and_tells_the_status(system: System, site: Site) -> None:
    code = f"""
from tasks.site import index_and_crawl, status
try:
    index_and_crawl.delay("ftp://site.gov/")
except Exception as error:
    print(type(error).__name__, error)
print(index_and_crawl.delay("HTTP://LocalHost:{site.port}/#top").id)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **system.environment}, capture_output=True, text=True
    )
    assert "InvalidUrl URL 'ftp://site.gov/'" in ran.stdout, ran.stderr
    domain = f"localhost:{site.port}"
    assert system.packed(domain).pages == 12
    told = perennial(system, "status", domain)
    assert told.stdout.startswith(f"{domain}: 12 pages seen, 0 messages open, 0 dead")
    assert "pack 1 with 12 pages" in told.stdout


def test_a_mistyped_queue_is_an_error_at_the_call(system: System) -> None:
    code = "from tasks.site import index; index.apply_async(('https://site.gov/',), queue='site.indx')"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **system.environment}, capture_output=True, text=True
    )
    assert ran.returncode != 0
    assert "site.indx" in ran.stderr.splitlines()[-1]
