"""A crawl of a site full of traps ends by itself, within its budgets, and has every real page."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from app.crawl.crawl_report import read_report
from app.crawl.frontier import Frontier
from app.crawl.traps import MAX_REDIRECTS
from app.state.client import get_redis
from app.status import status
from app.storage.open import open_store
from config.settings import Settings
from tests.servers.hostile import REASONS, HostileSite
from tests.support.system import System, running_system

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

#: With a few requests for robots.txt and for pages that were in work when a budget was spent.
MOST_REQUESTS = 1_000


def packed_pages(system: System, domain: str) -> dict[str, str]:
    """Return the titles of a domain's packed pages by path."""
    with contextlib.closing(sqlite3.connect(system.pack(domain))) as pack:
        return dict(pack.execute("SELECT path, title FROM pages"))


def print_table(found: dict[str, str]) -> None:
    """Print the number of URLs by the first part of their path and by reason; pytest shows it with `-s`."""
    counted = Counter((url.split("/")[3].partition("?")[0], reason) for url, reason in found.items())
    print(*(f"{first:25} {reason:20} {number}" for (first, reason), number in sorted(counted.items())), sep="\n")


def test_a_crawl_of_a_hostile_site_ends_by_itself_with_every_page(
    environment: dict[str, str], settings: Settings, tmp_path: Path
) -> None:
    changed = {"SOFT_404_PROBE": "true", "RETRY_TIMEOUT_MS": "100", "RETRY_MAX": "1"}
    with HostileSite() as site, running_system({**environment, **changed}, settings, tmp_path) as system:
        system.post("index+crawl", url=site.url)
        system.packed(site.domain, seconds=200)
        hits = site.hazard_hits()
        assert sum(hits.values()) <= MOST_REQUESTS, hits
        pages = packed_pages(system, site.domain)
        assert {path: pages.get(path) for path in site.real} == {path: f"Page {w}" for path, w in site.real.items()}
        progress = system.progress(site.domain)
        assert (progress.open, progress.waiting, progress.dead) == (0, 0, 1)
        assert hits["go"] == MAX_REDIRECTS + 1
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
        print_table(found)
