"""Many domains crawled at once by `perennial up`: each gets one full pack, with all of its pages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.crawl.frontier.frontier import Frontier
from app.errors import PackNotFound
from app.pack.manifest import read_manifest
from app.state.client import get_redis
from app.storage.open import open_store
from app.topology.queues import DEAD_SET
from config.settings import Settings
from tests.servers.many_sites import ManySites
from tests.support import command
from tests.support.broker import Broker
from tests.support.forked import Forked
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance


@contextmanager
def up(environment: Mapping[str, str], log: Path) -> Iterator[None]:
    """Run `perennial up` for the block, with one searcher and without cover art; `down` ends it."""
    own = {"REPLICAS": "1", "COVER_ART_EXCHANGE": "", "EVENT_ART_EXCHANGE": "", "WEB_PORT": "0", "FLOWER_PORT": "0"}
    chosen = {**environment, **own}
    log.touch()
    process = Forked("app.cli.main", "up", environment=chosen, stdout=log, stderr=log)
    try:
        eventually(lambda: log.read_text().count(" ready.") >= 3, "worker, packer, orchestrator", seconds=90)
        yield
        done = command.perennial(chosen, "down")
        assert done.returncode == 0, done.stderr
        process.wait(60)
    finally:
        process.kill()


def pack_of(settings: Settings, domain: str) -> tuple[str, int, int] | None:
    """Return kind, generation and pages of a domain's pack, or None before the first one."""
    try:
        manifest = read_manifest(open_store(settings.store), domain)
    except PackNotFound:
        return None
    return manifest.kind, manifest.generation, manifest.pages


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "pages", "seconds"), [(25, 8, 180), pytest.param(200, 30, 1_800, marks=pytest.mark.long)]
)
def test_domains_that_are_crawled_at_once_get_one_full_pack_each(
    environment: dict[str, str], settings: Settings, tmp_path: Path, number: int, pages: int, seconds: float
) -> None:
    broker, redis = Broker(settings.broker), get_redis(settings.redis)
    frontier = Frontier(redis, ttl=60)
    with ManySites(number, pages) as sites:
        with up(environment, tmp_path / "up.log"):
            # A new Redis is swept once. A sweep of a crawl that has just ended has its pack made twice.
            eventually(lambda: redis.exists("perennial:epoch"), "a tick has published the sweep")
            eventually(lambda: not broker.depth("site.pack"), "the packer has taken it")
            for domain in sites.domains:
                broker.post(json.dumps({"type": "index+crawl", "url": f"http://{domain}/"}).encode(), key="index+crawl")

            def is_quiet() -> bool:
                waits = broker.depths(("site.index", "site.crawl", "site.page", "site.pack"))
                return (
                    not any(waits)
                    and not redis.zcard("perennial:timers")
                    and all(pack_of(settings, domain) for domain in sites.domains)
                )

            eventually(is_quiet, "every domain is packed and no timer runs", seconds=seconds, every=1)
        packs = Counter(pack_of(settings, domain) for domain in sites.domains)
        assert packs == {("full", 1, pages): number}
        paths = {*sites.paths, "/robots.txt", "/sitemap.xml"}
        expected = {f"{domain}{path}" for domain in sites.domains for path in paths}
        assert sites.requests == dict.fromkeys(expected, 1)
    assert sum(frontier.open_messages(domain) for domain in sites.domains) == 0
    assert broker.depth(DEAD_SET) == 0
