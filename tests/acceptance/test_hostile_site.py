"""A crawl of a site full of traps ends by itself, within its budgets, has every page, and disturbs no other site."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from app.crawl.frontier.frontier import Frontier
from app.crawl.record.crawls import list_crawls
from app.crawl.record.segments import read_entries
from app.crawl.reports.crawl_report import read_report
from app.crawl.traps import MAX_REDIRECTS, TrapLimits, pattern_of
from app.crawl.urls import canonical_key
from app.sites.status import status
from app.state.client import get_redis
from app.storage.open import open_store
from config.settings import Settings
from tests.servers.hostile import LISTS, REASONS, HostileSite
from tests.servers.many_sites import ManySites
from tests.support.system import System, running_system
from tests.support.waiting import eventually
from tests.support.watch import watching

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

MIB = 2**20
#: Pages of each neighbour.
NEIGHBOUR_PAGES = 20
#: URLs of the shop without a parameter, or with one: the budget counts those with more.
PLAIN_SHOP = 1 + 28


def packed_pages(system: System, domain: str) -> dict[str, str]:
    """Return the titles of a domain's packed pages by path."""
    with contextlib.closing(sqlite3.connect(system.pack(domain))) as pack:
        return dict(pack.execute("SELECT path, title FROM pages"))


def longest_rows(site: HostileSite, urls: Iterable[str]) -> Counter[str]:
    """Return the longest row of texts met before below each directory pattern, in tenths.

    `urls` are in the order in which they were completed.
    The first copy below a pattern of a text from another one counts a tenth, and a new text ends the row.
    """
    shortest: dict[str, tuple[int, str]] = {}
    copies: set[tuple[str, str]] = set()
    rows, longest = Counter[str](), Counter[str]()
    for key in map(canonical_key, urls):
        text, pattern, length = site.text_of(key), pattern_of(key), len(key)
        if not text:
            continue
        former, source = shortest.get(text, (None, ""))
        if former is None or length < former:
            shortest[text] = (length, pattern)
        if former is None:
            rows[pattern] = 0
        elif length >= former:
            is_copy = source != pattern and (text, pattern) not in copies
            copies |= {(text, pattern)} if is_copy else set()
            rows[pattern] += 1 if is_copy else 10
        longest[pattern] = max(longest[pattern], rows[pattern])
    return longest


def test_a_crawl_of_a_hostile_site_ends_within_its_budgets_with_every_page_and_disturbs_no_other(
    environment: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    redis = get_redis(settings.redis)
    with contextlib.ExitStack() as running:
        neighbours = running.enter_context(ManySites(2, NEIGHBOUR_PAGES))
        first, second = neighbours.domains
        site = running.enter_context(HostileSite(neighbour=f"http://{first}/5"))
        ports = ",".join(domain.rpartition(":")[2] for domain in neighbours.domains)
        changed = {"SOFT_404_PROBE": "true", "RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "1", "ALLOW_PORTS": ports}
        system = running.enter_context(running_system({**environment, **changed}, settings, tmp_path))
        system.post("index+crawl", url=f"http://{first}/")
        packed = system.packed(first)
        with watching(redis, system.worker.process.pid) as used:
            system.post("index+crawl", url=site.url)
            eventually(lambda: site.hazard_hits()["real"] > 20, "the hostile site is crawled", seconds=200)
            system.post("index+crawl", url=f"http://{second}/")
            system.post("index+crawl", url=f"http://{site.other_domain}/")
            assert system.packed(second, seconds=200).pages == NEIGHBOUR_PAGES
            system.packed(site.domain, seconds=400)

        moved = status(site.other_domain, settings=settings).reasons
        assert moved == {"moved-to-known-site": 1}
        assert system.manifest(first) == packed
        assert packed.pages == NEIGHBOUR_PAGES
        assert [crawl.moves for crawl in list_crawls(open_store(settings.store), first)] == [0]

        check_pages(system, site, settings)
        check_requests(site, settings)
        print(
            f"Redis +{used.redis / MIB:.1f} MB, a process +{used.process / MIB:.1f} MB, {used.tick:.1f} s between ticks"
        )
        assert not re.findall(r"Dropped \S*tick.*", system.worker.log)
        assert used.tick < 30
        assert used.redis < 50 * MIB
        assert used.process < 300 * MIB


def check_pages(system: System, site: HostileSite, settings: Settings) -> None:
    """Assert that each real page is packed, and that each URL has the reason that it should have."""
    pages = packed_pages(system, site.domain)
    assert {path: pages.get(path) for path in site.real} == {path: f"Page {w}" for path, w in site.real.items()}
    progress = system.progress(site.domain)
    assert (progress.open, progress.waiting, progress.dead) == (0, 0, 1)
    reasons = status(site.domain, settings=settings).reasons
    budgets = {"query-variants", "identical-texts", "repeated-segments", "too-many-redirects"}
    assert {reason for reason in budgets if reasons.get(reason)} == budgets, reasons
    report = read_report(Frontier(get_redis(settings.redis), ttl=60), open_store(settings.store), site.domain)
    assert report is not None
    rows = list(report.rows())
    found = {str(row["url"]): str(row["reason"]) for row in rows}
    [sitemap] = [str(row["detail"]) for row in rows if row["url"] == site.at("/sitemap.xml")]
    assert sitemap.startswith("0 of 0 URLs"), "the sitemap's markup was not read as a sitemap"
    wrong = {url: reason for url, reason in found.items() if reason not in site.reasons(url)}
    assert not wrong, Counter(wrong.values())
    assert {path: found.get(site.at(path)) for path in REASONS} == REASONS


def check_requests(site: HostileSite, settings: Settings) -> None:
    """Assert that no URL was requested twice, and that each trap ended within its budget.

    Beyond a budget that counts texts, only pages are requested that are in work when it is spent.
    """
    store = open_store(settings.store)
    again = {path: n for path, n in Counter(site.paths()).items() if n > 1 and path not in ("/failing", "/robots.txt")}
    # Both names of the site have its start page.
    assert again == {"/": 2}
    hits = site.hazard_hits()
    assert hits["go"] == MAX_REDIRECTS + 1
    assert hits["shop"] <= TrapLimits().query_variants + PLAIN_SHOP
    assert hits["lists"] == LISTS
    [crawl] = list_crawls(store, site.domain)
    requested = (entry.url for entry in read_entries(store, crawl.ref) if entry.status)
    rows = longest_rows(site, requested)
    most = 10 * (TrapLimits().identical_texts + settings.host_concurrency)
    assert max(rows.values()) <= most, rows
    print(f"{len(site.paths())} requests: {hits}")
