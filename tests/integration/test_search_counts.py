"""Counts of searches and clicks over real HTTP: only where a site wants them, and only from the search page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import httpx
import pytest

from app.search.contract import BestBet
from app.sites.search_counter import THRESHOLD, SearchCounter
from app.sites.search_reports import SearchReport, read_reports, total
from app.sites.site import Site
from app.sites.stored import add_site
from app.web.application import create_app
from tests.packs import page, write_pack
from tests.support.scripted import ScriptedSearchClient
from tests.support.stores import folder_store
from tests.support.web import served

pytestmark = pytest.mark.integration

DOMAIN = "site.example"
CLICK = {"domain": DOMAIN, "q": "amber", "url": "https://site.example/1"}


class Counted:
    """The search page of two sites, of which one is counted."""

    def __init__(self, folder: Path) -> None:
        pages = [page(f"/{number}", "Amber", f"amber {number}", lang="en") for number in range(12)]
        other = write_pack(folder / "2.sqlite", pages, domain="off.example")
        self.searches = ScriptedSearchClient([write_pack(folder / "1.sqlite", pages), other])
        self._store = folder_store(folder / "store")
        add_site(self._store, Site.of(DOMAIN, {"search_report": True}))
        self._counter = SearchCounter(self._store, lambda: {DOMAIN})
        self.app = create_app(self.searches, search_counter=self._counter)

    def report(self, domain: str = DOMAIN) -> SearchReport:
        """Return what was counted of a domain."""
        self._counter.add_to_reports()
        return total(found for _, found in read_reports(self._store, domain, since=date.min))


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    return Counted(tmp_path)


@pytest.fixture
def client(counted: Counted) -> Iterator[httpx.Client]:
    with served(counted.app) as client:
        yield client


def test_the_first_page_of_results_counts_as_a_search(client: httpx.Client, counted: Counted) -> None:
    for _ in range(THRESHOLD):
        assert client.get("/", params={"q": "zebra"}).status_code == 200
    for parameters in ({}, {"page": "2"}, {"sort": "date"}, {"lang": "en"}):
        client.get("/", params={"q": "amber", "domain": DOMAIN, **parameters})
    client.get("/", params={"q": "zebra", "domain": "off.example"})
    client.get("/api/v1/search", params={"q": "zebra"})
    found = counted.report()
    assert (found.searches, found.without_results, found.queries) == (THRESHOLD + 1, THRESHOLD, {"zebra": THRESHOLD})
    assert not counted.report("off.example")


def test_a_search_with_a_best_bet_is_not_without_results(client: httpx.Client, counted: Counted) -> None:
    best_bets = (BestBet(url="https://site.example/", title="Home", domain=DOMAIN),)
    counted.searches.change = lambda result: replace(result, best_bets=best_bets)
    assert 'data-domain="site.example"' in client.get("/", params={"q": "zebra", "domain": DOMAIN}).text
    assert "data-domain" not in client.get("/", params={"q": "amber", "domain": "off.example"}).text.split("hits")[1]
    assert (counted.report().searches, counted.report().without_results) == (1, 0)


def test_a_click_is_a_post_of_the_search_page_without_a_body(client: httpx.Client, counted: Counted) -> None:
    for _ in range(THRESHOLD):
        answer = client.post("/clicks", params=CLICK, headers={"Sec-Fetch-Site": "same-origin"})
        assert (answer.status_code, answer.content) == (204, b"")
        assert "location" not in answer.headers
    assert client.post("/clicks", params=CLICK, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 204
    assert client.post("/clicks", params=CLICK | {"domain": "off.example"}).status_code == 204
    assert client.post("/clicks", params=CLICK, content=b"x").status_code == 413
    assert client.post("/clicks", params={"domain": DOMAIN}).status_code == 400
    assert client.post("/clicks", params=CLICK | {"url": "https://evil.example/"}).status_code == 204
    assert client.get("/clicks", params=CLICK).status_code == 404
    found = counted.report()
    assert (found.clicks, found.clicked) == (THRESHOLD + 1, {("amber", "https://site.example/1"): THRESHOLD})


def test_clicks_are_limited_for_each_address(counted: Counted) -> None:
    with served(create_app(counted.searches, rate_limit="3/hour")) as client:
        assert [client.post("/clicks", params=CLICK).status_code for _ in range(4)] == [204, 204, 204, 429]
