"""The broker and Redis killed in the middle of a crawl: the crawl ends with every page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app import services
from config.settings import Settings
from tests.servers.site import Site, page
from tests.support.kill import kill
from tests.support.system import running_system
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

PAGES = 150


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Settings]:
    """Yield settings with a RabbitMQ and a Redis, private to this test, to be killed."""
    settings = Settings(data_dir=tmp_path / "own", host_delay=0.02, allow_private_hosts=("127.0.0.0/8",))
    services.up(settings)
    yield settings
    services.down(settings)


@pytest.fixture
def site() -> Iterator[Site]:
    """Return a ring of pages, each with links to a few further pages."""
    routes = {
        f"/{number}": page(f"Page {number}", "text", links=[f"/{(number + step) % PAGES}" for step in (1, 7, 31)])
        for number in range(PAGES)
    }
    with Site({**routes, "/": page("Home", links=["/0"])}) as site:
        yield site


@pytest.mark.parametrize("program", ["beam.smp", "redis-server"])
def test_a_crawl_ends_with_every_page_though_a_service_is_killed(
    own: Settings, site: Site, tmp_path: Path, program: str
) -> None:
    environment = {
        "PERENNIAL_DATA_DIR": str(own.data_dir),
        "HOST_DELAY": "0.02",
        "ALLOW_PRIVATE_HOSTS": "127.0.0.0/8",
        "TIMER_TIMEOUT": "2",
        "RETRY_TIMEOUT_MS": "500",
    }
    with running_system(environment, own, tmp_path) as system:
        system.post("index+crawl", url=site.at("/"))
        eventually(lambda: len(site.requests) > 40, "the crawl is under way")
        assert len(site.requests) < PAGES, "the crawl was over before anything was killed"
        kill(program, own.data_dir)
        services.up(own)
        assert system.packed(site.domain, seconds=120).pages == PAGES + 1
        assert system.broker.depth("site.dead") == 0
