"""The law of admission: whatever dies and whenever, every page of a site is fetched, and nothing stays open."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from redis import Redis

from app.broker.errors import Postpone
from app.crawl.frontier import Frontier
from app.crawl.frontier_values import Admitted, Crawl, FoundPage, Host, PageMessage
from app.state.client import get_redis

pytestmark = pytest.mark.integration

DOMAIN = "a.gov"
#: Faults at one step of a message's life: the process dies before or after the step, or the page fails.
FAULTS = ("", "", "", "", "dies after enter", "fails", "dies after complete", "dies after publish")


@dataclass
class World:
    """A site of numbered pages, a broker as a list of messages, and workers that die."""

    redis: Redis
    site: dict[int, list[int]]
    window: int
    messages: list[tuple[PageMessage, bool]] = field(default_factory=list)
    fetched: Counter[str] = field(default_factory=Counter)
    deaths: int = 0

    def __post_init__(self) -> None:
        self.redis.flushdb()
        self.host = Host(DOMAIN, 0, self.window)
        self.workers = [Frontier(self.redis, ttl=60) for _ in range(2)]
        self.workers[0].begin(Crawl("c", DOMAIN, url(0), datetime.now(UTC), own=True))
        self.publish(Admitted((PageMessage("page", url(0), 0, ""),)))

    def publish(self, admitted: Admitted) -> None:
        self.messages += [(message, False) for message in admitted.messages]

    def deliver(self, position: int, worker: int, fault: str) -> None:
        """Deliver one message; `fault` says where its run ends."""
        message, again = self.messages.pop(position % len(self.messages))
        frontier, link = self.workers[worker], FoundPage(message.url, message.url, message.depth)
        try:
            entered = frontier.enter("c", DOMAIN, link, self.host, takeover=again)
        except Postpone:
            self.messages.append((message, again))
            return
        if fault == "dies after enter":
            self.die(message, worker)
        elif not entered.fetch:
            self.publish(entered.handover)
        elif fault == "fails":
            frontier.release("c", "page", message.url, self.host, failed=True)
            self.messages.append((message, True))
        else:
            self.fetched[message.url] += 1
            links = [FoundPage(url(each), url(each), message.depth + 1) for each in self.site[number(message.url)]]
            completed = frontier.complete("c", "page", message.url, host=self.host, links=links, max_pages=1_000)
            if fault == "dies after complete":
                self.die(message, worker)
                return
            self.publish(completed.admitted)
            if fault == "dies after publish":
                self.die(message, worker)
                return
            frontier.note_handed_over("c", completed.name)

    def die(self, message: PageMessage, worker: int) -> None:
        """Let the broker deliver the message again, to a new process."""
        self.deaths += 1
        self.messages.append((message, True))
        self.workers[worker] = Frontier(self.redis, ttl=60)

    def tick(self, *, dies: bool) -> None:
        frontier = Frontier(self.redis, ttl=60)
        for refill in frontier.refill(stalled=60):
            if dies:
                return
            self.publish(refill.admitted)
            if refill.admitted.messages:
                frontier.confirm_refill("c")


def url(number: int) -> str:
    return f"https://{DOMAIN}/{number}"


def number(url: str) -> int:
    return int(url.rpartition("/")[2])


SITES = st.integers(1, 12).flatmap(
    lambda size: st.lists(st.lists(st.integers(0, size - 1), max_size=4), min_size=size, max_size=size)
)
STEPS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 1), st.sampled_from([*FAULTS, "tick", "tick dies"])), max_size=60
)


@given(SITES, st.integers(1, 4), STEPS)
@hypothesis_settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_page_is_fetched_and_nothing_stays_open_whatever_dies(
    redis_url: str, links: list[list[int]], window: int, steps: list[tuple[int, int, str]]
) -> None:
    world = World(get_redis(redis_url), dict(enumerate(links)), window)
    for position, worker, fault in steps:
        if fault.startswith("tick"):
            world.tick(dies=fault.endswith("dies"))
        elif world.messages:
            world.deliver(position, worker, fault)
        admitted = world.workers[0].progress(DOMAIN).open
        assert admitted <= window + sum(again for _, again in world.messages) + 1
    for _ in range(2_000):
        if world.messages:
            world.deliver(0, 0, "")
        elif world.workers[0].open_messages(DOMAIN):
            world.tick(dies=False)
        else:
            break
    reachable, todo = {0}, [0]
    while todo:
        new = set(world.site[todo.pop()]) - reachable
        reachable |= new
        todo += new
    assert set(map(number, world.fetched)) == reachable
    assert (world.messages, world.workers[0].open_messages(DOMAIN)) == ([], 0)
    assert sum(world.fetched.values()) <= len(reachable) + world.deaths
