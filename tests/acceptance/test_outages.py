"""The broker and Redis killed, or a worker hung, in the middle of a crawl: the crawl ends with every page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.site import Site, in_letters, page
from tests.support.broker import Broker
from tests.support.corner import environment_of
from tests.support.fleet import fleet, ready
from tests.support.killable import Killable
from tests.support.system import System, beat, running_system
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

PAGES = 60


@pytest.fixture
def site() -> Iterator[Site]:
    """Return a ring of pages, each with links to a few further pages."""
    routes = {
        f"/{number}": page(
            f"Page {number}", in_letters(number), links=[f"/{(number + step) % PAGES}" for step in (1, 7, 31)]
        )
        for number in range(PAGES)
    }
    with Site({**routes, "/": page("Home", links=["/0"])}) as site:
        yield site


@pytest.mark.slow
@pytest.mark.parametrize("program", ["beam.smp", pytest.param("redis-server", marks=pytest.mark.long)])
def test_a_crawl_ends_with_every_page_though_a_service_is_killed(
    killable: Killable, site: Site, tmp_path: Path, program: str
) -> None:
    quick = {"HOST_DELAY": "0.02", "TIMER_TIMEOUT": "2", "RETRY_TIMEOUT_MS": "500"}
    environment = environment_of(killable.settings) | quick
    with running_system(environment, killable.settings, tmp_path) as system:
        system.post("index+crawl", url=site.at("/"))
        eventually(lambda: len(site.requests) > 15, "the crawl is under way")
        assert len(site.requests) < PAGES, "the crawl was over before anything was killed"
        killable.kill(program)
        killable.start()
        assert system.packed(site.domain, seconds=120).pages == PAGES + 1
        assert system.broker.depth("site.dead") == 0


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_a_hung_worker_holds_is_run_by_another_one_when_its_heartbeats_are_missing(
    killable: Killable, site: Site, tmp_path: Path
) -> None:
    quick = {"HOST_DELAY": "0.02", "TIMER_TIMEOUT": "2"}
    environment = environment_of(killable.settings) | quick
    queues = ("site.index", "site.crawl", "site.page", "site.timer", "site.tick", "site.pack")
    killable.set_heartbeat(3)
    try:
        with fleet(environment, tmp_path / "logs") as found, beat(environment, tmp_path / "beat.log"):
            hung, other = found.worker(*queues), found.worker(*queues)
            ready(hung, other)
            system = System(killable.settings, environment, Broker(killable.settings.broker), other, tmp_path / "packs")
            system.post("index+crawl", url=site.at("/"))
            eventually(lambda: len(site.requests) > 15, "the crawl is under way")
            hung.suspend()
            assert system.packed(site.domain, seconds=180).pages == PAGES + 1
            assert system.broker.depth("site.dead") == 0
            # The crawl may end before the broker misses the heartbeats.
            eventually(lambda: system.broker.consumers("site.page") == 1, "its connection is gone", seconds=60)
            hung.resume()
            # It connects again, and works on alone.
            eventually(lambda: hung.log.count("Connected to ") > 1, "it connects again", seconds=120)
            other.leave()
            system.post("index+crawl", url=site.at("/"))
            # Nothing has changed, so it may find that the pack is up to date.
            eventually(lambda: f"with {PAGES + 1} pages" in hung.log, "it packs all pages", seconds=180)
            assert system.broker.depth("site.dead") == 0
    finally:
        killable.set_heartbeat(60)
