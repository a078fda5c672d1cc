"""What workers count on a real Redis: many processes, killed ones, and a write whose answer was lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.connection import Connection

import pytest
from redis import Redis

from app import counters
from app.counters import CRAWL_BYTES, CRAWLED_URLS, CountTable, read_counts
from tests.support.redis_proxy import RedisProxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

#: Additions of each process.
_ADDITIONS = 500


@pytest.fixture
def proxy(redis_url: str) -> Iterator[RedisProxy]:
    with closing(RedisProxy(redis_url)) as proxy:
        yield proxy


def count(url: str, parent: Connection) -> None:
    """Count in a pool process; the parent kills some of them in the middle."""
    counters.begin(url)
    for _ in range(_ADDITIONS):
        CRAWLED_URLS.add("indexed", "")
        CRAWL_BYTES.add(amount=0.5)
    parent.send("begun")
    parent.recv()
    CRAWLED_URLS.add("gone", "404")
    counters.end()


def test_eight_processes_count_right_though_some_of_them_are_killed(redis_url: str) -> None:
    context = get_context("fork")
    # The parent counts, too, and its children write nothing of that.
    counters.begin(redis_url)
    try:
        CRAWLED_URLS.add("skipped", "robots")
        pipes = [context.Pipe() for _ in range(8)]
        processes = [context.Process(target=count, args=(redis_url, there)) for _, there in pipes]
        for process in processes:
            process.start()
        assert all(own_end.poll(60) and own_end.recv() == "begun" for own_end, _ in pipes)

        def flushed() -> bool:
            return read_counts(redis_url)[CRAWLED_URLS].get(("indexed", "")) == 8 * _ADDITIONS

        eventually(flushed, "each process writes while it works")
        for process in processes[:3]:
            assert process.pid
            os.kill(process.pid, signal.SIGKILL)
            process.join(30)
        for process, (own_end, _) in list(zip(processes, pipes, strict=True))[3:]:
            own_end.send("go on")
            process.join(30)
        counters.end()
    finally:
        counters._current = None
    found = read_counts(redis_url)
    assert found[CRAWLED_URLS] == {
        ("indexed", ""): 8 * _ADDITIONS,
        ("gone", "404"): 5,
        ("skipped", "robots"): 1,
    }
    assert found[CRAWL_BYTES] == {(): 8 * _ADDITIONS / 2}


def test_a_write_whose_answer_was_lost_counts_once(
    redis_url: str, proxy: RedisProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.counters._EVERY", 3_600.0)
    table = CountTable(Redis.from_url(proxy.url, socket_timeout=5, retry=None))
    table.add(CRAWL_BYTES.name, (), 3.0)
    assert table.flush()
    table.add(CRAWL_BYTES.name, (), 4.0)
    proxy.trouble = "lost"
    assert not table.flush()
    assert proxy.troubles
    assert read_counts(redis_url)[CRAWL_BYTES] == {(): 7.0}
    proxy.trouble = ""
    assert table.flush()
    assert read_counts(redis_url)[CRAWL_BYTES] == {(): 7.0}


def test_counts_of_another_release_are_left_out(redis_url: str, redis: Redis) -> None:
    redis.hset(counters.COUNTS, mapping={'["unknown"]': 1, f'["{CRAWLED_URLS.name}","one label"]': 1})
    found = read_counts(redis_url)
    assert not found[CRAWLED_URLS]
    assert found[CRAWL_BYTES] == {(): 0.0}
