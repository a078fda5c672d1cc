"""From a message to a search result: real broker, real Redis, real HTTP, real processes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from app.private_services import Urls
from app.redis_state.client import get_redis
from app.storage.layout import pack_key
from app.storage.open import open_store
from app.timers.timers import Timers
from app.topology.queues import DEAD_SET
from config.settings import ROOT
from tests.servers.site import Site, fail_times, failure, page
from tests.support import command
from tests.support.corner import environment_of, own_vhost, settings_for
from tests.support.system import System, running_system
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

WORDS = ["amber", "birch", "cedar", "dogwood", "elm", "fir", "gorse", "hazel", "iris", "juniper"]


@pytest.fixture(scope="module")
def running(services: Urls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Run one system for most of these tests: each has a site, and so a domain, of its own."""
    folder = tmp_path_factory.mktemp("site")
    fast = {"RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "2"}
    with own_vhost(services) as url:
        settings = settings_for(folder, url, services.redis_url, services.broker_api_url)
        with running_system({**environment_of(settings), **fast}, settings, folder) as system:
            yield system


@pytest.fixture
def system(running: System) -> Iterator[System]:
    """Return the running system, with an empty dead set."""
    yield running
    running.broker.take(DEAD_SET)


@pytest.fixture
def site() -> Iterator[Site]:
    """Serve a home page, ten pages about trees in a ring, and one page that only the last of them links."""
    routes = {
        f"/{word}": page(word.title(), f"All about {word} trees", links=[f"/{after}", "/"])
        for word, after in itertools.pairwise([*WORDS, "last"])
    }
    routes |= {"/": page("Trees", "welcome", links=["/amber", "/cedar"]), "/last": page("Last", "the very end")}
    with Site(routes) as site:
        yield site


def perennial(system: System, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `perennial` as an operator does."""
    done = command.perennial({**os.environ, **system.environment}, *arguments)
    assert done.returncode == 0, done.stderr
    return done


ALL = {"/", "/last", *(f"/{word}" for word in WORDS)}


def test_a_site_is_crawled_packed_and_searched_with_one_get_per_page(system: System, site: Site) -> None:
    system.post("index+crawl", url=site.at("/"))
    assert system.packed(site.domain).pages == 12
    assert system.paths(site.domain) == ALL
    assert next(hit.path for hit in system.search(site.domain, "dogwood")) == "/dogwood"
    assert sorted(site.paths()) == sorted({"/robots.txt", "/sitemap.xml", *ALL})
    assert system.progress(site.domain).open == 0
    assert system.broker.depth(DEAD_SET) == 0


def test_a_page_that_fails_twice_is_retried_and_one_that_always_fails_is_dead_lettered_and_replayed(
    system: System, site: Site
) -> None:
    site.set("/birch", fail_times(2, 503, then=page("Birch", "third time lucky", links=["/cedar"])))
    site.set("/elm", failure(500))
    system.post("index+crawl", url=site.at("/"))
    system.packed(site.domain)
    assert "/birch" in system.paths(site.domain)
    assert "/elm" not in system.paths(site.domain)
    assert system.broker.depth(DEAD_SET) == 1

    site.set("/elm", page("Elm", "repaired", links=["/fir"]))
    replayed = perennial(system, "dead", "replay", "--all")
    assert replayed.stdout == "1 replayed\n"
    eventually(lambda: "/elm" in system.paths(site.domain), "the repaired page is packed")
    eventually(lambda: system.paths(site.domain) >= ALL, "the pages behind it are packed")


def test_a_failed_page_and_the_pages_behind_it_stay_in_the_pack(system: System, site: Site) -> None:
    system.post("index+crawl", url=site.at("/"))
    system.packed(site.domain)
    site.set("/dogwood", failure(500))
    site.set("/iris", page("Iris", "links no more", links=["/"]))
    system.post("index+crawl", url=site.at("/"))
    kept = f"Pack of {site.domain}: generation 1 is up to date with {len(ALL)} pages"
    eventually(lambda: kept in system.worker.log, "the pack has the pages of the second crawl already", seconds=60)
    assert system.paths(site.domain) == ALL
    assert "1 pages were not followed" in system.worker.log

    site.set("/dogwood", page("Dogwood", "well again", links=["/elm"]))
    system.post("index+crawl", url=site.at("/"))
    system.packed(site.domain, generation=2)
    assert system.paths(site.domain) == ALL - {"/juniper", "/last"}


def test_a_burst_of_a_thousand_resets_fires_one_pack_after_the_last(system: System, site: Site) -> None:
    system.post("index", url=site.at("/elm"))
    assert system.packed(site.domain).pages == 1
    assert site.paths() == ["/robots.txt", "/elm"]
    site.set("/elm", page("Elm", "changed"))
    system.post("start_timer", domain=site.domain, timeout=2, callback_queue="PACK", callback_msg="full_end")
    for _ in range(10):
        for _ in range(100):
            system.post("reset_timer", domain=site.domain)
        timer = Timers(get_redis(system.settings.redis)).running(site.domain)
        assert timer is not None, "the timer fired during the burst"
        assert timer.callback.message["type"] == "pack_full"
    last = datetime.now(UTC)
    system.post("reset_timer", domain=site.domain)
    assert system.packed(site.domain, generation=2).kind == "full"
    assert open_store(system.settings.store).stat(pack_key(site.domain)).modified - last >= timedelta(seconds=2)
    eventually(lambda: Timers(get_redis(system.settings.redis)).running(site.domain) is None, "the timer is removed")
    assert system.packed(site.domain).generation == 2


def test_python_code_that_publishes_gets_invalid_urls_and_queues_as_errors_at_the_call(
    system: System, site: Site
) -> None:
    code = f"""
from tasks.site import index, index_and_crawl, status
try:
    index_and_crawl.delay("ftp://site.gov/")
except Exception as error:
    print(type(error).__name__, error)
try:
    index.apply_async(("https://site.gov/",), queue="site.indx")
except Exception as error:
    print(error)
print(index_and_crawl.delay("HTTP://LocalHost:{site.port}/#top").id)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **system.environment}, capture_output=True, text=True
    )
    assert "InvalidUrl URL 'ftp://site.gov/'" in ran.stdout, ran.stderr
    assert "site.indx" in ran.stdout.splitlines()[1]
    domain = f"localhost:{site.port}"
    assert system.packed(domain).pages == 12
    reported = perennial(system, "status", domain)
    assert reported.stdout.startswith(f"{domain}: 12 pages seen, 0 messages open, 0 dead")
    assert "pack 1 with 12 pages" in reported.stdout
