"""The cache of robots.txt, in a real Redis: its requests keep to the host rate limit, and a long Crawl-delay is cut."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import pytest

from app.broker.errors import Postpone
from app.crawl.frontier import robots_cache
from app.crawl.frontier.host_limits import HostRateLimiter
from app.crawl.frontier.robots_cache import RobotsCache
from app.crawl.frontier.values import Host
from app.crawl.record.crawls import CrawlSettings
from app.crawl.robots import RobotsRules
from app.errors import RobotsUnavailable
from app.http.fetcher import Fetcher
from app.redis_state.client import get_redis
from tests.servers.site import Request, Site, failure, robots

pytestmark = pytest.mark.integration


@pytest.fixture
def site() -> Iterator[Site]:
    with Site({"/robots.txt": robots("User-agent: *\nCrawl-delay: 600\nDisallow: /x")}) as site:
        yield site


class Cache(RobotsCache):
    """The cache of a process that crawls with one client and one delay."""

    def __init__(self, redis_url: str, fetcher: Fetcher, *, delay: float, agent: str = "Perennial/1") -> None:
        redis = get_redis(redis_url)
        super().__init__(redis, HostRateLimiter(redis), user_agent=agent)
        self._fetcher = fetcher
        self._limits = CrawlSettings(scope="exact", max_pages=9, max_depth=9, host_delay=delay, host_concurrency=8)

    def of(self, url: str, domain: str = "x.gov") -> RobotsRules:
        return self.rules(url, self._fetcher, self._limits, domain=domain)


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    with Fetcher(user_agent="Perennial/1", allow_private_hosts=("127.0.0.1",)) as fetcher:
        yield fetcher


def test_a_robots_txt_waits_for_its_host_and_a_page_waits_for_it(redis_url: str, site: Site, fetcher: Fetcher) -> None:
    cache, limiter = Cache(redis_url, fetcher, delay=50), HostRateLimiter(get_redis(redis_url))
    host = Host(site.domain, 50, 1)
    assert limiter.reserve(host, requester="before") == 0
    with pytest.raises(Postpone):
        cache.of(site.url)
    assert site.paths() == []
    get_redis(redis_url).flushdb()
    assert not cache.of(site.url).allows(site.at("/x"))
    assert limiter.reserve(host, requester="after") > 40


def test_a_robots_txt_with_retry_after_pauses_its_host(redis_url: str, site: Site, fetcher: Fetcher) -> None:
    site.set("/robots.txt", failure(503, retry_after="600"))
    cache, limiter = Cache(redis_url, fetcher, delay=0), HostRateLimiter(get_redis(redis_url))
    with pytest.raises(RobotsUnavailable, match="503"):
        cache.of(site.url)
    assert limiter.reserve(Host(site.domain, 0, 8), requester="page") > 500
    get_redis(redis_url).delete(f"perennial:robots:{site.url.rstrip('/')}:down")
    with pytest.raises(Postpone):
        cache.of(site.url)
    assert site.paths() == ["/robots.txt"]


def test_a_crawl_delay_that_is_cut_is_logged_with_both_numbers(
    redis_url: str, site: Site, fetcher: Fetcher, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert Cache(redis_url, fetcher, delay=0).of(site.url).crawl_delay == 30
    expected = f"{site.at('/robots.txt')} asks for 600 s between requests; it waits 30 s at most"
    assert caplog.messages == [expected]


def test_redis_keeps_a_bounded_number_of_bytes_for_the_robots_txt_of_one_domain(
    redis_url: str, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(robots_cache, "_DOMAIN_BYTES", 50_000)
    redis, cache = get_redis(redis_url), Cache(redis_url, fetcher, delay=0)
    rules = robots("User-agent: *\n" + "Disallow: /x\n" * 1_000)
    with contextlib.ExitStack() as stack:
        sites = [stack.enter_context(Site({"/robots.txt": rules})) for _ in range(6)]
        for site in sites:
            assert not cache.of(site.url, domain="a.gov").allows(site.at("/x"))
        kept = [redis.get(f"perennial:robots:{site.url.rstrip('/')}") for site in sites]
        assert [text is not None for text in kept] == [False, False, False, True, True, True]
        again = Cache(redis_url, fetcher, delay=0)
        for site in (sites[-1], sites[0]):
            assert not again.of(site.url, domain="b.gov").allows(site.at("/x"))
        assert [site.hits("/robots.txt") for site in sites] == [2, 1, 1, 1, 1, 1]
    assert redis.get("perennial:robots-of:a.gov:bytes") == str(
        sum(int(each.split()[0]) for each in redis.lrange("perennial:robots-of:a.gov", 0, -1))
    )


def test_the_lines_for_a_robot_of_another_name_are_not_used(redis_url: str, site: Site, fetcher: Fetcher) -> None:
    site.set("/robots.txt", robots("User-agent: Perennial\nDisallow: /x\n\nUser-agent: *\nDisallow: /y"))
    assert not Cache(redis_url, fetcher, delay=0).of(site.url).allows(site.at("/x"))
    other = Cache(redis_url, fetcher, delay=0, agent="Other/1").of(site.url)
    assert (other.allows(site.at("/x")), other.allows(site.at("/y"))) == (True, False)


def test_a_worker_that_lost_the_lease_on_a_robots_txt_leaves_that_of_the_next_worker_alone(
    redis_url: str, site: Site, fetcher: Fetcher
) -> None:
    redis = get_redis(redis_url)

    def take_over(request: Request) -> None:
        [lease] = [key for key in redis.scan_iter("*robots*") if ":lease:" in key]
        redis.set(lease, "another worker")

    site.before = take_over
    assert not Cache(redis_url, fetcher, delay=0).of(site.url).allows(site.at("/x"))
    assert "another worker" in [redis.get(key) for key in redis.scan_iter("*robots*", _type="string")]
    assert not Cache(redis_url, fetcher, delay=0).of(site.url).allows(site.at("/x"))
    assert site.paths() == ["/robots.txt"]
