"""From a message to a search result: real broker, real Redis, real HTTP, real processes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from app.services import Urls
from app.state.client import get_redis
from app.storage.layout import pack_key
from app.storage.open import open_store
from app.timers.timers import Timers
from app.topology.queues import DEAD
from config.settings import ROOT
from tests.servers.site import Site, fail_times, failure, page, redirect, robots
from tests.support.corner import environment_of, own_vhost, settings_for
from tests.support.system import System, running_system
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

WORDS = ["amber", "birch", "cedar", "dogwood", "elm", "fir", "gorse", "hazel", "iris", "juniper"]


@pytest.fixture(scope="module")
def running(services: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """One system for most tests here: each has a site, and so a domain, of its own."""
    folder = tmp_path_factory.mktemp("site")
    fast = {"RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "2"}
    with own_vhost(services) as url:
        settings = settings_for(folder, url, services.redis_url, services.broker_api_url)
        with running_system({**environment_of(settings), **fast}, settings, folder) as system:
            yield system


@pytest.fixture
def system(running: System) -> Iterator[System]:
    """The running system, nobody dead in it."""
    yield running
    running.broker.take(DEAD)


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


def test_a_page_that_fails_keeps_its_place_and_that_of_the_pages_behind_it(system: System, site: Site) -> None:
    system.post("index+crawl", url=site.at("/"))
    system.packed(site.domain)
    site.set("/dogwood", failure(500))
    site.set("/iris", page("Iris", "links no more", links=["/"]))
    system.post("index+crawl", url=site.at("/"))
    system.packed(site.domain, generation=2)
    assert system.paths(site.domain) == ALL
    assert "1 pages were not followed" in system.worker.log

    site.set("/dogwood", page("Dogwood", "well again", links=["/elm"]))
    system.post("index+crawl", url=site.at("/"))
    system.packed(site.domain, generation=3)
    assert system.paths(site.domain) == ALL - {"/juniper", "/last"}


def test_a_burst_of_a_thousand_resets_fires_one_pack_after_the_last(system: System, site: Site) -> None:
    system.post("index", url=site.at("/elm"))
    system.packed(site.domain)
    site.set("/elm", page("Elm", "changed"))
    system.post("start_timer", domain=site.domain, timeout=2, callback_queue="PACK", callback_msg="full_end")
    for _ in range(10):
        for _ in range(100):
            system.post("reset_timer", domain=site.domain)
        clock = Timers(get_redis(system.settings.redis)).running(site.domain)
        assert clock is not None, "the timer fired during the burst"
        assert clock.callback.message["type"] == "pack_full"
    last = datetime.now(UTC)
    system.post("reset_timer", domain=site.domain)
    assert system.packed(site.domain, generation=2).kind == "full"
    assert open_store(system.settings.store).stat(pack_key(site.domain)).modified - last >= timedelta(seconds=2)
    eventually(lambda: Timers(get_redis(system.settings.redis)).running(site.domain) is None, "the timer is gone")
    assert system.packed(site.domain).generation == 2


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
