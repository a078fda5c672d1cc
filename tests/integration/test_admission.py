"""The law of admission: whatever dies, is lost or refused, every page is fetched, and nothing stays open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError
from redis.retry import Retry

from app.broker.errors import Postpone
from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.values import Admitted, Completion, Crawl, FrontierUrl, Host
from app.crawl.frontier.view import CrawlView
from app.redis_state.client import ConnectionCount, get_redis
from tests.support.redis_proxy import RedisProxy, Trouble

pytestmark = pytest.mark.integration

DOMAIN = "a.gov"
#: Faults at one step of a message's life: the process dies before or after the step, or the page fails.
FAULTS = ("", "", "", "", "dies after enter", "fails", "one fails", "dies after complete", "dies after publish")


@dataclass
class World:
    """A site of numbered pages, a broker as a list of messages with their ids, and workers that die.

    A message has up to `batch` pages.
    """

    redis: Redis
    site: dict[int, list[int]]
    window: int
    batch: int
    messages: list[tuple[Sequence[FrontierUrl], int, bool]] = field(default_factory=list)
    fetched: Counter[str] = field(default_factory=Counter)
    published: int = 0
    deaths: int = 0

    def __post_init__(self) -> None:
        self.redis.flushdb()
        self.host = Host(DOMAIN, 0, self.window)
        self.workers = [Frontier(self.redis) for _ in range(2)]
        self.workers[0].begin(Crawl("c", DOMAIN, url(0), datetime.now(UTC), recorded=True))
        self.publish(Admitted((FrontierUrl(url(0), url(0), 0),)))

    def publish(self, admitted: Admitted) -> None:
        for at in range(0, len(admitted.urls), admitted.batch):
            self.published += 1
            self.messages.append((admitted.urls[at : at + admitted.batch], self.published, False))

    def deliver(self, position: int, worker: int, fault: str) -> None:
        """Deliver one message; `fault` says where its run ends."""
        message, own_id, again = self.messages.pop(position % len(self.messages))
        frontier = self.workers[worker]
        links = [FrontierUrl(each.url, each.url, each.depth) for each in message]
        try:
            entered = frontier.enter("c", DOMAIN, links, self.host, message_id=str(own_id))
        except (Postpone, OutOfMemoryError):
            self.messages.append((message, own_id, again))
            return
        for each in entered:
            self.publish(each.unconfirmed)
        if fault == "dies after enter":
            self.die(message, own_id, worker)
        elif fault == "fails" and any(each.fetch for each in entered):
            self.messages.append((message, own_id, True))
            with suppress(OutOfMemoryError):
                for link in links:
                    frontier.release("c", "page", link.url, DOMAIN, failed=True)
        elif fetched := [page for page, each in zip(message, entered, strict=True) if each.fetch]:
            self.complete(fetched, (message, own_id, again), worker, fault)

    def complete(
        self, fetched: list[FrontierUrl], whole: tuple[Sequence[FrontierUrl], int, bool], worker: int, fault: str
    ) -> None:
        """Complete the pages of a message together. With the fault `one fails`, one of several does."""
        frontier, failed = self.workers[worker], fetched[:1] if fault == "one fails" and len(fetched) > 1 else []
        done = fetched[len(failed) :]
        self.fetched.update(each.url for each in done)
        completions = [Completion(key=each.url, state="f", error="ServerError") for each in failed]
        for each in done:
            links = [FrontierUrl(url(to), url(to), each.depth + 1) for to in self.site[number(each.url)]]
            completions.append(Completion(key=each.url, links=links))
        try:
            completed = frontier.complete("c", completions, host=self.host, max_pages=1_000, batch=self.batch)
        except OutOfMemoryError:
            self.deaths += len(fetched)
            self.messages.append(whole)
            return
        if fault == "dies after complete":
            self.die(whole[0], whole[1], worker)
            return
        self.publish(completed.admitted)
        for each in failed:
            self.published += 1
            self.messages.append(([each], self.published, True))
        if fault == "dies after publish":
            self.die(whole[0], whole[1], worker)
            return
        frontier.note_confirmed("c", completed.name)

    def die(self, message: Sequence[FrontierUrl], own_id: int, worker: int) -> None:
        """Let the broker deliver the message again, to a new process. It repeats its pages at most."""
        self.deaths += len(message)
        self.messages.append((message, own_id, True))
        self.workers[worker] = Frontier(self.redis)

    def tick(self, *, dies: bool) -> None:
        frontier = Frontier(self.redis)
        with suppress(OutOfMemoryError):
            for refill in frontier.refill(stalled=60):
                if dies:
                    return
                self.publish(refill.admitted)
                if refill.admitted.urls:
                    frontier.confirm_refill(refill)


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


TROUBLES: st.SearchStrategy[tuple[Trouble, int]] = st.tuples(
    st.sampled_from(["", "lost", "refused"]), st.integers(3, 12)
)


@pytest.fixture
def proxy(redis_url: str) -> Iterator[RedisProxy]:
    with closing(RedisProxy(redis_url)) as proxy:
        yield proxy


@pytest.fixture
def redis(proxy: RedisProxy) -> Iterator[Redis]:
    """Yield a client as the program's, but for the pauses between its attempts."""
    options = {"retry": Retry(NoBackoff(), 5), "redis_connect_func": ConnectionCount()}
    with Redis.from_url(proxy.url, decode_responses=True, **options) as client:
        yield client


@given(SITES, st.integers(1, 4), st.integers(1, 4), STEPS, TROUBLES)
@hypothesis_settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_page_is_fetched_and_nothing_stays_open_whatever_dies_or_is_lost_or_refused(
    redis_url: str,
    proxy: RedisProxy,
    redis: Redis,
    links: list[list[int]],
    window: int,
    batch: int,
    steps: list[tuple[int, int, str]],
    troubles: tuple[Trouble, int],
) -> None:
    proxy.trouble = ""
    world, view = World(redis, dict(enumerate(links)), window, batch), CrawlView(get_redis(redis_url))
    proxy.trouble, proxy.every = troubles
    for position, worker, fault in steps:
        if fault.startswith("tick"):
            world.tick(dies=fault.endswith("dies"))
        elif world.messages:
            world.deliver(position, worker, fault)
        admitted = view.progress(DOMAIN).open
        again = sum(len(each) for each, _, again in world.messages if again)
        assert admitted <= window * batch + again + 1
    for _ in range(2_000):
        if world.messages:
            world.deliver(0, 0, "")
        elif view.open_messages(DOMAIN):
            world.tick(dies=False)
        else:
            break
    reachable, todo = {0}, [0]
    while todo:
        new = set(world.site[todo.pop()]) - reachable
        reachable |= new
        todo += new
    assert set(map(number, world.fetched)) == reachable
    assert (world.messages, view.open_messages(DOMAIN)) == ([], 0)
    assert sum(world.fetched.values()) <= len(reachable) + world.deaths
