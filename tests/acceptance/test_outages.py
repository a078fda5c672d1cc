"""The broker and Redis killed in the middle of a crawl: the crawl ends with every page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.site import Site, page
from tests.support.corner import environment_of
from tests.support.killable import Killable
from tests.support.system import running_system
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

PAGES = 150


@pytest.fixture
def site() -> Iterator[Site]:
    """Return a ring of pages, each with links to a few further pages."""
    routes = {
        f"/{number}": page(f"Page {number}", "text", links=[f"/{(number + step) % PAGES}" for step in (1, 7, 31)])
        for number in range(PAGES)
    }
    with Site({**routes, "/": page("Home", links=["/0"])}) as site:
        yield site


@pytest.mark.slow
@pytest.mark.parametrize("program", ["beam.smp", "redis-server"])
def test_a_crawl_ends_with_every_page_though_a_service_is_killed(
    killable: Killable, site: Site, tmp_path: Path, program: str
) -> None:
    quick = {"HOST_DELAY": "0.02", "TIMER_TIMEOUT": "2", "RETRY_TIMEOUT_MS": "500"}
    environment = environment_of(killable.settings) | quick
    with running_system(environment, killable.settings, tmp_path) as system:
        system.post("index+crawl", url=site.at("/"))
        eventually(lambda: len(site.requests) > 40, "the crawl is under way")
        assert len(site.requests) < PAGES, "the crawl was over before anything was killed"
        killable.kill(program)
        killable.start()
        assert system.packed(site.domain, seconds=120).pages == PAGES + 1
        assert system.broker.depth("site.dead") == 0
