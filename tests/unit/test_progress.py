"""The progress of a crawl: its rate, what the known pages take, and its end."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis import RedisError
from rich.console import Console

from app.cli import progress as shown
from app.cli.progress import progress_text, watch
from app.crawl.frontier.values import Crawl, Progress
from app.crawl.reports import first_crawls
from app.crawl.reports.first_crawls import CrawlsInRedis, FirstCrawl

pytestmark = pytest.mark.unit

CRAWL = Crawl("c", "a.gov", "https://a.gov/", datetime.now(UTC) - timedelta(seconds=100_000), recorded=True)
BEGUN = Progress(
    crawl=CRAWL,
    seen=1, open=1, waiting=0, done=0, dead=0, indexed=0, idle=0.0, delay=1.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "former_pages", "text"),
    [
        ({"seen": 701, "waiting": 699}, 0, "1 of 701 known pages, 700 wait, one request in 1 s, at least 0:11:40 left"),
        ({}, 701, "0 of 1 known pages, 1 wait, one request in 1 s, at least 0:11:41 left"),
        (
            {"seen": 50_150, "done": 50_000, "waiting": 150, "open": 0},
            *(0, "50000 of 50150 known pages, 0.5 pages/s, 150 wait, one request in 1 s, at least 0:05:00 left"),
        ),
        ({"delay": 0.0, "waiting": 1}, 0, "0 of 1 known pages, 1 wait"),
        ({"state": "paused"}, 0, "0 of 1 known pages, 1 wait, one request in 1 s, paused"),
    ],
)
def test_a_text_has_the_rate_and_what_the_known_pages_take_at_least(
    changes: dict[str, Any], former_pages: int, text: str
) -> None:
    crawl = replace(CRAWL, started=datetime.now(UTC) - timedelta(seconds=100_000))
    assert progress_text(replace(BEGUN, crawl=crawl, **changes), former_pages=former_pages) == text


@pytest.mark.parametrize(("terminal", "text"), [(True, "2 of 2 known pages"), (False, "0 of 1 known pages")])
def test_the_watch_begins_with_the_next_crawl_and_ends_with_it(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, text: str
) -> None:
    monkeypatch.setattr(shown, "EVERY", 0.0)
    former = replace(BEGUN, crawl=replace(CRAWL, id="former"), open=0)
    done = replace(BEGUN, seen=2, done=2, open=0)
    looks = iter([former, former, BEGUN, replace(BEGUN, seen=2, waiting=1), done])
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=200)
    assert watch(lambda: next(looks), console=console, former="former") == done
    assert text in out.getvalue()


def test_a_line_follows_as_soon_as_the_pages_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "EVERY", 0.0)
    begun = replace(BEGUN, seen=701, waiting=699)
    looks = iter([BEGUN, BEGUN, begun, replace(begun, waiting=698), replace(begun, open=0, waiting=0)])
    out = io.StringIO()
    watch(lambda: next(looks), console=Console(file=out, width=200))
    assert out.getvalue().splitlines() == [
        "0 of 1 known pages, 1 wait, one request in 1 s, at least 0:00:01 left",
        "1 of 701 known pages, 700 wait, one request in 1 s, at least 0:11:40 left",
    ]


def test_an_answer_about_first_crawls_that_has_expired_is_not_given_while_redis_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def progress(domain: str) -> Progress:
        if domain != CRAWL.domain:
            raise RedisError("silent")
        return BEGUN

    monkeypatch.setattr(first_crawls, "KEPT", 0.0)
    crawls = CrawlsInRedis("redis://127.0.0.1:1")
    monkeypatch.setattr(crawls._view, "progress", progress)
    found = [crawls([domain]) for domain in (CRAWL.domain, "b.gov", CRAWL.domain)]
    assert found == [[FirstCrawl(CRAWL.domain, 0, 1)], (), ()]
