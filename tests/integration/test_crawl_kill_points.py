"""A process that ends before any operation, or a Redis that loses replies or is full: its crawl is packed complete."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pytest
from amqp import spec
from amqp.abstract_channel import AbstractChannel
from redis import Redis
from redis.connection import AbstractConnection

from app.broker.errors import Postpone
from app.cli.context import operator_context
from app.crawl.page import MOST_PAGES
from app.crawl.record.crawls import latest_crawl
from app.operations.crawls import set_states
from app.pack.manifest import read_manifest
from app.redis_state.client import get_raw_redis, get_redis
from app.redis_state.run_id import RUN_ID
from app.storage.folder import FolderStore
from app.topology.queues import DEAD_SET
from config.settings import Settings
from tasks import base, pack, site, ticks, timers
from tasks.base import Context
from tests.servers.site import Site, page, redirect
from tests.support.broker import Broker
from tests.support.redis_proxy import RedisProxy, Trouble
from tests.support.task_context import task_context

pytestmark = pytest.mark.integration

TASKS = {
    "index+crawl": site.index_and_crawl,
    "index": site.index,
    "crawl": site.crawl,
    "page": site.page,
    "end_crawl": site.end_crawl,
    "pack_full": pack.pack_full,
    "pack_incremental": pack.pack_incremental,
    "start_timer": timers.start_timer,
    "sweep": ticks.sweep,
}
#: Redis commands that change something; most changes are scripts.
_WRITES = re.compile(rb"\*\d+\r\n\$\d+\r\n(EVAL|EVALSHA|MULTI|SET|SADD|SREM|ZADD|ZREM|HSET|HSETNX|HDEL|DEL|EXPIRE)\r")
#: Changes between two kills of one crawl: more than any message makes, which would otherwise never come to its end.
EVERY = 40
#: Two fetches of a host at once, so few that pages wait, and share messages. Of a crawl that loses Redis, only links of
#: the start page that the process has cached then lead to some pages.
FEW = {"HOST_CONCURRENCY": "2"}
QUEUES = ("site.index", "site.crawl", "site.page", "site.pack", "site.timer")


class Killed(BaseException):
    """Raised in place of an operation: the simulated end of the process."""


@dataclass
class World:
    """One process at a time that runs tasks, and ends before its change `left`, counted from 1, and each `every` later.

    A kill before something is read leaves broker, store and Redis as one before the next change does.
    """

    broker: Broker
    redis: Redis
    monkeypatch: pytest.MonkeyPatch
    left: int
    #: Zero for no further kill.
    every: int = 0
    #: Of its own for each world: a process caches what a crawl has seen.
    crawl_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    kills: int = 0
    running: bool = False
    #: Each with its id.
    messages: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    #: Ids of messages whose process was killed, and the number of messages of several pages.
    again: set[str] = field(default_factory=set)
    shared: int = 0
    _is_dying: bool = False

    def __post_init__(self) -> None:
        self._wrap(AbstractConnection, "send_packed_command", lambda command: _WRITES.match(b"".join(command)))
        for name in ("put", "put_all", "delete"):
            self._wrap(FolderStore, name)
        self._wrap(AbstractChannel, "send_method", lambda sig: sig[0] == spec.Basic.CLASS_ID)

    def begin(self, web: Site) -> None:
        """Start a crawl of a site."""
        self.messages.append(({"type": "index+crawl", "url": web.at("/"), "crawl_id": self.crawl_id}, self.crawl_id))

    @property
    def raw_redis(self) -> Redis:
        """A client with replies as bytes."""
        return get_raw_redis(base.context().settings.redis)

    def run(self, act: Callable[[], object], *, again: bool = False) -> bool:
        """Run a part of the program; return whether it came to its end. With `again`, repeat it if it was killed."""
        self.running = True
        try:
            act()
        except Killed:
            self.running = False
            self.kills, self.left = self.kills + 1, self.every
            base.context().publisher.close()
            # Its connections end with a process, also one whose preparation was not complete.
            self.redis.connection_pool.disconnect()
            self.raw_redis.connection_pool.disconnect()
            base._contexts.clear()
            self._let_leases_expire()
            return self.run(act) if again else False
        finally:
            self.running = False
        return True

    def deliver(self) -> bool:
        """Deliver one message, again if its process is killed; return False without one."""
        for queue in QUEUES:
            taken = [(json.loads(each.body), each.properties["message_id"]) for each in self.broker.take(queue)]
            # A look at the system is no part of a crawl.
            self.messages += [each for each in taken if each[0] != {"type": "watch"}]
        if not self.messages:
            return False
        payload, message_id = self.messages.pop(0)
        self.shared += "more" in payload
        fields = {name: value for name, value in payload.items() if name != "type"}
        task = TASKS[payload["type"]]
        # Celery marks what the broker delivers again. A message that was not is what a process is given that hung.
        again = message_id in self.again and self.kills % 2 == 1
        task.push_request(id=message_id, headers={}, delivery_info={"redelivered": again})
        try:
            if not self.run(lambda: task.run(**fields)):
                self.again.add(message_id)
                self.messages.append((payload, message_id))
        except Postpone:
            self.messages.append((payload, message_id))
        finally:
            task.pop_request()
        return True

    def tick(self) -> bool:
        """Tick at a time at which every timer is due; return whether the tick came to its end."""
        for domain in self.redis.zrange("perennial:timers", 0, -1):
            self.redis.zadd("perennial:timers", {str(domain): 0})
        try:
            return self.run(ticks.tick)
        except Postpone:
            return False

    def work(self, *, steps: int = 10_000) -> None:
        """Deliver messages and tick until nothing is left to do."""
        for _ in range(steps):
            if self.deliver():
                continue
            if self.tick() and not self.deliver() and not self.redis.zcard("perennial:timers"):
                return
        raise AssertionError(f"still at work: {self.messages}")

    def _wrap(self, owner: type, name: str, counts: Callable[[Any], object] = lambda _: True) -> None:
        operate = getattr(owner, name)

        def operate_or_die(this: Any, *args: Any, **kwargs: Any) -> Any:
            # Threads that renew leases and write counts work by the clock: their end is not the end of the process.
            by_the_clock = threading.current_thread().daemon
            if self.running and not by_the_clock and counts(args[0] if args else None):
                self.left -= 1
                # A dead process does nothing more, whatever its handlers of errors try.
                if self.left == 0 or (self.left < 0 and self._is_dying):
                    self._is_dying = True
                    raise Killed
            return operate(this, *args, **kwargs)

        self.monkeypatch.setattr(owner, name, operate_or_die)

    def _let_leases_expire(self) -> None:
        self._is_dying = False
        for key in self.redis.scan_iter("perennial:lease:*"):
            self.redis.delete(key)


@pytest.fixture
def process(
    request: pytest.FixtureRequest, environment: dict[str, str], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Context]:
    with task_context({**environment, **getattr(request, "param", FEW)}, settings, monkeypatch) as context:
        yield context


@pytest.fixture
def web() -> Iterator[Site]:
    routes = {
        "/": page("Home", links=["/a", "/moved"]),
        "/a": page("A", links=["/", "/b", "/d", "/e", "/f"]),
        "/moved": redirect("/c"),
        **{f"/{name}": page(name.upper() * 9) for name in "bcdef"},
    }
    with Site(routes) as site:
        yield site


def empty(process: Context) -> None:
    """Delete what former crawls stored."""
    for stat in chain.from_iterable(map(process.store.list, ("crawls/", "content/", "packs/"))):
        process.store.delete(stat.key)


def crawl(world: World, web: Site) -> None:
    """Crawl the site and pack it."""
    world.begin(web)
    world.work()


def crawl_with_stops(world: World, web: Site) -> None:
    """Pause the crawl on its way, and resume it."""
    world.begin(web)
    for _ in range(4):
        world.deliver()
    world.run(lambda: set_states(operator_context(), web.domain, "paused"), again=True)
    while world.deliver():
        pass
    assert base.context().frontier.progress(web.domain).state == "paused"
    world.run(lambda: set_states(operator_context(), web.domain, "running"), again=True)
    world.work()


def crawl_that_loses_redis(world: World, web: Site) -> None:
    """Lose all keys of Redis in the middle of the crawl."""
    world.begin(web)
    for _ in range(4):
        world.deliver()
    base.context().redis.flushdb()
    world.work()


def crawl_that_sets_redis_back(world: World, web: Site) -> None:
    """Bring Redis back in the middle of the crawl without its last writes, as another server process."""
    world.begin(web)
    for _ in range(5):
        world.deliver()
    snapshot = {key: world.raw_redis.dump(key) for key in world.raw_redis.scan_iter()}
    for _ in range(3):
        world.deliver()
    world.raw_redis.flushdb()
    for key, dumped in snapshot.items():
        assert dumped is not None
        world.raw_redis.restore(key, 0, dumped)
    world.redis.set(RUN_ID, "the run id of the former process")
    world.redis.client_kill_filter(_type="normal", skipme=True)
    world.work()


@pytest.mark.parametrize("step", [10, pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
@pytest.mark.parametrize(
    ("story", "process", "first"),
    [
        # The first kills of a story are before other operations than those of the other stories.
        (crawl, FEW, 2),
        (crawl_with_stops, FEW, 4),
        (crawl_that_sets_redis_back, FEW, 6),
        (crawl_that_loses_redis, FEW, 8),
        (crawl_that_loses_redis, {}, 5),
    ],
    indirect=["process"],
)
def test_a_process_that_is_killed_before_any_operation_costs_no_page_and_no_pack(
    process: Context,
    settings: Settings,
    web: Site,
    story: Callable[[World, Site], None],
    first: int,
    step: int,
) -> None:
    kills, shared, broker = 0, 0, Broker(settings.broker)
    broker.bind_new("mine")
    broker.bind_new("mine", exchange="perennial.events", key="#")
    for operation in range(min(first, step), EVERY + 1, step):
        base.context().redis.flushdb()
        empty(process)
        before = len(web.requests)
        with pytest.MonkeyPatch.context() as patch:
            world = World(Broker(settings.broker), process.redis, patch, left=operation, every=EVERY)
            story(world, web)
        kills += world.kills
        manifest, record = read_manifest(process.store, web.domain), latest_crawl(process.store, web.domain)
        assert record is not None
        assert (manifest.pages, record.state) == (7, "done"), operation
        shared += world.shared
        assert base.context().frontier.open_messages(web.domain) == 0
        assert world.broker.depth(DEAD_SET) == 0
        events = [json.loads(each.body) for each in broker.take("mine")]
        ends = {each["id"] for each in events if each.get("crawl_id") == world.crawl_id}
        assert len(ends) == 1 or (ends and story not in (crawl, crawl_with_stops)), operation
        assert manifest.sha256 in {each["sha256"] for each in events if each["type"] == "pack.written"}, operation
        fetched = [path for path in web.paths()[before:] if path != "/robots.txt"]
        # Eight pages and /sitemap.xml; a crawl that loses its keys may fetch them all again, and so may a message.
        once = 9 if story in (crawl, crawl_with_stops) else 18
        assert len(fetched) <= once + world.kills * MOST_PAGES, operation
    # A crawl makes more than 80 changes.
    assert kills >= 2 * EVERY // step
    assert shared or process.settings.host_concurrency > 2


@pytest.mark.parametrize(("trouble", "numbers"), [("lost", range(8, 24, 6)), ("refused", range(3, 11, 3))])
def test_a_redis_that_loses_replies_or_is_full_costs_no_page_no_pack_and_no_wait(
    environment: dict[str, str],
    settings: Settings,
    web: Site,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Trouble,
    numbers: range,
) -> None:
    # The pauses before a command is repeated are no part of the rule.
    monkeypatch.setattr("redis.retry.sleep", lambda _seconds: None)
    with closing(RedisProxy(settings.redis)) as proxy:
        own = {**environment, "REDIS_URL": proxy.url}
        for proxy.every in numbers:
            with task_context(own, settings, monkeypatch) as process, pytest.MonkeyPatch.context() as patch:
                get_redis(settings.redis).flushdb()
                empty(process)
                world = World(Broker(settings.broker), get_redis(settings.redis), patch, left=-1)
                proxy.trouble = trouble
                crawl(world, web)
                proxy.trouble = ""
                record = latest_crawl(process.store, web.domain)
                assert record is not None
                assert (read_manifest(process.store, web.domain).pages, record.id) == (7, world.crawl_id)
                assert (record.state, record.counts["indexed"]) == ("done", 7)
                # A sweep of a running crawl adds the soft-404 check, whose run finds that it is off.
                assert record.counts["done"] in (11, 12)
                assert process.frontier.open_messages(web.domain) == 0
        assert proxy.troubles > 20


@pytest.mark.parametrize("state", ["paused", "cancelled"])
def test_a_command_that_was_killed_between_store_and_redis_takes_effect_when_it_is_repeated(
    process: Context, settings: Settings, web: Site, state: Any
) -> None:
    for operation in range(1, 40):
        base.context().redis.flushdb()
        for stat in list(process.store.list("crawls/")):
            process.store.delete(stat.key)
        with pytest.MonkeyPatch.context() as patch:
            world = World(Broker(settings.broker), process.redis, patch, left=1_000)
            world.begin(web)
            world.deliver()
            world.left = operation
            world.run(lambda: set_states(operator_context(), web.domain, state), again=True)
            world.messages.clear()
        assert base.context().frontier.progress(web.domain).state == state, operation
        if not world.kills:
            break
    assert operation > 2
