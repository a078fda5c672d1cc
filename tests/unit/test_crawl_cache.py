"""What a process caches of crawls, however many there are."""

from __future__ import annotations

import pytest

from app.crawl.frontier.cache import CrawlCache

pytestmark = pytest.mark.unit


def test_seen_pages_are_cached_up_to_a_number_and_those_of_the_crawl_used_last_stay() -> None:
    cache = CrawlCache(pages=10)
    for crawl_id in "abc":
        cache.add_seen(crawl_id, map(str, range(4)), born="now")
    assert cache.unseen("a", "0123") == (set("0123"), "now")
    assert cache.unseen("b", "01234") == ({"4"}, "now")
    assert cache.unseen("c", "01234") == ({"4"}, "now")
    cache.add_seen("d", map(str, range(11)), born="now")
    assert cache.unseen("c", "0") == cache.unseen("d", "0") == ({"0"}, "now")
    cache.add_seen("c", map(str, range(10)), born="now")
    assert cache.unseen("c", "0123456789") == (set(), "now")


def test_little_is_kept_of_crawls_that_ended_long_ago() -> None:
    cache = CrawlCache(crawls=3)
    for number in range(100):
        cache.add_confirmed(str(number), "a page")
        cache.add_seen(str(number), ["page"], born="now")
    assert len(cache) == 3
    assert (cache.take_confirmed("99"), cache.take_confirmed("99")) == (["a page"], [])
    assert cache.take_confirmed("0") == []


def test_the_pages_of_a_crawl_that_redis_lost_are_forgotten() -> None:
    cache = CrawlCache()
    assert cache.unseen("c", ["page"]) == ({"page"}, "")
    cache.add_seen("c", ["page"], born="first")
    cache.add_seen("c", ["other"], born="first")
    assert cache.unseen("c", ["page", "other"]) == (set(), "first")
    cache.add_seen("c", ["other"], born="second")
    assert cache.unseen("c", ["page", "other"]) == ({"page"}, "second")
