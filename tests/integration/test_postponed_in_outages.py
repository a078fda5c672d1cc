"""Tasks while Redis or the store is full, fails or is silent: each message is postponed, and spends no retry."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial

import pytest
from redis import Redis, ResponseError

from app.broker.errors import Postpone
from app.crawl.frontier.values import Crawl
from app.pack.manifest import read_manifest
from app.storage import s3
from app.storage.folder import FolderStore, watch_disk
from app.storage.layout import content_key, page_id
from config.settings import Settings
from tasks.base import Context, _note_hang
from tasks.pack import pack_full, pack_incremental
from tasks.site import crawl, index, index_and_crawl
from tasks.ticks import tick
from tasks.timers import reset_timer, start_timer
from tests.servers.site import Answer, Request, Site, page, reply
from tests.support.hung_disk import hung_disk
from tests.support.limits import full_disk
from tests.support.proxy import Proxy
from tests.support.task_context import task_context
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


@pytest.fixture
def site() -> Iterator[Site]:
    with Site({"/": page("Home", "words")}) as site:
        yield site


@pytest.fixture
def process(environment: dict[str, str], settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    """Return the context of this process as in a worker, with the settings of the test."""
    with task_context(environment, settings, monkeypatch) as context:
        yield context


@pytest.fixture
def private_redis(session_services: Settings, redis_url: str) -> Redis:
    """Return a client of a Redis whose settings a test may change."""
    if session_services.redis_url.get_secret_value():
        pytest.skip("the Redis is a given one")
    return Redis.from_url(redis_url)


@contextmanager
def full(redis: Redis) -> Iterator[None]:
    """Let Redis refuse every write in the block, as at its limit of memory."""
    former = str(redis.config_get("maxmemory")["maxmemory"])
    redis.config_set("maxmemory", 1)
    try:
        yield
    finally:
        redis.config_set("maxmemory", former)


def calls(site: Site) -> dict[str, Callable[[], object]]:
    """Return a call of each task that writes to Redis."""
    url, domain = site.at("/"), site.domain
    return {
        "index+crawl": lambda: index_and_crawl(url=url),
        "index": lambda: index(url=url),
        "crawl": lambda: crawl(url=url, crawl_id="c"),
        "start_timer": lambda: start_timer(domain=domain),
        "reset_timer": lambda: reset_timer(domain=domain),
        "pack_full": lambda: pack_full(domain=domain),
        "pack_incremental": lambda: pack_incremental(domain=domain),
        "tick": tick,
    }


def test_each_message_waits_while_redis_is_full_and_runs_when_it_has_memory(
    process: Context, private_redis: Redis, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with full(private_redis):
        for call in calls(site).values():
            with pytest.raises(Postpone, match="Redis: "):
                call()
    assert site.paths() == []
    assert [each for each in caplog.messages if "Redis is unavailable" in each][1:] == [], "one line a minute"
    for call in calls(site).values():
        call()
    assert b"words" in process.store.get(content_key(site.domain, page_id(site.at("/")))).data


def test_a_command_that_redis_refuses_for_itself_spends_the_messages_budget(process: Context, site: Site) -> None:
    process.redis.set("perennial:crawl:c", "not a hash")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        crawl(url=site.at("/"), crawl_id="c")


def test_while_redis_is_silent_a_dead_page_is_noted_later_and_the_event_loop_does_not_wait_for_long(
    environment: dict[str, str], settings: Settings, redis_url: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy(redis_url)
    message = {"url": site.at("/"), "domain": site.domain, "crawl_id": "c"}
    with task_context({**environment, "REDIS_URL": proxy.url}, settings, monkeypatch) as process:
        process.frontier.begin(Crawl("c", site.domain, site.at("/"), datetime.now(UTC)))
        proxy.hold()
        began = time.monotonic()
        with pytest.raises(Postpone, match="Redis: "):
            crawl.on_dead_letter((), message)
        assert time.monotonic() - began < 8
        proxy.let_go()
        crawl.on_dead_letter((), message)
        assert process.frontier.progress(site.domain).dead == 1
    proxy.close()


def test_a_page_waits_while_the_disk_of_the_store_is_full_and_a_line_says_why(
    process: Context, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with full_disk(), pytest.raises(Postpone, match="the store is unavailable"):
        index(url=site.at("/"))
    [line] = [each for each in caplog.messages if each.startswith("Circuit breaker of the store opened: ")]
    assert line.endswith("File too large")  # So a file meets the limit of this process in place of a full disk.
    process.store_breaker.redis.flushdb()
    index(url=site.at("/"))
    assert b"words" in process.store.get(content_key(site.domain, page_id(site.at("/")))).data


def test_a_hung_disk_opens_the_circuit_breaker_and_a_run_at_its_time_limit_waits(
    process: Context, site: Site, settings: Settings
) -> None:
    index(url=site.at("/"))
    assert index.on_time_limit() is None
    assert isinstance(process.store, FolderStore)
    site.set("/", page("Home", "other words"))
    end = watch_disk(process.store, partial(_note_hang, process.store_breaker), hang_seconds=0.2, interval=0.1)
    writing = threading.Thread(target=index, kwargs={"url": site.at("/")})
    with hung_disk(process.store.root):
        writing.start()
        eventually(lambda: process.store_breaker.seconds_open() > 0, "the circuit breaker is open")
        postpone = index.on_time_limit()
        assert isinstance(postpone, Postpone)
        assert "the store is unavailable" in postpone.why
    writing.join()
    end()
    assert b"other words" in process.store.get(content_key(site.domain, page_id(site.at("/")))).data


def test_a_pack_waits_while_the_disk_of_the_packer_is_full(
    process: Context, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(url=site.at("/"))
    usage = namedtuple("usage", ["total", "used", "free"])
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda folder: usage(2**40, 2**40, 0))
        for call in (pack_full, pack_incremental):
            with pytest.raises(Postpone, match="the disk is full here"):
                call(domain=site.domain)
    pack_incremental(domain=site.domain)
    assert read_manifest(process.store, site.domain).pages == 1


@pytest.mark.parametrize("status", [503, 507, None], ids=["fails", "is full", "is silent"])
def test_a_page_waits_while_the_bucket_takes_nothing(
    environment: dict[str, str], settings: Settings, site: Site, monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    def failing(request: Request) -> Answer:
        missing = request.method in ("GET", "HEAD")
        return reply("<Error><Code>Failing</Code></Error>", status=404 if missing else status or 0)

    # Requests are short and not repeated.
    monkeypatch.setattr(s3, "READ_TIMEOUT", 0.2)
    monkeypatch.setattr(s3, "ATTEMPTS", 1)
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    bucket = {**environment, **keys, "AWS_EC2_METADATA_DISABLED": "true"}
    with Site() as server, socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(server, "route", failing)
        endpoint = server.domain if status is not None else f"127.0.0.1:{silent.getsockname()[1]}"
        bucket["STORE_URL"] = f"s3://bucket?endpoint=http://{endpoint}"
        with task_context(bucket, settings, monkeypatch) as process:
            with pytest.raises(Postpone, match="the store is unavailable"):
                index(url=site.at("/"))
            assert process.store_breaker.seconds_open() > 0
