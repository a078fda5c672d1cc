"""The delay and each budget against traps can be set for one site; `status` names the budgets that stopped URLs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from app.crawl.frontier.values import Host
from app.crawl.urls import Target
from app.sites.site import Site as Declared
from app.sites.status import status
from app.sites.stored import add_site
from tasks.base import Context
from tests.integration.test_recrawl import crawl, process
from tests.servers.site import Site, in_letters, page, redirect, robots

pytestmark = pytest.mark.integration

__all__ = ["process"]

BUDGETS = {
    "max_depth": 5,
    "max_query_variants": 3,
    "max_pattern_pages": 4,
    "max_identical_texts": 2,
    "max_redirects": 2,
    "max_repeated_segments": 1,
}


def test_a_crawl_ends_within_the_budgets_of_its_site(process: Context) -> None:
    facets = [f"/shop?colour={number}&size=1" for number in range(7)]
    listed = [f"/list/x?page={number}" for number in range(7)]
    same = [f"/month/{number}" for number in range(7)]
    hops = [f"/hop/{name}" for name in ("a", "b", "c", "d", "e")]
    with Site({"/": page("Home", "Text", links=[*facets, *listed, *same, hops[0], "/f/x/f"])}) as site:
        for number, path in enumerate((*facets, *listed)):
            site.set(path, page("Page", f"Text of {in_letters(number)}"))
        for path in same:
            site.set(path, page("Month", "No events"))
        for path, onward in pairwise(hops):
            site.set(path, redirect(onward))
        add_site(process.store, Declared.of(site.domain, BUDGETS))
        crawl(process, site, "one")
        found = status(site.domain, settings=process.settings)
        paths = site.paths()
    requested = {start: sum(path.startswith(start) for path in paths) for start in ("/shop", "/list/", "/hop/")}
    assert requested == {"/shop": 3, "/list/": 4, "/hop/": 3}
    assert found.reasons["query-variants"] == 4
    assert found.reasons["pattern-pages"] == 3
    assert found.reasons["identical-texts"] > 0
    assert (found.reasons["too-many-redirects"], found.reasons["repeated-segments"]) == (1, 1)
    assert found.budgets == {name: value for name, value in BUDGETS.items() if name != "max_depth"}
    assert "stopped by max_query_variants 3, max_pattern_pages 4, max_identical_texts 2" in str(found)


@pytest.mark.parametrize(("of_site", "of_robots_txt", "delay"), [(2, 5, 5), (5, 2, 5), (5, "", 5), (0, 0, 0)])
def test_a_host_gets_one_request_in_the_longer_of_the_delays_of_its_site_and_of_its_robots_txt(
    process: Context, of_site: float, of_robots_txt: float | str, delay: float
) -> None:
    with Site({"/robots.txt": robots(f"User-agent: *\nCrawl-delay: {of_robots_txt}")}) as site:
        add_site(process.store, Declared.of(site.domain, {"delay": of_site}))
        concurrency = 1 if delay else process.settings.host_concurrency
        found = process.steps.begin(Target(site.url, site.domain, site.url)).host
    assert found == Host(site.domain, delay, concurrency)
