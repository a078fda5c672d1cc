"""Identical texts over a whole crawl: copies of an honest site stay, traps end within a stated number of requests."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

import pytest

from app.crawl.frontier.frontier import Frontier
from app.crawl.frontier.values import Crawl, FrontierUrl, Host
from app.crawl.traps import TrapLimits, text_hash
from app.redis_state.client import get_redis
from tests.servers.site import in_letters
from tests.support.completing import complete_one, enter_one

pytestmark = pytest.mark.integration

BASE, LIMIT, WINDOW = "https://a.gov", 20, 8
HOST = Host("a.gov", delay=0, concurrency=WINDOW)
LANGUAGES = ("en", "da", "de", "es", "fr", "ja", "ko", "pt-br", "ru", "tr", "zh-cn", "it")
PAGES = [f"/p{in_letters(number)}" for number in range(60)]


@pytest.fixture(autouse=True)
def _small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.crawl.frontier.frontier.TrapLimits", partial(TrapLimits, identical_texts=LIMIT))


#: Returns the text of a page and what it links to.
Site = Callable[[str], tuple[str, Sequence[str]]]


def crawled(redis_url: str, site: Site) -> list[str]:
    """Crawl a site by the frontier alone, with the reply of each completion lost once; return the requested paths."""
    frontier = Frontier(get_redis(redis_url))
    frontier.begin(Crawl("c", "a.gov", f"{BASE}/", datetime.now(UTC), recorded=True))
    frontier.rebuild("c", [], [FrontierUrl(f"{BASE}/", f"{BASE}/", 0)])
    [refill] = frontier.refill(stalled=60)
    waiting, requested = deque(refill.admitted.urls), []
    while waiting:
        url, depth = waiting[0].url, waiting.popleft().depth
        text, links = "", list[str]()
        if not enter_one(frontier, "c", "a.gov", FrontierUrl(url, url, depth), HOST, message_id=url).spent:
            requested.append(path := url.removeprefix(BASE))
            body, found = site(path)
            links = [*found]
            text = text_hash("", body, path)
        pages = [FrontierUrl(BASE + link, BASE + link, depth + 1) for link in links]
        for _ in range(2):
            done = complete_one(frontier, "c", "page", url, host=HOST, links=pages, text=text, max_pages=10_000)
        waiting += done.admitted.urls
    return requested


def test_a_manual_in_twelve_languages_is_crawled_whole_though_nearly_all_its_translations_are_copies(
    redis_url: str,
) -> None:
    def manual(path: str) -> tuple[str, Sequence[str]]:
        language, _, name = path[1:].partition("/")
        if not name:
            return f"index {language}", [f"/{each}/" for each in LANGUAGES] + [f"/{language}{each}" for each in PAGES]
        return f"text {name} {language if (language, name) == ('tr', PAGES[50][1:]) else ''}", []

    requested = crawled(redis_url, lambda path: manual("/en/" if path == "/" else path))
    assert {f"/{language}{path}" for language in LANGUAGES for path in PAGES} <= set(requested)
    assert len(requested) == len(set(requested))


#: The first URL of each trap, and how many texts it has that no other page has.
TRAPS = {
    "words": ("/old/a", 1),
    "calendar": ("/calendar/2026/1", 12),
    "sessions": ("/s/1/pa", 0),
    "mirror": ("/m/a", 0),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_ends_within_its_budget_and_no_real_page_is_lost(redis_url: str, trap: str) -> None:
    """A new text begins the row again. Beyond the budget, each real page has one first copy, and pages are in work."""
    chosen, (start, texts) = random.Random(1), TRAPS[trap]

    def real(name: str, prefix: str) -> tuple[str, Sequence[str]]:
        near = [PAGES[(PAGES.index(f"/{name}") + step) % len(PAGES)] for step in (1, 2, 3)]
        return f"text {name}", [*near, *(prefix + each for each in near)] if prefix else near

    def site(path: str) -> tuple[str, Sequence[str]]:
        words = [in_letters(chosen.randrange(10**6)) for _ in range(9)]
        match path.split("/"):
            case ["", "old", _]:
                return "nothing here", [f"/old/{word}" for word in words]
            case ["", "calendar", year, month]:
                onward = [f"/calendar/{int(year) + 1}/{month}", f"/calendar/{year}/{int(month) % 12 + 1}"]
                return f"month {in_letters(int(month))}", onward
            case ["", "m", _]:
                return f"text {chosen.choice(PAGES)[1:]}", [f"/m/{word}" for word in words]
            case ["", "s", _, name]:
                return real(name, f"/s/{chosen.randrange(10**9)}")
            case ["", ""]:
                return "home", PAGES
            case ["", name]:
                return real(name, f"/s/{chosen.randrange(10**9)}" if trap == "sessions" else "")
        raise AssertionError(path)

    def with_trap(path: str) -> tuple[str, Sequence[str]]:
        text, links = site(path)
        return text, [*links, start] if path == PAGES[-1] else links

    requested = crawled(redis_url, with_trap)
    trapped = [path for path in requested if path.startswith(start[:3])]
    assert set(PAGES) <= set(requested)
    assert LIMIT <= len(trapped) <= LIMIT * (texts + 1) + len(PAGES) + WINDOW
