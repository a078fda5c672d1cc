"""A page waits in few delay queues, however many pages its site has: crawls of one host on a clock of the test."""

from __future__ import annotations

import heapq
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
from redis import Redis

from app.broker.delivery import Delivery
from app.broker.errors import Postpone
from app.broker.policies.base import Postponed
from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.values import Crawl, FrontierUrl, Host
from app.messages.envelopes import delayed_message
from app.topology.retry_policies import site_policy
from config.routes import PAGE
from config.settings import Settings
from tests.support.completing import complete_one, enter_one

pytestmark = pytest.mark.integration

DOMAIN = "a.gov"
#: Links of a page to pages that no other page leads to.
FAN_OUT = 100
#: Seconds of a response, and of a message from the worker to the broker or back.
RESPONSE, TRANSFER = 0.3, 0.002

REDIS_CLOCK = "redis.call('TIME')"


class ClockedRedis(Redis):
    """A client whose scripts read the time of `now` instead of the server's, as an additional key."""

    now = 0.0

    def register_script(self, script: Any) -> Any:
        clocked = super().register_script(script.replace(REDIS_CLOCK, "{tonumber(KEYS[#KEYS]), 0}"))
        return lambda keys, args: clocked(keys=[*keys, f"{self.now:.6f}"], args=args)


@dataclass
class PoliteCrawl:
    """A crawl of one host by the real frontier, policy and scripts; broker, worker and site are a queue of events."""

    redis: ClockedRedis
    pages: int
    host: Host
    deliveries: Counter[str] = field(default_factory=Counter)
    hops: Counter[str] = field(default_factory=Counter)
    fetched: int = 0

    def __post_init__(self) -> None:
        self.redis.flushdb()
        self._frontier = Frontier(self.redis)
        self._policy = site_policy(Settings())
        self._order = count()
        self._events: list[tuple[float, int, str, FrontierUrl]] = []

    def run(self) -> PoliteCrawl:
        """Crawl to the end."""
        self._frontier.begin(Crawl("c", DOMAIN, url(0), datetime.now(UTC), recorded=True))
        self._at(0.0, "deliver", FrontierUrl(url(0), url(0), 0))
        while self._events:
            self.redis.now, _, event, message = heapq.heappop(self._events)
            (self._deliver if event == "deliver" else self._complete)(message)
        assert self.fetched == len(self.deliveries) == self.pages
        return self

    def _deliver(self, message: FrontierUrl) -> None:
        self.deliveries[message.url] += 1
        link = FrontierUrl(message.url, message.url, message.depth)
        try:
            entered = enter_one(self._frontier, "c", DOMAIN, link, self.host, message_id=message.url)
        except Postpone as postpone:
            decision = self._policy.postpone(DELIVERY, postpone.seconds, exactly=postpone.exactly)
            assert isinstance(decision, Postponed)
            self._hop(message, decision.delay_ms)
            return
        assert entered.fetch
        self._at(RESPONSE, "complete", message)

    def _complete(self, message: FrontierUrl) -> None:
        self.fetched += 1
        links = [FrontierUrl(each, each, message.depth + 1) for each in self._children(message.url)]
        completed = complete_one(
            self._frontier, "c", "page", message.url, host=self.host, links=links, max_pages=self.pages
        )
        for each in completed.admitted.urls:
            exchange = delayed_message("page", {}, completed.admitted.wait, url=each.url).exchange
            _, delayed, delay_ms = exchange.partition(".delay.")
            if delayed:
                self._hop(each, int(delay_ms))
            else:
                self._at(2 * TRANSFER, "deliver", each)
        self._frontier.note_confirmed("c", completed.name)

    def _children(self, page: str) -> Iterator[str]:
        first = number(page) * FAN_OUT + 1
        return map(url, range(first, min(first + FAN_OUT, self.pages)))

    def _hop(self, message: FrontierUrl, delay_ms: int) -> None:
        self.hops[message.url] += 1
        self._at(2 * TRANSFER + delay_ms / 1_000, "deliver", message)

    def _at(self, seconds: float, event: str, message: FrontierUrl) -> None:
        heapq.heappush(self._events, (self.redis.now + seconds, next(self._order), event, message))


DELIVERY = Delivery(
    body=b"{}", headers={}, properties={}, content_type="application/json", content_encoding="utf-8", queue=PAGE
)


#: A crawl has a budget for URLs that differ in digits alone.
DIGITS, LETTERS = "0123456789", "klmnopqrst"


def url(number: int) -> str:
    return f"https://{DOMAIN}/{str(number).translate(str.maketrans(DIGITS, LETTERS))}"


def number(url: str) -> int:
    return int(url.rpartition("/")[2].translate(str.maketrans(LETTERS, DIGITS)))


@pytest.fixture
def clocked(redis_url: str) -> Iterator[ClockedRedis]:
    with ClockedRedis.from_url(redis_url, decode_responses=True) as client:
        yield client


def exponent(redis: ClockedRedis, sizes: Sequence[int], host: Host) -> float:
    """Return the exponent of the power of a site's size by which the deliveries of its pages grow."""
    deliveries = [PoliteCrawl(redis, pages, host).run().deliveries.total() for pages in sizes]
    return statistics.linear_regression(list(map(math.log, sizes)), list(map(math.log, deliveries))).slope


@pytest.mark.parametrize(
    "sizes",
    [(100, 1_000), pytest.param((1_000, 10_000, 100_000), marks=[pytest.mark.long, pytest.mark.timeout(1_800)])],
)
def test_the_deliveries_of_a_polite_crawl_grow_no_faster_than_its_site(
    clocked: ClockedRedis, sizes: Sequence[int]
) -> None:
    assert exponent(clocked, sizes, Host(DOMAIN, delay=1, concurrency=1)) <= 1.05


def test_the_clock_of_the_test_shows_the_quadratic_growth_without_an_admission_window(clocked: ClockedRedis) -> None:
    # As many requests at once as there are pages: all of them are admitted, and circle in delay queues.
    assert exponent(clocked, (10, 20, 40), Host(DOMAIN, delay=1, concurrency=1_000)) > 1.7


def test_a_page_waits_in_at_most_four_delay_queues_whatever_its_host_requires(clocked: ClockedRedis) -> None:
    # A wait of many bits takes most hops.
    for delay in (1, 3, 7, 15, 30):
        crawl = PoliteCrawl(clocked, 20, Host(DOMAIN, delay=delay, concurrency=1)).run()
        assert max(crawl.hops.values()) <= 4
        assert clocked.now >= 19 * (delay + RESPONSE)
